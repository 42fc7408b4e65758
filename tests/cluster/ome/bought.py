"""Reservations that the broker buys for: the request of a test, and EC2's reservations afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.apis import names
from broker.apis.kueue import ResourceFlavor
from broker.apis.ome import CapacityReservation
from providers.names import MANAGED_BY
from tests.cluster.account import A, tags
from tests.cluster.ome.reserved import GPU, KIND, spec
from tests.cluster.stack import Stack

Json = dict[str, Any]
P5 = "p5.48xlarge"
MANAGE = {names.RESERVATION_POLICY: "Manage"}
CANCEL = {**MANAGE, names.DELETION_POLICY: "Cancel"}
ENDED = ("cancelled", "cancelling", "expired", "failed")


def h100(zone: str = A, kind: str = P5) -> Json:
    labels = {names.INSTANCE_TYPE: kind} | ({names.ZONE: zone} if zone else {})
    return {"metadata": {"name": "h100"}, "spec": {"nodeLabels": labels}}


def reservation_body(
    instances: int,
    *,
    annotations: Mapping[str, str] = MANAGE,
    name: str = "training",
    labels: Mapping[str, str] | None = None,
    **more: Any,
) -> Json:
    """A reservation of this many instances with eight GPUs each."""
    metadata = {
        "name": name,
        "namespace": "default",
        "annotations": dict(annotations),
        "labels": dict(labels or {}),
    }
    return {"metadata": metadata, "spec": spec(quotas={GPU: str(8 * instances)}, **more)}


def flavored(stack: Stack, zone: str = A) -> None:
    stack.client.create(ResourceFlavor.KIND, h100(zone))


def create_reservation(stack: Stack, instances: int, **more: Any) -> None:
    stack.client.create(KIND, reservation_body(instances, **more))


def change_quota(stack: Stack, instances: int, name: str = "training") -> None:
    """The same object with another quota."""
    changed = {"spec": reservation_body(instances)["spec"]}
    stack.client.patch(KIND, name, changed, namespace="default")


def odcrs(ec2: Any) -> list[Json]:
    """The reservations that have not ended, oldest first."""
    reply = ec2.describe_capacity_reservations()["CapacityReservations"]
    alive = [dict(odcr) for odcr in reply if odcr["State"] not in ENDED]
    return sorted(alive, key=lambda odcr: (odcr["CreateDate"], odcr["CapacityReservationId"]))


def broker_odcrs(ec2: Any) -> list[Json]:
    return [odcr for odcr in odcrs(ec2) if MANAGED_BY in tags(odcr)]


def sizes(ec2: Any) -> dict[str, int]:
    """The bought and held instances of the broker, by zone."""
    counts: dict[str, int] = {}
    for odcr in broker_odcrs(ec2):
        zone = odcr["AvailabilityZone"]
        counts[zone] = counts.get(zone, 0) + odcr["TotalInstanceCount"]
    return counts


def gone(stack: Stack, name: str = "training") -> bool:
    return stack.find(CapacityReservation, name, namespace="default") is None
