"""Reservations, flavors and machines made by a test, and the status of the reservations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from broker.apis import names
from broker.apis.core import Node
from broker.apis.crds import KIND as CRD
from broker.apis.kueue import ResourceFlavor
from broker.apis.meta import Kind
from broker.apis.ome import CapacityReservation
from broker.kube.client import Request
from tests.cluster.stack import Stack
from tests.cluster.taps import status_of
from tests.kueue.definitions import definitions

Json = dict[str, Any]

KIND = CapacityReservation.KIND
GPU = "nvidia.com/gpu"
RESOURCES = {GPU: "64", "memory": "16Ti", "cpu": "1024"}
NODE = {GPU: "8", "memory": "2Ti", "cpu": "128"}
SORT = "example.com/sort"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


def flavors_alone(stack: Stack) -> None:
    """Kueue's ResourceFlavor is served, and no other kind of Kueue."""
    (definition,) = [
        definition
        for definition in definitions(("v1beta2",))
        if definition["spec"]["names"]["kind"] == "ResourceFlavor"
    ]
    stack.client.create(CRD, definition)
    stack.until(lambda: stack._served(ResourceFlavor), "flavors are served")


def flavor(stack: Stack, name: str, labels: Mapping[str, str] | None = None) -> None:
    body = {"metadata": {"name": name}, "spec": {"nodeLabels": dict(labels or {SORT: name})}}
    stack.client.create(ResourceFlavor.KIND, body)


def machine(stack: Stack, name: str, sort: str, *, has: Mapping[str, str] = NODE) -> None:
    """A node that is ready."""
    stack.client.create(Node.KIND, {"metadata": {"name": name, "labels": {SORT: sort}}, "spec": {}})
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    status = {"capacity": dict(has), "allocatable": dict(has), "conditions": [ready]}
    stack.client.patch(Node.KIND, name, {"status": status}, subresource="status")
    # A real API server taints a new node until the kubelet has reported that it is ready.
    stack.client.patch(Node.KIND, name, {"spec": {"taints": None}})


def spec(
    flavor: str = "h100",
    *,
    quotas: Mapping[str, str] = RESOURCES,
    borrow: str = "",
    lends: str = "",
    **more: Any,
) -> Json:
    resources = [{"name": name, "nominalQuota": value} for name, value in quotas.items()]
    if borrow:
        resources[0]["borrowingLimit"] = borrow
    if lends:
        resources[0]["lendingLimit"] = lends
    groups = [{"coveredResources": [*quotas], "flavors": [{"name": flavor, "resources": resources}]}]
    return {"resourceGroups": groups, **more}


def reserve(
    stack: Stack,
    name: str = "training",
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    **more: Any,
) -> str:
    metadata = {
        "name": name,
        "namespace": "default",
        "labels": dict(labels or {}),
        "annotations": dict(annotations or {}),
    }
    stack.client.create(KIND, {"metadata": metadata, "spec": spec(**more)})
    return name


def reservation_status(stack: Stack, name: str = "training") -> Json:
    """The reservation's status, as the API server serves it; empty if there is no such reservation."""
    if stack.find(CapacityReservation, name, namespace="default") is None:
        return {}
    return dict(stack.client.get(KIND, name, namespace="default").get("status", {}))


def until_state(stack: Stack, state: str, name: str = "training", *, step: float = 0.0) -> Json:
    def reached() -> Json:
        status = reservation_status(stack, name)
        return status if status.get("capacityReservationLifecycleState") == state else {}

    return stack.until(reached, f"reservation {name} {state}", step=step)


def until_known(stack: Stack, name: str = "training") -> Json:
    """The reservation's status once the broker has determined its capacity."""

    def known() -> Json:
        status = reservation_status(stack, name)
        return status if "capacity" in status else {}

    return stack.until(known, f"reservation {name} looked at")


def raw_condition(status: Mapping[str, Any], type_: str) -> Json:
    return next(
        (dict(condition) for condition in status.get("conditions", ()) if condition["type"] == type_), {}
    )


def amounts(status: Mapping[str, Any], field: str) -> Json:
    """Amount by resource, from a status with one flavor."""
    return {
        resource["name"]: resource["total"]
        for usage in status.get(field, ())
        for resource in usage["resources"]
    }


class Seen:
    """The states of reservations in the order in which they were written, each change once."""

    def __init__(self, stack: Stack) -> None:
        self.states: dict[str, list[str]] = {}
        stack.tap.on(status_of(KIND.plural), self._write, times=-1)

    def _write(self, request: Request) -> None:
        body = orjson.loads(request.body or b"{}")
        states = self.states.setdefault(request.path.split("/")[-2], [])
        state = body["status"]["capacityReservationLifecycleState"]
        if not states or states[-1] != state:
            states.append(state)


def cordon(stack: Stack, name: str, *, out: bool = True) -> None:
    stack.client.patch(Node.KIND, name, {"spec": {"unschedulable": out or None}})


def finalizers(stack: Stack, name: str = "training") -> tuple[str, ...]:
    reservation = stack.find(CapacityReservation, name, namespace="default")
    return reservation.metadata.finalizers if reservation is not None else ()


HELD = names.RESERVED_FINALIZER


def printed(stack: Stack, kind: Kind) -> dict[str, Any]:
    """The first row of `kubectl get KIND -A -o wide`."""
    request = Request(method="GET", path=kind.path(), query={}, headers={"Accept": TABLE})
    table = orjson.loads(stack.tap.inner.request(request, timeout=60).body)
    columns = [column["name"] for column in table["columnDefinitions"]]
    return dict(zip(columns, table["rows"][0]["cells"], strict=True))
