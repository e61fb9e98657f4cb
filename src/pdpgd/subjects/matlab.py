"""MATLAB files of weights: arrays by name, each of the shape that is expected of it.

SciPy reads them without running code: the format holds numbers, text, and containers of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pdpgd.errors import FOREIGN_ERRORS, SubjectError
from pdpgd.extras import need
from pdpgd.subjects.archives import unreadable

# How a git-lfs pointer begins: the small text that a clone holds in the place of a large file.
POINTER = b"version https://git-lfs.github.com/spec/"

Arrays = dict[str, npt.NDArray[np.float32]]
Shapes = Mapping[str, tuple[int, ...]]


def read_arrays(path: Path, shapes: Shapes, *, of: str) -> Arrays:
    """Read the arrays of a MATLAB file (up to version 7.2, not the HDF5 of 7.3).

    Args:
        path: The file.
        shapes: Names and shapes of the arrays: it must hold these and no others. A vector has the shape (1, n).
        of: What the arrays belong to, for errors.

    Returns:
        The arrays in float32, by name.

    Raises:
        SubjectError: The file is missing, a git-lfs pointer, damaged, not MATLAB's, or holds other arrays.
        MissingExtraError: SciPy is not installed.
    """
    refuse_pointer(path)
    library = need("scipy.io", extra="paper", purpose=f"reading {path.name}")
    try:
        found = {name: tuple(shape) for name, shape, _ in library.whosmat(path, appendmat=False)}
    except FOREIGN_ERRORS as error:
        raise _damaged(path, error) from error
    # Compared before the arrays themselves are read: another file may be of any size.
    if faults := _differences(shapes, found):
        raise SubjectError(f"{path}: expected the arrays of {of}, got others: {'; '.join(faults)}")
    try:
        content = library.loadmat(path, appendmat=False, variable_names=list(shapes))
    except FOREIGN_ERRORS as error:
        raise _damaged(path, error) from error
    for name in shapes:
        array = content[name]
        # Sparse arrays are none of NumPy's.
        if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
            raise SubjectError(f"{path}: expected floating-point numbers in {name}, got {array.dtype}")
    return {name: np.ascontiguousarray(content[name], dtype=np.float32) for name in shapes}


def refuse_pointer(path: Path) -> None:
    """Raise SubjectError if the file is the pointer to a large file that git-lfs has not fetched, or cannot be read."""
    try:
        with path.open("rb") as file:
            head = file.read(len(POINTER))
    except OSError as error:
        raise unreadable(path, error) from error
    if head == POINTER:
        raise SubjectError(
            f"{path}: expected a MATLAB file, got the git-lfs pointer that stands for it in a clone; "
            "run `git lfs install` and `git lfs pull` in the clone, and take the file that is then there"
        )


def _damaged(path: Path, error: BaseException) -> SubjectError:
    return SubjectError(
        f"{path}: expected a MATLAB file up to version 7.2, got one that is cut short, damaged or of another kind "
        f"({type(error).__name__}: {error})"
    )


def _differences(expected: Shapes, found: Shapes) -> list[str]:
    missing = ", ".join(name for name in expected if name not in found)
    unexpected = ", ".join(name for name in found if name not in expected)
    return [
        *([f"missing {missing} (if they should be there, the file is cut short)"] if missing else []),
        *([f"unexpected {unexpected}"] if unexpected else []),
        *(
            f"{name} expected {shape}, got {found[name]}"
            for name, shape in expected.items()
            if name in found and found[name] != shape
        ),
    ]
