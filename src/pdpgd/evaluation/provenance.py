"""Where and with what a run was made."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
from importlib import metadata
from typing import Any

import torch


def made_with(library: str | None = None) -> dict[str, str]:
    """The versions that a result's bits depend on; `library` is where the attack is from, if not from here."""
    versions = {"pdpgd": metadata.version("pdpgd"), "torch": torch.__version__}
    return versions if library is None else {**versions, library: _version(library) or "not installed"}


def start(**facts: Any) -> dict[str, Any]:
    """A start of a run: when, by what command, with what, on what."""
    return {
        "at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": sys.argv,
        "git": git_revision(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: _version(name) for name in ("pdpgd", "torch", "numpy", "pyarrow", "ray")},
        **facts,
    }


def processor() -> str:
    """As far as the system tells, and the instructions that are used: with others, sums have other last bits."""
    name = f"{platform.processor() or platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA")
    return name if limit is None else f"{name}, oneDNN at most {limit}"


def git_revision() -> str | None:
    """Of the current directory, where the user's model and scripts are likely to be; "+" if files were changed."""
    try:
        revision = _git("rev-parse", "HEAD")
        return f"{revision}+" if _git("status", "--porcelain", "--untracked-files=no") else revision
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
