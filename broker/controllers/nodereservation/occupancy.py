"""Nodes with their pods and the room that reservations keep, as one pass of a loop reads them.

Invariant: the scheduler, provisioning and disruption see the same pods and the same kept room. Both are read
from the Reservations and the pods alone, by the scheduler's own rules. Kinds that are not served keep
nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from broker.apis import godel
from broker.apis import koordinator as koord
from broker.apis.core import UNSCHEDULABLE, Node, Pod
from broker.apis.kueue import Namespace
from broker.apis.meta import Object
from broker.apis.nos import CompositeElasticQuota, ElasticQuota
from broker.controllers.nodereservation.node_holds import node_holds
from broker.controllers.nodereservation.reads import SchedulerReads
from broker.controllers.nodereservation.room_rules import RoomRules
from broker.kube.cache import Cache, Guard
from broker.kube.client import Client
from broker.kube.derived import Derived
from broker.kube.informer import Informer
from broker.kube.panics import guarded
from broker.placement.holds_bounds import RoomBounds
from broker.placement.holds_ledger import HoldLedger, HoldLink
from broker.placement.holds_reading import hold_link, holds_room, reservation_waits, template_pod
from broker.placement.model import NodeInfo, PodInfo
from broker.placement.reading import namespace_labels, node_info, pod_info
from broker.placement.selectors import Labels
from broker.placement.snapshot import PlacementSnapshot

T = TypeVar("T", bound=Object)
V = TypeVar("V")
# Part of a reservation's key.
RESERVATION: Final = "reservation/"


@dataclass(frozen=True, kw_only=True)
class NodeOccupancy:
    """`infos`: all pods by key, `node_infos`: the nodes by name. `pods`: those that take room on a node,
    `bound`: the same for filters.

    `ledger`: the holds.
    """

    nodes: Sequence[Node] = ()
    node_infos: Mapping[str, NodeInfo] = field(default_factory=dict)
    infos: Mapping[str, PodInfo] = field(default_factory=dict)
    pods: Sequence[Pod] = ()
    bound: Sequence[PodInfo] = ()
    ledger: HoldLedger = field(default_factory=HoldLedger)
    # Their labels, by name; rules between pods select namespaces by them.
    namespaces: Mapping[str, Labels] = field(default_factory=dict)
    # The reservations that need another node, by `reservation_key`.
    unplaced: Mapping[str, koord.KoordinatorReservation] = field(default_factory=dict)

    @cached_property
    def occupied(self) -> tuple[PodInfo, ...]:
        """The pods on nodes, and placeholders for the idle room of holds.

        A pod that is a hold itself is in it as its placeholder only: room that an owner uses counts once.
        """
        pods = (pod for pod in self.bound if pod.uid not in self.ledger.states)
        return (*pods, *self.ledger.placeholders())

    @cached_property
    def placement(self) -> PlacementSnapshot:
        """The nodes and what occupies them, for kube-scheduler's filters."""
        nodes = (self.node_infos.get(node.name) or node_info(node) for node in self.nodes)
        return PlacementSnapshot.of(nodes, self.occupied, namespaces=self.namespaces)

    @cached_property
    def held(self) -> Mapping[str, tuple[str, ...]]:
        """The names of the holds by node, and the pods that become holds as soon as they are gone."""
        held: dict[str, list[str]] = defaultdict(list)
        for state in self.ledger.states.values():
            held[state.hold.node].append(state.hold.name)
        for pod in self.pods:
            if _becomes_hold(pod):
                held[pod.spec.node_name].append(pod.key)
        return {node: tuple(holders) for node, holders in held.items()}


