"""Which machine options a pod fits by itself: one test for each pod shape and each set of equal options.

Options are equal for all pods if they have the same pool, taints, and values of the labels that any pod
reads. Room is compared as numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from broker.apis import names
from broker.placement.affinity import NO_MATCH, node_affinity
from broker.placement.binding import TOPOLOGY, volume_binding, volume_zone
from broker.placement.filters import Filter, PreparedFilters, prepare
from broker.placement.model import NodeTerm, PodInfo
from broker.placement.packing_model import MachineOption
from broker.placement.quantities import PODS
from broker.placement.shapes import PodShape
from broker.placement.snapshot import NodeState, PlacementSnapshot
from broker.placement.storage import Storage
from broker.placement.taints import taint_toleration
from broker.placement.type_reasons import (
    DRAWS_ELSEWHERE,
    TOO_SMALL,
    PoolReason,
    TypeRejection,
    pool_reason,
    unmet,
)

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

# The filters that read one node only, without its pods; room is compared apart.
NODE_FILTERS: Final[tuple[Filter, ...]] = (
    taint_toleration,
    node_affinity,
    volume_binding,
    volume_zone,
)
VOLUME_KEYS: Final = frozenset({*TOPOLOGY, "topology.ebs.csi.aws.com/zone", "topology.k8s.aws/zone-id"})
# The largest amount that is compared: beyond it, arrays of 64 bits would overflow.
LARGEST_AMOUNT: Final = 2**53
NAMES_NODE: Final = "the pod names nodes, and a new node cannot be one of them"
NO_OPTION: Final = "no NodePool of the broker offers a machine"


class MachineTable:
    """Options with their room as numbers, and the options that each shape fits."""

    def __init__(
        self, options: Sequence[MachineOption], shapes: Sequence[PodShape], storage: Storage
    ) -> None:
        self.options = options
        self.resources = _resources(shapes)
        self.room = np.array(
            [
                [min(option.node.allocatable.get(name, 0), LARGEST_AMOUNT - 1) for name in self.resources]
                for option in options
            ],
            dtype=np.int64,
        ).reshape(len(options), len(self.resources))
        self._empty = PlacementSnapshot(storage=storage)
        keys = label_keys((shape.example for shape in shapes), storage)
        self.signatures = [signature(option, keys) for option in options]
        self._examples: dict[Hashable, int] = {}
        for place, value in enumerate(self.signatures):
            self._examples.setdefault(value, place)
        numbers = {value: number for number, value in enumerate(self._examples)}
        self.kind = np.array([numbers[value] for value in self.signatures], dtype=np.int64)
        self._kinds = [*self._examples.values()]
        self._valued = [place for place, option in enumerate(options) if option.valued]

    def requests(self, pod: PodInfo) -> Ints:
        """The pod's requests in the order of `resources`."""
        return np.array(
            [
                1 if name == PODS else min(pod.requests.get(name, 0), LARGEST_AMOUNT)
                for name in self.resources
            ],
            dtype=np.int64,
        )

    def accepts(self, shape: PodShape) -> Mask:
        """The options with labels and taints that admit the pods, with or without room for one."""
        prepared = self._prepared(shape.example)
        mask = np.array([self._admits(shape, prepared, place) for place in self._kinds], dtype=bool)
        return mask[self.kind]

    def fits(self, shape: PodShape) -> Mask:
        """The options that could host one pod of the shape."""
        return self.host([shape], self.requests(shape.example))

    def host(self, shapes: Iterable[PodShape], requests: Ints) -> Mask:
        """The options that could host pods of the shapes, with these requests together."""
        mask: Mask = np.all(requests <= self.room, axis=1)
        for shape in shapes:
            mask &= self.accepts(shape)
        if self._valued:
            hosting = [self.options[place] for place in places_of(mask)]
            plain = {option.pool for option in hosting if not option.source and not option.accelerated}
            mask[[place for place in self._valued if self.options[place].pool in plain]] = False
        return mask

    def rejection(self, shape: PodShape) -> str:
        """Why no machine at all can host a pod of the shape, for a reason of the pod's own."""
        return self._prepared(shape.example).rejection or ("" if self.options else NO_OPTION)

    def rejections(self, shape: PodShape) -> dict[str, PoolReason]:
        """Why each pool has no machine that can host a pod of the shape; nothing about one that has one."""
        prepared = self._prepared(shape.example)
        requests = self.requests(shape.example)
        by_pool: dict[str, dict[str, TypeRejection]] = {}
        fitting: set[str] = set()
        for place, option in enumerate(self.options):
            rejection = self._rejection(shape, prepared, requests, place)
            if rejection is None:
                fitting.add(option.pool)
                continue
            by_type = by_pool.setdefault(option.pool, {})
            before = by_type.get(option.instance_type)
            if before is None or rejection.nearness > before.nearness:
                by_type[option.instance_type] = rejection
        return {
            pool: pool_reason(shape.example, by_type)
            for pool, by_type in by_pool.items()
            if pool not in fitting
        }

    def _rejection(
        self, shape: PodShape, prepared: PreparedFilters, requests: Ints, place: int
    ) -> TypeRejection | None:
        """Why an option cannot host a pod of the shape; None if it can."""
        node = self.options[place].node
        if self.options[place].drawing != shape.group[1]:
            return TypeRejection(DRAWS_ELSEWHERE, node)
        if reasons := prepared.reasons(NodeState(node)):
            tests = unmet(shape.example, node.labels) if reasons[0] == NO_MATCH else ()
            return TypeRejection(reasons[0], node, tests)
        short = {
            self.resources[number]: int(self.room[place, number])
            for number in np.flatnonzero(requests > self.room[place])
        }
        return TypeRejection(TOO_SMALL, node, short=short) if short else None

    def _prepared(self, pod: PodInfo) -> PreparedFilters:
        if pod.named_nodes is not None or pod.node_name:
            return PreparedFilters(rejection=NAMES_NODE)
        return prepare(pod, self._empty, NODE_FILTERS)

    def _admits(self, shape: PodShape, prepared: PreparedFilters, place: int) -> bool:
        option = self.options[place]
        if option.drawing != shape.group[1]:
            return False
        if shape.domain is not None and option.node.labels.get(shape.domain[0]) != shape.domain[1]:
            return False
        return not prepared.reasons(NodeState(option.node))


