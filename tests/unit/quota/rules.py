"""Rules that hold in a world in rounds, checked without the decision code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.ome_clusters import DedicatedAICluster
from broker.capacity.entitlement import KEPT
from broker.quota.entitled import AdmissionPhase
from broker.quota.slot_model import SlotRequest
from broker.quota.slots import SlotTree
from broker.quota.usage import ReservationKey
from broker.reservations.claims import slot_request
from broker.reservations.cluster_admission import held
from tests.unit.quota.rounds import GPU, Drain, World
from tests.unit.quota.worlds import LAST, setting

QUIET = 6  # rounds without a change that are rest
BOUND = LAST + 90


def violations(seed: int) -> list[str]:
    return [*check(World(setting(seed)))]


def check(world: World) -> Iterator[str]:
    """Runs the world to rest. Returns the violations, each with the rule first."""
    differences: list[str] = []
    world.after_plan = lambda: differences.extend(_policy_differences(world))
    before: object = None
    due: dict[str, tuple[int, object]] = {}
    quiet = 0
    while quiet < QUIET and world.number < BOUND:
        on_own_slots = {claim.name for claim in world.claims.list() if _on_own_slots(world, claim)}
        world.round()
        for drain in world.drains:
            if (
                drain.round == world.number - 1
                and drain.reason != "InClusterQueue"
                and any(name.rpartition(".")[0] == drain.victim for name in on_own_slots)
            ):
                yield f"in-quota holder evicted: {drain}"
            if drain.round == world.number - 1:
                due[drain.preemptor] = world.number, _spec(world, drain.preemptor)
        for name, (since, spec) in [*due.items()]:
            gone = "." not in name and "-clust" in name and world.claims.get(name) is None
            if (
                gone
                or spec != _spec(world, name)
                or _served(world, name)
                or any(
                    drain.round == world.number - 1 and drain.victim.removeprefix("cluster ") == name
                    for drain in world.drains
                )
            ):
                del due[name]
            elif world.number - since > 8:
                yield f"room made and not given to {name}, since round {since}"
                del due[name]
        state = world.state()
        quiet = quiet + 1 if state == before and world.number > LAST + 2 else 0
        before = state
    yield from differences
    if quiet < QUIET:
        yield f"no rest: {len(world.drains)} drains in {world.number} rounds"
        return
    yield from _repeated(world.drains)
    if world.plan.nominated:
        yield f"nominated for ever: {[*world.plan.nominated]}"
    if any(claim.deleting for claim in world.claims.list()):
        yield "still draining"
    for name, decision in world.decisions.items():
        if decision.phase is AdmissionPhase.PREEMPTING:
            yield f"preempting at rest: {name} {decision.why}"
    yield from _idle(world)


def _repeated(drains: Iterable[Drain]) -> Iterator[str]:
    """Repeated drains of one holder for another and one reason. A holder that terminated or grew since
    starts anew."""
    lost: Counter[str] = Counter()
    counts: Counter[tuple[str, str, str, str, int]] = Counter()
    for drain in drains:
        counts[drain.victim, drain.preemptor, drain.reason, drain.requested, lost[drain.preemptor]] += 1
        lost[drain.victim.removeprefix("cluster ")] += 1
    for (victim, preemptor, reason, *_), count in counts.items():
        if count > 1:
            yield f"drained twice: {victim} {count} times for {preemptor} ({reason})"


def queue_of(claim: NodeClaim) -> str:
    return claim.annotations[names.DRAWS_FROM].removeprefix("ns/")


def _spec(world: World, name: str) -> object:
    cluster = world.reads.clusters.cache.get(name)
    return cluster.spec if cluster is not None else None


def _served(world: World, name: str) -> bool:
    """Whether a job's claim has an instance, or a cluster has all instances of its request."""
    cluster = world.reads.clusters.cache.get(name)
    if cluster is None:
        return any(
            claim.status.provider_id and not claim.deleting
            for claim in world.claims.list()
            if name in (claim.name, claim.name.rpartition(".")[0])
        )
    has = held(cluster)
    return has is not None and sum(has.usage.values()) >= _requested(cluster)


def _requested(cluster: DedicatedAICluster) -> int:
    return int(cluster.spec.resources.requests[GPU]) if cluster.spec.resources else 0


def _on_own_slots(world: World, claim: NodeClaim) -> bool:
    owner = world.owner.get(claim.labels.get(names.RESERVATION_ID, ""))
    return (
        owner is not None
        and claim.annotations.get(names.DRAWS_FROM) == str(owner)
        and names.DEDICATED not in claim.labels
    )


