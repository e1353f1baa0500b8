"""The heap of a process that computes: memory that was freed stays there for the next tensors.

By default glibc maps a large block anew for each activation and unmaps it once it is freed, so that
the kernel clears its pages again and again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from ctypes import CDLL, Structure, c_size_t, c_void_p, cast

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8  # as in malloc.h
_MOST = (1 << 31) - 1
_HALF_OF_A_HEAP = 32 << 20  # the most that a glibc takes which maps what no thread's heap holds
_PROBE = 1 << 20
LARGEST = 64 << 20
"""Bytes of a block for which the heap grows, and by which: larger ones would leave holes in it."""
LARGEST_OF_THREADS = 8 << 20
"""The same where threads with tensors of many sizes share the heap, as in grounding."""


def keep_heap(*, of_threads: bool = False) -> str:
    """Take large blocks from the heap, and keep it until this process and its forks end.

    For a command, before it computes; whoever imports Sightline decides for their own process.
    What a user asks of the allocator stays as it is.

    Args:
        of_threads: one heap for all threads, of smaller blocks: less memory, a little slower.

    Returns:
        why the heap is not kept; empty if it is.
    """
    if variable := settled_by(os.environ):
        return f"{variable} says how malloc works"
    if "CS_GNU_LIBC_VERSION" not in os.confstr_names:
        return "only glibc's malloc can keep it"
    ours, libc = CDLL(None), CDLL("libc.so.6")
    if not set_thresholds(libc.mallopt, LARGEST_OF_THREADS if of_threads else LARGEST):
        return "this glibc refuses"
    if of_threads:
        libc.mallopt(_ARENA_MAX, 1)
    return "" if _is_used(libc, ours) else "another malloc stands in for glibc's"


class _Mallinfo(Structure):
    """What glibc's malloc has given out, as in malloc.h."""

    _fields_ = [
        *((name, c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")),
    ]


def _is_used(libc: CDLL, ours: CDLL) -> bool:
    """Whether a block of this process is one of glibc's; its functions may have two addresses."""
    if not hasattr(libc, "mallinfo2"):  # before glibc 2.33
        return cast(libc.malloc, c_void_p).value == cast(ours.malloc, c_void_p).value
    libc.mallinfo2.restype, ours.malloc.restype = _Mallinfo, c_void_p

    def given_out() -> int:
        about = libc.mallinfo2()
        return about.uordblks + about.hblkhd

    before = given_out()
    block = c_void_p(ours.malloc(_PROBE))
    after = given_out()
    ours.free(block)
    return after - before > _PROBE // 2  # another thread may free some as well


def settled_by(environment: Mapping[str, str]) -> str:
    """The variable that tells glibc's malloc how to work; empty without one."""
    if "glibc.malloc." in environment.get("GLIBC_TUNABLES", ""):
        return "GLIBC_TUNABLES"
    return next((name for name in sorted(environment) if name.startswith("MALLOC_")), "")


def set_thresholds(mallopt: Callable[[int, int], int], largest: int) -> bool:
    """Map larger blocks alone and give none back, as far as ``mallopt`` does it (0: not)."""
    if not (mallopt(_MMAP_THRESHOLD, largest) or mallopt(_MMAP_THRESHOLD, _HALF_OF_A_HEAP)):
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _MOST) and mallopt(_TOP_PAD, largest))