class OccupancyReader:
    """Without `reads`, the broker places no reservations, and none keeps room."""

    def __init__(
        self,
        reads: SchedulerReads | None,
        nodes: Cache[Node],
        pods: Cache[Pod],
        namespaces: Informer[Namespace],
        *,
        bounds: RoomBounds,
    ) -> None:
        self._reads, self._nodes, self._pods = reads, nodes, pods
        self._namespaces, self.bounds = namespaces, bounds
        self._rules = None if reads is None else reads.rules(bounds, namespaces.cache)
        # By uid, with the version. Several loops read; each replaces the whole.
        self._known: Mapping[str, tuple[str, PodInfo]] = {}
        self._known_nodes: Mapping[str, tuple[str, NodeInfo]] = {}
        self._without_holds = Derived(lambda: self._read(pods.list()), pods, nodes, namespaces.cache)

    @property
    def reservations(self) -> Informer[koord.KoordinatorReservation] | None:
        """The informer of Koordinator's reservations, for triggers."""
        return None if self._reads is None else self._reads.koordinator

    def schedulers(self) -> frozenset[str]:
        """The names of the schedulers by which the broker places pods and reservations now."""
        return frozenset() if self._reads is None else self._reads.served_names()

    def quotas(
        self, read: Callable[[ElasticQuota | CompositeElasticQuota], object]
    ) -> tuple[list[ElasticQuota | CompositeElasticQuota], frozenset[str]]:
        """The elastic quotas that `read` can read, and the names of the schedulers that apply them."""
        return ([] if self._reads is None else self._reads.all_quotas(read)), self.schedulers()

    def synced(self) -> bool:
        return self._namespaces.complete and (self._reads is None or self._reads.synced())

    def read(self, now: datetime, pods: Sequence[Pod] | None = None) -> NodeOccupancy:
        """`pods`: all pods, if the caller has listed them."""
        room = self._without_holds() if pods is None else self._read(pods)
        ledger, unplaced = self.ledger(now, room.pods), self.unplaced()
        return replace(room, ledger=ledger, unplaced=unplaced) if ledger.states or unplaced else room

    def _read(self, listed: Sequence[Pod]) -> NodeOccupancy:
        infos, self._known = _read_once(self._pods, listed, pod_info, self._known)
        nodes = self._nodes.list()
        node_infos, self._known_nodes = _read_once(self._nodes, nodes, node_info, self._known_nodes)
        taking = [pod for pod in listed if pod.key in infos and holds_room(pod)]
        return NodeOccupancy(
            nodes=[node for node in nodes if node.name in node_infos],
            node_infos=node_infos,
            infos=infos,
            pods=taking,
            bound=[infos[pod.key] for pod in taking],
            namespaces=namespace_labels(self._namespaces.cache.list()),
        )

    def ledger(self, now: datetime, taking: Collection[Pod] | None = None) -> HoldLedger:
        """The holds. `taking`: the pods that take room on nodes, if the caller has them."""
        if self._reads is None or self._rules is None:
            return HoldLedger()
        pods = [pod for pod in self._pods.list() if holds_room(pod)] if taking is None else taking
        koordinator, kept = self._reads.koordinator.cache.list(), self._reads.godel.cache.list()
        return _ledger(pods, koordinator, kept, self._rules, now, self.guard)

    def guard(self, item: Object) -> AbstractContextManager[object]:
        """`SchedulerReads.guard`."""
        return nullcontext() if self._reads is None else self._reads.guard(item)

    def unplaced(self) -> dict[str, koord.KoordinatorReservation]:
        """The reservations that no node can hold, by `reservation_key`. One for a given node is left out."""
        if self._reads is None:
            return {}
        names = self.schedulers()
        unplaced: dict[str, koord.KoordinatorReservation] = {}
        for item in self._reads.koordinator.cache.list():
            with self.guard(item):
                if reservation_waits(item, names) and needs_a_node(item):
                    unplaced[reservation_key(item)] = item
        return unplaced

    def may_wait(self, key: str) -> bool:
        """Whether the reservation with this key needs a node, or is left out."""
        left_out = () if self._reads is None else self._reads.koordinator.cache.left_out
        name = key.partition(f"/{RESERVATION}")[2]
        return key in self.unplaced() or any(partial.name == name for partial in left_out)

    def keeps_room(self, client: Client, node: str, now: datetime) -> bool:
        """Whether a reservation that the API server has now keeps room on the node. Raises ApiError.

        True too if any reservation cannot be read.
        """
        if self._reads is None or self._rules is None:
            return False
        pods = [pod for pod in self._pods.list() if holds_room(pod)]
        try:
            koordinator = _listed(client, self._reads.koordinator, koord.KoordinatorReservation, node)
            kept = _listed(client, self._reads.godel, godel.GodelReservation, node)
        except UnreadableReservation:
            return True
        with guarded("kept room", node=node):
            ledger = _ledger(pods, koordinator, kept, self._rules, now)
            return node in NodeOccupancy(pods=pods, ledger=ledger).held
        return True


