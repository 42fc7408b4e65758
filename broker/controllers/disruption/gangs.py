"""The gangs that run on nodes, by the marks of their claims and of their pods.

Why both: kube-scheduler may place a pod of a gang on a node that was made for others.

Invariant: a gang is replaced, moves into reservations and expires whole or not at all. The hosts of a gang
are all its claims, those in reservations too, and all nodes with a pod of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from broker.apis import names
from broker.apis.karpenter import NodeClaim, pods_of
from broker.apis.meta import since
from broker.capacity.returning import ReturnCandidate
from broker.controllers.disruption.drift import confirmed
from broker.controllers.disruption.report import DisruptionReporter
from broker.controllers.disruption.snapshot import DisruptionSnapshot, ManagedNode
from broker.placement.disruption_pods import reschedulable
from broker.placement.gangs import gang_of, unknown_sizes
from broker.text import abridged


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningGangs:
    """`of`: the gangs of each claim (by uid). `hosts`: the claims of each gang, and its other nodes.

    `shared`: hosts with a pod of no gang, unless the claim itself has the mark.
    """

    of: Mapping[str, Set[str]]
    hosts: Mapping[str, Set[str]]
    shared: Set[str]

    def whole(self, candidates: Sequence[ReturnCandidate]) -> list[ReturnCandidate]:
        """The candidates without those of a gang of which another host cannot move."""
        moving = {candidate.uid for candidate in candidates}
        return [
            candidate
            for candidate in candidates
            if not candidate.gang or self.hosts[candidate.gang] <= moving
        ]

    def unit(self, uid: str) -> Set[str]:
        """The claim, and all hosts that can only be disrupted together with it."""
        unit, pending = {uid}, [uid]
        while pending:
            for gang in self.of.get(pending.pop(), ()):
                pending += self.hosts[gang] - unit
                unit |= self.hosts[gang]
        return unit

    def exclusive_hosts(self, uid: str) -> Set[str]:
        """The hosts of the claim's gangs that have pods of one gang only."""
        hosts = {host for gang in self.of.get(uid, ()) for host in self.hosts[gang]}
        return {host for host in hosts if len(self.of[host]) == 1 and host not in self.shared}


def running_gangs(snapshot: DisruptionSnapshot, claims: Iterable[NodeClaim]) -> RunningGangs:
    """`claims`: all of the broker.

    A pod's mark comes before that of its claim. The mark of a claim that was made for pods counts only until
    its node has pods: they may be others.
    """
    by_node = {node.node.name: node.claim.uid for node in snapshot.nodes if node.node is not None}
    of: defaultdict[str, set[str]] = defaultdict(set)
    hosts: defaultdict[str, set[str]] = defaultdict(set)
    occupied: set[str] = set()
    shared: set[str] = set()
    for pod in filter(reschedulable, snapshot.occupancy.pods):
        host = by_node.get(pod.spec.node_name, f"node/{pod.spec.node_name}")
        occupied.add(host)
        if gang := gang_of(pod, unknown_sizes).name:
            of[host].add(gang)
            hosts[gang].add(host)
        else:
            shared.add(host)
    for claim in claims:
        superseded = claim.uid in of or (claim.uid in occupied and pods_of(claim))
        if claim.gang and not claim.deleting and not superseded:
            of[claim.uid].add(claim.gang)
            hosts[claim.gang].add(claim.uid)
            shared.discard(claim.uid)  # its pods need no mark of their own
    return RunningGangs(of=of, hosts=hosts, shared=shared)


def drifted_units(
    snapshot: DisruptionSnapshot,
    free: Iterable[ManagedNode],
    claims: Iterable[NodeClaim],
    reporter: DisruptionReporter,
) -> Iterator[tuple[str, Sequence[ManagedNode]]]:
    """The drifted nodes that may be replaced now, those that drifted first in front.

    They are single ones, and those of a gang of which no host is left out. `claims`: all of the broker.
    """
    drifted = [
        (at, node)
        for node in free
        if confirmed(node.claim, snapshot.now) and (at := since(node.claim, names.DRIFTED)) is not None
    ]
    ordered = [node for _, node in sorted(drifted, key=lambda drift: (drift[0], drift[1].claim.name))]
    if not ordered:
        return
    gangs, uids = running_gangs(snapshot, claims), {node.claim.uid for node in ordered}
    seen: set[str] = set()
    for node in ordered:
        unit, gang = gangs.unit(node.claim.uid), min(gangs.of.get(node.claim.uid, ()), default="")
        if missing := unit - uids:
            message = (
                f"Gang {gang} is replaced whole or not at all: {_shown(missing, snapshot)} did not drift, or "
                "may not be disrupted now"
            )
            reporter.blocked(node, message)
        elif node.claim.uid not in seen:
            yield gang, [member for member in ordered if member.claim.uid in unit]
        seen |= unit


def _shown(uids: Iterable[str], snapshot: DisruptionSnapshot) -> str:
    """The first of these hosts, by name, and the number of others."""
    shown = sorted(node.claim.name if (node := snapshot.by_uid(uid)) else uid for uid in uids)
    return abridged(shown, 1)
