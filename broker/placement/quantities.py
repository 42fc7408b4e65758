"""Requests of a pod and room of a node as exact integers: CPU in milli, everything else in base units.

Sums are exact, and only a sum is rounded up, as in Kubernetes' component-helpers/resource/helpers.go.
Resources that kube-scheduler does not count are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_CEILING
from functools import lru_cache
from typing import Final

from broker.apis.core import PodSpec, Resources
from broker.text import exact

CPU: Final = "cpu"
MEMORY: Final = "memory"
EPHEMERAL_STORAGE: Final = "ephemeral-storage"
PODS: Final = "pods"
_NATIVE: Final = frozenset({CPU, MEMORY, EPHEMERAL_STORAGE})
_HUGE_PAGES: Final = "hugepages-"
_NANO: Final = 10**9


def amounts(quantities: Mapping[str, str]) -> dict[str, int]:
    """Room of a node, with the number of pods."""
    return {
        name: _whole(name, _nano(text)) for name, text in quantities.items() if name == PODS or counted(name)
    }


def pod_requests(spec: PodSpec) -> dict[str, int]:
    """Requests of a pod: the larger of its containers together and each step of its start, plus overhead.

    A sidecar runs beside everything that starts after it. Requests of the pod as a whole replace those of its
    containers. A limit without a request is a request.
    """
    total: dict[str, int] = {}
    for container in spec.containers:
        _add(total, _requests(container.resources))
    sidecars: dict[str, int] = {}
    start: dict[str, int] = {}
    for container in spec.init_containers:
        step = _requests(container.resources)
        if container.restart_policy == "Always":
            _add(total, step)
            _add(sidecars, step)
            step = sidecars
        else:
            _add(step, sidecars)
        _raise(start, step)
    _raise(total, start)
    for name, text in spec.resources.requests.items():
        if name in (CPU, MEMORY) or name.startswith(_HUGE_PAGES):
            total[name] = _nano(text)
    _add(total, {name: _nano(text) for name, text in spec.overhead.items()})
    return {name: _whole(name, value) for name, value in total.items() if counted(name)}


@lru_cache(maxsize=1024)
def counted(name: str) -> bool:
    """Whether kube-scheduler counts the resource: native, extended, huge pages, or attachable volumes."""
    if name in _NATIVE or name.startswith((_HUGE_PAGES, "attachable-volumes-")):
        return True
    return "kubernetes.io/" in name or ("/" in name and not name.startswith("requests."))


def _requests(resources: Resources) -> dict[str, int]:
    return {name: _nano(text) for name, text in {**resources.limits, **resources.requests}.items()}


@lru_cache(maxsize=4096)
def _nano(text: str) -> int:
    return int((exact(text) * _NANO).to_integral_value(ROUND_CEILING))


def _whole(name: str, nano: int) -> int:
    return -(-nano // (_NANO // 1000 if name == CPU else _NANO))


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for name, value in more.items():
        total[name] = total.get(name, 0) + value


def _raise(total: dict[str, int], least: Mapping[str, int]) -> None:
    for name, value in least.items():
        if value > total.get(name, -1):
            total[name] = value
