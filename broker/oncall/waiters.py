"""Waiters for capacity: claims without an instance, and pods without a node.

`explain` and the web page read the same waiters, from the objects that each of them has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache, partial
from typing import Final, NamedTuple

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.capacity.reasons import ALL_FULL, CLASS_NOT_FOUND, CLASS_TERMINATING
from broker.capacity.requirements import InvalidRequirement, Requirements
from broker.lists import lists_by_key
from broker.oncall.pod_facts import gang_members
from broker.oncall.state import is_brokers, launch_state
from broker.oncall.waiting_pods import WaitingPod
from broker.placement.gangs import gang_of, unknown_sizes
from broker.placement.pool_choice import pool_node
from broker.placement.quantities import amounts, pod_requests
from broker.placement.reading import claim_requirements
from broker.quota.resolve import UnresolvedName
from broker.quota.usage import ReservationKey
from broker.reservations.drawing import DrawRights

# The kinds of waiters.
CLAIM, KARPENTERS, POD = "claim", "claim of Karpenter", "pod"
# The reasons of a claim that no slot serves, since its class is gone for good.
CLASS_GONE: Final = frozenset({CLASS_NOT_FOUND, CLASS_TERMINATING})


def plural(kind: str) -> str:
    """The kind of several waiters."""
    return "claims of Karpenter" if kind == KARPENTERS else f"{kind}s"


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way to be served. `own`: the requirements of the claim or the pod itself; `requirements`: those
    with the NodePool's; `pool`: the NodePool's alone. The class and the pool are empty while they are not
    known. `shared`: the other NodePools of the class. `closed`: why the NodePool gives no pod a node now.
    `draws_from`: the owner that it draws from, or why it may not; None if it names none.
    """

    own: Requirements
    requirements: Requirements
    node_class: str = ""
    node_pool: str = ""
    pool: Requirements | None = None
    shared: tuple[str, ...] = ()
    closed: str = ""
    draws_from: ReservationKey | UnresolvedName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiter:
    """A claim or a pod that waits, with the last reason. `command` shows more.

    `alternatives`: any one of these serves it; none do if only a named node does, or its class is gone.
    `gang`: its gang, of which `together` wait. `held`, `report`: as in `WaitingPod`. `claim`: a pod's claim,
    which has its instance. `edit`: the command with which a person changes a pod's template. `shut`: zones
    in which its rules about other pods admit no new node, with the rule.
    """

    kind: str
    name: str
    namespace: str = ""
    since: datetime | None = None
    reason: str = ""
    message: str = ""
    command: str
    alternatives: tuple[Alternative, ...] = ()
    requests: Mapping[str, int] = field(default_factory=dict)
    gang: str = ""
    together: int = 1
    held: str = ""
    report: str = ""
    claim: str = ""
    edit: str = ""
    shut: tuple[tuple[str, str], ...] = ()

    @property
    def shape(self) -> object:
        """Equal for waiters that fit the same slots for the same reasons."""
        amounts_ = tuple(sorted(self.requests.items()))
        reasons = self.held, self.report, self.claim, self.shut
        return self.kind, self.alternatives, amounts_, self.gang, *reasons

    def draws(self, owner: ReservationKey) -> bool:
        """Whether it may draw from the owner."""
        return any(alternative.draws_from == owner for alternative in self.alternatives)


def claim_waiters(
    claims: Sequence[NodeClaim], rights: DrawRights, pools: Iterable[NodePool]
) -> Iterator[Waiter]:
    """`claims`: those without an instance, of either launcher."""
    templates = {template.pool: template for template in _templates(pools)}
    gangs = Counter(claim.gang for claim in claims)
    for claim in claims:
        spec, of_broker = claim.spec, is_brokers(claim)
        own = claim_requirements(claim)
        reason, message = launch_state(claim)
        template = templates.get(claim.node_pool)
        alternative = Alternative(
            own,
            own,
            spec.node_class_ref.name,
            claim.node_pool,
            pool=template.requirements if template else None,
            shared=template.shared if template else (),
            draws_from=rights.of_claim(claim),
        )
        yield Waiter(
            kind=CLAIM if of_broker else KARPENTERS,
            name=claim.name,
            since=claim.metadata.creation_timestamp,
            reason=reason,
            message=message,
            command=f"capacity-broker explain claim {claim.name}",
            alternatives=() if reason in CLASS_GONE else (alternative,),
            requests=amounts(spec.resources.requests),
            gang=claim.gang,
            together=gangs[claim.gang] if claim.gang else 1,
            report=message if reason == ALL_FULL else "",
        )


