"""Memory that was used for a moment goes back to the system.

Invariant: nothing depends on it; where the C library is not glibc it does nothing. A description of thousands
of instances is megabytes of XML for a second, which glibc keeps for the next time (malloc_trim(3)), and once
for each thread that had some (mallopt(3), M_ARENA_MAX): a few objects that stay hold each of those apart.
"""

from __future__ import annotations

import ctypes

_ARENA_MAX = -8  # malloc.h

_libc = ctypes.CDLL(None)
_trim = getattr(_libc, "malloc_trim", None)
_option = getattr(_libc, "mallopt", None)


def share() -> None:
    """All threads allocate from one place from now on. They hold Python's lock nearly always when they do.

    Before the first thread starts: what has a place of its own keeps it.
    """
    if _trim is not None and _option is not None:  # others have a mallopt with other numbers
        _option(_ARENA_MAX, 1)


def give_back() -> None:
    """Takes milliseconds."""
    if _trim is not None:
        _trim(0)
