"""OME's kinds: its own manifests as written, the corrections in them, and the refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from broker.apis.ome import CapacityReservation, ClusterCapacityReservation, ReservationSpec
from broker.apis.ome_clusters import DedicatedAICluster
from broker.apis.ome_rules import judge
from broker.text import quantity
from tests.controlplane.client import Api, Reply

Json = dict[str, Any]

MANIFESTS: list[Json] = yaml.safe_load((Path(__file__).parent / "ome_manifests.yaml").read_text())
PLURALS = {
    model.KIND.kind: model.KIND.plural
    for model in (CapacityReservation, ClusterCapacityReservation, DedicatedAICluster)
}
GPU, MEMORY, CPU = "nvidia.com/gpu", "memory", "cpu"
# The corrections in each manifest; the others are valid for Kueue.
NOTES = {
    "research": ("borrowWithinCohort.policy Any is LowerPriority",),
    "workload-aware": (
        "has no quota of memory, which the group covers: 0 of it",
        "has no quota of cpu, which the group covers: 0 of it",
        "borrowingLimit 64 is 0, since spec.allowBorrowing is not true",
    ),
    "team-a": (
        "has no quota of memory, which the group covers: 0 of it",
        "has no quota of cpu, which the group covers: 0 of it",
    ),
    "cost-optimized": (
        "spec.cohort is empty: it borrows in cohort shared",
        "has no quota of memory, which the group covers: 0 of it",
        "has no quota of cpu, which the group covers: 0 of it",
    ),
    # A part of a manifest, completed without allowBorrowing.
    "two-flavors": ("borrowingLimit 32 is 0, since spec.allowBorrowing is not true",),
    "cohort": (),
}


def group(**quota: Any) -> Json:
    quotas = {"nominalQuota": 8, **quota}
    return {"coveredResources": [GPU], "flavors": [{"name": "h100", "resources": [{"name": GPU, **quotas}]}]}


def twice() -> Json:
    return {"name": "h100", "resources": [{"name": GPU, "nominalQuota": 1}, {"name": GPU, "nominalQuota": 2}]}


def many(groups: int, flavors: int, resources: int) -> list[Json]:
    """This many groups, of this many flavors and resources each."""
    names = [[f"r-{at}-{n}" for n in range(resources)] for at in range(groups)]
    return [
        {
            "coveredResources": covered,
            "flavors": [
                {
                    "name": f"f-{at}-{n}",
                    "resources": [{"name": resource, "nominalQuota": 1} for resource in covered],
                }
                for n in range(flavors)
            ],
        }
        for at, covered in enumerate(names)
    ]


def reservation(spec: Json | None = None, *, name: str = "r", **more: Any) -> Json:
    return {
        "apiVersion": "ome.io/v1beta1",
        "kind": "CapacityReservation",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"resourceGroups": [group()], **(spec or {})},
        **more,
    }


def objects(manifest: Json) -> list[Json]:
    """The objects of a page's block; a part of an object is completed."""
    objs = []
    for written in yaml.safe_load_all(manifest["text"]):
        if "kind" in written:
            objs.append(written)
            continue
        whole = reservation(written.get("spec"), name=manifest["name"])
        whole["metadata"] |= written.get("metadata", {})
        objs.append(whole | ({"status": written["status"]} if "status" in written else {}))
    return objs


def reservations() -> list[Any]:
    return [
        pytest.param(manifest["name"], obj, id=f"{manifest['line']}-{manifest['name']}")
        for manifest in MANIFESTS
        for obj in objects(manifest)
        if obj["kind"] != "DedicatedAICluster"
    ]


def post(api: Api, obj: Json) -> Reply:
    kind = obj["kind"]
    space = (
        f"/namespaces/{obj['metadata'].get('namespace', 'default')}" if kind == "CapacityReservation" else ""
    )
    obj = {**obj, "metadata": {key: value for key, value in obj["metadata"].items() if key != "namespace"}}
    return api.request("POST", f"/apis/ome.io/v1beta1{space}/{PLURALS[kind]}", {"dryRun": "All"}, obj)


