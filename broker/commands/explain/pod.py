"""`capacity-broker explain pod NAME`: why a pod waits or where it runs, on one page.

The parts, from the top: the reason; the NodePools, the one that the pod gets its node from first; the options
of its claim, or of the claim that this NodePool would make; the slot that it has, or the slots that it could
have, with their users; the next step of the broker; and the command that helps. Nothing is decided here: the
reasons are those of `broker.oncall.waiting_pods`, and the options those of `explain claim`. Without EC2 the
options are left out, and the rest is shown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any, Final

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.label_names import stable
from broker.capacity.types import WELL_KNOWN
from broker.commands.explain.claims import Forecasts, format_options
from broker.commands.explain.explanation import Explanation, pod_waits
from broker.commands.explain.limits import PoolLimits, all_beyond
from broker.commands.explain.options import ClaimForecast, any_of, none_next
from broker.commands.explain.placed import claim_of_node, last_events, place_row, placed
from broker.commands.explain.pod_advice import best_advice
from broker.commands.explain.slot_rows import slot_rows
from broker.commands.explain.unknown_names import elsewhere, no_namespace, unknown
from broker.commands.output import age
from broker.controllers.provisioning.claims import total_requests
from broker.controllers.provisioning.from_pool import pool_claim
from broker.oncall.pod_facts import waits
from broker.oncall.situation import Situation
from broker.oncall.slot_holders import SlotUse
from broker.oncall.state import is_brokers
from broker.oncall.waiting_pods import WaitingPod, waiting_rows
from broker.oncall.waiting_reasons import GATED, STATIC_NODEPOOL, advised_uses, report_on
from broker.oncall.wording import scope_name
from broker.placement.model import NodeTerm, PodInfo
from broker.placement.pool_choice import PoolVerdict, of_broker, pool_node, pool_verdicts
from broker.placement.reading import pod_info
from broker.placement.selectors import NOT_IN, Selector, SelectorRequirement, required
from broker.placement.type_reasons import over_limits
from broker.reservations.drawing import DrawRights
from broker.reservations.spec import reserved_of
from broker.text import counted, format_time

PARTS: Final = ("placed", "why", "nodepools", "options", "slots", "next", "do", "events")
MOST_SLOTS: Final = 4  # reservations that are shown with their users
FULL: Final = "skipped"
UNFIT: Final = "nothing until the reason above is gone; the broker looks again every 10 s"

ROOM: Final = "kube-scheduler binds the pod to the node that has room for it"


def find(situation: Situation, namespace: str, name: str) -> Pod:
    """The pod. Raises ValueError, which names those that are meant perhaps."""
    known = {pod.key: pod for pod in situation.pods}
    if (pod := known.get(f"{namespace}/{name}")) is not None:
        return pod
    if text := elsewhere("Pod", name, namespace, (p.namespace for p in known.values() if p.name == name)):
        raise ValueError(text)
    if text := no_namespace(namespace, (item.name for item in situation.namespaces)):
        raise ValueError(text)
    near = [pod.name for pod in known.values() if pod.namespace == namespace]
    command, where = f"kubectl get pods -n {namespace}", f"namespace {namespace}"
    raise ValueError(unknown("Pod", name, near, command, where))


@dataclass(frozen=True, kw_only=True)
class PodExplainer:
    """`forecaster` plans claims."""

    situation: Situation
    forecaster: Forecasts

    def rows(self, pods: Iterable[Pod]) -> list[WaitingPod]:
        """The pods of these that wait, with their reasons."""
        return waiting_rows(pods, self.situation.around, self.situation.now)

    def place(self, pod: Pod) -> dict[str, Any] | None:
        """The slot of a pod with a node; None if no claim made its node."""
        claim = claim_of_node(self.situation, pod)
        return place_row(self.situation, claim) if claim is not None else None

    def page(self, pod: Pod, *, alike: Sequence[Pod] = ()) -> Explanation:
        """`alike`: equal pods, this one included, that wait for the same reason."""
        return self._waiting(pod, alike or (pod,)) if waits(pod) else placed(self.situation, pod)

    def _waiting(self, pod: Pod, alike: Sequence[Pod]) -> Explanation:
        situation = self.situation
        (row,) = self.rows([pod])
        claim = next((claim for claim in situation.claims if claim.name == row.claim), None)
        admitting = pool_verdicts(pod_info(pod), situation.pools, situation.around.room.lack)
        verdicts = self._within_limits(admitting, pod, claim)
        free = next((verdict for verdict in verdicts if not verdict.rejection), None)
        if claim is None and free is not None:
            row = replace(row, node_pool=free.pool.name)
        chosen = free or next((verdict for verdict in admitting if not verdict.rejection), None)
        report = report_on(pod, situation.around)
        room = report.room if claim is None else ""
        options = self._options(pod, claim, chosen) if not room else None
        shut = self._shut(pod, options) if claim is None else {}
        if options is not None and shut:
            options = _in_open_zones(self._options(pod, claim, chosen, shut), shut)
        rows = options.rows if options is not None else ()
        # Options are those of a claim. What else the pod needs, such as a volume, only provisioning knows.
        over = dict(over_limits(report.message))
        limited = chosen is not None and (free is None or chosen.pool.name in over)
        # Such a claim could wait for a slot of its own reservation; pods leave that to kube-scheduler.
        awaited = options.waits_for if options is not None else ()
        taken = bool(awaited) or _has_next(rows)
        reported = limited or (taken and bool(report.message))
        held = bool(row.held) and row.reason != GATED
        unfit = (claim is None and reported) or (held and (chosen is None or of_broker(chosen.pool)))
        unfit = (unfit or bool(shut and all(row["zone"] in shut for row in rows))) and not room
        if unfit and options is not None:
            short = over.get(chosen.pool.name) if chosen is not None else None
            left = all_beyond(options.rows, short) if short else [*none_next(options.rows)]
            options = replace(options, rows=left, waits_for=())
        slots = [*_slots(situation, claim, chosen, options)]
        many = f" and {counted(len(alike) - 1, 'equal pod')}" if len(alike) > 1 else ""
        part = _about(situation, pod, claim, chosen, options)
        return Explanation(
            subject=f"Pod {pod.key}{many}",
            headline=f"{_state(row, situation.now)}: {row.reason}",
            parts={
                "why": [pod_waits(row, situation.now) | {"alike": [pod.key for pod in alike]}],
                "nodepools": [*_pools(verdicts, unfit=unfit and not held)],
                "options": list(options.rows) if options is not None else [],
                "slots": [line for use, role in slots for line in slot_rows(use, situation.now, role)],
                "do": best_advice(part, row, () if unfit else rows),
                "events": last_events(situation, pod, claim),
            },
            shown={"options": format_options(options.rows) if options is not None else []},
            next=[UNFIT if unfit else ROOM] if unfit or room else [*_next(row, claim, chosen, options)],
            unread=situation.unread,
        )

    def _within_limits(
        self, verdicts: Sequence[PoolVerdict], pod: Pod, claim: NodeClaim | None
    ) -> list[PoolVerdict]:
        """The pool of the pod's claim, then those that may have another machine for it, then the others."""
        own, info = claim.node_pool if claim is not None else "", pod_info(pod)
        judged = [v if v.pool.name == own else self._limits.judged(v, info) for v in verdicts]
        return sorted(judged, key=lambda verdict: (verdict.pool.name != own, bool(verdict.rejection)))

    @cached_property
    def _limits(self) -> PoolLimits:
        return PoolLimits(self.situation)

    def _options(
        self,
        pod: Pod,
        claim: NodeClaim | None,
        chosen: PoolVerdict | None,
        shut: Collection[str] = (),
    ) -> ClaimForecast | None:
        """The options of the pod's claim while it waits, else of the claim that the NodePool would make, in
        none of the zones `shut`.
        """
        if claim is not None:
            return self.forecaster.of(claim)
        classes = {item.name for item in self.situation.classes}
        if chosen is None or pod.spec.scheduling_gates or chosen.node_class not in classes:
            return None
        zones = _none_of(names.ZONE, shut)
        options = self._planned(pod, chosen.pool, zones)
        rows = [*self._limits.options(chosen.pool, options.rows)]
        if _has_next(options.rows) and not _has_next(rows):
            # The claim would list only types within the limits, so another option is the next one.
            beyond = self._limits.beyond(chosen.pool)
            options = self._planned(pod, chosen.pool, (*zones, *_none_of(names.INSTANCE_TYPE, beyond)))
            within = [row for row in options.rows if row["instance_type"] not in beyond]
            rows = [*within, *(row for row in rows if row["instance_type"] in beyond)]
        return replace(options, rows=rows)

    def _planned(self, pod: Pod, pool: NodePool, also: Selector) -> ClaimForecast:
        """The options of the claim that the pool would make for the pod, with these requirements too."""
        claims = self.situation.claims
        planned = probes(pod, pool, self.situation.rights, also)
        return any_of([self.forecaster.among(item, [*claims, item]) for item in planned])

    def _shut(self, pod: Pod, options: ClaimForecast | None) -> Mapping[str, str]:
        """The zones of the options in which no new node may have the pod, with the reason."""
        zones = {row["zone"] for row in options.rows} if options is not None else ()
        return self.situation.shut_zones(pod, zones)


