"""Why no instance type of a NodePool can have a pod, counted by instance types.

Why not in kube-scheduler's words: its texts count nodes, and no node of these types exists. A type counts
once, for the machine of it that comes nearest to have the pod.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from broker.apis import names
from broker.apis.spelling import NEAR
from broker.apis.units import written
from broker.capacity.types import RESOURCES
from broker.placement.affinity import NO_MATCH
from broker.placement.binding import GONE, NO_VOLUME, OTHER_NODES, OTHER_ZONE
from broker.placement.model import NodeInfo, PodInfo
from broker.placement.quantities import CPU
from broker.placement.selectors import Selector, SelectorRequirement, holds, shown
from broker.placement.taints import UNTOLERATED, shown_taints, untolerated
from broker.text import abridged, counted, nearest

MOST_NAMED: Final = 3
DRAWS_ELSEWHERE: Final = "the reservation that the pod draws from is not the pool's"
OVER_LIMIT: Final = "its limit of "
_OVER_LIMITS: Final = re.compile(rf"\bNodePools? ([^:;]+): {OVER_LIMIT}(\S+) is ")
# The reason of a type with too little room, beside those of filters.
TOO_SMALL: Final = "too small"
# Reasons from the farthest to the nearest: the order in which filters run, and room after them.
_ORDER: Final = (DRAWS_ELSEWHERE, UNTOLERATED, NO_MATCH, GONE, NO_VOLUME, OTHER_NODES, OTHER_ZONE, TOO_SMALL)
_BY_VOLUME: Final = frozenset({OTHER_NODES, OTHER_ZONE})


def over_limits(reason: str) -> list[tuple[str, str]]:
    """The NodePools in a pod's reason that open no machine for a limit of theirs, each with the resource."""
    return [
        (pool, resource)
        for pools, resource in _OVER_LIMITS.findall(reason)
        for pool in pools.partition(" and ")[0].split(", ")
    ]


def limits_exceeded(
    machines: Mapping[str, Mapping[str, int]],
    left: Mapping[str, int],
    free: Mapping[str, int],
    limits: Mapping[str, int],
) -> Iterator[str]:
    """The limits of a NodePool that the smallest of these machines, by type, exceeds. `left`: what the limits
    leave beside other machines of its gang, and `free` without these.
    """
    sizes = [*sorted(left), CPU]
    smallest = min(machines, key=lambda name: ([machines[name].get(size, 0) for size in sizes], name))
    for name in sorted(left):
        if (adds := machines[smallest].get(name, 0)) > left[name]:
            limit = limits.get(name, free[name])
            which = "the smallest machine that fits" if adds > free[name] else "each machine of the gang"
            yield (
                f"{OVER_LIMIT}{name} is {written(name, limit)}, its nodes and claims use "
                f"{written(name, limit - free[name])}, and {which} ({smallest}) has {written(name, adds)}"
            )


class TypeRejection(NamedTuple):
    """Why a machine cannot have a pod. `unmet`: tests of its labels; `short`: its room, where it is less than
    the request, by resource.
    """

    reason: str
    node: NodeInfo
    unmet: Selector = ()
    short: Mapping[str, int] = {}

    @property
    def nearness(self) -> tuple[int, int]:
        """Orders the machines of one type: the largest comes nearest to have the pod."""
        return _ORDER.index(self.reason), -len(self.unmet) - len(self.short)


class PoolReason(NamedTuple):
    """Why a NodePool has no machine for a pod. `by_volume`: the places of its volumes are a part of it;
    `limited`: its limits are, so that a free slot would not help.
    """

    text: str
    by_volume: bool = False
    limited: bool = False


def pool_reason(pod: PodInfo, by_type: Mapping[str, TypeRejection]) -> PoolReason:
    """The reason of a NodePool with these instance types."""
    by_reason: dict[str, list[TypeRejection]] = {}
    for rejection in by_type.values():
        by_reason.setdefault(rejection.reason, []).append(rejection)
    if len(by_reason) > 1:
        by_reason.pop(DRAWS_ELSEWHERE, None)  # machines for other pods, beside those for this one
    nearest_first = sorted(by_reason, key=_ORDER.index, reverse=True)
    texts = [_TEXTS[reason](pod, by_reason[reason]) for reason in nearest_first]
    return PoolReason(", ".join(texts), not _BY_VOLUME.isdisjoint(by_reason))