@pytest.mark.covers("OME-001", "OME-002", "OME-003", "OME-004", "OME-007")
@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda obj: f"{obj['line']}-{obj['name']}")
def test_the_api_server_accepts_every_manifest_of_the_page(served: Api, manifest: Json) -> None:
    for obj in objects(manifest):
        if space := obj["metadata"].get("namespace"):
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}}
            assert served.request("POST", "/api/v1/namespaces", body=body).status in (201, 409)
        reply = post(served, obj)
        assert reply.status == 201, reply.body
        # No written field is dropped or changed.
        assert reply.body["spec"] == obj["spec"]
        assert reply.body["metadata"].get("labels") == obj["metadata"].get("labels")


@pytest.mark.parametrize(("name", "obj"), reservations())
def test_effective_specs_of_the_pages_manifests(name: str, obj: Json) -> None:
    spec = ReservationSpec.model_validate(obj["spec"])
    lenient, strict = judge(spec, default_cohort="shared"), judge(spec, default_cohort="shared", strict=True)
    expected = NOTES.get(name, ())
    assert lenient.problems == ()
    assert len(lenient.notes) == len(expected)
    for part in expected:
        assert any(part in note for note in lenient.notes), part
    assert strict.problems == lenient.notes
    assert spec == ReservationSpec.model_validate(obj["spec"])
    for group in lenient.spec.resource_groups:
        for flavor in group.flavors:
            assert tuple(resource.name for resource in flavor.resources) == group.covered_resources


@pytest.mark.parametrize("part", ["capacity", "associations", "conditions"])
def test_status_of_the_page_round_trips(part: str) -> None:
    (obj,) = (
        candidate for manifest in MANIFESTS if manifest["name"] == part for candidate in objects(manifest)
    )
    read = CapacityReservation.decode(obj)
    wire = read.status.wire()
    assert wire.keys() == obj["status"].keys()
    if part == "conditions":
        assert wire == obj["status"]
    else:
        total = obj["status"]["capacity" if part == "capacity" else "associationUsages"][0]
        assert total["name"] in ("h100-flavor", "production-training-dac")


@pytest.mark.covers("OME-006")
def test_quantities_are_compared_by_value() -> None:
    flavor = (
        judge(ReservationSpec.model_validate({"resourceGroups": [group(nominalQuota="16Ti")]}))
        .spec.resource_groups[0]
        .flavors[0]
    )
    assert quantity(flavor.resources[0].nominal_quota) == quantity("16384Gi") == 2**44
    assert {quantity(text) for text in ("32", "32.0", "32000m")} == {32}