# ---- a pod that waits


def _has_next(rows: Iterable[Mapping[str, Any]]) -> bool:
    return any(row["verdict"] == "next" for row in rows)


def _state(row: WaitingPod, now: datetime) -> str:
    pool = f", NodePool {row.node_pool}" if row.node_pool else ""
    claim = f", NodeClaim {row.claim}" if row.claim else ""
    return f"waits for {age(now - (row.since or now))}{pool}{claim}"


def _pools(verdicts: Sequence[PoolVerdict], *, unfit: bool) -> Iterator[dict[str, Any]]:
    """`unfit`: the broker reported that none of its NodePools has a machine for the pod."""
    for place, verdict in enumerate(verdicts):
        pool = verdict.pool
        refused = verdict.rejection
        if unfit and of_broker(pool):
            refused = refused or "it has no machine for the pod, for the reason above"
        ref = pool.spec.template.spec.node_class_ref
        yield {
            "verdict": "no" if refused else "first" if place == 0 else "then",
            "nodepool": pool.name,
            "weight": pool.spec.weight or 0,
            "class": ref.name,
            "group": ref.group,
            "message": refused or f"its nodes are made by {_controller(verdict)}",
        }


def _controller(verdict: PoolVerdict) -> str:
    group = verdict.pool.spec.template.spec.node_class_ref.group
    known = {names.BROKER: "the broker", names.KARPENTER_AWS: "Karpenter"}
    return known.get(group, f"the controller of {group}")


