"""The commands that help in a situation, the most useful first, each with its reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
from broker.oncall.journal import repeated
from broker.oncall.situation import Situation
from broker.oncall.state import launch_state
from broker.oncall.waiters import CLASS_GONE, KARPENTERS, own_requirements
from broker.oncall.waiting_pods import WaitingPod, grouped
from broker.oncall.waiting_reasons import (
    GATED,
    NO_NODEPOOL,
    NODE_NOT_READY,
    NODEPOOL_NOT_READY,
    RESERVATIONS_FULL,
)
from broker.oncall.wording import limit_name
from broker.placement.claims import priority_of
from broker.placement.pool_choice import NO_MACHINE, buys
from broker.placement.type_reasons import over_limits
from broker.quota.usage import ReservationKey
from broker.reservations.annotations import STOP
from broker.reservations.claims import occupied_odcr
from broker.reservations.conditions import SUFFICIENT
from broker.reservations.queues import preemption
from broker.reservations.spec import reserved_of
from broker.text import abridged, counted, plain
from providers.launch import RESERVATIONS_ONLY

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


def _held(situation: Situation) -> Iterator[tuple[str, str]]:
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


def _matches(situation: Situation) -> Iterator[tuple[str, str]]:
    """Idle slots beside what waits for one. The explanation of an owner does not name itself."""
    part = situation.reservations if situation.whole is not None else ()
    shown = {explain_owner(reserved_of(owner)) for owner in part}
    offers = (match for match in situation.matches if not match.excluded)
    for match in islice(offers, MOST_MATCHES):
        yield match.waiters[0].command if match.command in shown else match.command, match.text


def _excluded(situation: Situation) -> Iterator[tuple[str, str]]:
    """Pods without an idle slot that they could use, beside those that their own selector excludes."""
    for match in islice((match for match in situation.matches if match.excluded), MOST_NAMED):
        yield match.command, match.text


def _lent(situation: Situation) -> Iterator[tuple[str, str]]:
    """Claims and pods of an owner that wait while its slots are lent, and by which rule slots come back."""
    whole = situation.whole or situation
    rights = situation.rights
    for owner in situation.reservations:
        reserved, ids = reserved_of(owner), {cloud.id for cloud in owner.status.cloud_reservations}
        reclaim = preemption(owner.spec).reclaim
        borrowers = [
            f"{claim.name} of priority {priority_of(claim)}" if reclaim == "LowerPriority" else claim.name
            for claim in whole.claims
            if occupied_odcr(claim) in ids and rights.of_claim(claim) != reserved
        ]
        waiters = [item for item in whole.waiters if item.draws(reserved) and not item.claim]
        if borrowers and waiters:
            waits = counted(len(waiters), f"{waiters[0].kind} of the owner waits", "of the owner wait")
            lent = counted(len(borrowers), f"slot of {owner.key} is", f"slots of {owner.key} are")
            yield (
                waiters[0].command,
                f"{waits} ({abridged([waiter.name for waiter in waiters], MOST_NAMED)}) while {lent} lent to "
                f"{abridged(sorted(borrowers), MOST_NAMED)}: {_RECLAIM.get(reclaim, reclaim)}",
            )


_RECLAIM: Final[Mapping[str, str]] = {
    "Never": "preemptionRule.reclaimWithinCohort is Never, so lent slots come back only when they end",
    "LowerPriority": "a borrower of lower priority than what waits gives its slot back, within the quota",
    "Any": "a borrower gives its slot back, within the quota",
}


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


def _limits(situation: Situation) -> Iterator[tuple[str, str]]:
    for shortage in situation.shortages:
        if shortage.scope.kind == "quota":
            yield (
                "aws service-quotas list-service-quotas --service-code ec2",
                f"raise the limit of {limit_name(shortage.scope.key)}",
            )


def _quotas(situation: Situation) -> Iterator[tuple[str, str]]:
    """Owners without quota for what waits."""
    reasons = [waiter.message for waiter in situation.waiters] + [
        row.message for row in situation.waiting_pods
    ]
    for owner, flavor in dict.fromkeys(item for reason in reasons for item in out_of_quota(reason)):
        yield (
            f"kubectl edit {ReservationKey.parse(owner).resource}",
            f"{owner} {NO_QUOTA}{flavor}: raise its nominalQuota, or wait until a slot is given back",
        )


def _no_fallback(situation: Situation) -> Iterator[tuple[str, str]]:
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
            only.setdefault(claim.labels.get(names.NODEPOOL, ""), []).append(claim)
    for pool, claims in only.items():
        if pool and _buys(situation, pool):
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


def _broken(situation: Situation) -> Iterator[tuple[str, str]]:
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
    _broken,
    _broken_nodes,
    _oldest,
    _pods,
    _lent,
    _matches,
    _excluded,
    _others,
    _elsewhere,
    _held,
    _insufficient,
    _pools,
    _limits,
    _quotas,
    _no_fallback,
    _full,
    _idle,
    _errors,
)


def _buys(situation: Situation, pool: str) -> bool:
    """Whether the NodePool allows machines outside reservations."""
    try:
        return any(buys(item) for item in situation.pools if item.name == pool)
    except InvalidRequirement:
        return False


def _reserved_only(situation: Situation) -> Iterator[tuple[str, str]]:
    """Classes that forbid the fallback which their NodePools allow."""
    for node_class in situation.classes:
        spec = node_class.reservation_settings.spec
        if spec is not None and spec.preference == RESERVATIONS_ONLY:
            yield (
                f"kubectl edit ec2nodeclass {node_class.name}",
                f"its capacityReservationPreference is {spec.preference}: with open the pod falls back",
            )


def _insists(situation: Situation, pod: WaitingPod) -> bool:
    """Whether the pod's own selector or affinity takes reservations only."""
    return not any(
        own.allows(names.CAPACITY_TYPE, kind) and not own.values(names.RESERVATION_ID)
        for item in situation.pods
        if item.key == pod.key
        for own in own_requirements(item)
        for kind in ("on-demand", "spot")
    )