def unmet(pod: PodInfo, labels: Mapping[str, str]) -> Selector:
    """The tests of the pod's selector, and of each term of its affinity, that fail."""
    return tuple(item for item in (*pod.node_selector, *_affinity(pod)) if not holds(item, labels))


def _affinity(pod: PodInfo) -> Selector:
    return tuple(item for term in pod.node_terms or () for item in term.expressions)


def _types(rejections: Sequence[TypeRejection], singular: str, plural: str) -> str:
    return f"{counted(len(rejections), 'instance type')} {singular if len(rejections) == 1 else plural}"


def _unmatched(pod: PodInfo, rejections: Sequence[TypeRejection]) -> str:
    failing = [{*rejection.unmet} for rejection in rejections]
    # A test that no type meets is the cause by itself.
    tests = set.intersection(*failing) or set.union(*failing)
    of_selector = [item for item in pod.node_selector if item in tests]
    of_terms = [[item for item in term.expressions if item in tests] for term in pod.node_terms or ()]
    of_affinity = " or ".join(dict.fromkeys(text for items in of_terms if (text := _named(items))))
    parts = [name for name, items in (("selector", of_selector), ("affinity", of_affinity)) if items]
    text = _types(rejections, "does not match", "do not match")
    named = ", ".join(filter(None, [_named(of_selector), of_affinity]))
    which = f" ({named})" if named else ""
    return f"{text} the pod's node {' and '.join(parts) or 'affinity'}{which}{_cause(tests, rejections)}"


def _cause(tests: Iterable[SelectorRequirement], rejections: Sequence[TypeRejection]) -> str:
    """The likely cause of a label that follows from the NodePool or its class: tenancy, or architecture."""
    keys = {item.key for item in tests}
    if names.INSTANCE_TENANCY in keys:
        return f": a NodePool has it if its requirement {names.INSTANCE_TENANCY} leaves only that value"
    offered = {rejection.node.labels.get(names.ARCH, "") for rejection in rejections} - {""}
    if names.ARCH not in keys or not offered:
        return ""
    return (
        f"; they are {', '.join(sorted(offered))}: see the architecture of the images of the NodePool's class"
    )


def _named(tests: Iterable[SelectorRequirement]) -> str:
    return abridged([shown(item) for item in dict.fromkeys(tests)], MOST_NAMED)


def _too_small(pod: PodInfo, rejections: Sequence[TypeRejection]) -> str:
    resources = sorted({name for rejection in rejections for name in rejection.short})
    return ", ".join(
        _lack(pod, name, [item for item in rejections if name in item.short]) for name in resources
    )


def _lack(pod: PodInfo, resource: str, rejections: Sequence[TypeRejection]) -> str:
    most = max(rejection.short[resource] for rejection in rejections)
    if not most:
        meant = "" if resource in RESOURCES else nearest(resource, RESOURCES, ratio=NEAR)
        return _types(rejections, f"has no {resource}", f"have no {resource}") + meant
    asked = pod.requests.get(resource, 1)
    amounts = f"{written(resource, most)} for pods at most, the pod requests {written(resource, asked)}"
    return f"{_types(rejections, 'has', 'have')} too little {resource} ({amounts})"


def _tainted(pod: PodInfo, rejections: Sequence[TypeRejection]) -> str:
    taints = dict.fromkeys(
        taint for item in rejections for taint in untolerated(pod.tolerations, item.node.taints)
    )
    text = _types(rejections, "has a taint", "have a taint")
    return f"{text} that the pod does not tolerate ({shown_taints(taints)})"


def _by_volume(singular: str, plural: str) -> Callable[[PodInfo, Sequence[TypeRejection]], str]:
    return lambda _, rejections: _types(rejections, singular, plural)


_TEXTS: Final[Mapping[str, Callable[[PodInfo, Sequence[TypeRejection]], str]]] = {
    DRAWS_ELSEWHERE: lambda *_: DRAWS_ELSEWHERE,
    UNTOLERATED: _tainted,
    NO_MATCH: _unmatched,
    GONE: lambda *_: "a volume claim of the pod is bound to a volume that does not exist",
    NO_VOLUME: _by_volume(
        "can get no volume of the pod's storage class", "can get no volume of the pod's storage class"
    ),
    OTHER_NODES: _by_volume(
        "does not match the node affinity of the pod's volume",
        "do not match the node affinity of the pod's volume",
    ),
    OTHER_ZONE: _by_volume(
        "is not in the zone of the pod's volume", "are not in the zone of the pod's volume"
    ),
    TOO_SMALL: _too_small,
}
