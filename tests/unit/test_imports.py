from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import pdpgd

EVERY_ROOM = """
import pdpgd, pdpgd.attacks.catalogue, pdpgd.cli, pdpgd.data, pdpgd.models, pdpgd.training.recipe
for name in dir(pdpgd):
    getattr(pdpgd, name)
"""
OPTIONAL = ["torchvision", "rich", "scipy", "PIL", "pooch", "safetensors", "timm", "transformers"]
LIGHT = {
    "the package": "import pdpgd; pdpgd.__version__; dir(pdpgd)",
    "the command": "import pdpgd.cli",
    "an error": "from pdpgd import InvalidInputError",
    "the catalogue": "from pdpgd.attacks.catalogue import ATTACKS, info_of; info_of('pgd', 'l2')",
    "the help": "import pdpgd.cli, contextlib\nwith contextlib.suppress(SystemExit): pdpgd.cli.main(['--help'])",
    "a command's help": "import pdpgd.cli, contextlib\n"
    "with contextlib.suppress(SystemExit): pdpgd.cli.main(['demo', '--help'])",
}
# What `import pdpgd` alone gave while it still imported everything.
ATTRIBUTES = ["attacks", "classifier", "criteria", "errors", "norms", "proximal", "tensors"]


def packages_after(program: str) -> list[str]:
    """The packages that a fresh interpreter holds after it ran the program, which may print what it likes."""
    program += "\nimport json, sys\nprint()\nprint(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    home = str(Path(pdpgd.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([home, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    packages: list[str] = json.loads(done.stdout.splitlines()[-1])
    assert "pdpgd" in packages
    return packages


@pytest.fixture(scope="module")
def imported() -> list[str]:
    return packages_after(EVERY_ROOM)


@pytest.mark.parametrize("optional", OPTIONAL)
def test_importing_the_package_does_not_import(optional: str, imported: list[str]) -> None:
    assert "torch" in imported
    assert optional not in imported


@pytest.mark.parametrize("program", LIGHT.values(), ids=LIGHT)
def test_neither_torch_nor_numpy_is_imported_by(program: str) -> None:
    assert not {"torch", "numpy"} & set(packages_after(program))


@pytest.mark.parametrize(
    "program",
    [
        "import pdpgd.report",
        "import pdpgd.report.page, pdpgd.report.experiment, pdpgd.report.figures, pdpgd.report.paper_tables",
        "from pdpgd import load_evaluation, write_report, Evaluation, Comparison",
        "import pdpgd.runs.result, pdpgd.runs.comparison, pdpgd.experiments.results",
    ],
)
def test_reading_results_never_loads_torch(program: str) -> None:
    assert "torch" not in packages_after(program)


def test_everything_the_package_promises_is_there() -> None:
    assert all(getattr(pdpgd, name) is not None for name in pdpgd.__all__)
    assert set(pdpgd.__all__) <= set(dir(pdpgd))


def test_a_name_is_the_one_of_its_home() -> None:
    from pdpgd.attacks.primal_dual import pdpgd as at_home
    from pdpgd.norms import l0

    assert pdpgd.pdpgd is at_home
    assert pdpgd.l0 is l0


@pytest.mark.parametrize("module", ATTRIBUTES)
def test_a_module_is_loaded_when_it_is_asked_for(module: str) -> None:
    """Asked for directly: by now some other test may have made it a plain attribute."""
    assert pdpgd.__getattr__(module) is sys.modules[f"pdpgd.{module}"]
    assert module in dir(pdpgd)


def test_a_module_is_an_attribute_without_an_import_of_its_own() -> None:
    packages_after("import pdpgd\nassert pdpgd.proximal.prox_l1")


def test_an_unknown_attribute_is_refused_as_by_any_module() -> None:
    with pytest.raises(AttributeError, match=r"^module 'pdpgd' has no attribute 'pdgpd'$"):
        _ = pdpgd.pdgpd
    with pytest.raises(ImportError, match="cannot import name 'pdgpd' from 'pdpgd'"):
        from pdpgd import pdgpd  # noqa: F401
