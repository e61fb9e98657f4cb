"""The memory of restarts is bounded by max_batch, not by their number."""

from __future__ import annotations

import subprocess
import sys

from support.patience import PATIENCE

SCRIPT = """
import resource, torch, pdpgd

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Conv2d(1, 4, 5, stride=4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 10)
).eval()
images = torch.rand(1000, 1, 28, 28)
labels = model(images).argmax(1)

# What the model itself needs for as many rows as the attack may play together.
config = pdpgd.PDPGDConfig(steps=2, restarts=100, finetune_steps=2)
leaf = images[: config.max_batch].clone().requires_grad_()
torch.autograd.grad(model(leaf).sum(), leaf)
before = peak()
result = pdpgd.pdpgd(model, images, labels, norm="linf", config=config)
assert int(result.backwards.min()) >= 200
print(peak() - before)
"""


def test_a_thousand_images_with_a_hundred_restarts_stay_within_2_gib() -> None:
    process = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=PATIENCE)
    assert process.returncode == 0, process.stderr
    assert int(process.stdout) < 2 * 2**30
