"""The broker's own kinds: its view of EC2, as Kubernetes objects.

An object here is a mirror: only the broker creates, writes and deletes it, after EC2. Fields are named
after EC2's (API Reference, CapacityReservation) if Kubernetes has no name of its own. Money is text,
since an API object holds no fractions
(https://github.com/kubernetes/community/blob/master/contributors/devel/sig-architecture/api-conventions.md#primitive-types).
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from broker.apis import names
from broker.apis.meta import Condition, Kind, Model, Object, Time
from broker.apis.schema import crd
from providers.odcr_states import Maker, facts_of, is_over

# False if EC2 does not have the reservation of this name; otherwise not set.
MIRRORED = "Mirrored"


class OnDemandCapacityReservationStatus(Model):
    """The reservation as EC2 last described it."""

    type: Annotated[str, crd("Its instance type.")] = ""
    zone: Annotated[str, crd("Its availability zone.")] = ""
    total: Annotated[int, crd("Its slots.", format="int32", minimum=0)] = 0
    available: Annotated[int, crd("Its free slots.", format="int32", minimum=0)] = 0
    lent: Annotated[
        int,
        crd(
            "Instances that its owner lent to an interruptible reservation; `total` is without them.",
            format="int32",
            minimum=0,
        ),
    ] = 0
    lent_to: Annotated[str, crd("The interruptible reservation that it lends to.")] = ""
    state: Annotated[str, crd("Its state in EC2, such as active, pending, cancelled or expired.")] = ""
    start: Annotated[Time | None, crd("When it starts, or started.")] = None
    end: Annotated[Time | None, crd("When it ends; empty if it has no end.")] = None
    drain: Annotated[
        Time | None, crd("When the nodes of a Capacity Block begin to drain; empty for other kinds.")
    ] = None
    source: Annotated[Maker, crd("Its creator, according to its tags.")] = "other"
    reservation_type: Annotated[str, crd("default, capacity-block or interruptible.")] = "default"
    match_criteria: Annotated[
        str, crd("open: any matching instance may use it; targeted: only launches that name it.")
    ] = ""
    platform: Annotated[str, crd("The platform that an AMI must have to run in it.")] = ""
    tenancy: Annotated[str, crd("The tenancy that an instance must have to run in it.")] = ""
    owner_id: Annotated[str, crd("Account that owns it.")] = Field(default="", alias="ownerID")
    node_classes: Annotated[
        tuple[str, ...],
        crd("Names of the EC2NodeClasses that may launch into it.", x_kubernetes_list_type="atomic"),
    ] = ()
    node_class_names: Annotated[str, crd("The same in one line, for `kubectl get`.")] = ""
    idle_cost_per_hour: Annotated[
        str,
        crd("US dollars an hour for its free slots at On-Demand price; empty if the price is unknown."),
    ] = ""
    idle_since: Annotated[
        Time | None,
        crd("Since when at least that many slots have been free, while it is active; empty if none is free."),
    ] = None
    stale_since: Annotated[
        Time | None,
        crd("While EC2 cannot be read: when it last described the reservation. Otherwise empty."),
    ] = None
    conditions: Annotated[
        tuple[Condition, ...],
        crd(
            "Mirrored=False on an object that is named after no reservation.",
            map_key="type",
        ),
    ] = ()

    @property
    def active(self) -> bool:
        """Whether EC2 holds its capacity and bills it."""
        return facts_of(self.state).phase == "active"

    @property
    def idle(self) -> int:
        """Free slots that are paid for."""
        return self.available if self.active else 0

    @property
    def over(self) -> bool:
        """Whether the reservation has ended, or EC2 is ending it."""
        return is_over(self.state)


class OnDemandCapacityReservation(Object):
    """A capacity reservation in EC2 that the broker sees, under its id. A mirror: creating one reserves
    nothing."""

    KIND: ClassVar[Kind] = Kind(group=names.BROKER, version="v1alpha1", kind="OnDemandCapacityReservation")

    status: OnDemandCapacityReservationStatus = OnDemandCapacityReservationStatus()