def _slots(
    situation: Situation,
    claim: NodeClaim | None,
    chosen: PoolVerdict | None,
    options: ClaimForecast | None,
) -> Iterator[tuple[SlotUse, str]]:
    """The reservations with the slot that the pod waits for, or with slots that it could have."""
    uses = situation.slot_uses
    if options is not None and options.waits_for:
        yield from ((uses[id_], "waits for") for id_ in options.waits_for[:MOST_SLOTS] if id_ in uses)
        return
    if options is not None:
        by_role = {"next": "takes next", FULL: "could take", "then": "could take"}
        ids = {
            id_: by_role[row["verdict"]]
            for row in options.rows
            if row["capacity_type"] == "reserved" and row["verdict"] in by_role
            for id_ in row["odcrs"]
        }
        if ids:
            yield from ((uses[id_], role) for id_, role in [*ids.items()][:MOST_SLOTS] if id_ in uses)
            return
    if claim is None and chosen is not None:
        advised = [*advised_uses(chosen.pool, situation.around)]
        yield from ((use, "could take") for use in advised[:MOST_SLOTS])


def _next(
    row: WaitingPod, claim: NodeClaim | None, chosen: PoolVerdict | None, options: ClaimForecast | None
) -> Iterator[str]:
    """The next step of the broker, or of the pod's own controller, and when."""
    if row.reason == GATED:
        yield "nothing until the scheduling gate is removed"
    elif claim is not None and options is not None:
        yield f"NodeClaim {claim.name} {options.decision}"
    elif claim is not None:
        yield _of_claim(claim)
    elif row.reason == STATIC_NODEPOOL:
        yield f"nothing until a node of NodePool {row.node_pool} has room, or it gets more nodes"
    elif chosen is None:
        yield "nothing until a NodePool accepts the pod and is Ready; the broker looks again every 10 s"
    elif not of_broker(chosen.pool):
        yield (
            f"{_controller(chosen)} makes the NodeClaim of NodePool {chosen.pool.name}; the broker keeps the "
            f"reservations of class {chosen.node_class} in its selector terms"
        )
    elif options is not None:
        yield f"a NodeClaim that NodePool {chosen.pool.name} would make for the pod {options.decision}"
    if options is not None and options.shortages:
        first = min(options.shortages, key=lambda shortage: shortage.next_try)
        short = scope_name(first.scope.kind, first.scope.key)
        yield f"{short} is tried again at {format_time(first.next_try)}"


