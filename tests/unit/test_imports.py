from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import pdpgd

PROGRAM = """
import json, sys, pdpgd, pdpgd.cli, pdpgd.subjects, pdpgd.training.recipe
print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))
"""
OPTIONAL = ["torchvision", "rich", "scipy", "PIL", "pooch", "safetensors", "timm", "transformers"]


@pytest.fixture(scope="module")
def imported() -> list[str]:
    """The packages that a fresh interpreter holds after every room of the house was entered."""
    home = str(Path(pdpgd.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([home, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    packages: list[str] = json.loads(done.stdout)
    return packages


@pytest.mark.parametrize("optional", OPTIONAL)
def test_importing_the_package_does_not_import(optional: str, imported: list[str]) -> None:
    assert "pdpgd" in imported
    assert optional not in imported


def test_everything_the_package_promises_is_there() -> None:
    assert all(hasattr(pdpgd, name) for name in pdpgd.__all__)
