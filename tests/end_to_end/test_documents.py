"""The examples in the documents run as they stand, block after block, in one namespace and one empty folder."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

import pdpgd
from support.patience import PATIENCE

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
WITH_PYTHON = [page for page in ("README.md", *PAGES) if "\n```python" in (ROOT / page).read_text()]
# Here the shell examples run too, each after the Python ones before it.
WITH_SHELL = ("README.md", "docs/index.md", "docs/tutorial.md", *(page for page in PAGES if "/howto/" in page))

FENCED = re.compile(r"(?:^<!-- not run: ([^\n]+) -->\n)?^```([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SHELL = ("", "sh", "bash", "console")
SHOWN = ("text", "yaml", "toml", "json", "bibtex")

# README.md has no marks: its commands that are not run, by how they begin, and its block that is no command.
README_NOT_RUN = {
    "make test": "runs this test",
    "pip install": "needs the network",
}
README_OUTPUT = "mnist-plain on 100 samples"
IMAGES = ROOT / "src/pdpgd/data/embedded/mnist-1000.npz"
# What README.md leaves to the reader, and what would take minutes, an hour, or a data set of some MB.
README_STAND_INS = {
    r"\bMODEL\b": "mnist-plain",
    r"\bDATA\b": "mnist-1000 --limit 3",
    r"--budget \d+": "--budget 20",
    r"^make demo": "pdpgd demo --limit 3 --budget 20",
    "runs/before runs/after": "runs/mine runs/mine",
    # Its models and data are found and its attacks can do what is asked of them; test_experiment runs smaller ones.
    r"^pdpgd experiment run": "pdpgd experiment status",
    r"^pdpgd accuracy [^#]*": r"\g<0> --images 5 --steps 2 --restarts 1 ",
    r"^pdpgd train --data mnist .*$": rf"\g<0> --test-data {IMAGES} --epochs 1 --judge-images 5",
    r"--data mnist ": f"--data {IMAGES} ",
}


@dataclass(frozen=True)
class Block:
    document: str
    language: str
    options: str
    text: str
    mark: str | None
    """Why it is not run, if that is said before it."""

    @property
    def file(self) -> str | None:
        """What the reader is told to save it as."""
        title = re.search(r'title="([^"]+)"', self.options)
        return title.group(1) if title else None

    def lines(self) -> list[tuple[str, str | None]]:
        """Of a shell block: what is typed, and why it is not run, or None."""
        lines = self.text.splitlines()
        if self.language == "console":
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        return [(line, self.mark or self._unrun(line)) for line in lines if line.strip()]

    def _unrun(self, line: str) -> str | None:
        known = README_NOT_RUN if self.document == "README.md" else {}
        return next((reason for start, reason in known.items() if line.startswith(start)), None)


def blocks_of(document: str) -> Iterator[Block]:
    for mark, info, text in FENCED.findall((ROOT / document).read_text()):
        language, _, options = info.partition(" ")
        output = document == "README.md" and text.startswith(README_OUTPUT)
        yield Block(document, "text" if output else language, options, text, mark or None)


def run_shell(block: Block, folder: pathlib.Path) -> None:
    script = "\n".join(line for line, reason in block.lines() if reason is None)
    if block.document == "README.md":
        for pattern, stand_in in README_STAND_INS.items():
            script = re.sub(pattern, stand_in, script, flags=re.MULTILINE)
    path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
    outcome = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert outcome.returncode == 0, f"{block.document}:\n{script}\n{outcome.stdout}{outcome.stderr}"


@pytest.mark.parametrize("document", dict.fromkeys([*WITH_PYTHON, *WITH_SHELL]))
def test_the_examples_of_a_document_run(
    document: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    namespace: dict[str, object] = {}
    known = set(sys.modules)
    with torch.random.fork_rng(devices=[]):
        for block in blocks_of(document):
            if block.file is not None:
                (tmp_path / block.file).write_text(block.text)
            elif block.language == "python":
                exec(compile(block.text, document, "exec"), namespace)
            elif block.language in SHELL and document in WITH_SHELL:
                run_shell(block, tmp_path)
    for name in set(sys.modules) - known:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def test_every_block_is_run_or_marked_with_the_reason_why_not(capsys: pytest.CaptureFixture[str]) -> None:
    used = set()
    for document in WITH_SHELL:
        for block in blocks_of(document):
            assert block.language in ("python", *SHELL, *SHOWN), f"{document}: is this run?\n```{block.language}"
            assert block.language in SHELL or block.mark is None, f"{document}: only shell blocks are marked"
            unrun = [(line, reason) for line, reason in block.lines() if reason] if block.language in SHELL else []
            used.update(reason for _, reason in unrun)
            # All of a marked block is not run: its first line says which it is.
            for line, reason in unrun[:1] if block.mark else unrun:
                with capsys.disabled():
                    print(f"\nnot run, {document}: {line} ({reason})", end="")
    assert set(README_NOT_RUN.values()) <= used, "README.md no longer has what these stand for"


def test_only_what_needs_a_network_a_cluster_or_minutes_is_marked() -> None:
    allowed = ("needs the network", "needs a cluster", "minutes")
    for document in PAGES:
        for block in blocks_of(document):
            assert block.mark is None or block.mark.startswith(allowed), f"{document}: {block.mark}"


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", *PAGES])
def test_links_between_documents_lead_somewhere(document: str) -> None:
    path = ROOT / document
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text()):
        assert (path.parent / link).exists(), f"{document} links to {link}"


@pytest.mark.parametrize("document", ["CITATION.cff", "docs/cite.md"])
def test_what_is_to_be_cited_has_the_version_of_the_package(document: str) -> None:
    versions = re.findall(r"^\s*version\s*[:=]\s*\W?([\d.]+)\b", (ROOT / document).read_text(), flags=re.MULTILINE)
    assert versions == [pdpgd.__version__]
