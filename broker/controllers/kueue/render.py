"""Renders a reservation as a ClusterQueue, and a LocalQueue in each namespace that may use it.

Invariant: the ClusterQueue has exactly the content of the judged reservation (`ome_rules.judge`). Groups and
flavors keep their order, and a limit appears only if it was given and has a meaning. A namespace selector
always appears: Kueue lets in no namespace without one, and all namespaces with an empty one. Every field that
Kueue would default is set, so that a changed default changes nothing. The format is v1beta2
(apis/kueue/v1beta2/clusterqueue_types.go); `kueue_versions` converts it to others.

Cohorts are not rendered: a cohort exists once a queue names it, and a Cohort object's own quota would add to
that of the reservations.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

from broker.apis import names
from broker.apis.kueue import ClusterQueue, LocalQueue, StopPolicy
from broker.apis.meta import Json
from broker.apis.ome import (
    BorrowWithinCohort,
    FlavorResourceQuota,
    QuotaGroup,
    ReservationSpec,
)
from broker.kube.conditions import owner_reference
from broker.quota.model import Preemption
from broker.quota.usage import ReservationKey
from broker.reservations.kueue_checks import CHECK
from broker.reservations.kueue_objects import (
    local_queue_name,
    mark,
    queue_name,
    short,
)
from broker.reservations.queues import preemption
from broker.reservations.spec import Reservation, reserved_of
from broker.text import exact

# The controller that answers the broker's AdmissionCheck.
CONTROLLER: Final = "capacity-broker.io/reserved-capacity"
NAMESPACE: Final = "kubernetes.io/metadata.name"
# Every namespace has the label, so this selects none, and it is not null.
NO_NAMESPACES: Final[Json] = {"matchExpressions": [{"key": NAMESPACE, "operator": "DoesNotExist"}]}


def cluster_queue(
    reservation: Reservation,
    spec: ReservationSpec,
    *,
    namespaces: Sequence[str],
    check: str = "",
    stop: StopPolicy = "None",
) -> Json:
    """The ClusterQueue's body. `spec`: judged without problems; `check`: the AdmissionCheck that it names."""
    body: Json = {
        "resourceGroups": [_group(group) for group in spec.resource_groups],
        "queueingStrategy": "BestEffortFIFO",
        "namespaceSelector": selector(namespaces),
        "flavorFungibility": {"whenCanBorrow": "MayStopSearch", "whenCanPreempt": "TryNextFlavor"},
        "preemption": _preemption(preemption(spec)),
        "stopPolicy": stop,
    }
    if spec.cohort:
        body["cohortName"] = spec.cohort
    if check:
        body["admissionChecksStrategy"] = {"admissionChecks": [{"name": check}]}
    metadata = _metadata(reservation)
    metadata["name"] = queue_name(reserved_of(reservation))
    if spec.cohort:
        metadata["labels"][names.COHORT_LABEL] = short(spec.cohort)
    return {"metadata": metadata, "spec": body}


def local_queue(reservation: Reservation, namespace: str) -> Json:
    """The body of the LocalQueue for a namespace's workloads."""
    reserved = reserved_of(reservation)
    metadata = _metadata(reservation)
    metadata |= {"name": local_queue_name(reserved), "namespace": namespace}
    return {"metadata": metadata, "spec": {"clusterQueue": queue_name(reserved), "stopPolicy": "None"}}


def skeleton(body: Json, reserved: ReservationKey) -> Json:
    """The body of the create that reserves the name: only fields that never change, and a stop of admission.

    It is created, not applied, so that an existing object is not taken over. Later applies contain all of its
    fields, since they could not remove them.
    """
    place = {key: body["metadata"][key] for key in ("name", "namespace") if key in body["metadata"]}
    held: Json = {"stopPolicy": "Hold"}
    if "clusterQueue" in body["spec"]:
        held["clusterQueue"] = body["spec"]["clusterQueue"]
    return {"metadata": {**place, **mark(reserved)}, "spec": held}


def selector(namespaces: Sequence[str]) -> Json:
    """The namespace selector for exactly these namespaces."""
    if not namespaces:
        return NO_NAMESPACES
    return {"matchExpressions": [{"key": NAMESPACE, "operator": "In", "values": sorted({*namespaces})}]}


