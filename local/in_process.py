"""The way to the embedded API server for the broker's own client: a call into the same process.

Invariant: it carries the same requests and raises the same errors as `broker.kube.transports` over HTTP.
"""

from __future__ import annotations

from broker.kube.client import Reply, Request, Stream
from broker.kube.errors import from_reply
from local.kube import Cluster
from local.kube.wire import ApiRequest, Response


class InProcessTransport:
    """Calls the embedded API server's own verbs: no socket, no thread."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def request(self, request: Request, *, timeout: float) -> Reply:
        del timeout  # a call returns when it is done
        answer = self._answer(request)
        return Reply(status=answer.status, headers=answer.headers, body=answer.body)

    def stream(self, request: Request, *, timeout: float) -> Stream:
        del timeout
        answer = self._answer(request)
        if answer.stream is None:
            raise from_reply(answer.status, answer.body, answer.headers)
        return answer.stream

    def _answer(self, request: Request) -> Response:
        return self._cluster.handle(
            ApiRequest(request.method, request.path, request.query, request.headers, request.body)
        )
