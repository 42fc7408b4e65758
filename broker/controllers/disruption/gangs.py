"""The gangs that run on nodes, by the marks of their claims and of their pods.

Why both: kube-scheduler may place a pod of a gang on a node that was made for others.

Invariant: a gang is replaced, moves into reservations and expires whole or not at all. The homes of a gang
are all its claims, those in reservations too, and all nodes with a pod of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.capacity.returning import ReturnCandidate
from broker.controllers.disruption.report import DisruptionReporter
from broker.controllers.disruption.snapshot import DisruptionSnapshot, ManagedNode, since
from broker.controllers.nodeclaim.status import pods_of
from broker.controllers.provisioning.pending import gang_of
from broker.placement.disruption_pods import reschedulable


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningGangs:
    """`of`: the gangs of each claim (by uid). `homes`: the claims of each gang, and its other nodes.

    `shared`: homes with a pod of no gang, unless the claim itself has the mark.
    """

    of: Mapping[str, Set[str]]
    homes: Mapping[str, Set[str]]
    shared: Set[str]

    def whole(self, candidates: Sequence[ReturnCandidate]) -> list[ReturnCandidate]:
        """The candidates without those of a gang of which another home cannot move."""
        moving = {each.uid for each in candidates}
        return [each for each in candidates if not each.gang or self.homes[each.gang] <= moving]

    def unit(self, uid: str) -> Set[str]:
        """The claim, and all homes that can only be disrupted together with it."""
        found, left = {uid}, [uid]
        while left:
            for gang in self.of.get(left.pop(), ()):
                left += self.homes[gang] - found
                found |= self.homes[gang]
        return found

    def alone(self, uid: str) -> Set[str]:
        """The homes of the claim's gangs that have pods of one gang only."""
        homes = {home for gang in self.of.get(uid, ()) for home in self.homes[gang]}
        return {home for home in homes if len(self.of[home]) == 1 and home not in self.shared}


def running_gangs(world: DisruptionSnapshot, claims: Iterable[NodeClaim]) -> RunningGangs:
    """`claims`: all of the broker.

    A pod's mark comes before that of its claim. The mark of a claim that was made for pods counts only until
    its node has pods: they may be others.
    """
    by_node = {node.node.name: node.claim.uid for node in world.nodes if node.node is not None}
    of: defaultdict[str, set[str]] = defaultdict(set)
    homes: defaultdict[str, set[str]] = defaultdict(set)
    occupied: set[str] = set()
    shared: set[str] = set()
    for pod in filter(reschedulable, world.room.pods):
        home = by_node.get(pod.spec.node_name, f"node/{pod.spec.node_name}")
        occupied.add(home)
        if gang := gang_of(pod, _unknown).name:
            of[home].add(gang)
            homes[gang].add(home)
        else:
            shared.add(home)
    for claim in claims:
        gang = claim.annotations.get(names.GANG, "")
        others = claim.uid in of or (claim.uid in occupied and pods_of(claim))
        if gang and not claim.deleting and not others:
            of[claim.uid].add(gang)
            homes[gang].add(claim.uid)
            shared.discard(claim.uid)  # its pods need no mark of their own
    return RunningGangs(of=of, homes=homes, shared=shared)


def drifted_units(
    world: DisruptionSnapshot,
    free: Iterable[ManagedNode],
    claims: Iterable[NodeClaim],
    reporter: DisruptionReporter,
) -> Iterator[tuple[str, Sequence[ManagedNode]]]:
    """The drifted nodes that may be replaced now, those that drifted first in front.

    They are single ones, and those of a gang of which no home is left out. `claims`: all of the broker.
    """
    drifted = [(at, node) for node in free if (at := since(node.claim, names.DRIFTED)) is not None]
    ordered = [node for _, node in sorted(drifted, key=lambda each: (each[0], each[1].claim.name))]
    if not ordered:
        return
    gangs, uids = running_gangs(world, claims), {node.claim.uid for node in ordered}
    seen: set[str] = set()
    for node in ordered:
        unit, gang = gangs.unit(node.claim.uid), min(gangs.of.get(node.claim.uid, ()), default="")
        if others := unit - uids:
            message = (
                f"Gang {gang} is replaced whole or not at all: {_shown(others, world)} did not drift, or may "
                "not be disrupted now"
            )
            reporter.blocked(node, message)
        elif node.claim.uid not in seen:
            yield gang, [each for each in ordered if each.claim.uid in unit]
        seen |= unit


def _shown(uids: Iterable[str], world: DisruptionSnapshot) -> str:
    """The first of these homes, by name, and the number of others."""
    found = sorted(node.claim.name if (node := world.by_uid(uid)) else uid for uid in uids)
    return found[0] + (f" and {len(found) - 1} more" if len(found) > 1 else "")


def _unknown(_: str) -> int:
    return 0
