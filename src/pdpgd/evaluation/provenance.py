"""Provenance of a run: versions, command, machine and git revision."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch


def made_with(library: str | None = None) -> dict[str, str]:
    """Return the versions that the bits of a result depend on, including that of the attack's own library if any."""
    versions = {"pdpgd": metadata.version("pdpgd"), "torch": torch.__version__}
    return versions if library is None else {**versions, library: _version(library) or "not installed"}


def start(**options: Any) -> dict[str, Any]:
    """Describe a start of a run: time, command, versions, machine, and these options of the execution."""
    return {
        "at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": sys.argv,
        "git": git_revision(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": processor_model(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "versions": {name: _version(name) for name in ("pdpgd", "torch", "numpy", "pyarrow", "ray")},
        **options,
    }


def processor() -> str:
    """Name the processor, and the instructions that torch and oneDNN use on it.

    The bits of results depend on all of these: two processors with AVX-512 may still add in different orders.
    """
    name = f"{processor_model()}, {torch.backends.cpu.get_cpu_capability()}"
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA")
    return name if limit is None else f"{name}, oneDNN at most {limit}"


@cache
def processor_model() -> str:
    """Name the model of the processor, or its architecture where the system does not report the model."""
    return _linux_processor() or _mac_processor() or platform.processor() or platform.machine()


def _linux_processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str | None:
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    # Reversed, so that the entries of the first core override those of the others.
    entries = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in reversed(lines))}
    if "model name" not in entries:
        return None
    numbers = {"family": "cpu family", "model": "model", "stepping": "stepping"}
    details = ", ".join(f"{name} {entries[key]}" for name, key in numbers.items() if key in entries)
    return f"{entries['model name']} ({details})" if details else entries["model name"]


def _mac_processor() -> str | None:
    if sys.platform != "darwin":
        return None
    try:
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None


def git_revision() -> str | None:
    """Return the git revision of the current directory, where the user's code is likely to be; "+" if files changed."""
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
