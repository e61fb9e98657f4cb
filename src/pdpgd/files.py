"""Atomic writes, directory locks, checksums of JSON, and paths that are rejected before any work is done."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pdpgd.errors import InvalidInputError, LoadError, StorageError

SEAL = "sha256"
"""Key of the checksum in a JSON object."""


def replace_file(path: Path, content: bytes) -> None:
    """Write a file atomically: a reader sees the old file or the new one, never a part, even if the disk is full.

    A temporary file that a killed writer left behind is removed by the next one.

    Args:
        path: The file to write. A symbolic link stays, and the file that it points to is replaced.
        content: The new content.

    Raises:
        LoadError: The file cannot be written; its former content is unchanged.
    """
    check_file(path)
    path = path.resolve()
    draft = _draft(path)
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError as error:
        raise LoadError(
            f"{path}: expected enough space and permission to write {len(content)} bytes, got an error: "
            f"{error.strerror or error}; the former content is unchanged"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()


def check_file(path: Path) -> None:
    """Raise LoadError if no file can be written at `path`; called before the work whose result goes there."""
    try:
        if path.exists() and not path.is_file():
            raise LoadError(f"{path}: expected a file to write, got a directory or a device; move it away")
        _expect_nameable(_draft(path))
    except (OSError, ValueError) as error:
        if isinstance(error, LoadError):
            raise
        raise LoadError(f"{shortened(str(path))}: expected a file to write, got an error: {_reason(error)}") from error


def output_path(out: str | Path) -> Path:
    """Expand a path that a user gave for results.

    Args:
        out: The path as given; `~` stands for the home directory.

    Returns:
        The expanded path.

    Raises:
        InvalidInputError: The file system cannot hold a file or directory of that name.
    """
    try:
        path = Path(out).expanduser()
        _expect_nameable(path)
    except (OSError, ValueError, RuntimeError) as error:  # too long; contains NUL; an unknown user's home
        raise InvalidInputError(
            f"out: expected a path that can be written to, got {shortened(str(out))} ({_reason(error)}); "
            "choose another one (--out)"
        ) from error
    return path


def make_folder(path: Path) -> None:
    """Create the directory and its parents unless they exist."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise no_place(path, error) from error


def exists(path: Path) -> bool:
    """Return whether the path exists; raise StorageError if the file system cannot answer."""
    try:
        return path.exists()
    except OSError as error:  # the name is too long, or the directory may not be searched
        raise no_place(path.parent, error) from error


def no_place(folder: Path, error: OSError) -> StorageError:
    """Return the error for a directory that cannot be written to."""
    return StorageError(
        f"{folder}: expected a directory to write the results to, got an error: "
        f"{error.strerror or error}; choose another one (--out)"
    )


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on the directory, which is created if necessary; a process that dies releases it."""
    try:
        import fcntl
    except ImportError:  # Windows lacks it: there, the user has to avoid two runs in one directory
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
            raise StorageError(f"{folder}: another run is using this directory; wait until it ends") from error
        yield


def digest_of(content: object) -> str:
    """Return the SHA-256 of the content as JSON with sorted keys, which does not depend on the layout of a file."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def sealed(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a JSON object with a checksum over all of them added."""
    content = json.loads(json.dumps(entries))
    return {**content, SEAL: digest_of(content)}


def unsealed(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Verify the checksum of a JSON object, if it has one, and return the entries without it.

    If the key of the checksum itself is damaged, it stays as an unknown entry, which a reader must reject.

    Raises:
        ValueError: The checksum does not match.
    """
    content = {name: value for name, value in entries.items() if name != SEAL}
    if SEAL in entries and digest_of(content) != entries[SEAL]:
        raise ValueError("its checksum does not match its content")
    return content


def shortened(text: str, most: int = 200) -> str:
    """Shorten a long text for a message to its beginning and its length."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


def _expect_nameable(path: Path) -> None:
    """Raise OSError or ValueError if no file can have this path; missing parents and obstacles show on writing."""
    there = path = path.absolute()
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    # The file system only detects a part that is too long inside a directory that exists.
    for place in (path, *(there / part for part in path.relative_to(there).parts)):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            place.lstat()


def _reason(error: Exception) -> str:
    """Return the reason of an error without its number and path."""
    return str(error.strerror if isinstance(error, OSError) and error.strerror else error)


def _draft(path: Path) -> Path:
    """Return the name of a file while it is being written."""
    return path.with_name(f".{path.name}.tmp")
