"""Returns memory that was used for a moment to the system.

Invariant: nothing depends on it; without glibc it does nothing. A description of thousands of instances is
megabytes of XML for a second, which glibc keeps for the next time (malloc_trim(3)). It keeps them once for
each thread that had some (mallopt(3), M_ARENA_MAX), and a few live objects hold each arena.
"""

from __future__ import annotations

import ctypes

_ARENA_MAX = -8  # malloc.h

_libc = ctypes.CDLL(None)
_trim = getattr(_libc, "malloc_trim", None)
_option = getattr(_libc, "mallopt", None)


def share() -> None:
    """Makes all threads allocate from one arena; they nearly always hold Python's lock when they allocate.

    Call it before the first thread starts: an existing arena stays.
    """
    if _trim is not None and _option is not None:  # others have a mallopt with other numbers
        _option(_ARENA_MAX, 1)


def give_back() -> None:
    """Takes milliseconds."""
    if _trim is not None:
        _trim(0)
