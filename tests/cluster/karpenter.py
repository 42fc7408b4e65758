"""Karpenter's own definition of EC2NodeClass, and Karpenter's writes to classes, played by a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

import yaml

from broker.apis import names
from broker.apis.crds import KIND as CRD
from broker.apis.crds import load as load_crds
from broker.apis.karpenter import NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.karpenter_aws_definition import NAME, OWN, PROPERTY
from broker.apis.meta import Json
from broker.kube.client import Client
from broker.kube.errors import Conflict, Unavailable
from tests.cluster import objects
from tests.cluster.stack import Stack

LIST = "capacityReservationSelectorTerms"
NODECLASS_FINALIZER = "karpenter.k8s.aws/termination"


@lru_cache
def _own() -> Json:
    return next(crd for crd in load_crds() if crd["metadata"]["name"] == NAME)


def shipped_definition() -> Json:
    """A definition as Karpenter ships it: v1 alone, without the broker's additions."""
    definition: Json = yaml.safe_load(yaml.safe_dump(_own()))
    definition["spec"]["versions"] = definition["spec"]["versions"][:1]
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    del schema["spec"]["properties"][PROPERTY]
    del schema["status"]["properties"][OWN]
    listed = schema["status"]["properties"]["capacityReservations"]["items"]["properties"]
    del listed["totalInstanceCount"], listed["availableInstanceCount"]
    listed["state"]["enum"] = ["active", "expiring"]
    definition["metadata"]["annotations"] = {"controller-gen.kubebuilder.io/version": "v0.20.0"}
    return definition


def pool(
    stack: Stack,
    name: str = "gpu",
    *,
    node_class: str = "gpu",
    capacity: tuple[str, ...] = (objects.RESERVED, objects.ON_DEMAND),
) -> str:
    """A NodePool of Karpenter's; without `capacity` it has no requirement on capacity types."""
    body = objects.node_pool(name, node_class=node_class)
    template = body["spec"]["template"]["spec"]
    template["nodeClassRef"]["group"] = names.KARPENTER_AWS
    template["requirements"] = requirements(*capacity)
    stack.client.create(NodePool.KIND, body)
    return name


def requirements(*capacity: str) -> list[Json]:
    return [{"key": names.CAPACITY_TYPE, "operator": "In", "values": [*capacity]}] if capacity else []


def terms(stack: Stack, name: str = "gpu") -> list[Json]:
    """The class's selector terms, as the API server serves them."""
    return list(stack.client.get(EC2NodeClass.KIND, name)["spec"].get(LIST, []))


def until_terms(stack: Stack, *expected: Json, name: str = "gpu") -> None:
    stack.until(lambda: terms(stack, name) == [*expected], f"{name} has the terms {expected}")


def ids(*odcrs: str) -> list[Json]:
    return [{"id": odcr} for odcr in sorted(odcrs)]


class Karpenter:
    """The writes of Karpenter's class controller, by its own field manager: a finalizer, its conditions
    and its list of reservations. Each write carries the resourceVersion; conditions of other controllers
    are kept."""

    CONDITIONS = ("AMIsReady", "CapacityReservationsReady", "SubnetsReady", "ValidationSucceeded", "Ready")

    def __init__(self, stack: Stack) -> None:
        self.client = Client(stack.client.transport, field_manager="karpenter")

    def reconcile(
        self, name: str = "gpu", *, listed: tuple[Json, ...] = (), reason: str = "Resolved"
    ) -> None:
        """Like Karpenter: starts again after a conflict with another writer."""
        while True:
            with suppress(Conflict):
                return self._reconcile(name, listed, reason)

    def _reconcile(self, name: str, listed: tuple[Json, ...], reason: str) -> None:
        node_class = self.client.get(EC2NodeClass.KIND, name)
        if NODECLASS_FINALIZER not in node_class["metadata"].get("finalizers", ()):
            node_class = self._patch(node_class, {"metadata": {"finalizers": [NODECLASS_FINALIZER]}})
        others = [
            condition
            for condition in node_class.get("status", {}).get("conditions", ())
            if condition["type"] not in self.CONDITIONS
        ]
        own = [
            {
                "type": type_,
                "status": "True",
                "reason": reason,
                "message": "",
                "lastTransitionTime": "2026-11-21T03:00:00Z",
            }
            for type_ in self.CONDITIONS
        ]
        status = {"conditions": [*own, *others], "capacityReservations": [*listed]}
        self._patch(node_class, {"status": status}, subresource="status")

    def _patch(self, node_class: Json, body: Json, *, subresource: str | None = None) -> Json:
        body.setdefault("metadata", {})["resourceVersion"] = node_class["metadata"]["resourceVersion"]
        name = node_class["metadata"]["name"]
        return self.client.patch(EC2NodeClass.KIND, name, body, subresource=subresource)


def conditions(stack: Stack, name: str = "gpu") -> dict[str, Json]:
    status: Any = stack.client.get(EC2NodeClass.KIND, name).get("status", {})
    return {condition["type"]: condition for condition in status.get("conditions", ())}


def served(stack: Stack) -> bool | None:
    """Whether the API server keeps the field in a class that is written now. None while the real server
    switches definitions and refuses the request."""
    body = {
        "apiVersion": EC2NodeClass.KIND.api_version,
        "kind": EC2NodeClass.KIND.kind,
        **objects.node_class(
            "probe",
            image="ami-1",
            subnets=["subnet-1"],
            security_group="sg-1",
            spec={"capacityReservationPreference": "open"},
        ),
    }
    try:
        answer = stack.client.raw("POST", EC2NodeClass.KIND.path(), {"dryRun": "All"}, body)
    except Unavailable:
        return None
    return PROPERTY in answer["spec"]


def apply_definition(stack: Stack, definition: Json) -> None:
    """A chart's upgrade: replaces every version of the definition by the chart's."""
    stored = stack.client.get(CRD, NAME)
    body = {
        **definition,
        "metadata": {
            **definition["metadata"],
            "name": NAME,
            "resourceVersion": stored["metadata"]["resourceVersion"],
        },
    }
    stack.client.update(CRD, body)
    keeps = (
        PROPERTY
        in definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    )
    stack.until(lambda: served(stack) is keeps, "the definition is in force")


@contextmanager
def installed(stack: Stack) -> Iterator[None]:
    """Karpenter's definition in place of the broker's; restored at the end, since the real API server
    keeps it."""
    apply_definition(stack, shipped_definition())
    try:
        yield
    finally:
        stack.stop()
        apply_definition(stack, _own())
