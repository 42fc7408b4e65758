"""Requests of a pod and room of a node as exact integers: CPU in milli, everything else in base units.

Sums are exact, and only a sum is rounded up, as in Kubernetes' component-helpers/resource/helpers.go.
Resources that kube-scheduler does not count are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import ROUND_CEILING
from functools import lru_cache
from typing import Final

from broker.apis.core import (
    INFEASIBLE,
    RESIZE_PENDING,
    Container,
    ContainerStatus,
    Pod,
    PodSpec,
    Resources,
)
from broker.apis.meta import condition
from broker.apis.units import add
from broker.text import exact

CPU: Final = "cpu"
MEMORY: Final = "memory"
EPHEMERAL_STORAGE: Final = "ephemeral-storage"
PODS: Final = "pods"
_NATIVE: Final = frozenset({CPU, MEMORY, EPHEMERAL_STORAGE})
HUGE_PAGES: Final = "hugepages-"
_NANO: Final = 10**9
_NO_STATUS: Final = ContainerStatus()


def amounts(quantities: Mapping[str, str]) -> Mapping[str, int]:
    """Room of a node, with the number of pods: one map for all nodes of a size."""
    return _amounts(tuple(quantities.items()))


@lru_cache(maxsize=4096)
def _amounts(quantities: tuple[tuple[str, str], ...]) -> Mapping[str, int]:
    return {name: _whole(name, _nano(text)) for name, text in quantities if name == PODS or counted(name)}


def pod_requests(pod: Pod) -> dict[str, int]:
    """Requests of a pod: while a resize is pending, the largest of desired, allocated and actual.

    A desired size that its node can never give does not count. Each is summed over the pod first, as in
    component-helpers/resource/helpers.go of Kubernetes 1.37.
    """
    spec, status = pod.spec, pod.status
    desired = _whole_pod(spec, lambda container: _requests(container.resources), spec.resources.requests)
    of = {item.name: item for item in (*status.container_statuses, *status.init_container_statuses)}
    if not of and not status.allocated_resources and not status.resources.requests:
        return _rounded(desired)

    def allocated(container: Container) -> dict[str, int]:
        given = of.get(container.name, _NO_STATUS).allocated_resources
        return {**_requests(container.resources), **_nanos(given)}

    def actual(container: Container) -> dict[str, int]:
        return {**allocated(container), **_nanos(of.get(container.name, _NO_STATUS).resources.requests)}

    whole = {**spec.resources.requests, **status.allocated_resources}
    largest = _whole_pod(spec, allocated, whole)
    _raise(largest, _whole_pod(spec, actual, {**whole, **status.resources.requests}))
    pending = condition(status.conditions, RESIZE_PENDING)
    if pending is None or pending.status != "True" or pending.reason != INFEASIBLE:
        _raise(largest, desired)
    return _rounded(largest)


def spec_requests(spec: PodSpec) -> dict[str, int]:
    """Requests of a pod that does not exist yet."""
    return pod_requests(Pod(spec=spec))


def _whole_pod(
    spec: PodSpec, of: Callable[[Container], dict[str, int]], whole: Mapping[str, str]
) -> dict[str, int]:
    """The larger of the containers together and each step of the start, plus overhead.

    A sidecar runs beside everything that starts after it. Requests of the pod as a whole replace those of its
    containers. A limit without a request is a request.
    """
    total: dict[str, int] = {}
    for container in spec.containers:
        add(total, of(container))
    sidecars: dict[str, int] = {}
    start: dict[str, int] = {}
    for container in spec.init_containers:
        step = of(container)
        if container.restart_policy == "Always":
            add(total, step)
            add(sidecars, step)
            step = sidecars
        else:
            add(step, sidecars)
        _raise(start, step)
    _raise(total, start)
    for name, text in whole.items():
        if name in (CPU, MEMORY) or name.startswith(HUGE_PAGES):
            total[name] = _nano(text)
    add(total, _nanos(spec.overhead))
    return total


def _rounded(total: Mapping[str, int]) -> dict[str, int]:
    return {name: _whole(name, value) for name, value in total.items() if counted(name)}


def _nanos(quantities: Mapping[str, str]) -> dict[str, int]:
    return {name: _nano(text) for name, text in quantities.items()}


@lru_cache(maxsize=1024)
def counted(name: str) -> bool:
    """Whether kube-scheduler counts the resource: native, extended, huge pages, or attachable volumes."""
    if name in _NATIVE or name.startswith((HUGE_PAGES, "attachable-volumes-")):
        return True
    return "kubernetes.io/" in name or ("/" in name and not name.startswith("requests."))


def _requests(resources: Resources) -> dict[str, int]:
    return _nanos({**resources.limits, **resources.requests})


@lru_cache(maxsize=4096)
def _nano(text: str) -> int:
    return int((exact(text) * _NANO).to_integral_value(ROUND_CEILING))


def _whole(name: str, nano: int) -> int:
    return -(-nano // (_NANO // 1000 if name == CPU else _NANO))


def _raise(total: dict[str, int], least: Mapping[str, int]) -> None:
    for name, value in least.items():
        if value > total.get(name, -1):
            total[name] = value
