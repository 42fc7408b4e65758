"""Gödel's Reservation: the room of a deleted pod, kept for the pod that replaces it.

Fields are those of Gödel, pkg/apis/scheduling/v1alpha1/types.go; `nodename` is its spelling.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from pydantic import Field

from broker.apis import names
from broker.apis.core import PodSpec
from broker.apis.meta import Condition, Kind, Model, Object
from broker.apis.schema import crd
from broker.text import LONGEST_DURATION

GROUP: Final = "scheduling.godel.kubewharf.io"

# Phases.
RESERVED: Final = "Reserved"
MATCHED: Final = "Matched"

# Annotations.
_PREFIX: Final = "godel.bytedance.com"
RESERVATION: Final = f"{_PREFIX}/reservation"
OLDER_RESERVATION: Final = "pod.tce.kubernetes.io/reservation"
INDEX: Final = f"{_PREFIX}/reservation-index"
TTL: Final = f"{_PREFIX}/reservation-ttl"
MATCHED_PLACEHOLDER: Final = f"{_PREFIX}/matched-reservation-placeholder"
PLACEHOLDER_UID: Final = f"{_PREFIX}/placeholder-uid"
# UID of the reservation that a pod took: its name may come again.
MATCHED_UID: Final = f"{names.BROKER}/matched-reservation-uid"
# Finalizer of bound pods with a reservation requirement: their deletion is seen, also after a restart.
FINALIZER: Final = f"{names.BROKER}/godel-reservation"
# Label of pods: the name of their Deployment, for pods without owner references.
DEPLOYMENT: Final = "name"


# Seconds: the longest Go duration, 292 years. Added to a time, it leaves a time that Python can hold.
LONGEST_TTL: Final = int(LONGEST_DURATION.total_seconds())


class GodelTemplate(Model):
    """The pod that had the room."""

    spec: PodSpec = PodSpec()


class GodelOwner(Model):
    """A pod."""

    namespace: Annotated[str, crd("The pod's namespace.")] = ""
    name: Annotated[str, crd("The pod's name.")] = ""
    uid: Annotated[str, crd("The pod's UID.")] = ""


class GodelReservationSpec(Model):
    """The room, its node and its time."""

    template: Annotated[
        GodelTemplate | None,
        crd("The deleted pod.", type="object", x_kubernetes_preserve_unknown_fields=True),
    ] = None
    node_name: Annotated[str, crd("The node of the deleted pod.")] = Field(default="", alias="nodename")
    ttl: Annotated[
        int | None, crd("Seconds until the room is released.", format="int64", maximum=LONGEST_TTL)
    ] = None


class GodelReservationStatus(Model):
    """Whether the room is taken."""

    phase: Annotated[str, crd("Reserved, or Matched once a pod took the room.")] = ""
    conditions: Annotated[
        tuple[Condition, ...],
        crd("Not written.", map_key="type"),
    ] = ()
    current_owners: Annotated[GodelOwner | None, crd("The pod that took the room.")] = None


class GodelReservation(Object):
    """The room of a deleted pod, kept for the pod that replaces it."""

    KIND: ClassVar[Kind] = Kind(group=GROUP, version="v1alpha1", kind="Reservation", namespaced=True)

    spec: GodelReservationSpec = GodelReservationSpec()
    status: GodelReservationStatus = GodelReservationStatus()


class GodelDeployment(Object):
    """A Deployment, of which its annotations count."""

    KIND: ClassVar[Kind] = Kind(group="apps", version="v1", kind="Deployment", namespaced=True)


class GodelReplicaSet(Object):
    """A ReplicaSet, of which its owner counts."""

    KIND: ClassVar[Kind] = Kind(group="apps", version="v1", kind="ReplicaSet", namespaced=True)
