"""Run the numerical tests under other arithmetic than this machine's own.

    python scripts/test_arithmetic.py [--minutes N] [PYTEST ARGUMENT ...]

Another processor has other vector widths and fused operations, and another number of threads adds in another order: the
last bits of every sum differ. The settings below make one processor compute like several, in as few runs as hold every
pair of their values. Arguments replace the tests that are run. With a limit of minutes, settings that would end beyond
it are not begun, and the table at the end names them; the first one is always run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
NUMERICAL = (
    *(f"tests/{name}" for name in ("properties", "contracts", "unit/attacks", "unit/baselines", "unit/training")),
    *(f"tests/unit/test_{name}.py" for name in ("criteria", "custom_norm", "examples", "norms")),
    *(f"tests/unit/models/test_{name}.py" for name in ("paper_nets", "normalization")),
    "tests/unit/data/test_folders.py",
    *(f"tests/unit/runs/test_{name}.py" for name in ("metrics", "reliability")),
    *(
        f"tests/unit/evaluation/test_{name}.py"
        for name in ("eight_bit", "guard", "job", "late_gain", "referee", "sanity", "vote")
    ),
    "tests/end_to_end/test_arithmetic.py",
)
# MKL computes the matrix products, and has a switch of its own.
CAPABILITIES = {"default": "COMPATIBLE", "avx2": "AVX2", "avx512": "AVX512"}


@dataclass(frozen=True)
class Setting:
    """One kind of arithmetic: torch's vector instructions, those of oneDNN, and the number of threads."""

    capability: str
    onednn: str | None
    threads: int

    def __str__(self) -> str:
        return f"{self.capability:<10}{self.onednn or 'unset':<10}{self.threads}"

    def environment(self) -> dict[str, str]:
        """The variables that set it, for a new process."""
        onednn = {} if self.onednn is None else {"ONEDNN_MAX_CPU_ISA": self.onednn}
        return {
            "ATEN_CPU_CAPABILITY": self.capability,
            "MKL_CBWR": CAPABILITIES[self.capability],
            "PDPGD_TEST_THREADS": str(self.threads),
            # Where workers have more threads than there are cores, those that wait must not keep a core busy.
            "OMP_WAIT_POLICY": "PASSIVE",
            **onednn,
        }


# Those that differ most come first: there may not be time for all.
SETTINGS = (
    Setting("default", None, 2),
    Setting("avx512", None, 1),
    Setting("avx2", "AVX2", 2),
    Setting("default", "AVX2", 1),
    Setting("avx2", None, 1),
    Setting("avx512", "AVX2", 2),
)


def main() -> int:
    """Run the tests under every setting that the processor has; the exit code is 0 if all pass."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing that would end later")
    options, tests = parser.parse_known_args()
    start = time.perf_counter()
    best = torch.backends.cpu.get_cpu_capability().lower()
    known = list(CAPABILITIES)
    reach = known.index(best) if best in known else 0
    outcomes: list[tuple[Setting, str, float]] = []
    for setting in SETTINGS:
        if known.index(setting.capability) > reach:
            outcomes.append((setting, f"skipped: this processor has {best}", 0.0))
            continue
        longest = max((seconds for _, _, seconds in outcomes), default=0.0)
        if time.perf_counter() - start + longest > 60 * options.minutes and longest > 0:
            outcomes.append((setting, f"not run: it would end after {options.minutes:g} minutes", 0.0))
            continue
        print(f"\ncapability, oneDNN at most, threads: {' '.join(str(setting).split())}", flush=True)
        begin = time.perf_counter()
        code = _tests(setting, tests or list(NUMERICAL))
        outcomes.append((setting, "passed" if code == 0 else f"FAILED ({code})", time.perf_counter() - begin))
    print(f"\n{'capability':<12}{'oneDNN':<10}{'threads':<9}{'seconds':>8}")
    for setting, outcome, seconds in outcomes:
        print(f"{setting.capability:<12}{setting.onednn or 'unset':<10}{setting.threads:<9}{seconds:>8.0f}  {outcome}")
    return int(any(outcome.startswith("FAILED") for _, outcome, _ in outcomes))


def _tests(setting: Setting, what: list[str]) -> int:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "auto", "--maxprocesses", "8", *what]
    environment = {**os.environ, **setting.environment()}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
