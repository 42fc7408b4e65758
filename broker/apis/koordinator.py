"""Koordinator's Reservation: room on a node for pods to come.

Fields, defaults and columns are those of Koordinator 1.6, apis/scheduling/v1alpha1/reservation_types.go. An
empty item of `owners` is accepted, and matches every pod.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from pydantic import Field

from broker.apis.core import LabelSelector, PodSpec, Taint
from broker.apis.meta import ConditionStatus, Kind, Model, Object, ObjectMeta, Quantity, Time
from broker.apis.schema import crd

GROUP: Final = "scheduling.koordinator.sh"

# Phases.
PENDING: Final = "Pending"
AVAILABLE: Final = "Available"
SUCCEEDED: Final = "Succeeded"
WAITING: Final = "Waiting"
FAILED: Final = "Failed"

# Conditions.
SCHEDULED: Final = "Scheduled"
READY: Final = "Ready"

# Annotations and labels.
ALLOCATED: Final = f"{GROUP}/reservation-allocated"
AFFINITY: Final = f"{GROUP}/reservation-affinity"
IGNORED: Final = f"{GROUP}/reservation-ignored"
ORDER: Final = f"{GROUP}/reservation-order"
RESTRICTED_OPTIONS: Final = f"{GROUP}/reservation-restricted-options"
EXACT_MATCH: Final = f"{GROUP}/exact-match-reservation"
# A pod with this mode is a reservation itself, for the owners in its annotation; the second one names the pod
# that took its room.
OPERATING_MODE: Final = f"{GROUP}/operating-mode"
RESERVATION_MODE: Final = "Reservation"
POD_OWNERS: Final = f"{GROUP}/reservation-owners"
CURRENT_OWNER: Final = f"{GROUP}/reservation-current-owner"
NODE_RESERVATION: Final = "node.koordinator.sh/reservation"
PRIORITY: Final = "koordinator.sh/priority"
PREALLOCATION_REQUIRED: Final = f"{GROUP}/pre-allocation-required"
# On pods; the label in the mode Cluster.
PREALLOCATABLE: Final = "pod.koordinator.sh/is-pre-allocatable"
PREALLOCATABLE_PRIORITY: Final = "pod.koordinator.sh/pre-allocatable-priority"
CLUSTER: Final = "Cluster"

DURATION: Final = r"^-?([0-9]+(\.[0-9]*)?(ns|us|µs|ms|s|m|h))+$|^0$"


class ReservationTemplate(Model):
    """The pod as which the reservation is placed."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()


class ReservationOwnerObject(Model):
    """A pod by its identity; an empty field matches every pod."""

    namespace: Annotated[str, crd("The pod's namespace.")] = ""
    name: Annotated[str, crd("The pod's name.")] = ""
    uid: Annotated[str, crd("The pod's UID.")] = ""
    kind: Annotated[str, crd("Not read.")] = ""
    api_version: Annotated[str, crd("Not read.")] = ""
    resource_version: Annotated[str, crd("Not read.")] = ""
    field_path: Annotated[str, crd("Not read.")] = ""


class ReservationOwnerController(Model):
    """A controller of pods; an empty field matches every controller."""

    api_version: Annotated[str, crd("The controller's API version.")] = ""
    kind: Annotated[str, crd("The controller's kind.")] = ""
    name: Annotated[str, crd("The controller's name.")] = ""
    uid: Annotated[str, crd("The controller's UID.")] = ""
    controller: Annotated[bool | None, crd("Whether it is the managing controller; empty: either.")] = None
    block_owner_deletion: Annotated[bool | None, crd("Not read.")] = None
    namespace: Annotated[str, crd("The pods' namespace; empty for all.")] = ""


class ReservationOwner(Model):
    """Pods that may take from the reservation: all given parts must match."""

    object: Annotated[ReservationOwnerObject | None, crd("A pod by namespace, name or UID.")] = None
    controller: Annotated[ReservationOwnerController | None, crd("Pods by their controller.")] = None
    label_selector: Annotated[LabelSelector | None, crd("Pods by their labels.")] = None


