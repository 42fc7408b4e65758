"""Memory that was used for a moment goes back to the system.

Invariant: nothing depends on it; where the C library is not glibc it does nothing. A description of thousands
of instances is megabytes of XML for a second, which glibc keeps for the next time (malloc_trim(3)).
"""

from __future__ import annotations

import ctypes

_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)


def give_back() -> None:
    """Takes milliseconds."""
    if _trim is not None:
        _trim(0)
