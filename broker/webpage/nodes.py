"""The nodes with their fill by resource, and the pods with what they pay of the price of their node.

Invariant: the pods of a node and its unused part together cost its price.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from typing import Final

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.by_version import ByVersion
from broker.capacity.types import ACCELERATORS
from broker.oncall.pod_facts import drawn_by_pod
from broker.oncall.slot_holders import is_workload
from broker.oncall.waiting_pods import WaitingPod
from broker.placement.node_prices import Price, divided
from broker.placement.quantities import CPU, MEMORY, amounts, pod_requests
from broker.quota.usage import ReservationKey
from broker.reservations.claims import node_odcr, occupied_odcr
from broker.reservations.drawing import DrawRights, drawn_key

MOST_KNOWN: Final = 50_000  # pods whose requests are in memory
# The resources that a node shows, each with its name and its unit in the amounts of a pod.
SHOWN: Final[Mapping[str, tuple[str, int]]] = {
    CPU: ("CPU", 1000),
    MEMORY: ("memory GiB", 2**30),
    **{resource: (resource.rpartition("/")[2].upper(), 1) for resource in ACCELERATORS},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """One resource of a node: requested by its pods, and allocatable."""

    resource: str
    requested: int
    allocatable: int

    @property
    def name(self) -> str:
        return SHOWN[self.resource][0]

    @property
    def share(self) -> float:
        return self.requested / self.allocatable if self.allocatable else 0.0

    @property
    def text(self) -> str:
        """Requested and allocatable amounts, as `1.5/8`."""
        return f"{self._amount(self.requested)}/{self._amount(self.allocatable)}"

    def _amount(self, amount: int) -> str:
        return f"{round(amount / SHOWN[self.resource][1], 1):g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """`usd_hour`: its price; None if unknown. `unused`: the part that no pod pays. `owner`: of its slot."""

    name: str
    claim: str
    node_pool: str
    instance_type: str
    zone: str
    capacity_type: str
    reservation: str
    owner: str
    created: datetime | None
    state: str
    pods: int
    fills: tuple[Fill, ...]
    usd_hour: float | None
    unused: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRow:
    """A pod that has not ended. `owner`: the reservation that it draws from; `usd_hour`: what it pays
    of the price of its node.
    """

    namespace: str
    name: str
    node: str
    claim: str
    reservation: str
    owner: str
    since: datetime | None
    state: str
    usd_hour: float | None

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    def masked(self, name: Callable[[str], str]) -> PodRow:
        return replace(self, owner=name(self.owner))

    def without_cluster(self) -> PodRow:
        """Without the claim and its node, for a person who may not read them."""
        return replace(self, node="", claim="", reservation="")


@dataclass(slots=True)
class PodAmounts:
    """The shown requests of pods, computed once for each version of a pod."""

    known: ByVersion[str, Mapping[str, int]] = field(default_factory=ByVersion)

    def of(self, pod: Pod) -> Mapping[str, int]:
        if len(self.known) > MOST_KNOWN:
            self.known = ByVersion()
        return self.known.of(pod.uid, pod.metadata.resource_version, _shown_requests, pod)


def _shown_requests(pod: Pod) -> Mapping[str, int]:
    return {name: amount for name, amount in pod_requests(pod).items() if name in SHOWN}


def node_rows(
    nodes: Iterable[Node],
    claims: Iterable[NodeClaim],
    pods: Iterable[Pod],
    owners: Mapping[str, ReservationKey],
    price: Price,
    requests: PodAmounts,
) -> list[NodeRow]:
    """The nodes, those with the dearest unused part first."""
    by_node = {claim.status.node_name: claim for claim in claims if claim.status.node_name}
    bound = _bound(pods)
    rows = (_node(node, by_node.get(node.name), bound[node.name], owners, price, requests) for node in nodes)
    return sorted(rows, key=lambda row: (-row.unused, row.name))


def pod_rows(
    nodes: Iterable[Node],
    claims: Sequence[NodeClaim],
    pods: Sequence[Pod],
    rights: DrawRights,
    price: Price,
    requests: PodAmounts,
    *,
    waiting: Iterable[WaitingPod] = (),
    pools: Iterable[NodePool] = (),
    namespace: str = "",
    owner: str = "",
) -> list[PodRow]:
    """The pods of the namespace, or that draw from the owner, by name; neither those that have ended nor
    those of DaemonSets. `waiting`: those without a node.
    """
    by_node = {claim.status.node_name: claim for claim in claims if claim.status.node_name}
    drawn = {claim.name: rights.of_claim(claim) for claim in claims}
    named, rows_ = {pool.name: pool.draws_from for pool in pools}, {row.key: row for row in waiting}

    def draws_from(pod: Pod) -> str:
        row, claim = rows_.get(pod.key), by_node.get(pod.spec.node_name)
        name = claim.name if claim is not None else row.claim if row is not None else ""
        of_pool = named.get(row.node_pool, "") if row is not None else ""
        return drawn_key(drawn[name] if name in drawn else drawn_by_pod(rights, pod, of_pool))

    present, bound = {node.name: node for node in nodes}, _bound(pods)

    @cache
    def paid(name: str) -> Mapping[str, float | None]:
        return (
            _divided(present[name], bound[name], price(present[name]), requests)[0] if name in present else {}
        )

    rows = []
    for pod in pods:
        if (namespace and pod.namespace != namespace) or not is_workload(pod):
            continue
        node = pod.spec.node_name
        draws = draws_from(pod)
        if not owner or draws == owner:
            rows.append(_pod(pod, by_node.get(node), draws, paid(node).get(pod.key) if node else 0.0))
    return sorted(rows, key=lambda row: (row.namespace, row.name))


def _bound(pods: Iterable[Pod]) -> defaultdict[str, list[Pod]]:
    """The pods that have not ended, by node."""
    bound = defaultdict[str, list[Pod]](list)
    for pod in pods:
        if pod.spec.node_name and not pod.ended:
            bound[pod.spec.node_name].append(pod)
    return bound


def _divided(
    node: Node, pods: Iterable[Pod], usd_hour: float | None, requests: PodAmounts
) -> tuple[dict[str, float | None], float]:
    """What each pod pays, by its key, and the rest. `pods`: all of the node."""
    asked = {pod.key: requests.of(pod) for pod in pods}
    return divided(usd_hour, asked, amounts(node.status.allocatable))


def total_fills(rows: Iterable[NodeRow]) -> list[Fill]:
    """The fill of all nodes together."""
    requested, allocatable = Counter[str](), Counter[str]()
    for fill in (fill for row in rows for fill in row.fills):
        requested[fill.resource] += fill.requested
        allocatable[fill.resource] += fill.allocatable
    return [
        Fill(resource=name, requested=requested[name], allocatable=allocatable[name]) for name in allocatable
    ]


def _node(
    node: Node,
    claim: NodeClaim | None,
    pods: Sequence[Pod],
    owners: Mapping[str, ReservationKey],
    price: Price,
    requests: PodAmounts,
) -> NodeRow:
    labels, room = node.labels, amounts(node.status.allocatable)
    reservation = node_odcr(node, claim)
    type_ = labels.get(names.INSTANCE_TYPE, "")
    kind = labels.get(names.CAPACITY_TYPE, "")
    used = Counter[str]()
    for pod in pods:
        used.update(requests.of(pod))
    usd_hour = price(node)
    return NodeRow(
        name=node.name,
        claim=claim.name if claim is not None else "",
        node_pool=labels.get(names.NODEPOOL, ""),
        instance_type=type_,
        zone=labels.get(names.ZONE, ""),
        capacity_type=kind,
        reservation=reservation,
        owner=str(owners.get(reservation, "")),
        created=node.metadata.creation_timestamp,
        state="" if node.ready else "not Ready",
        pods=sum(map(is_workload, pods)),
        fills=tuple(
            Fill(resource=name, requested=used[name], allocatable=room[name])
            for name in SHOWN
            if room.get(name)
        ),
        usd_hour=usd_hour,
        unused=_divided(node, pods, usd_hour, requests)[1],
    )


def _pod(pod: Pod, claim: NodeClaim | None, drawn: str, usd_hour: float | None) -> PodRow:
    return PodRow(
        namespace=pod.namespace,
        name=pod.name,
        node=pod.spec.node_name,
        claim=claim.name if claim is not None else "",
        reservation=occupied_odcr(claim) if claim is not None else "",
        owner=drawn,
        since=pod.status.start_time or pod.metadata.creation_timestamp,
        state="ends" if pod.deleting else (pod.status.phase or "bound") if pod.spec.node_name else "waits",
        usd_hour=usd_hour,
    )
