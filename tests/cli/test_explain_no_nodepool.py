"""Why no NodePool accepts a pod: with numbers and names, the same in each command, and what to edit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker.apis import names

from .town import P5, A, Town, owned_by, p5

LABELS = {"pod-template-hash": "6d4b"}


def asking(**requests: str) -> dict[str, Any]:
    amounts = {key.replace("gpu", "nvidia.com/gpu"): text for key, text in requests.items()}
    return {
        "containers": [
            {"name": "main", "image": "pause", "resources": {"requests": amounts, "limits": amounts}}
        ]
    }


def of_deployment(town: Town, name: str = "train-0", **spec: Any) -> None:
    town.pod(name, spec=spec, labels=LABELS, ownerReferences=[owned_by("ReplicaSet", "train-6d4b")])


def shown(town: Town) -> tuple[str, str, list[tuple[str, str]]]:
    """Reason, message and commands of the pod's page. The cluster's page has the same reason and message."""
    page = town.explain("pod", "train-0", "-n", "ml")
    (why,) = page["why"]
    (row,) = town.explain("cluster")["pods"]
    assert (row["reason"], row["message"]) == (why["reason"], why["message"])
    return why["reason"], why["message"], [(row["command"], row["why"]) for row in page["do"]]


@pytest.mark.covers("ONC-01", "ONC-02")
@pytest.mark.parametrize(
    ("requests", "words"),
    [
        ({"cpu": "200"}, "the largest type that it allows has 192 CPU, the pod requests 200 CPU"),
        ({"memory": "4Ti"}, " GiB of memory, the pod requests 4,096 GiB of memory"),
        ({"gpu": "16"}, "has 8 nvidia.com/gpu, the pod requests 16 nvidia.com/gpu"),
        ({"aws.amazon.com/neuron": "1"}, ""),
    ],
)
def test_pod_larger_than_each_type_of_its_pool_is_told_the_amounts(
    town: Town, requests: dict[str, str], words: str
) -> None:
    town.types(p5())
    town.pool("gpu")
    of_deployment(town, **asking(**requests))
    reason, message, do = shown(town)
    if not words:  # a device plugin may add what no type has
        assert reason == "Unschedulable"
        return
    assert reason == "NoNodePool" and words in message and "NodePool gpu: " in message
    ((command, why),) = do
    assert command == "kubectl edit deployment -n ml train" and "its requests are more" in why


@pytest.mark.covers("ONC-01")
def test_pod_that_fits_each_amount_but_no_type_whole_is_told_so(town: Town) -> None:
    town.types(p5(), *p5_like("m5.large", vcpus=400))
    types = [{"key": names.INSTANCE_TYPE, "operator": "In", "values": ["p5.48xlarge", "m5.large"]}]
    town.pool("gpu", template={"requirements": types})
    of_deployment(town, **asking(cpu="300", gpu="8"))
    reason, message, _ = shown(town)
    assert reason == "NoNodePool"
    assert "no type that it allows has 300 CPU and 8 nvidia.com/gpu at once" in message


def p5_like(name: str, **more: Any) -> list[Any]:
    return [replace(p5(), name=name, gpus=(), **more)]


@pytest.mark.covers("ONC-01")
def test_a_pool_of_another_sort_is_named_after_the_one_that_is_too_small(town: Town) -> None:
    town.types(p5())
    taint = {"key": "team", "value": "other", "effect": "NoSchedule"}
    town.pool("first", weight=50, template={"taints": [taint]})
    town.pool("gpu")
    of_deployment(town, **asking(cpu="200"))
    _, message, _ = shown(town)
    assert message.index("has 192 CPU") < message.index("does not tolerate team=other:NoSchedule")


@pytest.mark.covers("ONC-01")
@pytest.mark.parametrize("by", ["selector", "affinity"])
def test_pod_that_selects_a_pool_that_is_not_there_is_told_the_nearest_name(town: Town, by: str) -> None:
    town.types(p5())
    town.pool("gpus")
    chosen: dict[str, Any] = {"nodeSelector": {names.NODEPOOL: "gpu"}}
    if by == "affinity":
        test = {"key": names.NODEPOOL, "operator": "In", "values": ["gpu"]}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [test]}]}
        chosen = {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}
    of_deployment(town, **chosen)
    reason, message, ((command, why),) = shown(town)
    assert (reason, message) == ("NoNodePool", "NodePool gpu does not exist; the nearest name is gpus")
    assert command == "kubectl edit deployment -n ml train" and message in why


@pytest.mark.covers("ONC-01")
def test_pool_that_exists_but_is_not_ready_is_not_said_to_be_missing(town: Town) -> None:
    town.types(p5())
    town.pool("gpu", ready=False)
    town.pool("other")
    of_deployment(town, nodeSelector={names.NODEPOOL: "gpu"})
    reason, message, ((command, _),) = shown(town)
    assert reason == "NodePoolNotReady" and "not exist" not in message
    assert command == "kubectl describe nodepool gpu"


@pytest.mark.covers("ONC-01")
@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"nodeSelector": {names.ZONE: "us-east-1b", "team": "a"}}, "its nodes have no label team"),
        ({"nodeSelector": {names.INSTANCE_TYPE: "m5.large"}}, "m5.large"),
        (
            {"nodeSelector": {names.INSTANCE_TYPE: P5, names.ARCH: "arm64"}},
            f"it and the pod's selector allow ({names.ARCH} one of arm64",
        ),
    ],
)
def test_pod_that_selects_what_no_pool_has_is_to_change_its_own_template(
    town: Town, spec: dict[str, Any], words: str
) -> None:
    town.types(p5(), *p5_like("m5.large", vcpus=2), *p5_like("m7g.large", vcpus=2, architecture="arm64"))
    town.mirror()
    town.pool("gpu")
    of_deployment(town, **spec)
    reason, message, ((command, why),) = shown(town)
    assert reason == "NoNodePool" and words in message
    assert command == "kubectl edit deployment -n ml train"
    assert "met by no NodePool" in why


GONE = {
    "type": (
        {names.INSTANCE_TYPE: "p5.48xlrage"},
        "'p5.48xlrage' in this Region; the nearest name is p5.48xlarge",
    ),
    "old label": ({"beta.kubernetes.io/instance-type": "p5.48xlage"}, "the nearest name is p5.48xlarge"),
    "family": (
        {names.INSTANCE_FAMILY: "p55"},
        "no instance family 'p55' in this Region; the nearest name is p5",
    ),
    "gpu": ({names.INSTANCE_GPU_NAME: "amdgpu"}, "EC2 has no GPU 'amdgpu' in this Region; there are h100"),
    "architecture": (
        {names.ARCH: "riscv64"},
        "of architecture 'riscv64' in this Region; there are amd64, arm64",
    ),
    "zone": (
        {names.ZONE: "us-east-1z"},
        "this Region has no zone 'us-east-1z'; the nearest name is us-east-1",
    ),
    "region": ({names.REGION: "eu-west-1"}, "this Region is not 'eu-west-1'"),
    "capacity type": (
        {names.CAPACITY_TYPE: "on-demnd"},
        "no capacity type 'on-demnd'; the nearest name is on-demand",
    ),
    "tenancy": ({names.INSTANCE_TENANCY: "dedicatd"}, "no tenancy 'dedicatd'; the nearest name is dedicated"),
}


@pytest.mark.covers("ONC-01", "ONC-02")
@pytest.mark.parametrize("by", ["selector", "affinity"])
@pytest.mark.parametrize("case", GONE)
def test_label_value_that_nothing_has_is_the_reason_with_the_nearest_known_one(
    town: Town, case: str, by: str
) -> None:
    """The pool's own requirements leave the label open."""
    selector, words = GONE[case]
    types = (p5(), *p5_like("m7g.large", vcpus=2, architecture="arm64"))
    town.types(*(replace(type_, zones=frozenset({A, "us-east-1b"})) for type_ in types))
    town.pool("gpu", kinds=["reserved", "on-demand", "spot"], template={"requirements": []})
    of_deployment(town, **insisting(selector, by))
    reason, message, ((command, why),) = shown(town)
    assert reason == "NoNodePool" and words in message
    assert command == "kubectl edit deployment -n ml train" and message in why


