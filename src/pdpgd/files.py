"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from pdpgd.errors import SubjectError


def replace_file(path: Path, content: bytes) -> None:
    """Put `content` there: a reader sees the old file or the new one, never half of it, even if the disk is full.

    What a writer that was killed left behind, the next one takes away.
    """
    # A link stays a link, and what it points to is replaced.
    path = path.resolve()
    if path.exists() and not path.is_file():
        raise SubjectError(f"{path}: expected a file to write, got a directory or a device")
    draft = path.with_name(f".{path.name}.tmp")
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
