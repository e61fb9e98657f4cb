"""Files that are written whole or not at all, and paths that are refused before any work is done."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path

from pdpgd.errors import InvalidInputError, StorageError, SubjectError


def replace_file(path: Path, content: bytes) -> None:
    """Put `content` there: a reader sees the old file or the new one, never half of it, even if the disk is full.

    What a writer that was killed left behind, the next one takes away.
    """
    try:
        # A link stays a link, and what it points to is replaced.
        path = path.resolve()
        check_file(path)
        draft = _draft(path)
    except OSError as error:
        raise SubjectError(f"{path}: expected a file to write, got an error: {error.strerror or error}") from error
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
    """Refuse to write a file where a directory or a device is."""
    if path.exists() and not path.is_file():
        raise SubjectError(f"{path}: expected a file to write, got a directory or a device; move it away")


def output_path(out: str | Path) -> Path:
    """The path that a user gave for results; refused if the file system cannot have a file or directory there."""
    try:
        path = Path(out).expanduser()
        _draft(path).lstat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # it is made later, or what is in its way is told then
    except (OSError, ValueError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InvalidInputError(
            f"out: expected a path that can be written to, got {shortened(str(out))} ({reason}); "
            "take another one (--out)"
        ) from error
    return path


def make_folder(path: Path) -> None:
    """Make the directory and its parents, unless it is there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"{path}: expected a directory to write to, got an error: {error.strerror or error}; "
            "take another one (--out)"
        ) from error


def digest_of(content: object) -> str:
    """The SHA-256 of the content as JSON with sorted keys, so that it does not depend on the layout of a file."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def shortened(text: str, most: int = 60) -> str:
    """For a message: a long text as its beginning and its length."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


def _draft(path: Path) -> Path:
    """What a file is called until it is whole."""
    return path.with_name(f".{path.name}.tmp")
