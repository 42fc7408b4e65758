"""Reads Koordinator reservations, and the pods that may take from one, into the values of holds.

Raises ValueError for text that cannot be read. Its message names the field, the value and the remedy.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from pydantic import Field, TypeAdapter, ValidationError

from broker.apis import godel
from broker.apis import koordinator as koord
from broker.apis.core import LabelSelector, NodeSelector, NodeSelectorTerm, Pod, Toleration
from broker.apis.meta import Model
from broker.placement.holds import Consumption, Hold, HoldOwner
from broker.placement.holds_bounds import RoomBounds
from broker.placement.holds_ledger import HoldLink
from broker.placement.holds_match import (
    HoldAffinity,
    HoldRequest,
    NamingPod,
    OwnerMatcher,
    OwnerTest,
)
from broker.placement.model import PodInfo
from broker.placement.quantities import PODS, amounts
from broker.placement.reading import (
    label_selector,
    node_taints,
    node_terms,
    pod_info,
    pod_tolerations,
    takes_room,
)
from broker.placement.selectors import Selector, SelectorRequirement, equal
from broker.text import decode_duration, decode_json, decode_object

# Of a reservation without a priority of its own: before all pods.
HIGHEST: Final = 2**31 - 1
_OWNERS: Final = TypeAdapter(tuple[koord.ReservationOwner, ...])
_NEVER: Final[Selector] = (SelectorRequirement("", "In", frozenset()),)


class _SelectorTerms(Model):
    reservation_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class _Affinity(Model):
    """The annotation of a pod that runs in a reservation only."""

    name: str = ""
    required_during_scheduling_ignored_during_execution: _SelectorTerms | None = None
    reservation_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()


# ---- reservations


def reserve_pod(reservation: koord.KoordinatorReservation) -> PodInfo:
    """The pod as which a reservation is placed."""
    return pod_info(template_pod(reservation))


def template_pod(reservation: koord.KoordinatorReservation) -> Pod:
    """The pod of a reservation's template, with the reservation's own name, UID and labels."""
    template = reservation.spec.template or koord.ReservationTemplate()
    meta = template.metadata.model_copy(
        update={
            "name": reservation.name,
            "namespace": template.metadata.namespace or "default",
            "uid": reservation.uid,
            "labels": {**template.metadata.labels, **reservation.labels},
        }
    )
    return Pod(metadata=meta, spec=template.spec)


def deadline(created: datetime | None, ttl: str, expires: datetime | None) -> datetime | None:
    """When a reservation requests to end: the earlier of `expires` and the end of its ttl; 0 sets no end.

    Raises ValueError for a ttl that is no duration.
    """
    life = decode_duration(ttl or "24h")
    ends = [expires] if expires is not None else []
    if life and created is not None:
        ends.append(created + life)
    return min(ends, default=None)


def reservation_end(reservation: koord.KoordinatorReservation, bounds: RoomBounds) -> datetime | None:
    """When a reservation ends, within the operator's bound. Raises ValueError as `deadline`."""
    spec, created = reservation.spec, reservation.metadata.creation_timestamp
    return bounds.end(created, deadline(created, spec.ttl, spec.expires))


def koordinator_hold(
    reservation: koord.KoordinatorReservation, node: str, room: Mapping[str, int], bounds: RoomBounds
) -> Hold:
    """The hold of a placed reservation. `room`: its allocatable."""
    spec, meta = reservation.spec, reservation.metadata
    restricted = frozenset[str]()
    if spec.allocate_policy == "Restricted":
        restricted = _restricted(meta.annotations, frozenset(room))
    once = spec.allocate_once
    return Hold(
        id=meta.uid,
        name=meta.name,
        node=node,
        amount=room,
        matcher=owner_matcher(spec.owners),
        consumption=Consumption.ONCE if once else Consumption.SHARED,
        restricted=restricted,
        inner=_inner(meta.annotations),
        deadline=reservation_end(reservation, bounds),
        order=_order(meta.labels),
        recorded=recorded_owners(reservation),
        labels=meta.labels,
        taints=node_taints(spec.taints),
        unschedulable=spec.unschedulable or reservation.deleting,
        template=reserve_pod(reservation),
    )


def recorded_owners(reservation: koord.KoordinatorReservation) -> frozenset[str]:
    """The owners that the status records, by uid. Pods have no right to write it."""
    return frozenset(owner.uid for owner in reservation.status.current_owners)


def owner_matcher(owners: tuple[koord.ReservationOwner, ...]) -> OwnerMatcher:
    return OwnerMatcher(tuple(map(_owner_test, owners)))


def operating_hold(pod: Pod, node: str = "") -> Hold | None:
    """The hold that a pod is, once it runs on `node`; None for any other pod.

    Koordinator's pods with `operating-mode: Reservation` lend their own room, to one owner at a time. Raises
    ValueError for owners that cannot be read. Source: Koordinator, apis/extension/operating_pod.go.
    """
    text = pod.annotations.get(koord.POD_OWNERS)
    if not text or pod.labels.get(koord.OPERATING_MODE) != koord.RESERVATION_MODE:
        return None
    try:
        owners = _OWNERS.validate_python(decode_json(text))
    except ValueError as error:
        raise ValueError(
            f"annotation {koord.POD_OWNERS} is no list of owners: {error}; correct or remove it"
        ) from error
    info = pod_info(pod)
    return Hold(
        id=pod.uid,
        name=pod.name,
        node=node or pod.spec.node_name,
        amount=info.requests,
        matcher=owner_matcher(owners),
        consumption=Consumption.TURNS,
        order=_order(pod.labels),
        labels=pod.labels,
        unschedulable=pod.deleting or bool(pod.annotations.get(koord.CURRENT_OWNER)),
        template=info,
    )


