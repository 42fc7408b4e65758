"""`capacity-broker hold|resume|give-back|adopt`: the annotations of a CapacityReservation, by name.

Invariant: each verb changes one annotation, from the version that was read, and reports the old and new
value. A verb that changes nothing writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from broker.apis import names
from broker.apis.capacity_broker import OnDemandCapacityReservation
from broker.apis.kueue import ClusterQueue
from broker.apis.ome import CapacityReservation, ClusterCapacityReservation
from broker.apis.reservation_spec import malformed_ids
from broker.kube.client import Client
from broker.kube.errors import ApiError, NotFound
from broker.quota.usage import ReservationKey
from broker.reservations.kueue_objects import queue_name

COLUMNS: Final = {"reservation": "RESERVATION", "annotation": "ANNOTATION", "before": "BEFORE", "now": "NOW"}

Change = Callable[[str], str | None]  # from the present value, empty if there is none; None removes it


def annotate(client: Client, reservation: str, key: str, change: Change) -> list[dict[str, Any]]:
    """Changes one annotation of `NAMESPACE/NAME`, or of a ClusterCapacityReservation `NAME`.

    Returns the row to show. Raises ApiError, and ValueError for an invalid or unknown name.
    """
    namespace, slash, name = reservation.rpartition("/")
    if not name or (slash and not namespace) or "/" in namespace:
        raise ValueError(f"{reservation!r}: write NAMESPACE/NAME, or NAME of a ClusterCapacityReservation")
    kind = CapacityReservation.KIND if namespace else ClusterCapacityReservation.KIND
    try:
        metadata = client.get(kind, name, namespace=namespace or None)["metadata"]
    except NotFound as error:
        if not error.details.get("name"):
            raise  # the cluster does not know the kind
        raise ValueError(_missing(namespace, name)) from error
    before = str(metadata.get("annotations", {}).get(key, ""))
    now = change(before)
    if (now or "") != before:
        body = {"metadata": {"resourceVersion": metadata["resourceVersion"], "annotations": {key: now}}}
        client.patch(kind, name, body, namespace=namespace or None)
    return [{"reservation": reservation, "annotation": key, "before": before or None, "now": now}]


def _missing(namespace: str, name: str) -> str:
    if namespace:
        absent = f"no CapacityReservation {name!r} in namespace {namespace!r}"
        return f"{absent}: `kubectl get capacityreservations -A` lists them"
    return f"no ClusterCapacityReservation {name!r}: write NAMESPACE/NAME to name a CapacityReservation"


def hold(client: Client, reservation: str, *, drain: bool = False) -> list[dict[str, Any]]:
    """Admits no more workloads. `drain`: evicts those that run as well."""
    return annotate(client, reservation, names.STOP_POLICY, lambda _: "HoldAndDrain" if drain else "Hold")


def resume(client: Client, reservation: str) -> list[dict[str, Any]]:
    return annotate(client, reservation, names.STOP_POLICY, lambda _: None)


def give_back(client: Client, reservation: str) -> list[dict[str, Any]]:
    """Lets the broker cancel its purchases that the reservation no longer needs."""
    return annotate(client, reservation, names.DELETION_POLICY, lambda _: "Cancel")


def adopt(
    client: Client, reservation: str, ids: Sequence[str], *, remove: bool = False
) -> list[dict[str, Any]]:
    """Adds EC2 capacity reservations to those that belong to it, or removes them."""
    malformed = malformed_ids(",".join(ids))
    if malformed and not remove:
        raise ValueError(f"{malformed[0]!r} is no id of EC2: write one such as cr-0123456789abcdef0")

    def changed(before: str) -> str | None:
        adopted = [id_ for id_text in before.split(",") if (id_ := id_text.strip())]
        if absent := [id_ for id_ in ids if remove and id_ not in adopted]:
            known = ", ".join(adopted) or "none"
            raise ValueError(f"{absent[0]} is not among the ids that {reservation} adopts: {known}")
        if remove:
            return ",".join(id_ for id_ in adopted if id_ not in ids) or None
        return ",".join(dict.fromkeys([*adopted, *ids]))

    return annotate(client, reservation, names.ADOPT_IDS, changed)


def unqueued(client: Client, reservation: str) -> str:
    """Why the reservation has no queue to hold; empty if it has one, or if that cannot be read."""
    name = queue_name(ReservationKey.parse(reservation))
    try:
        client.get(ClusterQueue.KIND, name)
    except NotFound as error:
        missing = (
            "the cluster has no Kueue" if not error.details.get("name") else f"no ClusterQueue {name} exists"
        )
        return f"{missing}, so {reservation} has no queue that could be held; one that is made later is held"
    except ApiError:
        pass
    return ""


def unadoptable(client: Client, ids: Sequence[str]) -> list[str]:
    """The ids that cannot be adopted, according to the broker's mirror of EC2; none if it has no mirror."""
    try:
        listed, _ = client.list(OnDemandCapacityReservation.KIND)
    except ApiError:
        return []
    mirrors = {mirror.name: mirror for mirror in map(OnDemandCapacityReservation.decode, listed)}
    lines = []
    for id_ in ids if mirrors else ():
        if id_ not in mirrors:
            lines.append(
                f"the broker's last read of EC2 has no reservation {id_}: correct the id, or wait for the "
                "next read if it is new"
            )
        elif (status := mirrors[id_].status).over:
            lines.append(f"reservation {id_} has ended ({status.state})")
    return lines


def adoption_hint(reservation: str) -> str:
    """The next object to check after `adopt`."""
    described = f"kubectl describe {ReservationKey.parse(reservation).resource}"
    return (
        "the broker adopts at its next read of EC2, if its --adopt-by-annotation or a tag allows it: "
        f"`{described}` shows an event with the reason if it cannot"
    )
