"""Packed data is measured before it is unpacked: a small file may ask for more memory than there is."""

from __future__ import annotations

from pathlib import Path

from pdpgd.errors import SubjectError

# Bytes that are unpacked whatever they were packed into: no machine that runs a model lacks them.
ALWAYS = 2**28
# Unpacked over packed bytes. Published images have 1 to 10; deflate makes 200 to 1032 of what is all the same.
MOST = 100


def check_size(place: str, *, packed: int, unpacked: int) -> None:
    """Refuse data that no images pack into so few bytes, and data that memory has no room for."""
    if unpacked <= ALWAYS:
        return
    if unpacked > MOST * packed:
        raise SubjectError(
            f"{place}: refused: expected at most {MOST} times as many bytes unpacked as packed, got {packed:,} that "
            f"unpack to {unpacked:,}; if this is right, save the data without compression"
        )
    available = available_memory()
    if available is not None and unpacked > available:
        raise SubjectError(
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
