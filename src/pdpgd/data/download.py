"""Packed data is measured before it is unpacked: a small file may ask for more memory than there is."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pdpgd.errors import InvalidInputError, LoadError, MissingExtraError, need

# Bytes that are unpacked whatever they were packed into: no machine that runs a model lacks them.
ALWAYS = 2**28
# Unpacked over packed bytes. Published images have 1 to 10; deflate makes 200 to 1032 of what is all the same.
MOST = 100


def check_size(place: str, *, packed: int, unpacked: int) -> None:
    """Refuse data that no images pack into so few bytes, and data that memory has no room for."""
    if unpacked <= ALWAYS:
        return
    if unpacked > MOST * packed:
        raise LoadError(
            f"{place}: refused: expected at most {MOST} times as many bytes unpacked as packed, got {packed:,} that "
            f"unpack to {unpacked:,}; if this is right, save the data without compression"
        )
    available = available_memory()
    if available is not None and unpacked > available:
        raise LoadError(
            f"{place}: expected data that fits into the memory that is available, {available:,} bytes, got "
            f"{unpacked:,}; take fewer samples, or a folder of images, which is read as it is needed"
        )


def available_memory() -> int | None:
    """In bytes, as Linux estimates it; None elsewhere."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)
    except (OSError, ValueError, IndexError):
        return None


FileKind = Literal["safetensors", "torch.save", "torch.jit", "torch.export"]

HEAD = 16


def kind_of(path: Path) -> FileKind:
    """Which writer made this file; LoadError if it is missing, empty, no file, or a broken archive."""
    head = _head(path)
    if head.startswith(b"PK"):
        return _kind_of_archive(path)
    # A safetensors file starts with the length of its header, eight bytes, and the header is JSON.
    if path.suffix == ".safetensors" or head[8:9] == b"{":
        return "safetensors"
    # torch.save before 1.6 wrote bare pickles.
    return "torch.save"


def unreadable(path: Path, error: OSError) -> LoadError:
    if isinstance(error, FileNotFoundError):
        return LoadError(f"{path}: expected a file, got none there")
    if isinstance(error, IsADirectoryError) or path.is_dir():
        return LoadError(f"{path}: expected a file, got a directory")
    return LoadError(f"{path}: expected a file that can be read, got an error: {error.strerror or error}")


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            head = file.read(HEAD)
    except OSError as error:
        raise unreadable(path, error) from error
    if not head:
        raise LoadError(f"{path}: expected weights or a model, got an empty file")
    return head


def _kind_of_archive(path: Path) -> FileKind:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            # Without its end, an archive looks like the last of the archives that lie inside it.
            if min((entry.header_offset for entry in archive.infolist()), default=0) > 0:
                raise zipfile.BadZipFile("its directory is that of a part")
    except (OSError, zipfile.BadZipFile, EOFError, ValueError) as error:
        raise LoadError(f"{path}: expected a whole archive, got one that is cut short or damaged ({error})") from error
    # torch puts everything into one folder, named after the file.
    inner = {name.partition("/")[2] for name in names}
    if "constants.pkl" in inner and any(name.startswith("code/") for name in inner):
        return "torch.jit"
    # The second is what torch.export.save wrote before 2.8.
    if "archive_format" in inner or "serialized_exported_program.json" in names:
        return "torch.export"
    if "data.pkl" in inner:
        return "torch.save"
    raise LoadError(f"{path}: expected an archive written by torch, got another zip file, with {names[:3]}")


FOLDER_VARIABLE = "PDPGD_DATA"


@dataclass(frozen=True)
class DataFile:
    """A file, or a folder that stands for it.

    What can be downloaded has a `url` and one of the checksums; `url` is None where nobody may pass it on.
    """

    name: str
    url: str | None = None
    md5: str | None = None
    also: tuple[str, ...] = ()
    """Other names under which it may be found."""
    sha256: str | None = None
    size: int | None = None
    """In bytes, where it is known."""

    @property
    def checksum(self) -> tuple[str, str | None]:
        """The algorithm and the digest, in hexadecimal: SHA-256 where it is known."""
        return ("md5", self.md5) if self.sha256 is None else ("sha256", self.sha256)

    def facts(self) -> str:
        """Size, SHA-256 and origin as far as they are known, for whoever has to get the file by hand."""
        size = None if self.size is None else f"{self.size:,} bytes"
        sha256 = None if self.sha256 is None else f"sha256 {self.sha256}"
        origin = None if self.url is None else f"from {self.url}"
        return ", ".join(fact for fact in (size, sha256, origin) if fact is not None)

    def inside(self, folder: Path) -> Path | None:
        found = (folder / name for name in (self.name, *self.also))
        return next((path for path in found if path.exists()), None)