@pytest.mark.covers("OME-005", "OME-009", "OME-010", "OME-013")
@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"resourceGroups": []}, "No resource groups specified"),
        ({"resourceGroups": [group()] * 17}, "must have at most 16 items"),
        ({"resourceGroups": [group(nominalQuota=-1)]}, "should be greater than or equal to 0"),
        ({"resourceGroups": [group(nominalQuota="-1")]}, "nominalQuota in body should match"),
        ({"resourceGroups": [group(lendingLimit="-1Gi")]}, "lendingLimit in body should match"),
        ({"resourceGroups": [group(nominalQuota="much")]}, "nominalQuota"),
        ({"preemptionRule": {"withinClusterQueue": "Any"}}, "withinClusterQueue"),
        (
            {
                "preemptionRule": {
                    "reclaimWithinCohort": "Never",
                    "borrowWithinCohort": {"policy": "LowerPriority"},
                }
            },
            "borrowWithinCohort needs reclaimWithinCohort",
        ),
        ({"preemptionRule": {"borrowWithinCohort": {"policy": "Any"}}}, "borrowWithinCohort needs reclaim"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_api_server_refuses_invalid_objects(served: Api, spec: Json, words: str) -> None:
    reply = post(served, reservation(spec))
    assert reply.status == 422, reply.body
    assert words in reply.body["message"]


def test_a_lending_limit_is_accepted(served: Api) -> None:
    spec = {"cohort": "c", "resourceGroups": [group(lendingLimit=4)]}
    assert post(served, reservation(spec)).status == 201
    assert judge(ReservationSpec.model_validate(spec)).problems == ()


@pytest.mark.covers("OME-009", "OME-010", "OME-011", "OME-012", "OME-013")
@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"resourceGroups": []}, "spec.resourceGroups: No resource groups specified"),
        ({"resourceGroups": [group()] * 17}, "spec.resourceGroups has 17 groups; Kueue takes at most 16"),
        ({"resourceGroups": [group(), group()]}, "flavor h100 is in more than one place"),
        ({"resourceGroups": [group(), group()]}, "resource nvidia.com/gpu is in more than one place"),
        (
            {"resourceGroups": [{**group(), "coveredResources": [CPU]}]},
            "flavor h100 has quota of nvidia.com/gpu, which is not in coveredResources: add it there",
        ),
        ({"resourceGroups": [group(nominalQuota="-2")]}, "nominalQuota -2 is negative; use 0 for none"),
        ({"resourceGroups": [group(nominalQuota="lots")]}, "nominalQuota: not a quantity: 'lots'"),
        (
            {"cohort": "c", "resourceGroups": [group(lendingLimit="9")]},
            "lendingLimit 9 is more than nominalQuota 8; lower it, or leave it out to lend everything",
        ),
        # A limit that is no quantity is reported, even if it would not be used.
        ({"resourceGroups": [group(borrowingLimit="lots")]}, "borrowingLimit: not a quantity: 'lots'"),
        ({"resourceGroups": [group(lendingLimit="1e5.")]}, "lendingLimit: not a quantity: '1e5.'"),
        ({"resourceGroups": [group(borrowingLimit="-1m")]}, "borrowingLimit -1m is negative"),
        ({"cohort": "c", "resourceGroups": [group(lendingLimit="-1")]}, "lendingLimit -1 is negative"),
        (
            {"cohort": "c", "resourceGroups": [group(nominalQuota=2**53, lendingLimit=2**53 + 1)]},
            "lendingLimit 9007199254740993 is more than nominalQuota 9007199254740992",
        ),
        (
            {"resourceGroups": [{"coveredResources": [GPU], "flavors": [twice()]}]},
            "flavor h100 has quota of nvidia.com/gpu twice; keep one",
        ),
        (
            {"resourceGroups": [{**group(), "coveredResources": ["@cpu", GPU]}]},
            "spec.resourceGroups[0].coveredResources: '@cpu' is not a resource name: write one such as",
        ),
        (
            {"resourceGroups": [{**group(), "coveredResources": ["Nvidia.com/gpu"]}]},
            "is not a resource name",
        ),
        ({"resourceGroups": [{**group(), "coveredResources": ["a" * 64]}]}, "is not a resource name"),
        ({"allowBorrowing": True}, "spec.allowBorrowing is true and spec.cohort is empty: name a cohort"),
        (
            {"preemptionRule": {"borrowWithinCohort": {"policy": "LowerPriority"}}},
            "borrowWithinCohort needs reclaimWithinCohort: set it to Any or LowerPriority",
        ),
        (
            {
                "preemptionRule": {
                    "reclaimWithinCohort": "Never",
                    "borrowWithinCohort": {"policy": "LowerPriority"},
                }
            },
            "borrowWithinCohort needs reclaimWithinCohort",
        ),
    ],
    ids=lambda reported: reported[:60] if isinstance(reported, str) else "",
)
def test_spec_without_a_clear_meaning_is_a_problem_with_a_fix(spec: Json, problem: str) -> None:
    judged = judge(ReservationSpec.model_validate({"resourceGroups": [group()], **spec}))
    assert any(problem in reported for reported in judged.problems), judged.problems


