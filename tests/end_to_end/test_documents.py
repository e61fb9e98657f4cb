"""The examples in the documents run as they stand, block after block in one namespace."""

from __future__ import annotations

import pathlib
import re

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENTS = [
    "README.md",
    "docs/attacks.md",
    "docs/auto.md",
    "docs/custom_norm.md",
    "docs/evaluation.md",
    "docs/rivals.md",
    "docs/subjects.md",
]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_python_example_of_a_document_runs(document: str, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / document).read_text(), flags=re.DOTALL | re.MULTILINE)
    assert blocks, f"{document} has no example"
    namespace: dict[str, object] = {}
    with torch.random.fork_rng(devices=[]):
        for block in blocks:
            exec(compile(block, document, "exec"), namespace)


@pytest.mark.parametrize("document", [*DOCUMENTS, "CONTRIBUTING.md", "docs/measurements.md"])
def test_links_between_documents_lead_somewhere(document: str) -> None:
    path = ROOT / document
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text()):
        assert (path.parent / link).exists(), f"{document} links to {link}"