def places_of(mask: Mask) -> list[int]:
    """The places that are true."""
    places: list[int] = np.flatnonzero(mask).tolist()
    return places


def signature(option: MachineOption, keys: Sequence[str]) -> Hashable:
    """The properties of an option, besides room, that a pod's rules can read."""
    labels = option.node.labels
    return option.pool, option.drawing, option.node.taints, tuple(labels.get(key) for key in keys)


def label_keys(pods: Iterable[PodInfo], storage: Storage) -> list[str]:
    """The labels of nodes that any of the pods reads; always the zone."""
    keys = {names.ZONE}
    for pod in pods:
        keys.update(item.key for item in pod.node_selector)
        keys.update(_term_keys(pod.node_terms or ()))
        keys |= topology_keys(pod)
        if pod.volumes:
            keys |= VOLUME_KEYS
            for volume in storage.volumes.values():
                keys.update(_term_keys(volume.terms or ()))
            keys.update(
                key for item in storage.classes.values() for term in item.topologies for key, _ in term
            )
    return sorted(keys)


def topology_keys(pod: PodInfo) -> set[str]:
    """The labels by which the pod is spread over nodes, or kept near to other pods or apart."""
    near = {term.topology_key for term in (*pod.terms_near, *pod.terms_apart)}
    return near | {item.topology_key for item in pod.spread}


def _term_keys(terms: Iterable[NodeTerm]) -> set[str]:
    return {item.key for term in terms for item in term.expressions}


def _resources(shapes: Iterable[PodShape]) -> list[str]:
    names = {name for shape in shapes for name, amount in shape.example.requests.items() if amount > 0}
    return [PODS, *sorted(names - {PODS})]


def undominated(table: MachineTable, usable: Mask, limits: Mapping[str, Collection[str]]) -> Mask:
    """The usable options without those that another replaces: unbounded, as cheap, with as much room.

    Options of sources are kept, and so is an option that uses less of a limited resource. `limits`: the
    limited resources of each pool.
    """
    keep = usable.copy()
    costs = np.array([option.cost for option in table.options])
    for kind in np.unique(table.kind[usable]):
        places = [p for p in places_of(usable & (table.kind == kind)) if not table.options[p].source]
        places.sort(key=lambda place: (costs[place], -int(table.room[place].sum())))
        kept: list[int] = []
        for place in places:
            option = table.options[place]
            as_roomy = (table.room[kept] >= table.room[place]).all(axis=1)
            better = [p for p, more in zip(kept, as_roomy, strict=True) if more]
            limited = dict.fromkeys(limits.get(option.pool, ()), 0)
            if any(table.options[p].uses_no_more(option, limited) for p in better):
                keep[place] = False
            else:
                kept.append(place)
    return keep
