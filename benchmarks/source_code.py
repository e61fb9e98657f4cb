"""Which version of the code a kept row of a benchmark was made by."""

from __future__ import annotations

import ast
import hashlib
import pathlib

import pdpgd

AUTO = ("attacks/*.py", "proximal/*.py", "classifier.py", "criteria.py", "norms.py", "tensors.py")


def fingerprint() -> str:
    """Return a checksum of the package's source that `auto` consists of, without comments and docstrings."""
    home = pathlib.Path(pdpgd.__file__).parent
    digest = hashlib.sha256()
    for pattern in AUTO:
        for path in sorted(home.glob(pattern)):
            digest.update(_code(path.read_text()).encode())
    return digest.hexdigest()[:12]


def _code(source: str) -> str:
    """Return a source without comments and without strings that stand alone."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [each for each in body if not _is_text(each)] or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.unparse(tree)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