def _owner_test(owner: koord.ReservationOwner) -> OwnerTest:
    labels = owner.label_selector
    return OwnerTest(owner.object, owner.controller, () if labels is None else _selector(labels))


def _selector(selector: LabelSelector) -> Selector:
    """A selector that cannot be parsed matches no pod."""
    parsed = label_selector(selector)
    return _NEVER if parsed is None else parsed


def _restricted(annotations: Mapping[str, str], names: frozenset[str]) -> frozenset[str]:
    """All resources of the reservation, or those of its options that it has."""
    listed = _names(annotations, koord.RESTRICTED_OPTIONS, "resources")
    return names & frozenset(listed) or names


def _inner(annotations: Mapping[str, str]) -> Mapping[str, int]:
    key = koord.NODE_RESERVATION
    resources = _json(annotations, key).get("resources") or {}
    if not isinstance(resources, dict):
        raise ValueError(f"annotation {key}: resources is no object: correct or remove it")
    try:
        return amounts({name: str(text) for name, text in resources.items()})
    except ValueError as error:
        raise ValueError(f"annotation {key}: {error}; correct or remove it") from error


def _order(labels: Mapping[str, str]) -> int:
    text = labels.get(koord.ORDER, "")
    return int(text) if text.isascii() and text.isdigit() else 0


def priority(reservation: koord.KoordinatorReservation) -> int:
    """The priority with which a reservation is placed."""
    text = reservation.labels.get(koord.PRIORITY, "")  # the value of a label has no sign
    if text.isdecimal():
        return int(text)
    template = reservation.spec.template
    return (template.spec.priority if template else 0) or HIGHEST


# ---- pods


def hold_request(pod: Pod, index: str = "") -> HoldRequest:
    """The pod with its reservation affinity and exact resources. Raises ValueError for an invalid annotation.

    `index`: the index of a Gödel pod.
    """
    annotations, ignores = pod.annotations, pod.labels.get(koord.IGNORED) == "true"
    return HoldRequest(
        pod=pod_info(pod),
        controllers=pod.metadata.owner_references,
        affinity=_affinity(annotations),
        exact=_names(annotations, koord.EXACT_MATCH, "resourceNames"),
        index=index,
        owners=not ignores,
        ignores=ignores,
    )


def hold_link(pod: Pod) -> HoldLink | None:
    """The hold that a bound pod names in its annotation; None without one that can be read."""
    try:
        uid = _json(pod.annotations, koord.ALLOCATED).get("uid")
    except ValueError:
        return None
    uid = uid or pod.annotations.get(godel.MATCHED_UID)
    if not uid:
        return None
    ignores, meta = pod.labels.get(koord.IGNORED) == "true", pod.metadata
    naming = NamingPod(
        meta.namespace, meta.name, meta.uid, meta.labels, meta.owner_references, owners=not ignores
    )
    requests = {**pod_info(pod).requests, PODS: 1}
    return HoldLink(str(uid), pod.spec.node_name, HoldOwner(pod.uid, requests), naming)


def _affinity(annotations: Mapping[str, str]) -> HoldAffinity | None:
    raw = _json(annotations, koord.AFFINITY)
    if koord.AFFINITY not in annotations:
        return None
    try:
        affinity = _Affinity.model_validate(raw)
    except ValidationError as error:
        raise ValueError(f"annotation {koord.AFFINITY} is no reservation affinity: {error}") from error
    required = affinity.required_during_scheduling_ignored_during_execution
    return HoldAffinity(
        name=affinity.name,
        selector=equal(affinity.reservation_selector),
        terms=None
        if required is None
        else node_terms(NodeSelector(node_selector_terms=required.reservation_selector_terms)),
        tolerations=pod_tolerations(affinity.tolerations),
    )


def _names(annotations: Mapping[str, str], key: str, field: str) -> tuple[str, ...]:
    listed = _json(annotations, key).get(field) or []
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise ValueError(f"annotation {key}: {field} is no list of names: correct or remove it")
    return tuple(listed)


def _json(annotations: Mapping[str, str], key: str) -> dict[str, Any]:
    text = annotations.get(key)
    if not text:
        return {}
    try:
        return decode_object(text)
    except ValueError as error:
        raise ValueError(f"annotation {key} is no JSON object: {error}; correct or remove it") from error


def reservation_waits(reservation: koord.KoordinatorReservation, names: frozenset[str]) -> bool:
    """Whether the reservation needs a node from one of these schedulers."""
    status = reservation.status
    if reservation.scheduler not in names or status.node_name or reservation.deleting:
        return False
    return status.phase in ("", koord.PENDING)


def holds_room(pod: Pod) -> bool:
    """Whether the pod counts on its node. One that ended counts until its room is given back or kept.

    Otherwise its room would be given to another pod, and then be kept as well.
    """
    return takes_room(pod) or (bool(pod.spec.node_name) and godel.FINALIZER in pod.metadata.finalizers)
