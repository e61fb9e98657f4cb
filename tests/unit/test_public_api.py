"""The public face: one mapping of names, documented throughout, with old names that still import."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import types
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import pdpgd

SOURCE = Path(pdpgd.__file__).parent
API = SOURCE.parents[1] / "docs" / "api"
RETIRED = {
    *("subject", "subjects", "trial", "trials", "contest", "contestant", "contestants", "contender", "contenders"),
    *("making", "teller", "watcher", "watchers"),
}
"""Words that the glossary of CONTRIBUTING.md has replaced."""

MOVED = [
    *(f"pdpgd.attacks.contract.{name}" for name in ("Attack", "AttackResult", "History", "Observation", "StopAttack")),
    "pdpgd.attacks.pdgd.pdgd",
    "pdpgd.attacks.pdpgd.pdpgd",
    "pdpgd.catalogue.prepared",
    "pdpgd.errors.SubjectError",
    "pdpgd.evaluation.comparison.Comparison",
    "pdpgd.evaluation.comparison.Row",
    "pdpgd.evaluation.contest.compare",
    "pdpgd.evaluation.metrics.Curve",
    "pdpgd.evaluation.metrics.Statistics",
    "pdpgd.evaluation.reliability.Check",
    "pdpgd.evaluation.reliability.Reliability",
    "pdpgd.evaluation.result.Evaluation",
    "pdpgd.evaluation.run.Watcher",
    "pdpgd.evaluation.runner.evaluate",
    "pdpgd.evaluation.runner.load_evaluation",
    "pdpgd.evaluation.spec.Spec",
    "pdpgd.evaluation.trace.Trace",
    "pdpgd.experiments.runner.Observer",
    "pdpgd.game.dual.Dual",
    "pdpgd.norms.register",
    "pdpgd.presets.PAPER_RADII",
    "pdpgd.presets.paper_config",
    "pdpgd.report.tables.write_tables",
    *(f"pdpgd.subjects.{name}" for name in ("Normalisation", "Normalised", "Samples", "describe_data")),
    *(f"pdpgd.subjects.{name}" for name in ("load_data", "load_model")),
    "pdpgd.subjects.arrays.read_npz",
    "pdpgd.subjects.data.load_data",
    "pdpgd.subjects.folders.Frame",
    "pdpgd.subjects.folders.read_folder",
    "pdpgd.subjects.models.load_model",
    "pdpgd.subjects.normalise.Normalised",
    "pdpgd.subjects.normalise.PRESETS",
    "pdpgd.subjects.samples.Samples",
    "pdpgd.subjects.wrapped.wrap",
]
"""What the documentation of the version before the redesign named, as far as it lives elsewhere now."""


def modules() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}


def looked_up(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def documented() -> list[str]:
    lines = [line for page in sorted(API.glob("*.md")) for line in page.read_text().splitlines()]
    return [line.removeprefix("::: ").strip() for line in lines if line.startswith("::: ")]


def test_type_checkers_see_the_same_names_as_the_interpreter() -> None:
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == {name: f"pdpgd.{home}" for name, home in pdpgd._PUBLIC.items()}


def test_every_public_name_is_defined_where_the_mapping_says() -> None:
    for name, home in pdpgd._PUBLIC.items():
        value = getattr(pdpgd, name)
        assert value.__module__ == f"pdpgd.{home}", name


@pytest.mark.parametrize("name", MOVED)
def test_a_name_from_before_the_redesign_imports_and_says_what_to_write(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"{re.escape(name)} .* write `from pdpgd[\w.]* import \w+`") as caught:
        old = looked_up(name)
    assert all(warning.filename == __file__ for warning in caught)
    words = re.search(r"write `from ([\w.]+) import (\w+)`", str(caught[0].message))
    assert words is not None
    assert looked_up(f"{words[1]}.{words[2]}") is old


def test_a_name_that_never_was_is_an_import_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'pdpgd\.subjects' has no attribute 'nothing'"):
        looked_up("pdpgd.subjects.nothing")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("pdpgd.subjects.nothing")


def test_no_two_classes_share_a_name() -> None:
    homes = defaultdict(list)
    for path, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(str(path.relative_to(SOURCE)))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_no_name_uses_a_retired_word() -> None:
    found = set()
    for path, tree in modules().items():
        if path.name == "_moved.py":
            continue
        for node in ast.walk(tree):
            names = (getattr(node, field, None) for field in ("id", "attr", "arg", "name"))
            for name in (name for name in names if isinstance(name, str)):
                words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_")
                if RETIRED & set(words) or name == "carry_out" or (name == "tell" and path.name != "readers.py"):
                    found.add(f"{path.relative_to(SOURCE)}: {name}")
    assert found == set()


@pytest.mark.parametrize("name", [*(f"pdpgd.{name}" for name in pdpgd._PUBLIC), *documented()])
def test_a_documented_name_has_a_docstring_that_lists_its_parameters(name: str) -> None:
    value = looked_up(name)
    text = inspect.getdoc(value) or ""
    assert len(text.splitlines()[0].split()) >= 3, f"{name}: expected a summary"
    if not isinstance(value, types.FunctionType):
        return
    parameters = [each for each in inspect.signature(value).parameters.values() if each.name != "self"]
    section = re.search(r"^Args:\n((?: +.*\n|\n)*)", f"{text}\n", flags=re.MULTILINE)
    listed = set(re.findall(r"^    \*{0,2}(\w+)(?: \(.*\))?:", section[1], flags=re.MULTILINE)) if section else set()
    assert {each.name for each in parameters} <= listed, f"{name}: Args lists {sorted(listed)}"
    returns = inspect.signature(value).return_annotation
    assert returns in (None, "None") or re.search(r"^(Returns|Yields):\n", text, flags=re.MULTILINE), f"{name}: Returns"
