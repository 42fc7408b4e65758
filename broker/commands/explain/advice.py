"""The commands that help in a situation, the most useful first, each with its reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import Object, condition
from broker.capacity.entitlement import NO_QUOTA, out_of_quota
from broker.capacity.matching import NAME_ANOTHER
from broker.capacity.reasons import CLASS_TERMINATING
from broker.capacity.requirements import InvalidRequirement
from broker.oncall.idle_matches import explain_owner
from broker.oncall.situation import Situation
from broker.oncall.state import is_brokers, launch_state
from broker.oncall.waiters import CLASS_GONE, KARPENTERS, plural
from broker.oncall.waiting_pods import grouped
from broker.oncall.wording import limit_name
from broker.placement.claims import priority_of
from broker.placement.pool_choice import buys
from broker.quota.usage import ReservationKey
from broker.reservations.annotations import STOP
from broker.reservations.conditions import SUFFICIENT
from broker.reservations.queues import preemption
from broker.reservations.spec import reserved_of
from broker.text import abridged, counted, plain

# Rows of (command, reason).
Rule = Callable[[Situation], Iterator[tuple[str, str]]]
MOST_MATCHES: Final = 8
# Reasons of a reservation without all its capacity for which nobody has to do anything.
_PASSING: Final = frozenset({"CloudReservationPending", "HardwareInUse"})
MOST_NAMED: Final = 3
MOST_GROUPS: Final = 5


def advice(situation: Situation, subject: Object | None = None) -> list[dict[str, Any]]:
    """One row a command."""
    rows = [row for rule in _RULES for row in rule(situation)]
    if subject is not None and rows:
        name = f" -n {subject.namespace}" if subject.namespace else ""
        kind = subject.KIND.plural.removesuffix("es" if subject.KIND.plural.endswith("sses") else "s")
        rows.append((f"kubectl describe {kind}{name} {subject.name}", "its conditions and events in full"))
    reasons: dict[str, dict[str, None]] = {}
    for command, why in rows:
        reasons.setdefault(command, {})[why] = None
    return [{"command": command, "why": "; ".join(why)} for command, why in reasons.items()]


def _broken_nodes(situation: Situation) -> Iterator[tuple[str, str]]:
    for row in situation.broken[:MOST_NAMED]:
        yield f"kubectl describe node {row.node}", "it is broken: its conditions and events"


def _oldest(situation: Situation) -> Iterator[tuple[str, str]]:
    if waiting := _with_class(situation):
        yield (
            f"capacity-broker explain claim {waiting[0].name}",
            "each option of the oldest claim, and why not taken",
        )


def _with_class(situation: Situation) -> list[NodeClaim]:
    """The broker's claims that wait, the oldest first, without those of a class that is gone: they have no
    option, and their reason has the remedy.
    """
    return [claim for claim in situation.waiting if launch_state(claim)[0] not in CLASS_GONE]


def held(situation: Situation) -> Iterator[tuple[str, str]]:
    for obj in situation.reservations:
        if (policy := STOP.of(obj)) != "None":
            yield (
                f"capacity-broker resume {obj.key}",
                f"its queue is held ({policy}): it admits no workloads",
            )


def _insufficient(situation: Situation) -> Iterator[tuple[str, str]]:
    """Reservations that lack capacity, unless the broker is about to get it, or lends it."""
    present = [item for item in situation.reservations if not item.deleting]
    states = ((item, condition(item.status.conditions, SUFFICIENT)) for item in present)
    lacking = ((item, state) for item, state in states if state is not None and state.status == "False")
    for item, state in islice((row for row in lacking if row[1].reason not in _PASSING), MOST_NAMED):
        why = f"it lacks capacity ({SUFFICIENT}=False {state.reason}): the condition has the remedy"
        yield f"kubectl describe {reserved_of(item).resource}", why


def matches(situation: Situation) -> Iterator[tuple[str, str]]:
    """Idle slots beside what waits for one. The explanation of an owner does not name itself."""
    part = situation.reservations if situation.whole is not None else ()
    shown = {explain_owner(reserved_of(owner)) for owner in part}
    offers = (match for match in situation.matches if not match.excluded)
    for match in islice(offers, MOST_MATCHES):
        yield match.waiters[0].command if match.command in shown else match.command, match.text


def excluded(situation: Situation) -> Iterator[tuple[str, str]]:
    """Pods without an idle slot that they could use, beside those that their own selector excludes."""
    for match in islice((match for match in situation.matches if match.excluded), MOST_NAMED):
        yield match.command, match.text


def lent(situation: Situation) -> Iterator[tuple[str, str]]:
    """Claims and pods of an owner that wait while its slots are lent, and by which rule slots come back."""
    whole = situation.whole or situation
    priorities = {claim.name: priority_of(claim) for claim in whole.claims}
    theirs = {claim.name for claim in whole.claims if not is_brokers(claim)}
    for owner in situation.reservations:
        reserved, reclaim = reserved_of(owner), preemption(owner.spec).reclaim
        users = [user for use in situation.slot_uses.values() if use.owner == owner.key for user in use.lent]
        ours = [user for user in users if user.claim not in theirs]
        borrowers = [
            f"{user.claim} of priority {priorities[user.claim]}" if reclaim == "LowerPriority" else user.claim
            for user in ours or users
        ]
        waiters = [item for item in whole.waiters if item.draws(reserved) and not item.claim]
        if borrowers and waiters:
            kinds = " and ".join(plural(kind) for kind in dict.fromkeys(item.kind for item in waiters))
            waits = counted(
                len(waiters), f"{waiters[0].kind} of the owner waits", f"{kinds} of the owner wait"
            )
            away = counted(len(borrowers), f"slot of {owner.key} is", f"slots of {owner.key} are")
            # The owner's own rule keeps its slots away, and no claim that waits changes that.
            edit = f"kubectl edit {reserved.resource}" if ours and reclaim == "Never" else ""
            back = _RECLAIM.get(reclaim, reclaim) if ours else _KEPT
            yield (
                edit or waiters[0].command,
                f"{waits} ({abridged([waiter.name for waiter in waiters], MOST_NAMED)}) while {away} lent to "
                f"{abridged(sorted(borrowers), MOST_NAMED)}: {back}",
            )


_RECLAIM: Final[Mapping[str, str]] = {
    "Never": (
        "preemptionRule.reclaimWithinCohort is Never, so lent slots come back only when they end; with Any "
        "or LowerPriority a borrower gives its slot back"
    ),
    "LowerPriority": "a borrower of lower priority than what waits gives its slot back, within the quota, "
    "unless it must not be disrupted",
    "Any": "a borrower gives its slot back, within the quota, unless it must not be disrupted",
}
_KEPT: Final = "the broker takes no slot back from a claim of Karpenter: it comes back when that ends"


def _pods(situation: Situation) -> Iterator[tuple[str, str]]:
    """A row for each group of waiting pods, as "Short now" names them: what is to be edited, or the command
    that shows its options.
    """
    for group in grouped(situation.waiting_pods)[:MOST_GROUPS]:
        first, count = group.first, len(group.pods)
        named = f"{group.named} ({counted(count, 'pod')})" if count > 1 else group.named
        if first.remedy:
            yield first.edit, f"{named}: no NodePool accepts it"
        else:
            yield first.command, f"{named}: its options, and its slot"


def _others(situation: Situation) -> Iterator[tuple[str, str]]:
    """Yields a command for Karpenter's claims that wait."""
    if others := [waiter for waiter in situation.waiters if waiter.kind == KARPENTERS]:
        count = counted(len(others), "claim of Karpenter waits", "claims of Karpenter wait")
        yield others[0].command, f"{count}: Karpenter's reason"


