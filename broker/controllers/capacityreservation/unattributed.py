"""Usage of a reservation's hardware without a known user.

Invariant: usage is unattributed only if no reservation can account for it. With Kueue that is the usage of
pods on a flavor's nodes beyond all workloads with quota in the flavor.

Without Kueue an instance in a slot is attributed if its claim draws from the owner or its cohort, or belongs
to a dedicated cluster. On other nodes the pods of all other claims are unattributed.

Only accelerators are counted, since node agents use some of everything else. A change counts once it has
lasted, so that a job's end and the next job's start are not counted twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim
from broker.capacity.types import ACCELERATORS
from broker.controllers.claim_caches import BY_NODE
from broker.kube.cache import Cache
from broker.kube.watches import Signal
from broker.placement.quantities import pod_requests
from broker.quota.hardware import Machine, UnattributedKey
from broker.quota.model import FlavorResource, summed
from broker.quota.usage import ReservationHolder, ReservationKey
from broker.reservations.claims import names_reservation

IsAttributed = Callable[[NodeClaim, ReservationKey | None], bool]

_SOLD = frozenset(ACCELERATORS)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnattributedUsage:
    """Usage without a known user.

    `use`: the amounts, by the owner of the machines; `nodes`: the nodes by owner and flavor, if known.
    `anywhere`: the owner of the machines is unknown.
    """

    use: Mapping[UnattributedKey, int] = field(default_factory=dict)
    nodes: Mapping[tuple[ReservationKey | None, str], tuple[str, ...]] = field(default_factory=dict)
    anywhere: bool = False

    def where(self, reserved: ReservationKey, flavors: Iterable[str]) -> tuple[str, ...]:
        """The nodes on which this usage takes from a reservation with these flavors."""
        return tuple(
            node
            for flavor in flavors
            for owner in (reserved, None)
            for node in self.nodes.get((owner, flavor), ())
        )


class UnattributedUsageReader:
    """Reads unattributed usage from Nodes, pods and claims. `on_change` handlers are called when relevant
    pods come or go.
    """

    def __init__(self, nodes: Cache[Node], pods: Cache[Pod], *, steady_seconds: float) -> None:
        self._nodes, self._pods = nodes, pods
        self.steady_seconds = steady_seconds
        self._known: dict[str, Mapping[str, int]] = {}  # by node: accelerators that its pods use
        self._stale: set[str] = set()
        self._readers = Signal()
        self._shown: UnattributedUsage | None = None
        self._since: float | None = None  # when it began to differ
        pods.on_change(self._changed)

    def on_change(self, reader: Callable[[], None]) -> None:
        self._readers.subscribe(reader)

    def read(
        self,
        machines: Iterable[Machine],
        claims: Iterable[NodeClaim],
        holders: Iterable[ReservationHolder],
        *,
        is_attributed: IsAttributed,
        kueue: bool,
        moment: float,
    ) -> tuple[UnattributedUsage, float]:
        """The usage to report, and until when it holds without a change of inputs. `is_attributed`: whether
        a claim is attributed on machines of an owner.
        """
        current = self._measure(machines, claims, holders, is_attributed=is_attributed, kueue=kueue)
        if self._shown is None or current == self._shown:
            self._shown, self._since = current, None
            return current, float("inf")
        self._since = moment if self._since is None else self._since
        if moment >= self._since + self.steady_seconds:
            self._shown, self._since = current, None
            return current, float("inf")
        return self._shown, self._since + self.steady_seconds

    def _measure(
        self,
        machines: Iterable[Machine],
        claims: Iterable[NodeClaim],
        holders: Iterable[ReservationHolder],
        *,
        is_attributed: IsAttributed,
        kueue: bool,
    ) -> UnattributedUsage:
        on = {claim.status.node_name: claim for claim in claims if names_reservation(claim)}
        use: dict[UnattributedKey, int] = {}
        nodes: dict[tuple[ReservationKey | None, str], list[str]] = {}
        for machine in machines:
            resource = next((name for name in ACCELERATORS if machine.resources.get(name)), None)
            node = self._nodes.get(machine.name)
            if resource is None or machine.out_of_service or node is None:
                continue  # without accelerators, or a slot without a node
            claim = on.get(node.name)
            if names.DEDICATED in node.labels or (claim is not None and names.DEDICATED in claim.labels):
                continue
            if claim is not None and not kueue and is_attributed(claim, machine.owner):
                continue
            whole = machine.owner is not None and not kueue
            has = machine.resources[resource]
            busy = has if whole else min(has, self._of(node.name).get(resource, 0))
            if busy:
                owner = None if kueue else machine.owner
                key = UnattributedKey(owner, FlavorResource(machine.flavor, resource))
                use[key] = use.get(key, 0) + busy
                if not kueue:
                    nodes.setdefault((owner, machine.flavor), []).append(node.name)
        for holder in holders if kueue else ():
            for at, amount in holder.usage.items() if holder.kind == "Workload" else ():
                if (key := UnattributedKey(None, at)) in use:
                    use[key] -= amount
        return UnattributedUsage(
            use={key: amount for key, amount in use.items() if amount > 0},
            nodes={where: tuple(sorted(node_names)) for where, node_names in nodes.items()},
            anywhere=kueue,
        )

    def _of(self, node: str) -> Mapping[str, int]:
        if node in self._stale:
            self._stale.discard(node)
            self._known.pop(node, None)
        known = self._known.get(node)
        if known is None:
            used = (item for pod in self._pods.by(BY_NODE, node) for item in _counted(pod))
            known = self._known[node] = summed({resource: amount} for _, resource, amount in used)
        return known

    def _changed(self, old: Pod | None, new: Pod | None) -> None:
        before, after = _counted(old), _counted(new)
        if before == after:
            return
        self._stale.update(node for node, _, _ in (*before, *after))
        self._readers()


def _counted(pod: Pod | None) -> tuple[tuple[str, str, int], ...]:
    """Node, resource and amount of each accelerator that a pod has."""
    if pod is None or not pod.spec.node_name or pod.ended:
        return ()
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    if not any(
        _SOLD & {*container.resources.limits, *container.resources.requests} for container in containers
    ):
        return ()
    node, requests = pod.spec.node_name, pod_requests(pod)
    return tuple((node, name, requests[name]) for name in ACCELERATORS if requests.get(name))
