"""Spelling errors of fields are refused; fields that a newer Karpenter or Kubernetes may have are not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from broker.apis import crds
from broker.commands import manifests
from broker.commands.unknown_fields import WORKLOADS, Schema
from local.kube.data import load
from tests.unit.apis.karpenter_crds import stored

ARN = {"capacityReservationSpecs": {"capacityReservationTarget": {"capacityReservationId": "cr-1"}}}
PODS = {"containers": [{"name": "c", "image": "x", "resources": {"limit": {"cpu": "1"}}}]}
HOST = "kubernetes.io/hostname"


def document(version: str, kind: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "x"}, "spec": spec}


def read(folder: Path, *documents: dict[str, Any]) -> tuple[list[str], list[str]]:
    """The refusals and the warnings, without the file."""
    path = folder / "objects.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    warnings: list[str] = []
    refusals: tuple[str, ...] = ()
    try:
        manifests.read([str(path)], warn=warnings.append)
    except manifests.BadManifest as error:
        refusals = error.problems
    lines = [*refusals, *warnings]
    assert all(line.startswith(f"{path}: ") for line in lines)
    texts = [line.removeprefix(f"{path}: ") for line in lines]
    return texts[: len(refusals)], texts[len(refusals) :]


@pytest.mark.parametrize(
    ("misspelt", "refusal"),
    [
        (
            document("karpenter.sh/v1", "NodeClaim", requirments=[]),
            "NodeClaim x: spec.requirments: unknown field; did you mean requirements?",
        ),
        (
            document("karpenter.sh/v1", "NodeClaim", node_class_ref={"name": "a"}),
            "NodeClaim x: spec.node_class_ref: unknown field; did you mean nodeClassRef?",
        ),
        (
            document("karpenter.sh/v1", "NodeClaim", requirements=[{"key": HOST, "vaules": ["a"]}]),
            "NodeClaim x: spec.requirements[0].vaules: unknown field; did you mean values?",
        ),
        (
            document("karpenter.k8s.aws/v1", "EC2NodeClass", **ARN),
            "EC2NodeClass x: spec.capacityReservationSpecs: unknown field; did you mean "
            "capacityReservationSpec?",
        ),
        (
            document("karpenter.k8s.aws/v1beta1", "EC2NodeClass", subnetSelector=[]),
            "EC2NodeClass x: spec.subnetSelector: unknown field; did you mean subnetSelectorTerms?",
        ),
        (
            document("ome.io/v1beta1", "CapacityReservation", resourceGroup=[]),
            "CapacityReservation x: spec.resourceGroup: unknown field; did you mean resourceGroups?",
        ),
        (
            document("v1", "Pod", container=[]),
            "Pod x: spec.container: unknown field; did you mean containers?",
        ),
        (
            document("v1", "Pod", containers=[], nodeSelectr={"a": "b"}),
            "Pod x: spec.nodeSelectr: unknown field; did you mean nodeSelector?",
        ),
        (
            document("v1", "Pod", **PODS),
            "Pod x: spec.containers[0].resources.limit: unknown field; did you mean limits?",
        ),
        (
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "label": {"a": "b"}}, "spec": {}},
            "Pod x: metadata.label: unknown field; did you mean labels?",
        ),
        (
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "sepc": PODS},
            "Pod x: sepc: unknown field; did you mean spec?",
        ),
        (
            document("apps/v1", "Deployment", replica=3),
            "Deployment x: spec.replica: unknown field; did you mean replicas?",
        ),
        (
            document("batch/v1", "CronJob", jobTemplate={"spec": {"template": {"spec": PODS}}}),
            "CronJob x: spec.jobTemplate.spec.template.spec.containers[0].resources.limit: unknown field; "
            "did you mean limits?",
        ),
        (
            document(
                "jobset.x-k8s.io/v1alpha2",
                "JobSet",
                network={},
                replicatedJobs=[{"name": "a", "groupName": "b", "template": {"spec": {"paralelism": 2}}}],
            ),
            "JobSet x: spec.replicatedJobs[0].template.spec.paralelism: unknown field; did you mean "
            "parallelism?",
        ),
    ],
)
def test_misspelt_field_is_refused_with_the_field_that_is_meant(
    tmp_path: Path, misspelt: dict[str, Any], refusal: str
) -> None:
    assert read(tmp_path, misspelt) == ([refusal], [])


@pytest.mark.parametrize(
    ("path", "newer"),
    [
        ("spec.bootMode", document("karpenter.k8s.aws/v1", "EC2NodeClass", bootMode="uefi")),
        ("spec.rolePath", document("karpenter.k8s.aws/v1", "EC2NodeClass", rolePath="/a/")),
        ("spec.workloadRef", document("v1", "Pod", workloadRef={"name": "a"})),
        ("spec.overheadPolicy", document("v1", "Pod", overheadPolicy="a")),
        # The object has the field that is close.
        ("spec.tolerationz", document("v1", "Pod", tolerations=[], tolerationz=[])),
    ],
)
def test_unknown_field_without_a_close_one_is_only_a_warning(
    tmp_path: Path, path: str, newer: dict[str, Any]
) -> None:
    warning = f"{newer['kind']} x: {path}: unknown field; the plan ignores it"
    assert read(tmp_path, newer) == ([], [warning])


def test_field_of_many_objects_is_one_line(tmp_path: Path) -> None:
    claims = [document("karpenter.sh/v1", "NodeClaim", bootMode="uefi") for _ in range(3)]
    warning = "NodeClaim x and 2 more: spec.bootMode: unknown field; the plan ignores it"
    assert read(tmp_path, *claims) == ([], [warning])


@pytest.mark.parametrize(
    "known",
    [
        {**document("karpenter.sh/v1", "NodeClaim"), "status": {"providerid": "a", "newer": 1}},
        document("v1", "ConfigMap", container=1),
        document("karpenter.k8s.aws/v1", "EC2NodeClass", tags={"label": "b"}),
        document("karpenter.k8s.aws/v1", "EC2NodeClass", kubelet={"maxPod": 1}),  # it may have any field
        document("karpenter.sh/v1beta1", "NodeClaim", resource={}),
        {"apiVersion": "v1", "kind": "Pod", "metadata": "x", "spec": None},
    ],
)
def test_status_maps_and_kinds_without_a_schema_are_not_checked(
    tmp_path: Path, known: dict[str, Any]
) -> None:
    assert read(tmp_path, known) == ([], [])


def filled(schema: Schema) -> Any:
    """A value with every field of a schema."""
    if "properties" in schema:
        return {name: filled(child) for name, child in schema["properties"].items()}
    if "items" in schema:
        return [filled(schema["items"])]
    if isinstance(schema.get("additionalProperties"), dict):
        return {"any": filled(schema["additionalProperties"])}
    return None


def with_every_field(definition: dict[str, Any]) -> Iterator[dict[str, Any]]:
    spec = definition["spec"]
    for version in spec["versions"]:
        api_version = f"{spec['group']}/{version['name']}"
        value = filled(version["schema"]["openAPIV3Schema"])
        yield value | {"apiVersion": api_version, "kind": spec["names"]["kind"], "metadata": {"name": "x"}}


@pytest.mark.parametrize("definition", crds.load(), ids=lambda item: str(item["metadata"]["name"]))
def test_every_field_of_a_shipped_definition_is_known(tmp_path: Path, definition: dict[str, Any]) -> None:
    for manifest in with_every_field(definition):
        assert read(tmp_path, manifest) == ([], [])


@pytest.mark.parametrize("name", stored())
def test_every_field_of_karpenters_own_definition_is_known(tmp_path: Path, name: str) -> None:
    for manifest in with_every_field(stored()[name]):
        assert read(tmp_path, manifest) == ([], [])


def every(fields: dict[str, Any], structs: dict[str, Any]) -> dict[str, Any]:
    """An object with these fields of a type of Kubernetes."""
    return {name: valued(type_, structs) for name, (type_, *_) in fields.items()}


def valued(type_: str, structs: dict[str, Any]) -> Any:
    """A value of the type with every field that its structs have."""
    if type_.startswith("[]"):
        return [valued(type_.removeprefix("[]"), structs)]
    struct = structs.get(type_.lstrip("*"))
    return None if struct is None else every(struct["fields"], structs)


@pytest.mark.parametrize(("group", "kind"), [key for key in WORKLOADS if key[1] != "JobSet"], ids=str)
def test_every_field_of_kubernetes_is_known(tmp_path: Path, group: str, kind: str) -> None:
    types = load("types.json")
    struct = types["structs"][types["kinds"][f"{group}/v1/{kind}"]]
    manifest = every(struct["fields"], types["structs"])
    version = f"{group}/v1".lstrip("/")
    metadata = {**manifest["metadata"], "name": "x"}
    assert read(tmp_path, manifest | {"apiVersion": version, "kind": kind, "metadata": metadata}) == ([], [])


def test_fields_of_a_job_set_beside_its_jobs_are_not_described(tmp_path: Path) -> None:
    jobs = [{"name": "a", "newer": 1, "template": {"spec": {"template": {"spec": {}}}}}]
    newer = document("jobset.x-k8s.io/v1alpha2", "JobSet", newer={}, replicatedJobs=jobs)
    assert read(tmp_path, newer) == ([], [])
