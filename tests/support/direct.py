"""A local AWS in the tests' own process answers the SDK's clients without a socket and a thread a call.

The socket itself is tested by tests/aws/local. botocore gives each session of a process the same handlers;
this one leaves requests to other servers alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.handlers import BUILTIN_HANDLERS

from providers.local import LocalAws

_servers: list[LocalAws] = []


def _answer(request: AWSPreparedRequest, **_: object) -> AWSResponse | None:
    answers = (server.direct(request) for server in _servers)
    return next((answer for answer in answers if answer is not None), None)


BUILTIN_HANDLERS.append(("before-send", _answer))


@contextmanager
def local_aws_here() -> Iterator[LocalAws]:
    """One server, in reach of this process and of others."""
    with LocalAws() as server:
        _servers.append(server)
        try:
            yield server
        finally:
            _servers.remove(server)