@pytest.mark.covers("OME-010")
@pytest.mark.parametrize(
    ("groups", "words"),
    [
        (many(16, 1, 1), ""),
        (many(17, 1, 1), "has 17 groups"),
        (many(4, 64, 1), ""),
        (many(4, 64, 1) + many(5, 1, 1)[4:], "has 257 flavors in all"),
        (many(4, 1, 64), ""),
        (many(4, 1, 64) + many(5, 1, 1)[4:], "has 257 covered resources in all"),
        (many(1, 64, 8), ""),
        (many(1, 27, 19), "has 513 pairs of flavor and resource"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_kueues_limits_are_the_maximum(groups: list[Json], words: str) -> None:
    problems = judge(ReservationSpec.model_validate({"resourceGroups": groups})).problems
    assert len(problems) == bool(words)
    assert words in " ".join(problems)


@pytest.mark.covers("OME-012", "OME-014")
@pytest.mark.parametrize(
    ("named", "notes"),
    [((GPU, CPU), 0), ((CPU, GPU), 1), ((CPU,), 1), ((GPU,), 1)],
)
def test_resources_are_sorted_by_covered_resources(named: tuple[str, ...], notes: int) -> None:
    resources = [{"name": name, "nominalQuota": 1} for name in named]
    groups = [{"coveredResources": [GPU, CPU], "flavors": [{"name": "h100", "resources": resources}]}]
    spec = ReservationSpec.model_validate({"resourceGroups": groups})
    judged, strict = judge(spec), judge(spec, strict=True)
    (flavor,) = judged.spec.resource_groups[0].flavors
    assert [resource.name for resource in flavor.resources] == [GPU, CPU]
    assert (len(judged.notes), judged.problems) == (notes, ())
    assert strict.problems == judged.notes


@pytest.mark.covers("OME-038", "OME-039")
@pytest.mark.parametrize(
    ("spec", "limit", "notes"),
    [
        ({"cohort": "c", "allowBorrowing": True}, None, 0),
        ({"cohort": "c"}, "0", 0),
        ({"cohort": "c", "resourceGroups": [group(borrowingLimit=4)]}, "0", 1),
        ({"cohort": "c", "allowBorrowing": True, "resourceGroups": [group(borrowingLimit=4)]}, "4", 0),
        ({}, None, 0),
        ({"resourceGroups": [group(borrowingLimit=4)]}, None, 1),
        ({"resourceGroups": [group(borrowingLimit=0)]}, None, 1),
        ({"cohort": "c", "resourceGroups": [group(borrowingLimit=0)]}, "0", 0),
        ({"cohort": "c", "resourceGroups": [group(borrowingLimit="1m")]}, "0", 1),
        ({"resourceGroups": [group(lendingLimit=0)]}, None, 1),
    ],
    ids=str,
)
def test_borrowing_limit_is_zero_without_allow_borrowing(spec: Json, limit: str | None, notes: int) -> None:
    judged = judge(ReservationSpec.model_validate({"resourceGroups": [group()], **spec}))
    (quota,) = judged.spec.resource_groups[0].flavors[0].resources
    assert (quota.borrowing_limit, len(judged.notes)) == (limit, notes)
    assert judged.problems == ()


@pytest.mark.covers("OME-050")
def test_without_a_rule_only_lower_priority_of_the_same_queue_is_preempted() -> None:
    rule = judge(ReservationSpec.model_validate({"resourceGroups": [group()]})).spec.preemption_rule
    assert rule is not None
    assert rule.borrow_within_cohort is not None
    assert (rule.reclaim_within_cohort, rule.within_cluster_queue) == ("Never", "LowerPriority")
    assert rule.borrow_within_cohort.policy == "Never"


@pytest.mark.parametrize(
    ("spec", "status"),
    [
        ({"count": 4, "capacityReservationId": "r"}, 201),
        ({"profile": "large"}, 201),
        ({"resources": {"requests": {GPU: 32}}}, 201),
        ({"capacityReservationId": "r"}, 422),
        ({"count": -1}, 422),
    ],
    ids=str,
)
def test_dedicated_cluster_requires_a_size(served: Api, spec: Json, status: int) -> None:
    reply = post(
        served,
        {
            "apiVersion": "ome.io/v1beta1",
            "kind": "DedicatedAICluster",
            "metadata": {"name": "d"},
            "spec": spec,
        },
    )
    assert reply.status == status, reply.body