class PreAllocationPolicy(Model):
    """The choice of running pods."""

    mode: Annotated[
        str,
        crd(
            "Default: pods that an owner's labelSelector matches. Cluster: all pods with the label "
            "pod.koordinator.sh/is-pre-allocatable.",
            enum=["Default", CLUSTER],
        ),
    ] = "Default"
    enable_multiple: Annotated[bool, crd("Whether several pods may be bound.")] = False


class KoordinatorReservationSpec(Model):
    """The room, and the pods that it is for."""

    template: Annotated[
        ReservationTemplate | None,
        crd(
            "Pod template: its requests are reserved, and its node selector, affinity, tolerations and ports "
            "choose the node.",
            required=True,
            type="object",
            x_kubernetes_preserve_unknown_fields=True,
        ),
    ] = None
    owners: Annotated[
        tuple[ReservationOwner, ...],
        crd("The pods that may take from it: one item must match. None matches no pod.", required=True),
    ] = ()
    ttl: Annotated[
        str,
        crd("How long it lives; 0 sets no limit.", default="24h", pattern=DURATION),
    ] = "24h"
    expires: Annotated[Time | None, crd("When it ends, if this is before the end of its ttl.")] = None
    pre_allocation: Annotated[
        bool, crd("Whether it takes the room of running pods, to keep it when they end.")
    ] = False
    pre_allocation_policy: Annotated[PreAllocationPolicy | None, crd("How running pods are chosen.")] = None
    allocate_once: Annotated[
        bool, crd("Whether the first owner ends it; otherwise owners share it.", default=True)
    ] = True
    allocate_policy: Annotated[
        str,
        crd(
            "Aligned: owners take from it first, then from the node. Restricted: they take its resources "
            "from it only.",
            enum=["Aligned", "Restricted"],
        ),
    ] = ""
    unschedulable: Annotated[bool, crd("Whether it is closed to new owners.")] = False
    taints: Annotated[tuple[Taint, ...], crd("Close it to pods that do not tolerate them.")] = ()


class ReservationCondition(Model):
    """One observation of a reservation's state."""

    type: Annotated[str, crd("Scheduled or Ready.", required=True)] = ""
    status: Annotated[ConditionStatus, crd("True, False or Unknown.")] = "Unknown"
    reason: Annotated[str, crd("Why, in one word.")] = ""
    message: Annotated[str, crd("Why, in a sentence.")] = ""
    last_probe_time: Annotated[Time | None, crd("When it was last observed.")] = None
    last_transition_time: Annotated[Time | None, crd("When the status last changed.")] = None


class KoordinatorReservationStatus(Model):
    """The node with the room, and the pods that use it."""

    phase: Annotated[
        str,
        crd("Pending, Available, Succeeded, Waiting or Failed.", default=PENDING),
    ] = ""
    conditions: Annotated[
        tuple[ReservationCondition, ...],
        crd("Scheduled and Ready.", map_key="type"),
    ] = ()
    current_owners: Annotated[tuple[ReservationOwnerObject, ...], crd("The pods that use it, by UID.")] = ()
    node_name: Annotated[str, crd("Its node.")] = ""
    allocatable: Annotated[dict[str, Quantity], crd("The reserved resources.")] = Field(default_factory=dict)
    allocated: Annotated[dict[str, Quantity], crd("The part that its owners use.")] = Field(
        default_factory=dict
    )


class KoordinatorReservation(Object):
    """Room on a node for pods to come."""

    KIND: ClassVar[Kind] = Kind(group=GROUP, version="v1alpha1", kind="Reservation")

    spec: KoordinatorReservationSpec = KoordinatorReservationSpec()
    status: KoordinatorReservationStatus = KoordinatorReservationStatus()

    @property
    def scheduler(self) -> str:
        """The scheduler that places it."""
        template = self.spec.template
        return (template.spec.scheduler_name if template else "") or "default-scheduler"

    @property
    def needs_running_pod(self) -> bool:
        """Whether it waits while it can take the room of no running pod."""
        return self.spec.pre_allocation and self.labels.get(PREALLOCATION_REQUIRED) == "true"
