"""The number of files and sockets that this process may have open."""

from __future__ import annotations

import resource


def allow_many() -> None:
    """Raises the soft limit to the hard one; many systems start a process with 1,024, as select(2) needs."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