def _by_options(
    situation: Situation, pod: WaitingPod, rows: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, str]]:
    if any(row["verdict"] == "next" for row in rows):
        own = (claim for claim in situation.claims if claim.name == pod.claim)
        if (refusal := next(filter(None, map(repeated, own)), None)) is not None:
            yield f"capacity-broker explain claim {pod.claim}", f"EC2 refused the launch: {refusal.next_step}"
        yield "capacity-broker watch", "an option is free: it shows the launch"
    elif begins := next((row["message"] for row in rows if row["verdict"] == "soon"), ""):
        yield "capacity-broker watch", f"{begins}: it shows the launch"
    elif rows and pod.node_pool and {row["capacity_type"] for row in rows} == {"reserved"}:
        pool, pool_buys = pod.node_pool, _buys(situation, pod.node_pool)
        if _insists(situation, pod):
            of_pool = f"NodePool {pool} also buys" if pool_buys else f"so does NodePool {pool}"
            yield pod.edit, f"its node selector or affinity takes reservations only; {of_pool}"
        elif not pool_buys:
            yield (
                f"kubectl edit nodepool {pool}",
                f"it may only take reservations: with on-demand in {names.CAPACITY_TYPE} the pod falls back",
            )
        else:
            yield from _reserved_only(situation)
    elif not rows and pod.reason == NO_MACHINE and not _buys(situation, pod.node_pool):
        fallback = f"with on-demand in {names.CAPACITY_TYPE} the pod falls back"
        yield f"kubectl edit nodepool {pod.node_pool}", f"its class has no reservation for it: {fallback}"
    elif pod.node_pool and _all_refused(situation, rows):
        more = "more instance types or zones in its requirements give the pod more of them"
        yield f"kubectl edit nodepool {pod.node_pool}", f"EC2 refuses each option now: {more}"


def _all_refused(situation: Situation, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether EC2 has no capacity for any of the options."""
    closed = rows and all(row["verdict"] in ("skipped", "unfit") for row in rows)
    return bool(closed) and any(shortage.class_.policy.full for shortage in situation.shortages)


def _over_limit(pod: WaitingPod) -> Iterator[tuple[str, str]]:
    own_first = sorted(over_limits(pod.message), key=lambda limited: limited[0] != pod.node_pool)
    for pool, resource in own_first:
        yield f"kubectl edit nodepool {pool}", f"its limit of {resource} is reached: raise it in spec.limits"


# The rules that help a pod, the most useful first.
_OF_A_POD: Final[tuple[Rule, ...]] = (_broken, _held, _limits, _quotas, _matches, _lent, _no_fallback)
# By reason: the command of the others, with `{pod}`, `{pool}` and `{claim}`; and why it helps.
_BY_REASON: Final[Mapping[str, tuple[str, str]]] = {
    GATED: ("kubectl describe pod {pod}", "its scheduling gates, and the events of their controller"),
    NO_NODEPOOL: (
        "kubectl get nodepools -o yaml",
        "none, or their requirements allow no type of EC2: apply one as in the folder examples",
    ),
    NODEPOOL_NOT_READY: ("kubectl describe nodepool {pool}", "its conditions have the field and the remedy"),
    RESERVATIONS_FULL: ("capacity-broker inventory", "all reservations with their owners and free slots"),
    NODE_NOT_READY: ("capacity-broker explain claim {claim}", "the conditions of the claim and its node"),
}


def best_advice(
    situation: Situation, pod: WaitingPod, rows: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The one command that helps a pod that waits. `situation`: the part about it; `rows`: its options."""
    if pod.remedy:
        return [{"command": pod.edit, "why": pod.remedy}]
    of_pod = [row for rule in _OF_A_POD for row in rule(situation)]
    rules = (*_over_limit(pod), *of_pod, *_by_options(situation, pod, rows), *_excluded(situation))
    command, why = next(iter(rules), ("", ""))
    if command in ("", pod.command):  # the page that this is for names another one
        usual = ("kubectl describe pod {pod}", "its conditions and events in full")
        if pod.claim:
            usual = ("capacity-broker explain claim {claim}", "every attempt, with EC2's answers")
        command, usually = _BY_REASON.get(pod.reason, usual)
        named, why = f"-n {pod.namespace} {pod.name}", why or usually
        command = command.format(pod=named, pool=pod.node_pool, claim=pod.claim)
    return [{"command": command, "why": why}]
