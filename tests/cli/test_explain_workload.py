"""Workloads in `explain`: their kinds and groups, NAMESPACE/NAME, and commands that say something new."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import names
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.meta import Kind
from broker.apis.ome import CapacityReservation
from broker.commands.help import KINDS
from broker.oncall.workload_kinds import WORKLOADS

from .kit import main
from .test_explain_no_nodepool import asking
from .town import QUOTA, Town, condition, owned_by, p5

DEPLOYMENTS = Kind(group="apps", version="v1", kind="Deployment", plural="deployments", namespaced=True)
LABELS = {"pod-template-hash": "6d4b"}


def of_group(kind: str, api: str, name: str) -> dict[str, Any]:
    return owned_by(kind, name) | {"apiVersion": api}


def deployed(town: Town, name: str, **more: Any) -> None:
    town.pod(name, labels=LABELS, ownerReferences=[owned_by("ReplicaSet", "train-6d4b")], **more)


@pytest.mark.covers("ONC-01")
@pytest.mark.parametrize(
    ("kind", "api", "command", "named"),
    [
        ("Job", "batch/v1", "kubectl get job -n ml train -o yaml", "Job ml/train"),
        (
            "Job",
            "batch.volcano.sh/v1alpha1",
            "kubectl get jobs.batch.volcano.sh -n ml train -o yaml",
            "Job.batch.volcano.sh ml/train",
        ),
        ("StatefulSet", "apps/v1", "kubectl edit statefulset -n ml train", "StatefulSet ml/train"),
        (
            "StatefulSet",
            "apps.kruise.io/v1beta1",
            "kubectl edit statefulsets.apps.kruise.io -n ml train",
            "StatefulSet.apps.kruise.io ml/train",
        ),
        ("RayCluster", "ray.io/v1", "kubectl edit raycluster -n ml train", "RayCluster ml/train"),
    ],
)
def test_a_kind_with_the_name_of_another_is_named_with_its_group(
    town: Town, kind: str, api: str, command: str, named: str
) -> None:
    town.types(p5())
    town.pool("gpu")
    for number in range(2):
        town.pod(f"train-{number}", spec=asking(cpu="400"), ownerReferences=[of_group(kind, api, "train")])
    page = town.explain("pod", "train-0", "-n", "ml")
    assert [row["command"] for row in page["do"]] == [command]
    cluster = town.explain("cluster")
    (group,) = cluster["pods"]
    assert (group["who"], group["count"]) == (named, 2)
    (row,) = [row for row in cluster["do"] if row["command"] == command]
    assert row["why"] == f"{named} (2 pods): no NodePool accepts it"


@pytest.mark.covers("ONC-01")
def test_a_job_of_volcano_is_not_taken_for_one_of_kubernetes(
    town: Town, capsys: pytest.CaptureFixture[str]
) -> None:
    town.pool("gpu")
    town.pod("train-0", ownerReferences=[of_group("Job", "batch.volcano.sh/v1alpha1", "train")])
    options = ("-n", "ml", "--kubeconfig", town.kubeconfig)
    assert main("explain", "job", "train", *options) == 2
    shown = capsys.readouterr().err
    assert "Job.batch.volcano.sh train is no Job of batch" in shown
    assert "capacity-broker explain pod -n ml train-0" in shown
    assert main("explain", "job.batch.volcano.sh/train", *options) == 2
    assert "No such command 'job.batch.volcano.sh/train'" in capsys.readouterr().err


@pytest.mark.covers("ONC-01")
def test_each_kind_of_workload_has_its_command_and_its_aliases(capsys: pytest.CaptureFixture[str]) -> None:
    main("explain", "--help")
    shown = capsys.readouterr().out
    for name, kind in WORKLOADS.items():
        assert f"  {name} " in shown and f"Show the pods of a {kind.kind} as" in shown
        assert {alias for alias, command in KINDS.items() if command == name} == {*kind.aliases}


@pytest.mark.covers("ONC-01")
@pytest.mark.parametrize(
    ("form", "subject"),
    [
        ("pod ml/train-0", "Pod ml/train-0"),
        ("pod/ml/train-0", "Pod ml/train-0"),
        ("pod ml/train-0 -n ml", "Pod ml/train-0"),
        ("deployment ml/train", "Deployment ml/train"),
        ("deploy/ml/train", "Deployment ml/train"),
        ("deployment.apps/ml/train", "Deployment ml/train"),
        ("deployments.v1.apps/ml/train", "Deployment ml/train"),
        ("statefulset ml/db", "StatefulSet ml/db"),
        ("job ml/once", "Job ml/once"),
    ],
)
def test_namespace_slash_name_is_accepted_for_each_kind(town: Town, form: str, subject: str) -> None:
    town.pool("gpu")
    deployed(town, "train-0")
    town.pod("db-0", ownerReferences=[owned_by("StatefulSet", "db")])
    town.pod("once-0", ownerReferences=[owned_by("Job", "once")])
    assert town.explain(*form.split())["subject"] == subject


@pytest.mark.covers("ONC-01")
@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("pod ml/train-0 -n web", "'ml/train-0' and --namespace web name two namespaces"),
        ("deployment ml/train -n web", "'ml/train' and --namespace web name two namespaces"),
        ("job ml/a/b", "'ml/a/b': write NAME or NAMESPACE/NAME"),
        ("pod /train-0", "'/train-0': write NAME or NAMESPACE/NAME"),
        ("pod ml/", "'ml/': write NAME or NAMESPACE/NAME"),
    ],
)
def test_two_namespaces_or_none_are_refused(
    town: Town, capsys: pytest.CaptureFixture[str], form: str, words: str
) -> None:
    assert main("explain", *form.split(), "--kubeconfig", town.kubeconfig) == 2
    assert words in capsys.readouterr().err


@pytest.mark.covers("ONC-01")
def test_workload_of_another_namespace_is_named_with_its_namespace(
    town: Town, capsys: pytest.CaptureFixture[str]
) -> None:
    template = {
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "main", "image": "pause"}]},
    }
    spec = {"replicas": 0, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    town.client.create(DEPLOYMENTS, {"metadata": {"name": "web", "namespace": "ml"}, "spec": spec})
    assert main("explain", "deployment", "web", "--kubeconfig", town.kubeconfig) == 2
    words = "no Deployment 'web' in namespace default: it is in ml (write -n ml)"
    assert words in capsys.readouterr().err
    assert "it has no pod" in town.text("deployment", "ml/web")


@pytest.mark.covers("ONC-01")
def test_workload_names_no_command_whose_output_it_is(town: Town) -> None:
    """Each page below has the command that helps its pods: the whole of a pod's page is there already."""
    town.types(p5())
    town.fill()
    town.pool("gpu")
    deployed(town, "train-0")
    deployed(town, "train-1", spec=asking(cpu="400"))
    page = town.explain("deployment", "ml/train")
    assert [row["command"] for row in page["do"]] == [
        "kubectl edit nodepool gpu",
        "kubectl edit deployment -n ml train",
    ]
    shown = town.text("deployment", "ml/train")
    assert "capacity-broker explain" not in shown
    for command in ("kubectl edit nodepool gpu", "kubectl edit deployment -n ml train"):
        assert shown.count(command) == 1, command


