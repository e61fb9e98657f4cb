"""What a file of weights or of a model is, by its first bytes and the entries of its archive: nothing is loaded."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Literal

from pdpgd.errors import SubjectError

FileKind = Literal["safetensors", "torch.save", "torch.jit", "torch.export"]

HEAD = 16


def kind_of(path: Path) -> FileKind:
    """Which writer made this file; SubjectError if it is missing, empty, no file, or a broken archive."""
    head = _head(path)
    if head.startswith(b"PK"):
        return _kind_of_archive(path)
    # A safetensors file starts with the length of its header, eight bytes, and the header is JSON.
    if path.suffix == ".safetensors" or head[8:9] == b"{":
        return "safetensors"
    # torch.save before 1.6 wrote bare pickles.
    return "torch.save"


def unreadable(path: Path, error: OSError) -> SubjectError:
    if isinstance(error, FileNotFoundError):
        return SubjectError(f"{path}: expected a file, got none there")
    if isinstance(error, IsADirectoryError) or path.is_dir():
        return SubjectError(f"{path}: expected a file, got a directory")
    return SubjectError(f"{path}: expected a file that can be read, got an error: {error.strerror or error}")


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            head = file.read(HEAD)
    except OSError as error:
        raise unreadable(path, error) from error
    if not head:
        raise SubjectError(f"{path}: expected weights or a model, got an empty file")
    return head


def _kind_of_archive(path: Path) -> FileKind:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            # Without its end, an archive looks like the last of the archives that lie inside it.
            if min((entry.header_offset for entry in archive.infolist()), default=0) > 0:
                raise zipfile.BadZipFile("its directory is that of a part")
    except (OSError, zipfile.BadZipFile, EOFError, ValueError) as error:
        raise SubjectError(
            f"{path}: expected a whole archive, got one that is cut short or damaged ({error})"
        ) from error
    # torch puts everything into one folder, named after the file.
    inner = {name.partition("/")[2] for name in names}
    if "constants.pkl" in inner and any(name.startswith("code/") for name in inner):
        return "torch.jit"
    # The second is what torch.export.save wrote before 2.8.
    if "archive_format" in inner or "serialized_exported_program.json" in names:
        return "torch.export"
    if "data.pkl" in inner:
        return "torch.save"
    raise SubjectError(f"{path}: expected an archive written by torch, got another zip file, with {names[:3]}")
