"""Requests that do more than read or write an object: subresources with a meaning of their own, reviews.

Requests that need a kubelet (logs, exec, port-forward, proxies) are refused with 501.
"""

from __future__ import annotations

from collections.abc import Callable

from local.kube import bindings, evictions, finalize, reviews, scale
from local.kube.errors import StatusError
from local.kube.options import ApiCall
from local.kube.state import ApiState
from local.kube.wire import Response

Handler = Callable[[ApiState, ApiCall], Response]


def _no_kubelet(_: ApiState, call: ApiCall) -> Response:
    raise StatusError(
        501, "NotImplemented", f"{call.target.plural} needs a kubelet, and no node has one here"
    )


def _no_tokens(_: ApiState, call: ApiCall) -> Response:
    raise StatusError(501, "NotImplemented", "this server signs no tokens, and takes requests without any")


_KUBELET = (
    "pods/attach",
    "pods/exec",
    "pods/log",
    "pods/portforward",
    "pods/proxy",
    "nodes/proxy",
    "services/proxy",
)
_HANDLERS: dict[str, Handler] = {
    "pods/binding": bindings.bind,
    "bindings": bindings.bind_anywhere,
    "pods/eviction": evictions.evict,
    "namespaces/finalize": finalize.finalize,
    "serviceaccounts/token": _no_tokens,
    **dict.fromkeys(_KUBELET, _no_kubelet),
    **dict.fromkeys(reviews.REVIEWS, reviews.answer),
}


def handler(call: ApiCall) -> Handler | None:
    if call.target.subresource == "scale":
        return scale.answer
    return _HANDLERS.get(call.target.plural) if call.target.resource.custom is None else None