def _read_once(
    cache: Cache[T], objects: Iterable[T], read: Callable[[T], V], known: Mapping[str, tuple[str, V]]
) -> tuple[dict[str, V], dict[str, tuple[str, V]]]:
    """The values by key, and by uid for the next call; each version is read once, inside its guard."""
    values: dict[str, V] = {}
    kept: dict[str, tuple[str, V]] = {}
    for item in objects:
        version = item.metadata.resource_version
        value = known.get(item.uid)
        if value is None or value[0] != version:
            value = None
            with cache.guard(item):
                value = version, read(item)
        if value is not None:
            values[item.key], kept[item.uid] = value[1], value
    return values, kept


class UnreadableReservation(Exception):
    """An object of the node cannot be decoded."""


def _ledger(
    pods: Collection[Pod],
    koordinator: Iterable[koord.KoordinatorReservation],
    kept: Collection[godel.GodelReservation],
    rules: RoomRules,
    now: datetime,
    guard: Guard[Any] = nullcontext,
) -> HoldLedger:
    present = frozenset(pod.uid for pod in pods)
    holds = node_holds(koordinator, kept, pods, present, rules, guard)
    links: list[HoldLink] = []
    for pod in pods if holds else ():
        with guard(pod):
            links += filter(None, (hold_link(pod),))
    return HoldLedger.of(holds, links, now) if holds else HoldLedger()


def _listed(client: Client, informer: Informer[T], model: type[T], node: str) -> list[T]:
    """Without those of other nodes that cannot be decoded. Raises UnreadableReservation."""
    decoded: list[T] = []
    for body in [] if informer.missing else client.list(model.KIND)[0]:
        try:
            decoded.append(model.decode(body))
        except ValidationError as error:
            if node in _nodes_named(body):
                raise UnreadableReservation from error
    return decoded


def _nodes_named(body: Mapping[str, Any]) -> list[object]:
    """The values of `nodeName` in spec and status, whatever their types."""
    parts = [body.get("spec"), body.get("status")]
    return [part.get("nodeName") for part in parts if isinstance(part, Mapping)]


def reservation_key(reservation: koord.KoordinatorReservation) -> str:
    """The reservation among pods by key. No pod has it: a pod's name has no slash."""
    return f"{template_pod(reservation).namespace}/{RESERVATION}{reservation.name}"


def needs_a_node(reservation: koord.KoordinatorReservation) -> bool:
    """Whether the scheduler found no node, and a new one may hold the reservation."""
    template = reservation.spec.template
    if template is None or template.spec.node_name or reservation.needs_running_pod:
        return False
    return any(
        (item.type, item.status, item.reason) == (koord.SCHEDULED, "False", UNSCHEDULABLE)
        for item in reservation.status.conditions
    )


def _becomes_hold(pod: Pod) -> bool:
    """Whether the pod ends, and a Gödel reservation is about to keep its room."""
    return bool(pod.spec.node_name) and pod.deleting and godel.FINALIZER in pod.metadata.finalizers