def _idle(world: World) -> Iterator[str]:
    """No slot is idle that a waiting claim could have, by the owner's quota and by lending and borrowing
    limits."""
    held: Counter[tuple[str, str]] = Counter()  # by owner and flavor
    lent: Counter[tuple[str, str]] = Counter()
    borrowed: Counter[tuple[str, str]] = Counter()  # by queue and flavor
    for holder in world.claims.list():
        if (id_ := holder.labels.get(names.RESERVATION_ID, "")) not in world.owner:
            continue
        owner, flavor, _ = world.setting.slots[id_]
        queue = holder.annotations[names.DRAWS_FROM].removeprefix("ns/")
        held[owner, flavor] += 1
        if queue != owner:
            lent[owner, flavor] += 1
            borrowed[queue, flavor] += 1
    known = {reservation.name: reservation for reservation in world.setting.reservations}
    jobs = {job.name: job for job in world.setting.jobs}
    for id_, count in world.free().items():
        owner, flavor, _ = world.setting.slots[id_]
        if not count:
            continue
        for claim in world.waiting:
            job = jobs.get(claim.name.rpartition(".")[0])
            if job is not None and (job.gang or flavor not in job.flavors):
                continue
            if queue_of(claim) not in known or flavor not in known[queue_of(claim)].nominal:
                continue
            if job is None and claim.annotations[names.TAG_FLAVOR] != flavor:
                continue
            reservation = known[queue_of(claim)]
            if not owner:
                yield f"idle: {id_} though {claim.name} waits"
                continue
            owner_reservation = known[owner]
            total = sum(n for o, f, n in world.setting.slots.values() if (o, f) == (owner, flavor))
            nominal = min(owner_reservation.nominal.get(flavor, 0), total)
            if held[owner, flavor] >= nominal:
                continue
            if reservation.name == owner:
                yield f"idle: own {id_} though {claim.name} waits"
            elif (
                reservation.cohort
                and reservation.cohort == owner_reservation.cohort
                and reservation.borrows
                and flavor in reservation.nominal
                and lent[owner, flavor] < owner_reservation.lending.get(flavor, 99)
                and borrowed[reservation.name, flavor] < reservation.borrowing.get(flavor, 99)
            ):
                yield f"idle: lendable {id_} though {claim.name} waits"


def _policy_differences(world: World) -> Iterator[str]:
    """Differences between the plan and the slot policy: a claim nominated without a victim, or a claim that
    launches elsewhere although a victim exists.
    """
    if world.plan.assignments:
        return  # planned again before the decision
    waiting = {claim.uid: claim for claim in world.waiting}
    slots = {uid: slot for uid, slot in world.plan.nominated.items() if uid in waiting}
    slot_requests = [slot_request(waiting[uid], slot.queue, slot.odcr_ids) for uid, slot in slots.items()]
    draws = world.slots.entitlements(waiting, world.slots.snapshot()).draws if waiting else {}
    for claim in waiting.values():
        if names.DEDICATED in claim.labels or names.GANG in claim.annotations or draws[claim.uid] == KEPT:
            continue
        state = world.slots.reader.slot_state(world.slots.snapshot(), requesting={*slots, claim.uid})
        if state is None:
            return
        tree = state.slots()
        own_request = [] if claim.uid in slots else [_any_slot(world, claim, tree)]
        victims = {victim.request.name for victim in tree.reclaim([*slot_requests, *own_request])}
        if own_request and claim.name in victims:
            yield f"not nominated, although a victim exists: {claim.name}, in round {world.number}"
        if not own_request and f"request/{claim.name}" not in tree._ledger.workloads:
            yield f"nominated without a victim: {claim.name}, in round {world.number}"


def _any_slot(world: World, claim: NodeClaim, tree: SlotTree) -> SlotRequest:
    """The claim's request for a slot of its own reservation, or else of one that it may borrow from."""
    types = next(
        requirement.values
        for requirement in claim.spec.requirements
        if requirement.key == names.INSTANCE_TYPE
    )
    queue = ReservationKey(*claim.annotations[names.DRAWS_FROM].split("/")).queue
    usable_queues = {queue, *tree.peers(queue)}
    ids = [
        id_
        for id_, owner in world.owner.items()
        if owner.queue in usable_queues and world.setting.slots[id_][1] in types
    ]
    own = [id_ for id_ in ids if world.owner[id_].queue == queue]
    return slot_request(claim, queue, (*own, *(id_ for id_ in ids if id_ not in own)))