def _in_open_zones(options: ClaimForecast | None, shut: Mapping[str, str]) -> ClaimForecast | None:
    """The options, with the reason of those in zones that are shut to the pod."""
    if options is None:
        return None
    rows = [{**row, "message": shut.get(row["zone"], row["message"])} for row in options.rows]
    return replace(options, rows=rows)


def _of_claim(claim: NodeClaim) -> str:
    launched = "has its instance" if claim.status.provider_id else "waits for its instance"
    if not is_brokers(claim):
        return f"Karpenter launches NodeClaim {claim.name}; it {launched}"
    return f"NodeClaim {claim.name} {launched}; the pod is bound once its node is Ready"


def _about(
    situation: Situation,
    pod: Pod,
    claim: NodeClaim | None,
    chosen: PoolVerdict | None,
    options: ClaimForecast | None,
) -> Situation:
    """The part of the situation about the pod: its claim, its class, and the owners of reservations of that
    class. Idle slots are matched with this pod only.
    """
    ref = claim.spec.node_class_ref.name if claim is not None else chosen.node_class if chosen else ""
    of_class = (mirror.name for mirror in situation.mirrors if ref in mirror.status.node_classes)
    owners = {situation.slot_owners.get(id_) for id_ in of_class}
    return replace(
        situation,
        whole=situation,
        claims=[claim] if claim is not None else [],
        about=frozenset() if claim is not None and claim.waits else frozenset({pod.key}),
        classes=[item for item in situation.classes if item.name == ref],
        mirrors=(),
        reservations=[owner for owner in situation.reservations if reserved_of(owner) in owners],
        shortages=[] if options is None else options.shortages,
    )


def probes(pod: Pod, pool: NodePool, rights: DrawRights, also: Selector = ()) -> list[NodeClaim]:
    """The claims of the pool for the pod alone, as the broker would launch one of them: one for each term of
    the pod's node affinity that a node of the pool can satisfy. They are planned as those that exist, and
    never written. The room for DaemonSets and for other pods on the same node is left out. `also`: more
    requirements of theirs.
    """
    info, node = pod_info(pod), pool_node(pool)
    terms = [term for term in info.node_terms or () if node.accepts(replace(info, node_terms=(term,)))]
    return [_probe(pod, info, pool, rights, (*term.expressions, *also)) for term in terms or [NodeTerm()]]


def _none_of(key: str, values: Collection[str]) -> Selector:
    return (SelectorRequirement(key, NOT_IN, frozenset(values)),) if values else ()


def _probe(pod: Pod, info: PodInfo, pool: NodePool, rights: DrawRights, affinity: Selector) -> NodeClaim:
    annotations: dict[str, str | None] = {names.PODS: pod.key}
    if drawn := rights.named_for(pod.namespace, pod.annotations.get(names.DRAWS_FROM, "")):
        annotations[names.DRAWS_FROM] = drawn
    if pod.spec.priority and names.PRIORITY not in pool.spec.template.metadata.annotations:
        annotations[names.PRIORITY] = str(pod.spec.priority)
    of_pool = [item.wire() for item in pool.spec.template.spec.requirements]
    body = pool_claim(
        pool,
        f"of-pod-{pod.name}",
        requirements=[*of_pool, *_selected((*info.node_selector, *affinity))],
        requests=total_requests([info], {}),
        annotations=annotations,
    )
    body["metadata"]["uid"] = f"pod/{pod.uid or pod.key}"
    body["spec"]["nodeClassRef"] = {**body["spec"]["nodeClassRef"], "group": names.BROKER}
    return NodeClaim.decode(body)


def _selected(selector: Selector) -> Iterator[dict[str, Any]]:
    """The requirements on labels that follow from the instance."""
    for item in selector:
        if stable(item.key) in WELL_KNOWN:
            wanted = required(item)
            yield {"key": wanted.key, "operator": wanted.operator, "values": [*wanted.values]}
