"""The requests that a namespace's LimitRanges give to containers, as admission does.

A pod that exists has them already; the pods of a DaemonSet's template get them once they are created
(kubernetes plugin/pkg/admission/limitranger).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from broker.apis.core import Container, PodSpec
from broker.apis.limits import CONTAINER, LimitRange


def default_requests(ranges: Iterable[LimitRange]) -> dict[str, str]:
    """The request of a container that has neither a request nor a limit; the first range decides."""
    requests: dict[str, str] = {}
    for limits in sorted(ranges, key=lambda item: item.name):
        for item in limits.spec.limits:
            if item.type == CONTAINER:
                requests = {**item.default, **item.default_request, **requests}
    return requests


def with_defaults(spec: PodSpec, requests: Mapping[str, str]) -> PodSpec:
    """The pod's spec once it is admitted. `requests`: those of a container without its own."""
    if not requests:
        return spec

    def admitted(container: Container) -> Container:
        own = container.resources
        merged = {**requests, **own.limits, **own.requests}
        return container.model_copy(update={"resources": own.model_copy(update={"requests": merged})})

    return spec.model_copy(
        update={
            "containers": tuple(map(admitted, spec.containers)),
            "init_containers": tuple(map(admitted, spec.init_containers)),
        }
    )