def _elsewhere(situation: Situation) -> Iterator[tuple[str, str]]:
    """Pods that wait, and not for the subject."""
    whole = situation.whole
    if whole is not None and not situation.waiters and whole.waiting_pods:
        count = counted(len(whole.waiting_pods), "pod waits", "pods wait")
        yield "capacity-broker explain cluster", f"{count} for something else"


def _idle(situation: Situation) -> Iterator[tuple[str, str]]:
    uses = situation.slot_uses
    free = {m.name: uses[m.name].free for m in situation.mirrors if m.name in uses}
    idle = {id_: count for id_, count in free.items() if count}
    if idle:
        count = counted(sum(idle.values()), "reserved slot is", "reserved slots are")
        beside, matched = "", {match.slots.id for match in situation.matches}
        every = (situation.whole or situation).waiters
        waits = any(waiter.alternatives and not waiter.claim for waiter in every)
        if waits and not matched & {*idle}:
            beside = ", and of another type than all that waits takes"
        yield "capacity-broker idle", f"{count} free{beside}: the owners, and the cost"


def limits(situation: Situation) -> Iterator[tuple[str, str]]:
    for shortage in situation.shortages:
        if shortage.scope.kind == "quota":
            yield (
                "aws service-quotas list-service-quotas --service-code ec2",
                f"raise the limit of {limit_name(shortage.scope.key)}",
            )


