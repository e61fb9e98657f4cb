"""Files of data and weights that are found on this machine, or downloaded and verified by their checksum."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pdpgd.errors import InvalidInputError, LoadError, MissingExtraError, need

FOLDER_VARIABLE = "PDPGD_DATA"
"""Environment variable that names the user's folder of data sets."""


@dataclass(frozen=True)
class DataFile:
    """A published file, or a folder in its place.

    Args:
        name: Name of the file or folder.
        url: Where to download it, or None where its license forbids to distribute it. A file with a URL has one of
            the checksums.
        md5: MD5 checksum, in hexadecimal.
        also: Other names under which it may be found.
        sha256: SHA-256 checksum, in hexadecimal.
        size: Size in bytes, where it is known.
    """

    name: str
    url: str | None = None
    md5: str | None = None
    also: tuple[str, ...] = ()
    sha256: str | None = None
    size: int | None = None

    @property
    def checksum(self) -> tuple[str, str | None]:
        """Algorithm and digest in hexadecimal: SHA-256 where it is known, MD5 otherwise."""
        return ("md5", self.md5) if self.sha256 is None else ("sha256", self.sha256)

    def facts(self) -> str:
        """Return size, SHA-256 and origin as far as they are known, for users who get the file by hand."""
        size = None if self.size is None else f"{self.size:,} bytes"
        sha256 = None if self.sha256 is None else f"sha256 {self.sha256}"
        origin = None if self.url is None else f"from {self.url}"
        return ", ".join(fact for fact in (size, sha256, origin) if fact is not None)

    def inside(self, folder: Path) -> Path | None:
        """Return the path of the file in a folder, under any of its names; None if it is not there."""
        found = (folder / name for name in (self.name, *self.also))
        return next((path for path in found if path.exists()), None)


def idx_file(name: str, *, base: str, md5: str) -> DataFile:
    """Describe an idx file, compressed as published; it is also found unpacked, or with the ending `.idx3-ubyte`."""
    plain = name.removesuffix(".gz")
    dotted = re.sub(r"-(idx\d-ubyte)$", r".\1", plain)
    return DataFile(name, base + name, md5, also=(plain, f"{dotted}.gz", dotted))


@dataclass(frozen=True)
class Wanted:
    """Files that are needed together, and where to look for them.

    Args:
        name: Name of the folder that holds the files, in the user's folder of data sets and in the cache.
        files: The files.
        system: Another folder to look into, such as that of an operating system's package.
        note: Advice that is added to errors about missing files.
        title: Name of the files in errors; if empty, `name`.
    """

    name: str
    files: tuple[DataFile, ...]
    system: Path | None = None
    note: str = ""
    title: str = ""

    def found(self, root: Path | None = None) -> list[Path] | None:
        """Return the files in the first folder that has all of them; None if no folder has."""
        for folder in self._folders(root):
            paths = [path for file in self.files if (path := file.inside(folder)) is not None]
            if len(paths) == len(self.files):
                return paths
        return None

    def obtained(self, *, root: Path | None = None, download: bool = True) -> list[Path]:
        """Find the files, or download them into the cache.

        Args:
            root: Folder to search first.
            download: Whether missing files may be downloaded.

        Returns:
            The paths, in the order of `files`.

        Raises:
            InvalidInputError: `root` is not a folder.
            LoadError: The files are missing and cannot be downloaded, or a download has a wrong checksum; the message
                says where to put them by hand.
        """
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
        """Return the folders to search, in order."""
        given = [] if root is None else [root / self.name, root]
        usual = [_named_by_user(self.name), cache_folder(self.name), self.system]
        return given + [folder for folder in usual if folder is not None]

    def _downloaded(self, file: DataFile) -> Path:
        """Download one file into the cache."""
        purpose = f"{self._title}: downloading it (it is not in {FOLDER_VARIABLE} either)"
        pooch = need("pooch", extra="data", purpose=purpose)
        need("tqdm", extra="data", purpose=purpose)
        algorithm, digest = file.checksum
        try:
            # pooch writes to a temporary file and renames it only if the checksum matches.
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
            # An HTTP error carries its response, whose connection pooch leaves open.
            if (response := getattr(error, "response", None)) is not None:
                response.close()
            cause = f"not found on this machine, and {file.url} cannot be downloaded ({type(error).__name__}: {error})"
            raise LoadError(self._missing(cause)) from error
        except ValueError as error:
            raise LoadError(
                f"{self._title}: wrong checksum: expected {algorithm} {digest} of {file.url}, got another; "
                f"the download was deleted ({error})" + (f"\n{self.note}" if self.note else "")
            ) from error

    def _missing(self, cause: str) -> str:
        """Return the message for files that are missing: the cause, and where to put them by hand."""
        lines = [f"  {file.name}" + (f"  ({file.facts()})" if file.facts() else "") for file in self.files]
        cache = cache_folder(self.name)
        places = [str(_named_by_user(self.name) or f"the folder {self.name} in a folder that {FOLDER_VARIABLE} names")]
        places += [] if cache is None else [str(cache)]
        note = [self.note] if self.note else []
        return "\n".join([f"{self._title}: {cause}. Put", *lines, f"into {', or into '.join(places)}.", *note])


def cache_folder(name: str) -> Path | None:
    """Return this user's cache folder of these files; None without pooch, which knows the place on each system."""
    try:
        pooch = need("pooch", extra="data", purpose="a cache of data")
    except MissingExtraError:
        return None
    return Path(pooch.os_cache("pdpgd")) / name


def _named_by_user(name: str) -> Path | None:
    """Return the folder of these files in the one that the environment variable names; None if it is not set."""
    folder = os.environ.get(FOLDER_VARIABLE)
    return Path(folder).expanduser() / name if folder else None
