"""Memory that is freed and asked for again a thousand times a second had better not go back to the system between."""

from __future__ import annotations

import ctypes

# glibc's malloc.h: what the numbers are to mallopt.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
LARGEST = 32 * 2**20
"""Blocks from this size on are mapped by themselves, the most that glibc takes."""
KEPT = 2**30
TAKEN_AT_ONCE = 64 * 2**20


def keep_freed_memory() -> None:
    """For a process of our own: an attack makes and frees its tensors in every step.

    Mapping the memory and faulting it in took a fifth of an evaluation of a small net. Does nothing where the C library
    is not glibc.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return
    for option, value in ((M_MMAP_THRESHOLD, LARGEST), (M_TRIM_THRESHOLD, KEPT), (M_TOP_PAD, TAKEN_AT_ONCE)):
        mallopt(option, value)
