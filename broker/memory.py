"""Collects garbage seldom, and returns memory that was used only for a moment to the system.

Invariant: no other code depends on it; without glibc nothing is returned. The description of thousands of
instances is megabytes of XML for a second. glibc keeps them for reuse (malloc_trim(3)), once for each thread
that used some (mallopt(3), M_ARENA_MAX), and a few live objects hold each arena. After it freed a big block,
it also keeps all later ones of that size, unless their threshold is set (M_MMAP_THRESHOLD).
"""

from __future__ import annotations

import ctypes
import gc

_ARENA_MAX, _MMAP_THRESHOLD = -8, -3  # malloc.h

_libc = ctypes.CDLL(None)
_trim = getattr(_libc, "malloc_trim", None)
_option = getattr(_libc, "mallopt", None)


def collect_seldom() -> None:
    """Imports and the decoding of big lists make many objects that stay, which Python would look through
    again and again."""
    gc.set_threshold(50_000, 20, 100)


def share() -> None:
    """Makes all threads allocate from one arena; they nearly always hold Python's lock when they allocate.
    Blocks of pages, such as the answers to lists, go back to the system when they are freed.

    Call it before the first thread starts: an existing arena stays.
    """
    if _trim is not None and _option is not None:  # other libraries have a mallopt with other numbers
        _option(_ARENA_MAX, 1)
        _option(_MMAP_THRESHOLD, 1 << 20)


def give_back() -> None:
    """Trims the heap, which takes milliseconds."""
    if _trim is not None:
        _trim(0)