def idx_file(name: str, *, base: str, md5: str) -> DataFile:
    """An idx file, packed as it is published; it may be unpacked, or be named `.idx3-ubyte` at its end."""
    plain = name.removesuffix(".gz")
    dotted = re.sub(r"-(idx\d-ubyte)$", r".\1", plain)
    return DataFile(name, base + name, md5, also=(plain, f"{dotted}.gz", dotted))


@dataclass(frozen=True)
class Wanted:
    """Files that are wanted together, and where on this machine they may be besides the usual places."""

    name: str
    """Name of the folder that holds the files."""
    files: tuple[DataFile, ...]
    system: Path | None = None
    note: str = ""
    """Added to an error about files that could not be had."""
    title: str = ""
    """What errors call them; if empty, `name`."""

    def found(self, root: Path | None = None) -> list[Path] | None:
        """The files in the first folder that has them all."""
        for folder in self._folders(root):
            paths = [path for file in self.files if (path := file.inside(folder)) is not None]
            if len(paths) == len(self.files):
                return paths
        return None

    def obtained(self, *, root: Path | None = None, download: bool = True) -> list[Path]:
        """The files, downloaded into the cache if they are nowhere."""
        if root is not None and not root.is_dir():
            raise InvalidInputError(f"root: expected a folder, got {str(root)!r}")
        paths = self.found(root)
        if paths is not None:
            return paths
        if not download:
            raise LoadError(self._missing("not found on this machine, and download is off"))
        if any(file.url is None for file in self.files):
            raise LoadError(self._missing("not found on this machine, and it cannot be downloaded"))
        return [self._downloaded(file) for file in self.files]

    @property
    def _title(self) -> str:
        return self.title or self.name

    def _folders(self, root: Path | None) -> Sequence[Path]:
        given = [] if root is None else [root / self.name, root]
        usual = [_named_by_user(self.name), cache_folder(self.name), self.system]
        return given + [folder for folder in usual if folder is not None]

    def _downloaded(self, file: DataFile) -> Path:
        purpose = f"{self._title}: downloading it (it is not in {FOLDER_VARIABLE} either)"
        pooch = need("pooch", extra="data", purpose=purpose)
        need("tqdm", extra="data", purpose=purpose)
        algorithm, digest = file.checksum
        try:
            # It goes to a temporary file first, and gets its name only with the right checksum.
            return Path(
                pooch.retrieve(
                    file.url,
                    known_hash=f"{algorithm}:{digest}",
                    fname=file.name,
                    path=cache_folder(self.name),
                    progressbar=True,
                )
            )
        except OSError as error:
            # A server's refusal comes with the connection it came by, which pooch leaves open.
            if (response := getattr(error, "response", None)) is not None:
                response.close()
            cause = f"not found on this machine, and {file.url} cannot be downloaded ({type(error).__name__}: {error})"
            raise LoadError(self._missing(cause)) from error
        except ValueError as error:
            raise LoadError(
                f"{self._title}: wrong checksum: expected {algorithm} {digest} of {file.url}, got another; "
                f"what came was thrown away ({error})" + (f"\n{self.note}" if self.note else "")
            ) from error

    def _missing(self, cause: str) -> str:
        lines = [f"  {file.name}" + (f"  ({file.facts()})" if file.facts() else "") for file in self.files]
        cache = cache_folder(self.name)
        places = [str(_named_by_user(self.name) or f"the folder {self.name} in a folder that {FOLDER_VARIABLE} names")]
        places += [] if cache is None else [str(cache)]
        note = [self.note] if self.note else []
        return "\n".join([f"{self._title}: {cause}. Put", *lines, f"into {', or into '.join(places)}.", *note])


def cache_folder(name: str) -> Path | None:
    """This user's cache of these files; None without pooch, which knows where caches are on each system."""
    try:
        pooch = need("pooch", extra="data", purpose="a cache of data")
    except MissingExtraError:
        return None
    return Path(pooch.os_cache("pdpgd")) / name


def _named_by_user(name: str) -> Path | None:
    folder = os.environ.get(FOLDER_VARIABLE)
    return Path(folder).expanduser() / name if folder else None
