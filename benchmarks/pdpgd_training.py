"""Compare nets trained with PDPGD and with PGD at the same cost, at the thresholds of the paper.

    python benchmarks/pdpgd_training.py trained/mnist-linf-at trained/mnist-linf-pdpgd ...

Each net is attacked, in the norms it was trained against, by PGD (40 steps, 5 restarts) at every threshold and by PDPGD
or PDGD (authors' settings); a sample counts as robust at a threshold only if it withstands both.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

from pdpgd import PDGDConfig, paper_config, pdgd, pdpgd
from pdpgd.attacks.pgd import PGDConfig, pgd
from pdpgd.data.loading import load_data
from pdpgd.models.architectures import architecture_by_name
from pdpgd.models.weights import load_weights
from pdpgd.models.zoo import ModelCard

# Thresholds of the paper for the nets trained against each norm.
THRESHOLDS = {"linf": (0.2, 0.25, 0.3, 0.325, 0.35), "l2": (1.0, 1.5, 2.0, 2.5, 3.0)}


def main() -> None:
    """Print the robust accuracies of each net."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("nets", nargs="+", type=Path, help="paths without a suffix: FOLDER/NAME")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    images, labels = load_data("mnist-1000").batch(range(options.images))
    for path in options.nets:
        card = ModelCard.read(path.with_suffix(".json"))
        model = architecture_by_name(card.architecture).untrained()
        load_weights(model, path.with_suffix(".safetensors"))
        for norm in [threat["norm"] for threat in card.training["threats"]]:
            shares = robust_shares(model.eval(), images, labels, norm)
            figures = "  ".join(
                f"{threshold:g}: {share:.1%}" for threshold, share in zip(THRESHOLDS[norm], shares, strict=True)
            )
            print(f"{card.name}  clean {card.clean():.2%}  {norm}  {figures}", flush=True)


def robust_shares(model: nn.Module, images: Tensor, labels: Tensor, norm: str) -> list[float]:
    """Return the robust accuracy at each threshold under PGD and the paper's minimum-norm attack."""
    config = paper_config("mnist", norm, f"{norm}-at")
    if isinstance(config, PDGDConfig):
        minimal = pdgd(model, images, labels, norm=norm, config=config)
    else:
        minimal = pdpgd(model, images, labels, norm=norm, config=config)
    shares = []
    for threshold in THRESHOLDS[norm]:
        ball = PGDConfig(radius=threshold, steps=40, restarts=5)
        withstood = ~pgd(model, images, labels, norm=norm, config=ball).found & (minimal.distances > threshold)
        shares.append(float(withstood.float().mean()))
    return shares


if __name__ == "__main__":
    main()