def quotas(situation: Situation) -> Iterator[tuple[str, str]]:
    """Owners without quota for what waits."""
    reasons = [waiter.message for waiter in situation.waiters] + [
        row.message for row in situation.waiting_pods
    ]
    for owner, flavor in dict.fromkeys(item for reason in reasons for item in out_of_quota(reason)):
        yield (
            f"kubectl edit {ReservationKey.parse(owner).resource}",
            f"{owner} {NO_QUOTA}{flavor}: raise its nominalQuota, or wait until a slot is given back",
        )


def no_fallback(situation: Situation) -> Iterator[tuple[str, str]]:
    """Claims that may only take reservations."""
    if not any(shortage.class_.policy.full for shortage in situation.shortages):
        return
    only: dict[str, list[NodeClaim]] = {}
    for claim in _with_class(situation):
        types = {
            value
            for requirement in claim.spec.requirements
            if requirement.key == names.CAPACITY_TYPE and requirement.operator == "In"
            for value in requirement.values
        }
        if types == {"reserved"}:
            only.setdefault(claim.node_pool, []).append(claim)
    for pool, claims in only.items():
        if pool and allows_purchase(situation, pool):
            continue  # their pods insist on reserved slots
        where = f"nodepool {pool}" if pool else f"nodeclaim {claims[0].name}"
        verb = "edit" if pool else "get -o yaml"
        count = counted(len(claims), "claim")
        yield (
            f"kubectl {verb} {where}",
            f"{count} may only take reservations: with on-demand in {names.CAPACITY_TYPE} new ones fall back",
        )


def _full(situation: Situation) -> Iterator[tuple[str, str]]:
    for shortage in situation.shortages:
        if shortage.scope.kind == "reservation" and shortage.class_.policy.full and situation.waiting:
            yield (
                "capacity-broker inventory",
                f"{plain(shortage.scope.key)} is full: all owners and free slots",
            )
            return


def broken(situation: Situation) -> Iterator[tuple[str, str]]:
    for node_class in situation.classes:
        launchable = condition(node_class.status.conditions, names.LAUNCHABLE)
        if launchable and launchable.reason == CLASS_TERMINATING:
            yield from _of_ending_class(situation, node_class.name)
        elif launchable and launchable.status == "False":
            yield (
                f"kubectl edit ec2nodeclass {node_class.name}",
                f"nothing launches from it: {launchable.reason}",
            )
        resolved = condition(node_class.status.conditions, names.RESERVATIONS_RESOLVED)
        if resolved and resolved.status == "False" and resolved.reason in NAME_ANOTHER:
            yield (
                f"kubectl edit ec2nodeclass {node_class.name}",
                f"no reservation that it names can serve: {resolved.reason}",
            )
    for obj in situation.reservations:
        if obj.status.capacity_reservation_lifecycle_state == "Failed":
            yield (
                f"kubectl describe {reserved_of(obj).resource}",
                "it has failed: its conditions have the field and the remedy",
            )


def _of_ending_class(situation: Situation, name: str) -> Iterator[tuple[str, str]]:
    """The NodePools that name the class: an edit of the class itself has no effect any more."""
    for pool in situation.pools:
        ref = pool.spec.template.spec.node_class_ref
        if ref.group in (names.BROKER, names.KARPENTER_AWS) and ref.name == name:
            yield f"kubectl edit nodepool {pool.name}", f"name another EC2NodeClass: {name} is being deleted"


def _pools(situation: Situation) -> Iterator[tuple[str, str]]:
    for pool, problem in islice(situation.pool_problems, MOST_NAMED):
        why = f"{problem.type}=False {problem.reason}: the condition has the cause"
        yield f"kubectl describe nodepool {pool.name}", why


def _errors(situation: Situation) -> Iterator[tuple[str, str]]:
    if situation.shortages:
        yield (
            "capacity-broker errors --since 1h --by pool",
            "how often each pool refused, and EC2's request ids",
        )


_RULES: Final[tuple[Rule, ...]] = (
    broken,
    _broken_nodes,
    _oldest,
    _pods,
    lent,
    matches,
    excluded,
    _others,
    _elsewhere,
    held,
    _insufficient,
    _pools,
    limits,
    quotas,
    no_fallback,
    _full,
    _idle,
    _errors,
)


def allows_purchase(situation: Situation, pool: str) -> bool:
    """Whether the NodePool allows machines outside reservations."""
    try:
        return any(buys(item) for item in situation.pools if item.name == pool)
    except InvalidRequirement:
        return False
