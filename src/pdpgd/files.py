"""Files that are written whole or not at all, locks, checksums, and paths that are refused before any work is done."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pdpgd.errors import InvalidInputError, StorageError, SubjectError

SEAL = "sha256"
"""The key of a checksum in a JSON object."""


def replace_file(path: Path, content: bytes) -> None:
    """Put `content` there: a reader sees the old file or the new one, never half of it, even if the disk is full.

    What a writer that was killed left behind, the next one takes away.
    """
    check_file(path)
    # A link stays a link, and what it points to is replaced.
    path = path.resolve()
    draft = _draft(path)
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError as error:
        raise SubjectError(
            f"{path}: expected room and leave to write {len(content)} bytes, got an error: "
            f"{error.strerror or error}; what was there before is untouched"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()


def check_file(path: Path) -> None:
    """Refuse a place where no file can be written, if possible before the work that is to be written there is done."""
    try:
        if path.exists() and not path.is_file():
            raise SubjectError(f"{path}: expected a file to write, got a directory or a device; move it away")
        _expect_nameable(_draft(path))
    except (OSError, ValueError) as error:
        if isinstance(error, SubjectError):
            raise
        raise SubjectError(
            f"{shortened(str(path))}: expected a file to write, got an error: {_reason(error)}"
        ) from error


def output_path(out: str | Path) -> Path:
    """The path that a user gave for results; refused if the file system cannot have a file or directory there."""
    try:
        path = Path(out).expanduser()
        _expect_nameable(path)
    except (OSError, ValueError, RuntimeError) as error:  # too long; a NUL in it; the home of nobody
        raise InvalidInputError(
            f"out: expected a path that can be written to, got {shortened(str(out))} ({_reason(error)}); "
            "take another one (--out)"
        ) from error
    return path


def make_folder(path: Path) -> None:
    """Make the directory and its parents, unless it is there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise no_place(path, error) from error


def exists(path: Path) -> bool:
    """Whether there is something; StorageError if the file system cannot tell."""
    try:
        return path.exists()
    except OSError as error:  # a name that is too long, or a directory that may not be searched
        raise no_place(path.parent, error) from error


def no_place(folder: Path, error: OSError) -> StorageError:
    """The error for a directory that cannot be written to."""
    return StorageError(
        f"{folder}: expected a directory to write the results to, got an error: "
        f"{error.strerror or error}; take another one (--out)"
    )


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep others out of the directory, which is made if need be; a process that dies lets go."""
    try:
        import fcntl
    except ImportError:  # Windows has none: there, two runs at once are the user's to avoid
        yield
        return
    make_folder(folder)
    try:
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise no_place(folder, error) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StorageError(f"{folder}: another run is at work in this directory; wait for it") from error
        yield


def digest_of(content: object) -> str:
    """The SHA-256 of the content as JSON with sorted keys, so that it does not depend on the layout of a file."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def sealed(entries: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a JSON object with a checksum over all of them."""
    content = json.loads(json.dumps(entries))
    return {**content, SEAL: digest_of(content)}


def unsealed(entries: Mapping[str, Any]) -> dict[str, Any]:
    """The entries without their checksum; ValueError if it is another. What has none is as it is.

    Damage to the key of the checksum leaves an entry that a reader must not know.
    """
    content = {name: value for name, value in entries.items() if name != SEAL}
    if SEAL in entries and digest_of(content) != entries[SEAL]:
        raise ValueError("it has another checksum than it says")
    return content


def shortened(text: str, most: int = 200) -> str:
    """For a message: a long text as its beginning and its length."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


def _expect_nameable(path: Path) -> None:
    """OSError or ValueError if nothing can have this path; what is missing or in its way is told when it is written."""
    there = path = path.absolute()
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    # A part that is too long is found in a directory that exists only.
    for place in (path, *(there / part for part in path.relative_to(there).parts)):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            place.lstat()


def _reason(error: Exception) -> str:
    return str(error.strerror if isinstance(error, OSError) and error.strerror else error)


def _draft(path: Path) -> Path:
    """What a file is called until it is whole."""
    return path.with_name(f".{path.name}.tmp")