def insisting(selector: dict[str, str], by: str) -> dict[str, Any]:
    if by == "selector":
        return {"nodeSelector": selector}
    tests = [{"key": key, "operator": "In", "values": [value]} for key, value in selector.items()]
    terms = {"nodeSelectorTerms": [{"matchExpressions": tests}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


@pytest.mark.covers("ONC-01")
def test_misspelt_type_is_told_the_nearest_also_if_the_pool_names_its_types(town: Town) -> None:
    town.types(p5())
    town.pool("gpu")
    of_deployment(town, nodeSelector={names.INSTANCE_TYPE: "p5.48xlrage"})
    reason, message, _ = shown(town)
    assert (reason, message) == (
        "NoNodePool",
        "EC2 has no instance type 'p5.48xlrage' in this Region; the nearest name is p5.48xlarge",
    )


@pytest.mark.covers("ONC-01")
@pytest.mark.parametrize("spec", [{}, {"nodeSelector": {names.INSTANCE_TENANCY: "dedicated"}}])
def test_value_that_one_term_has_or_that_the_class_decides_is_not_said_to_be_missing(
    town: Town, spec: dict[str, Any]
) -> None:
    town.types(replace(p5(), zones=frozenset({A})))
    town.mirror()
    town.pool("gpu")
    zones = [[{"key": names.ZONE, "operator": "In", "values": [zone]}] for zone in ("us-east-1z", A)]
    terms = {"nodeSelectorTerms": [{"matchExpressions": tests} for tests in zones]}
    either = {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}
    of_deployment(town, **(spec or either))
    reason, message, _ = shown(town)
    assert reason == "Unschedulable" and "Insufficient nvidia.com/gpu" in message


@pytest.mark.covers("ONC-02")
def test_without_the_published_types_both_commands_say_what_the_scheduler_says(town: Town) -> None:
    town.pool("gpu")
    of_deployment(town, **asking(cpu="200"))
    reason, message, _ = shown(town)
    assert reason == "Unschedulable" and "Insufficient nvidia.com/gpu" in message


@pytest.mark.covers("ONC-01", "ONC-02")
def test_pods_of_one_owner_with_other_requests_have_reasons_of_their_own(town: Town) -> None:
    """A RayCluster's head and workers are alike."""
    town.types(p5())
    town.pool("gpu")
    for name, cpu in (("a-worker", "400"), ("train-0", "1")):
        town.pod(name, spec=asking(cpu=cpu), ownerReferences=[owned_by("RayCluster", "ray")])
    reasons = {row["pod"]: row["reason"] for row in town.explain("cluster")["pods"]}
    assert reasons["ml/a-worker"] == "NoNodePool" != reasons["ml/train-0"]


@pytest.mark.covers("ONC-01")
@pytest.mark.parametrize(
    ("pool_types", "selector", "words", "command"),
    [
        (["m5.larg"], "", "its requirements allow: correct them", "kubectl get nodepools -o yaml"),
        ([], "p5.48xlarg", "the nearest name is p5.48xlarge", "kubectl edit deployment -n ml train"),
    ],
    ids=["of the pool", "of the pod"],
)
def test_type_that_ec2_does_not_have_is_to_be_corrected_where_it_is_written(
    town: Town, pool_types: list[str], selector: str, words: str, command: str
) -> None:
    town.types(p5())
    types = {"key": names.INSTANCE_TYPE, "operator": "In", "values": pool_types}
    template = {"requirements": [types] if pool_types else []}
    town.pool("gpu", template=template)
    spec: dict[str, Any] = {"nodeSelector": {names.INSTANCE_TYPE: selector}} if selector else {}
    of_deployment(town, **spec)
    reason, message, ((shown_command, why),) = shown(town)
    assert reason == "NoNodePool" and words in message and shown_command == command
    assert "its requests are more" not in why


@pytest.mark.covers("ONC-01")
def test_pod_of_an_argo_rollout_is_edited_in_its_rollout(town: Town) -> None:
    town.types(p5())
    town.pool("gpu")
    owner = owned_by("ReplicaSet", "train-6d4b")
    labels = {"rollouts-pod-template-hash": "6d4b"}
    town.pod("train-0", spec=asking(cpu="400"), labels=labels, ownerReferences=[owner])
    _, _, ((command, _),) = shown(town)
    assert command == "kubectl edit rollout -n ml train"
