"""Which version of the code a kept row of a benchmark was made by."""

from __future__ import annotations

import hashlib
import pathlib

import pdpgd

AUTO = ("attacks/*.py", "proximal/*.py", "classifier.py", "criteria.py", "norms.py", "tensors.py")


def fingerprint() -> str:
    """Return a checksum of the package's source that `auto` consists of."""
    home = pathlib.Path(pdpgd.__file__).parent
    digest = hashlib.sha256()
    for pattern in AUTO:
        for path in sorted(home.glob(pattern)):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