@pytest.mark.covers("ONC-01")
def test_group_of_pods_that_is_not_below_has_its_command(town: Town) -> None:
    town.types(p5())
    town.pool("gpu")
    reasons: list[dict[str, Any]] = [
        {},
        {"spec": asking(cpu="400")},
        {"spec": {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}},
        {"status": {"phase": "Pending"}},
    ]
    for number, more in enumerate(reasons):
        deployed(town, f"train-{number}", **more)
    page = town.explain("deployment", "ml/train")
    assert len(page["waiting"]) == 3 and page["headline"].endswith("1 more group of pods waits")
    assert page["do"][-1]["command"] == "capacity-broker explain pod -n ml train-3"
    shown = town.text("deployment", "ml/train")
    assert shown.count("capacity-broker explain pod -n ml train-3") == 1


@pytest.mark.covers("ONC-01")
def test_each_group_of_waiting_pods_of_the_cluster_has_its_next_step(town: Town) -> None:
    town.types(p5())
    town.fill()
    town.pool("gpu")
    deployed(town, "train-0")
    deployed(town, "train-1")
    town.pod("alone")
    town.pod("large-0", spec=asking(cpu="400"), ownerReferences=[owned_by("StatefulSet", "large")])
    page = town.explain("cluster")
    helps = {row["why"]: row["command"] for row in page["do"]}
    assert helps["Deployment ml/train (2 pods): its options, and its slot"] == (
        "capacity-broker explain pod -n ml train-0"
    )
    assert helps["pod ml/alone: its options, and its slot"] == "capacity-broker explain pod -n ml alone"
    assert helps["pod ml/large-0: no NodePool accepts it"] == "kubectl edit statefulset -n ml large"
    named = {row["who"] for row in page["pods"]}
    assert named == {"Deployment ml/train", "pod ml/alone", "pod ml/large-0"}
    assert max(map(len, town.text("cluster").splitlines())) <= 100


@pytest.mark.covers("ONC-06")
def test_state_of_the_cluster_has_the_kind_of_each_object(town: Town) -> None:
    """A class and a reservation of one name."""
    bad = condition(names.LAUNCHABLE, "False", "SubnetsNotFound", "no subnet")
    town.client.patch(EC2NodeClass.KIND, "training", {"status": {"conditions": [bad]}}, subresource="status")
    failed = {"capacityReservationLifecycleState": "Failed", "lifecycleDetail": "no such zone"}
    body = {"metadata": {"name": "training", "namespace": "ml"}, "spec": {"resourceGroups": [QUOTA]}}
    town.put(CapacityReservation, body, failed)
    rows = town.explain("cluster")["state"]
    assert {(row["kind"], row["object"]) for row in rows} == {
        ("EC2NodeClass", "training"),
        ("CapacityReservation", "ml/training"),
    }
    shown = town.text("cluster")
    assert "EC2NodeClass training" in shown and "CapacityReservation" in shown and "Failed" in shown