def differs(observed: ClusterQueue | LocalQueue, desired: Json) -> bool:
    """Whether any field that the broker sets has another value in the observed object."""
    model = type(observed).decode(desired)
    meta, now = model.metadata, observed.metadata
    return (
        not meta.labels.items() <= now.labels.items()
        or not meta.annotations.items() <= now.annotations.items()
        or not {owner.uid for owner in meta.owner_references} <= {owner.uid for owner in now.owner_references}
        or _comparable(observed) != _comparable(model)
    )


def leftover(observed: ClusterQueue, desired: Json) -> Json:
    """A merge patch that removes spec fields that another manager set and that the broker omits on purpose.

    Server-side apply removes only fields that the broker itself had set.
    """
    spec, rendered = observed.spec, desired["spec"]
    patch: Json = {}
    if spec.cohort_name and "cohortName" not in rendered:
        patch["cohortName"] = None
    threshold = (spec.preemption.borrow_within_cohort or BorrowWithinCohort()).max_priority_threshold
    if threshold is not None and "maxPriorityThreshold" not in rendered["preemption"]["borrowWithinCohort"]:
        patch["preemption"] = {"borrowWithinCohort": {"maxPriorityThreshold": None}}
    return patch


def _comparable(obj: ClusterQueue | LocalQueue) -> tuple[Any, ...]:
    """The spec in comparable form: amounts by value, and of the checks only the broker's own."""
    if isinstance(obj, LocalQueue):
        return (obj.spec.cluster_queue, obj.spec.stop_policy)
    spec = obj.spec
    rule = spec.preemption
    borrow = rule.borrow_within_cohort or BorrowWithinCohort()
    strategy = spec.admission_checks_strategy
    chosen = spec.namespace_selector
    return (
        tuple(
            (
                group.covered_resources,
                tuple((flavor.name, tuple(map(_amounts, flavor.resources))) for flavor in group.flavors),
            )
            for group in spec.resource_groups
        ),
        spec.cohort_name,
        spec.queueing_strategy,
        None
        if chosen is None
        else (
            chosen.match_labels,
            [
                (expression.key, expression.operator, expression.values)
                for expression in chosen.match_expressions
            ],
        ),
        (spec.flavor_fungibility.when_can_borrow, spec.flavor_fungibility.when_can_preempt),
        (rule.reclaim_within_cohort or "Never", rule.within_cluster_queue or "Never"),
        (borrow.policy, borrow.max_priority_threshold),
        spec.stop_policy,
        [
            (check.name, sorted(check.on_flavors))
            for check in (strategy.admission_checks if strategy else ())
            if check.name == CHECK
        ],
    )


def _amounts(quota: FlavorResourceQuota) -> tuple[Any, ...]:
    return (quota.name, *map(_value, (quota.nominal_quota, quota.borrowing_limit, quota.lending_limit)))


def _value(text: str | None) -> Decimal | None:
    return None if text is None else exact(text)


def _group(group: QuotaGroup) -> Json:
    return {
        "coveredResources": list(group.covered_resources),
        "flavors": [
            {"name": flavor.name, "resources": [_quota(quota) for quota in flavor.resources]}
            for flavor in group.flavors
        ],
    }


def _quota(quota: FlavorResourceQuota) -> Json:
    limits = {"borrowingLimit": quota.borrowing_limit, "lendingLimit": quota.lending_limit}
    given = {key: value for key, value in limits.items() if value is not None}
    return {"name": quota.name, "nominalQuota": quota.nominal_quota, **given}


def _preemption(rule: Preemption) -> Json:
    borrow: Json = {"policy": rule.borrow}
    if rule.borrow != "Never" and rule.threshold is not None:
        borrow["maxPriorityThreshold"] = rule.threshold
    return {
        "reclaimWithinCohort": rule.reclaim,
        "withinClusterQueue": rule.within,
        "borrowWithinCohort": borrow,
    }


def _metadata(reservation: Reservation) -> Json:
    metadata = mark(reserved_of(reservation))
    metadata["labels"][names.RESERVATION_LABEL] = short(reservation.name)
    if not reservation.namespace:
        metadata["ownerReferences"] = [owner_reference(reservation, block=False)]
    return metadata
