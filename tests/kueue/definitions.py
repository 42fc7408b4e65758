"""Definitions of Kueue's kinds, built from the broker's own models of them, in the versions a test
requests.

They are not Kueue's: they have the fields that the broker reads and writes, with Kueue's list types, its
enums and those of its CEL rules that a rendered queue could break. v1beta1 has its own names for some.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from broker.apis.crds import KIND as CRD
from broker.apis.kueue import (
    VERSIONS,
    AdmissionCheck,
    ClusterQueue,
    Cohort,
    LocalQueue,
    ResourceFlavor,
    Workload,
    WorkloadPriorityClass,
)
from broker.apis.meta import Kind, Object
from broker.kube.client import Client
from broker.kube.errors import ApiError, NotFound
from local.generators.crdgen import GeneratedDefinition, definition

Json = dict[str, Any]

MODELS: tuple[type[Object], ...] = (
    AdmissionCheck,
    ClusterQueue,
    Cohort,
    LocalQueue,
    ResourceFlavor,
    Workload,
    WorkloadPriorityClass,
)
# Of apis/kueue/v1beta2/clusterqueue_types.go; `cohortName` is `cohort` in v1beta1.
LIMITS = (
    "!has(self.{cohort}) && has(self.resourceGroups) ? self.resourceGroups.all(rg, rg.flavors.all(f, "
    "f.resources.all(r, !has(r.borrowingLimit)))) : true"
)
# kubectl's columns of a Workload (apis/kueue/v1beta2/workload_types.go).
WORKLOAD_COLUMNS = [
    {"name": "Queue", "type": "string", "jsonPath": ".spec.queueName"},
    {"name": "Reserved in", "type": "string", "jsonPath": ".status.admission.clusterQueue"},
]
COVERED = "self.flavors.all(x, size(x.resources) == size(self.coveredResources))"


@lru_cache
def _schema(model: type[Object], version: str) -> str:
    generated = definition(GeneratedDefinition(versions=(model,), columns=(), categories=("kueue",)))
    schema = generated["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema = json.loads(json.dumps(schema))
    if model is ClusterQueue:
        _cluster_queue(schema["properties"]["spec"], version)
    if model is Workload and version == "v1beta1":
        # As in Kueue's older definitions, which have no requeue time.
        del _entry(schema)["requeueAfterSeconds"]
    return json.dumps(schema)


def _entry(schema: Json) -> Json:
    entry: Json = schema["properties"]["status"]["properties"]["admissionChecks"]["items"]["properties"]
    return entry


def _cluster_queue(spec: Json, version: str) -> None:
    fields = spec["properties"]
    cohort = "cohortName"
    if version == "v1beta1":
        cohort = "cohort"
        fields["cohort"] = fields.pop("cohortName")
        search = fields["flavorFungibility"]["properties"]
        search["whenCanBorrow"]["enum"] = ["Borrow", "TryNextFlavor"]
        search["whenCanPreempt"]["enum"] = ["Preempt", "TryNextFlavor"]
    borrow = fields["preemption"]["properties"]["borrowWithinCohort"]["properties"]["policy"]
    borrow["enum"] = ["Never", "LowerPriority"]
    fields["stopPolicy"]["default"] = "None"
    spec["x-kubernetes-validations"] = [
        {"rule": LIMITS.format(cohort=cohort), "message": "borrowingLimit without a cohort"}
    ]
    fields["resourceGroups"]["items"]["x-kubernetes-validations"] = [
        {"rule": COVERED, "message": "flavors without all covered resources"}
    ]


def definitions(served: Sequence[str]) -> list[Json]:
    """A definition of each kind; the first version is stored."""
    documents = []
    for model in MODELS:
        body = json.loads(json.dumps(definition(GeneratedDefinition(versions=(model,), columns=()))))
        template = body["spec"]["versions"][0]
        body["spec"]["versions"] = [
            template
            | {
                "name": version,
                "storage": version == served[0],
                "schema": {"openAPIV3Schema": json.loads(_schema(model, version))},
            }
            for version in served
        ]
        if model is Workload:
            for version in body["spec"]["versions"]:
                version["additionalPrinterColumns"] = WORKLOAD_COLUMNS
        documents.append(body)
    return documents


def install(client: Client, *, served: Sequence[str] = VERSIONS) -> None:
    """Installs Kueue's kinds in a cluster without them."""
    for body in definitions(served):
        client.create(CRD, body)


def uninstall(client: Client) -> bool:
    """Deletes Kueue's kinds with all their objects; returns whether they are gone. Call it until they are."""
    gone = True
    for model in MODELS:
        try:
            raw = client.get(CRD, model.KIND.resource)
        except NotFound:
            continue
        gone = False
        version = next(version_["name"] for version_ in raw["spec"]["versions"] if version_["storage"])
        _release(client, replace(model.KIND, version=version))
        if not raw["metadata"].get("deletionTimestamp"):
            client.delete(CRD, model.KIND.resource)
    return gone


def _release(client: Client, kind: Kind) -> None:
    """Removes the finalizers of the kind, so that its definition can be deleted."""
    try:
        items, _ = client.list(kind)
    except NotFound:
        return
    for item in items:
        meta = item["metadata"]
        if meta.get("finalizers"):
            body = {"metadata": {"finalizers": None}}
            client.patch(kind, meta["name"], body, namespace=meta.get("namespace"))


def ready(client: Client, version: str) -> bool:
    """Whether every kind is served in the version."""
    for model in MODELS:
        kind = model.KIND
        try:
            client.raw("GET", f"/apis/{kind.group}/{version}/{kind.plural}")
        except ApiError:
            return False
    return True