def pod_waiters(
    rows: Iterable[WaitingPod],
    pods: Iterable[Pod],
    rights: DrawRights,
    pools: Iterable[NodePool],
    shut: Callable[[Pod], Mapping[str, str]],
) -> Iterator[Waiter]:
    """The pods of these rows. A claim that waits stands for its pods itself."""
    templates = [*_templates(pools)]
    known = {pod.key: pod for pod in pods}
    without = [row for row in rows if row.key in known and not row.claim_waits]
    alternatives: dict[object, tuple[Alternative, ...]] = {}
    gangs = gang_members(known[row.key] for row in without)
    for row in without:
        pod = known[row.key]
        own = own_requirements(pod)
        drawer = pod.namespace, pod.annotations.get(names.DRAWS_FROM, "")
        asked = own, row.accepting, drawer
        if asked not in alternatives:
            draws = partial(rights.of_pod_in, *drawer)
            alternatives[asked] = tuple(_alternatives(own, templates, dict(row.accepting), draws))
        gang, scheduled = gang_of(pod, unknown_sizes), pod.scheduled
        yield Waiter(
            kind=POD,
            name=row.key,
            namespace=row.namespace,
            since=row.since,
            reason=scheduled.reason if scheduled else "",
            message=scheduled.message if scheduled else "no scheduler has answered yet",
            command=f"capacity-broker explain claim {row.claim}" if row.claim else row.command,
            alternatives=alternatives[asked],
            requests=pod_requests(pod),
            gang=gang.name,
            together=gangs[gang.name] if gang.name else 1,
            held=row.held,
            report=row.report,
            claim=row.claim,
            edit=row.edit,
            shut=tuple(shut(pod).items()),
        )


def own_requirements(pod: Pod) -> tuple[Requirements, ...]:
    """The pod's selector and affinity as requirements; a term with a named node has no new machine."""
    selector = [(key, "In", (value,)) for key, value in pod.spec.node_selector.items()]
    affinity = pod.spec.affinity and pod.spec.affinity.node_affinity
    required = affinity and affinity.required_during_scheduling_ignored_during_execution
    if not required:
        return (_requirements(*selector),)
    return tuple(
        _requirements(*selector, *((r.key, r.operator, tuple(r.values)) for r in term.match_expressions))
        for term in required.node_selector_terms
        if term.match_expressions and not term.match_fields
    )


class _Template(NamedTuple):
    pool: str
    node_class: str
    requirements: Requirements
    shared: tuple[str, ...]
    draws_from: str


def _templates(pools: Iterable[NodePool]) -> Iterator[_Template]:
    """Those of each pool whose requirements can be read."""
    known = [*pools]
    users = lists_by_key((pool.spec.template.spec.node_class_ref.name, pool.name) for pool in known)
    for pool in known:
        try:
            required = pool_node(pool).requirements
        except InvalidRequirement:
            continue
        node_class = pool.spec.template.spec.node_class_ref.name
        shared = tuple(sorted(name for name in users[node_class] if name != pool.name))
        yield _Template(pool.name, node_class, required, shared, pool.draws_from)


def _alternatives(
    own: Iterable[Requirements],
    templates: Sequence[_Template],
    accepting: Mapping[str, str],
    draws: Callable[[str], ReservationKey | UnresolvedName | None],
) -> Iterator[Alternative]:
    """One for each NodePool that may serve the pod; without such a pool, the pod's own requirements.

    `draws`: the owner that the pod draws from, by the reservation that the NodePool names.
    """
    for requirements in own:
        served = False
        for pool, node_class, required, shared, of_pool in templates:
            both = requirements & required
            if not both.problems() and (pool in accepting or not accepting):
                served = True
                closed = accepting.get(pool, "")
                yield Alternative(
                    requirements,
                    both,
                    node_class,
                    pool,
                    pool=required,
                    shared=shared,
                    closed=closed,
                    draws_from=draws(of_pool),
                )
        if not served:
            yield Alternative(requirements, requirements, draws_from=draws(""))


@lru_cache(maxsize=1024)
def _requirements(*written: tuple[str, str, tuple[str, ...]]) -> Requirements:
    """Those that can be read; the API server refuses the others."""
    try:
        return Requirements.of(written)
    except InvalidRequirement:
        return Requirements()
