"""Resolves `capacityReservationSpec` into the selector terms that Karpenter launches by.

Invariant: the list holds every entry of a user, and the broker's entries by the record on the object. Nothing
is removed because EC2 or a class could not be read. The list is atomic in Karpenter's CRD, so it is patched
whole with the resourceVersion of its read. Advice begins when a NodePool of Karpenter's uses the class, and
ends when the class requests nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

import structlog

from broker.apis import names
from broker.apis.karpenter import NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.meta import ConditionUpdate
from broker.apis.reservation_spec import CapacityReservationSpec
from broker.capacity.matching import unread_group
from broker.capacity.model import Resolved
from broker.capacity.reasons import CLASS_NOT_READY
from broker.controllers.advisor import conditions, terms
from broker.controllers.advisor import pools as pools_
from broker.controllers.advisor.tags import ReservationTags, TagResult
from broker.controllers.advisor.terms import Advice, Record, Term
from broker.controllers.inventory import InventoryCache
from broker.controllers.nodeclass.controller import NodeClassController
from broker.controllers.nodeclass.resolve import Unresolved
from broker.controllers.nodeclass.status import INVALID_SPEC, patch_status
from broker.kube.cache import Cache
from broker.kube.context import ControllerContext
from broker.kube.controller import Result
from broker.kube.errors import Forbidden, Invalid
from broker.text import counted, format_time
from providers.launch import RESERVATIONS_ONLY

RECHECK = 300.0
SOON = 1.0
LIST = "capacityReservationSelectorTerms"

_log = structlog.get_logger("advisor")


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """The intended record, advice and list for one version of the object."""

    record: Record
    advice: Advice
    user_terms: tuple[Term, ...]
    listed: tuple[Term, ...]


class Advisor:
    """Reconciles classes by name, one at a time."""

    def __init__(
        self,
        context: ControllerContext,
        inventory: InventoryCache,
        nodeclasses: NodeClassController,
        classes: Cache[EC2NodeClass],
        pools: Cache[NodePool],
        tags: ReservationTags,
        *,
        account_id: Callable[[], str],
        cluster: str,
    ) -> None:
        self._client, self._recorder, self._clock = context.client, context.recorder, context.clock
        self._account_id = account_id
        self._inventory = inventory
        self._nodeclasses = nodeclasses
        self._classes = classes
        self._pools = pools
        self._cluster = cluster
        self._tags = tags
        self._last: dict[str, tuple[str, Record]] = {}  # name -> uid and the last record written to it

    def reconcile(self, name: str) -> Result | None:
        node_class = self._classes.get(name)
        if node_class is None:
            if name not in self._classes.broken:
                self._last.pop(name, None)
                self._tags.take(name)
            return None
        if node_class.deleting:
            return None
        pools = pools_.karpenter_pools(self._pools.list(), name)
        if not pools and self._record(node_class) == Record():
            self._write_conditions(node_class, [])
            self._tags.take(name)
            return None
        settings = node_class.reservation_settings
        spec = settings.spec
        pool_conditions = _pool_conditions(spec, pools)
        try:
            if settings.problems:
                raise Unresolved(INVALID_SPEC, "the reservation spec is invalid")
            update, requeue = self._reconcile_terms(node_class, spec, self._resolve(node_class, spec))
        except Unresolved as error:
            if error.passing:
                return Result(requeue_after=SOON)
            self._write_conditions(
                node_class, [conditions.unresolved(error.reason, error.message), *pool_conditions]
            )
            return None
        except Invalid as error:
            update = conditions.refused_by_server("TermsRefused", error.message)
            requeue = Result(requeue_after=RECHECK)
        except Forbidden as error:
            update = conditions.refused_by_server("Forbidden", error.message)
            requeue = Result(requeue_after=RECHECK)
        shown = spec is not None or update.status != "True"
        self._write_conditions(
            self._classes.get(name) or node_class, [update, *pool_conditions] if shown else []
        )
        return requeue

    def _resolve(self, node_class: EC2NodeClass, spec: CapacityReservationSpec | None) -> Resolved:
        """The reservations that an id or a group selects.

        Raises Unresolved if the group could not be read: an unread group must not count as empty.
        """
        if spec is None or spec.preference:
            return Resolved()
        error = self._inventory.group_errors.get(spec.group_arn)
        unread = spec.group_arn not in self._inventory.snapshot().groups
        if unread and error:
            # The request id is left out: the same error at the next poll needs no write.
            raise Unresolved("GroupUnreadable", unread_group(spec.group_arn, error))
        return self._nodeclasses.resolved_reservations(node_class.name)

    def _reconcile_terms(
        self, node_class: EC2NodeClass, spec: CapacityReservationSpec | None, resolved: Resolved
    ) -> tuple[ConditionUpdate, Result | None]:
        """Brings list, record and tags to their intended state. Raises ApiError, ProviderError."""
        name = node_class.name
        present = [term.wire() for term in node_class.spec.capacity_reservation_selector_terms]
        intent = self._intent(node_class, present, spec, resolved)
        tagged = intent.advice.by_tag
        if intent.record.yielded and spec is not None and not spec.preference:
            tagged = terms.own_of(resolved, self._account_id())  # so that the offered term selects them
        tag_result = self._tags.put(name, tagged) if tagged else TagResult()
        requeue = Result(requeue_after=RECHECK) if tag_result.refused else None
        if intent.record.yielded:
            manager = self._yield(node_class, intent.record)
            offer = terms.OPEN if spec and spec.preference else self._tag(name)
            return conditions.yielded(offer, manager, held=offer in intent.user_terms), requeue
        if tag_result.refused:
            intent = self._intent(node_class, present, spec, resolved, untaggable=tag_result.refused)
        if not tag_result.waiting:
            if self._differs(node_class, present, intent) and not self._write(
                node_class, spec, resolved, tag_result.refused
            ):
                raise Unresolved(CLASS_NOT_READY, "the class has changed meanwhile", passing=True)
            self._tags.take(name, keep=tagged)
        update = conditions.advised(
            intent.advice,
            usable=len(terms.offered(resolved)),
            waiting=tag_result.waiting,
            refused=tag_result.refused,
        )
        return update, requeue

    def _tag(self, name: str) -> Term:
        return terms.tag_term(self._cluster, name)

    def _record(self, node_class: EC2NodeClass) -> Record:
        """The record on the object. If the object was replaced as a whole, the last written record."""
        recorded = terms.load(node_class.annotations.get(names.ADVISED))
        uid, last = self._last.get(node_class.name, ("", Record()))
        return recorded if recorded is not None else last if uid == node_class.uid else Record()

    def _intent(
        self,
        node_class: EC2NodeClass,
        present: list[Term],
        spec: CapacityReservationSpec | None,
        resolved: Resolved,
        *,
        untaggable: Collection[str] = (),
    ) -> Intent:
        now, record = self._clock.now(), self._record(node_class)
        user_terms, gone = terms.split(present, record)
        request = terms.request_of(spec) if spec else ""
        record = terms.checked(record, gone, request=request, now=now)
        account = self._account_id() if spec and not spec.preference else ""
        advice = terms.advise(
            spec,
            resolved,
            user_terms,
            tag=self._tag(node_class.name),
            account_id=account,
            untaggable=untaggable,
        )
        return Intent(
            record=record,
            advice=advice,
            user_terms=tuple(user_terms),
            listed=(*user_terms, *advice.terms),
        )

    def _differs(self, node_class: EC2NodeClass, present: list[Term], intent: Intent) -> bool:
        recorded = terms.load(node_class.annotations.get(names.ADVISED)) or Record()
        wanted = terms.written(intent.record, intent.advice.terms)
        counts_equal = (recorded.request, recorded.removed) == (wanted.request, wanted.removed)
        return not (
            counts_equal and terms.same(recorded.terms, wanted.terms) and terms.same(present, intent.listed)
        )

    def _write(
        self,
        node_class: EC2NodeClass,
        spec: CapacityReservationSpec | None,
        resolved: Resolved,
        untaggable: Collection[str],
    ) -> bool:
        """Writes list and record in one patch, on a fresh read of the object.

        Fields of an entry that the broker does not know are kept. False if a user changed the class
        meanwhile.
        """
        raw = self._client.get(EC2NodeClass.KIND, node_class.name)
        fresh = EC2NodeClass.decode(raw)
        if fresh.uid != node_class.uid or fresh.metadata.generation != node_class.metadata.generation:
            self._classes.observe(raw)
            return False
        present = [dict(term) for term in raw["spec"].get(LIST) or ()]
        intent = self._intent(fresh, present, spec, resolved, untaggable=untaggable)
        record = terms.written(intent.record, intent.advice.terms)
        if record != Record():
            record = replace(record, at=format_time(self._clock.now()))
        body: dict[str, Any] = {
            "metadata": {
                "resourceVersion": fresh.metadata.resource_version,
                "annotations": {names.ADVISED: record.dump() if record != Record() else None},
            }
        }
        if not terms.same(present, intent.listed):
            body["spec"] = {LIST: list(intent.listed) or None}
        self._patch(node_class, body, record)
        _log.info(
            "selector terms written",
            nodeclass=node_class.name,
            form=intent.advice.form,
            terms=len(intent.advice.terms),
            removed_before=record.removed,
        )
        return True

    def _yield(self, node_class: EC2NodeClass, record: Record) -> str:
        """Yields the list to the manager that removed the broker's entries too often; returns its name.

        The manager is recorded on the object and reported once.
        """
        before = self._record(node_class)
        if before.yielded:
            return before.by
        raw = self._client.get(EC2NodeClass.KIND, node_class.name)
        record = replace(record, terms=(), by=_manager(raw, self._client.field_manager))
        self._patch(
            node_class,
            {
                "metadata": {
                    "resourceVersion": node_class.metadata.resource_version,
                    "annotations": {names.ADVISED: record.dump()},
                }
            },
            record,
        )
        _log.warning("selector terms left to others", nodeclass=node_class.name, manager=record.by)
        self._recorder.event(
            node_class,
            "Warning",
            conditions.YIELDED,
            f"{record.by} removed the broker's selector terms {counted(record.removed, 'time')}: the broker "
            f"stops writing them; condition {names.RESERVATIONS_ADVISED} has the term to copy",
        )
        return record.by

    def _patch(self, node_class: EC2NodeClass, body: dict[str, Any], record: Record) -> None:
        answer = self._client.patch(EC2NodeClass.KIND, node_class.name, body)
        self._last[node_class.name] = node_class.uid, record
        self._classes.observe(answer)

    def _write_conditions(self, node_class: EC2NodeClass, updates: Iterable[ConditionUpdate]) -> None:
        status = conditions.conditions_patch(node_class, updates, now=self._clock.now())
        if status is not None:
            patch_status(self._client, self._classes, node_class, status)


def _pool_conditions(spec: CapacityReservationSpec | None, pools: list[NodePool]) -> list[ConditionUpdate]:
    if spec is None or spec.preference == "none" or not pools:
        return []
    only = spec.preference == RESERVATIONS_ONLY
    return [conditions.allowed(pools_.without_reserved(pools), pools_.beyond_reserved(pools), only=only)]


def _manager(raw: dict[str, Any], own: str) -> str:
    """The manager that owns the list now, by the object's managedFields."""
    for entry in raw["metadata"].get("managedFields", ()):
        fields = entry.get("fieldsV1", {}).get("f:spec", {})
        if f"f:{LIST}" in fields and entry.get("manager") != own:
            return str(entry["manager"])
    return "another manager"
