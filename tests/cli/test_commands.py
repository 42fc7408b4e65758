"""The commands as a person runs them: their exit code and output, on local AWS and an embedded API server."""

from __future__ import annotations

import json
import re
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from typer.testing import CliRunner

from broker import cli
from broker.apis import names
from broker.apis.capacity_broker import OnDemandCapacityReservation
from broker.apis.core import Node, Pod
from broker.apis.crds import KIND as CRD
from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.koordinator import KoordinatorReservation
from broker.apis.kueue import ClusterQueue, Namespace
from broker.apis.limits import LimitRange
from broker.apis.ome import CapacityReservation
from broker.apis.storage import PersistentVolume, PersistentVolumeClaim
from broker.commands import manifests, troubles
from broker.commands.crds.install import install
from broker.kube.client import Client
from broker.kube.errors import Forbidden, NotFound, Unavailable
from local.aws import LocalAws
from providers.aws import errors
from providers.errors import ErrorClass, ProviderError
from tests.kueue import definitions as kueue

from .kit import ACCOUNT, REGION, World, claim, files, main, node_class, run


def planned(world: World, path: str) -> tuple[int, list[dict[str, Any]]]:
    result = run("plan", "-f", path, "--aws-endpoint", world.endpoint, "-o", "json")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, json.loads(result.stdout)


def test_plan_uses_every_slot_then_falls_back_with_a_reason(world: World, tmp_path: Path) -> None:
    claims = [claim(f"c-{n}", "reserved", "on-demand") for n in range(3)]
    code, rows = planned(world, files(tmp_path, node_class(world), *claims))
    assert code == 0
    assert [row["pool"] for row in rows] == [
        f"reserved:p5.48xlarge:us-east-1a:{world.odcr}",
        f"reserved:p5.48xlarge:us-east-1a:{world.odcr}",
        "on-demand:p5.48xlarge:us-east-1a",
    ]
    assert "went to claims that come before" in rows[2]["why"]


def workloads() -> list[dict[str, Any]]:
    """A NodePool of the broker's group; pods for it, of a Deployment and a Job; and one that is too large."""
    template = {"spec": claim("any", "reserved", "on-demand")["spec"]}
    return [
        body("karpenter.sh/v1", "NodePool", "pool", template=template),
        body("apps/v1", "Deployment", "web", replicas=3, template={"spec": requesting("4")}),
        body("batch/v1", "Job", "job", parallelism=2, template={"spec": requesting("4")}),
        body("v1", "Pod", "wide", **requesting("9")),
    ]


def requesting(accelerators: str) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": accelerators}
    return {"containers": [{"name": "c", "image": "x", "resources": {"limits": limits}}]}


def body(version: str, kind: str, name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


@pytest.mark.covers("KRP-35")
def test_plan_of_pods_shows_the_claims_that_applying_would_make(world: World, tmp_path: Path) -> None:
    """Five pods of four accelerators on machines of eight: three claims, of which two have slots."""
    path = files(tmp_path, node_class(world), *workloads())
    code, rows = planned(world, path)
    assert code == 1  # one pod gets no machine
    assert sorted(row["pool"].partition(":")[0] for row in rows) == ["on-demand", "reserved", "reserved"]
    assert all(row["claim"].startswith("pool-") for row in rows)
    result = run("plan", "-f", path, "--aws-endpoint", world.endpoint)
    assert "pod default/wide: NodePool pool: " in result.stdout
    assert "the pod requests 9 nvidia.com/gpu" in result.stdout


@pytest.mark.covers("USR-01", "KRP-35")
def test_plan_of_pods_counts_the_cluster_s_pods_rooms_and_groups(
    world: World, cluster: tuple[Client, str], tmp_path: Path
) -> None:
    client, kubeconfig = cluster
    install(client)
    waits = {"metadata": {"name": "waits", "namespace": "default"}, "spec": requesting("8")}
    client.create(Pod.KIND, waits)
    unschedulable = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "no node",
    }
    status = {"status": {"conditions": [unschedulable]}}
    client.patch(Pod.KIND, "waits", status, namespace="default", subresource="status")
    room = {"cpu": "8", "pods": "10", "memory": "8Gi"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    client.create(
        Node.KIND, {"metadata": {"name": "kept"}, "status": {"allocatable": room, "capacity": room}}
    )
    client.patch(Node.KIND, "kept", {"status": {"conditions": [ready]}}, subresource="status")
    kept = {"metadata": {"name": "r"}, "spec": {"template": {"spec": held("7")}, "owners": [{}], "ttl": "0s"}}
    client.create(KoordinatorReservation.KIND, kept)
    placed = {"phase": "Available", "nodeName": "kept", "allocatable": {"cpu": "7"}}
    client.patch(KoordinatorReservation.KIND, "r", {"status": placed}, subresource="status")
    group = body("scheduling.x-k8s.io/v1alpha1", "PodGroup", "team", minMember=2)
    member = body("v1", "Pod", "member", **requesting("8"))
    member["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "team"}
    pool, *_ = workloads()
    cron = body("batch/v1", "CronJob", "night", jobTemplate={"spec": {"template": {"spec": requesting("8")}}})
    documents = (node_class(world), pool, cron, group, member, body("v1", "Pod", "small", **held("2")))
    path = files(tmp_path, *documents)
    arguments = ("plan", "-f", path, "--aws-endpoint", world.endpoint, "--kubeconfig", kubeconfig)
    lines = run(*arguments).stdout.splitlines()
    assert "CronJob default/night: one run of it is planned" in lines
    assert "planned with the pods that wait in the cluster: default/waits" in lines
    assert (
        "pod default/member: gang default/team has 1 of 2 pods: it gets room once all of them exist" in lines
    )
    pods_of_claims = [
        line.partition(": for pods ")[2] for line in lines if line.startswith("NodeClaim pool-")
    ]
    # No pod is on the node: a reservation holds its room.
    assert sorted(pods_of_claims) == ["default/night-run-0", "default/small, default/waits"]
    rows = json.loads(run(*arguments, "-o", "json").stdout)
    assert sorted(", ".join(row["pods"]) for row in rows) == sorted(pods_of_claims)


@pytest.mark.covers("KRP-35")
@pytest.mark.parametrize("applied", [True, False], ids=["in the cluster", "in the files"])
def test_plan_keeps_the_pod_of_a_stateful_set_in_the_zone_of_its_volume(
    world: World, cluster: tuple[Client, str], tmp_path: Path, applied: bool
) -> None:
    """The free slots are in us-east-1a, the first volume is in us-east-1b, and the second does not exist."""
    client, kubeconfig = cluster
    install(client)
    storage = {"storage": "1Gi"}
    zone = {"key": names.ZONE, "operator": "In", "values": ["us-east-1b"]}
    volume = body(
        "v1",
        "PersistentVolume",
        "pv",
        accessModes=["ReadWriteOnce"],
        capacity=storage,
        hostPath={"path": "/v"},
        nodeAffinity={"required": {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}},
    )
    wants = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": storage}}
    stored = body("v1", "PersistentVolumeClaim", "data-db-0", volumeName="pv", **wants)
    stored["metadata"]["namespace"] = "default"
    if applied:
        stored["metadata"]["annotations"] = {"pv.kubernetes.io/bind-completed": "yes"}
        client.create(PersistentVolume.KIND, volume)
        client.create(PersistentVolumeClaim.KIND, stored)
    templates = [{"metadata": {"name": "data"}, "spec": wants}]
    template = {"spec": requesting("8")}
    stateful_set = body(
        "apps/v1", "StatefulSet", "db", replicas=2, template=template, volumeClaimTemplates=templates
    )
    pool, *_ = workloads()
    files_ = (node_class(world), pool, stateful_set, *(() if applied else (volume, stored)))
    arguments = ("plan", "-f", files(tmp_path, *files_), "--aws-endpoint", world.endpoint)
    result = run(*arguments, "--kubeconfig", kubeconfig, "-o", "json")
    places = {row["pods"][0]: row["pool"].split(":")[:3] for row in json.loads(result.stdout)}
    assert places == {
        "default/db-0": ["on-demand", "p5.48xlarge", "us-east-1b"],
        "default/db-1": ["reserved", "p5.48xlarge", "us-east-1a"],
    }


@pytest.mark.covers("FLT-36")
def test_plan_counts_the_requests_that_a_limit_range_gives(
    world: World, cluster: tuple[Client, str], tmp_path: Path
) -> None:
    client, kubeconfig = cluster
    install(client)
    defaults = {"limits": [{"type": "Container", "defaultRequest": {"cpu": "900"}}]}
    limits = {"metadata": {"name": "l", "namespace": "default"}, "spec": defaults}
    client.create(LimitRange.KIND, limits)
    pool, *_ = workloads()
    pod = body("v1", "Pod", "plain", containers=[{"name": "main", "image": "pause"}])
    path = files(tmp_path, node_class(world), pool, pod)
    result = run("plan", "-f", path, "--aws-endpoint", world.endpoint, "--kubeconfig", kubeconfig)
    assert "the pod requests 900 CPU" in result.stdout


def test_plan_gives_a_pod_without_a_class_the_default_priority(world: World, tmp_path: Path) -> None:
    """Three pods for two slots: the one with the priority of the default class comes before the others."""

    def ranked(name: str, value: int, **more: bool) -> dict[str, Any]:
        head = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
        return {**head, "value": value, **more}

    template = {"spec": claim("any", "reserved")["spec"]}
    documents = [
        body("karpenter.sh/v1", "NodePool", "pool", template=template),
        ranked("low", 500),
        ranked("standard", 1000, globalDefault=True),
        *(body("v1", "Pod", f"low-{n}", priorityClassName="low", **requesting("8")) for n in range(2)),
        body("v1", "Pod", "plain", **requesting("8")),
    ]
    code, rows = planned(world, files(tmp_path, node_class(world), *documents))
    assert code == 1
    served = [row["pods"] for row in rows]
    assert len(served) == 2 and ["default/plain"] in served


def held(cpu: str) -> dict[str, Any]:
    return {"containers": [{"name": "c", "image": "x", "resources": {"requests": {"cpu": cpu}}}]}


@pytest.mark.covers("KRP-20")
def test_plan_reports_how_it_was_solved(world: World, tmp_path: Path) -> None:
    path = files(tmp_path, node_class(world), *(claim(f"c-{n}", "reserved", "on-demand") for n in range(3)))
    person = run("plan", "-f", path, "--aws-endpoint", world.endpoint)
    last = person.stdout.splitlines()[-1]
    assert last.startswith("Solved by min-cost flow: 2 claims in reservations, optimal, ")
    machine = run(
        "plan", "-f", path, "--aws-endpoint", world.endpoint, "-o", "json", "--plan-seconds", "1e-9"
    )
    assert len(json.loads(machine.stdout)) == 3
    assert "Solved by greedy: 2 claims in reservations, not proven optimal" in machine.stderr


def test_plan_changes_nothing(world: World, aws: LocalAws, tmp_path: Path) -> None:
    path = files(tmp_path, node_class(world), claim("c-0"))
    before = aws.control.calls()
    planned(world, path)
    actions = {action for action, count in aws.control.calls().items() if count > before.get(action, 0)}
    assert actions
    assert not [action for action in actions if not action.startswith(("Describe", "Get", "List"))]


def test_plan_of_more_reserved_claims_than_slots_is_a_no(world: World, tmp_path: Path) -> None:
    code, rows = planned(world, files(tmp_path, node_class(world), *(claim(f"c-{n}") for n in range(3))))
    assert code == 1
    assert [row["launches"] for row in rows] == [True, True, False]
    assert rows[2]["why"].startswith("waits: AllReservationsFull: ")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            {
                "capacityReservationSpec": {
                    "capacityReservationPreference": "open",
                    "capacityReservationTarget": {"capacityReservationId": "cr-0123456789abcdef0"},
                }
            },
            ("capacityReservationPreference", "capacityReservationTarget"),
        ),
        (
            {
                "capacityReservationSpec": {
                    "capacityReservationTarget": {"capacityReservationId": "cr-0ffffffffffffffff"}
                }
            },
            ("cr-0ffffffffffffffff", "not found"),
        ),
        ({"subnetSelectorTerms": [{"tags": {"team": "nobody"}}]}, ("subnetSelectorTerms", "nobody")),
        ({"amiSelectorTerms": [{"id": "ami-0123"}]}, ("amiSelectorTerms", "ami-0123")),
        ({"securityGroupSelectorTerms": [{"name": "none"}]}, ("securityGroupSelectorTerms", "none")),
        ({"amiFamily": "AL2"}, ("spec.amiFamily", "AL2023, Bottlerocket or Custom")),
        ({"placementGroupSelector": {"id": "pg-1"}}, ("pg-1", "does not exist")),
    ],
)
def test_plan_names_the_field_and_the_value(
    world: World, tmp_path: Path, spec: dict[str, Any], words: tuple[str, ...]
) -> None:
    code, rows = planned(world, files(tmp_path, node_class(world, **spec), claim("c-0")))
    assert code == 1
    for word in words:
        assert word in rows[0]["why"]


def test_plan_of_a_fallback_explains_why_its_class_has_no_reservation(world: World, tmp_path: Path) -> None:
    gone = {"capacityReservationTarget": {"capacityReservationId": "cr-0ffffffffffffffff"}}
    manifest = node_class(world, capacityReservationSpec=gone)
    claims = [claim("c-0", "reserved", "on-demand"), claim("c-1", "on-demand")]
    code, rows = planned(world, files(tmp_path, manifest, *claims))
    assert code == 0
    assert rows[0]["pool"].startswith("on-demand:")
    assert rows[0]["why"].startswith("ReservationNotFound: ") and "cr-0ffffffffffffffff" in rows[0]["why"]
    assert rows[1]["why"] == "the best option that it has", "it requests none"


def test_plan_reads_the_items_of_a_list(world: World, tmp_path: Path) -> None:
    """As `kubectl get -o yaml` writes several objects."""
    given = {"apiVersion": "v1", "kind": "List", "items": [node_class(world), claim("c-0")]}
    code, rows = planned(world, files(tmp_path, given))
    assert (code, [row["claim"] for row in rows]) == (0, ["c-0"])


def test_item_of_a_list_that_is_no_object_is_named(tmp_path: Path) -> None:
    path = files(tmp_path, claim("c-0"), {"apiVersion": "v1", "kind": "List", "items": [claim("c-1"), {}]})
    with pytest.raises(manifests.BadManifest, match=r"document 2, items\[1\]: no Kubernetes object"):
        manifests.read([path])


def test_plan_reports_that_it_leaves_out_the_nodes_of_a_static_pool(world: World, tmp_path: Path) -> None:
    """Its first line has the price of the other launches only."""
    template = {"spec": {key: claim("x")["spec"][key] for key in ("nodeClassRef", "requirements")}}
    pool = body("karpenter.sh/v1", "NodePool", "always", replicas=3, template=template)
    path = files(tmp_path, node_class(world), claim("c-0"), pool)
    result = run("plan", "-f", path, "--aws-endpoint", world.endpoint)
    assert result.stdout.splitlines()[1] == (
        "NodePool always: spec.replicas is 3: the plan leaves out the nodes that it makes for that"
    )


def test_plan_of_a_claim_without_its_class(world: World, tmp_path: Path) -> None:
    code, rows = planned(world, files(tmp_path, claim("c-0")))
    assert code == 1
    assert "no EC2NodeClass training in the files" in rows[0]["why"]


def test_plan_leaves_karpenters_claims_to_karpenter(world: World, tmp_path: Path) -> None:
    other = claim("c-0")
    other["spec"]["nodeClassRef"]["group"] = "karpenter.k8s.aws"
    code, rows = planned(world, files(tmp_path, node_class(world), other, claim("c-1")))
    assert code == 1
    assert [row["launches"] for row in rows] == [False, True]
    assert "spec.nodeClassRef.group is 'karpenter.k8s.aws'" in rows[0]["why"]


OWNED = {
    "apiVersion": "ome.io/v1beta1",
    "kind": "CapacityReservation",
    "metadata": {"name": "gpus", "namespace": "vision"},
    "spec": {
        "resourceGroups": [
            {
                "coveredResources": ["nvidia.com/gpu"],
                "flavors": [
                    {
                        "name": "p5.48xlarge",
                        "resources": [{"name": "nvidia.com/gpu", "nominalQuota": "8"}],
                    }
                ],
            }
        ]
    },
}


def drawing(name: str, draws: str = "") -> dict[str, Any]:
    document = claim(name)
    if draws:
        document["metadata"]["annotations"] = {"capacity-broker.io/draws-from": draws}
    return document


@pytest.mark.covers("CAP-09")
def test_plan_and_explain_agree_on_slot_owners(
    world: World, cluster: tuple[Client, str], tmp_path: Path
) -> None:
    """A reservation owns one of two slots: its claims take that one, a stranger none.

    The result is the same for a reservation in the files and in the cluster."""
    tag = {"Key": "capacity-broker.io/reservation", "Value": "vision/gpus"}
    world.ec2.create_tags(Resources=[world.odcr], Tags=[tag])
    claims = [drawing("own-0", "vision/gpus"), drawing("own-1", "vision/gpus"), drawing("stranger")]
    code, rows = planned(world, files(tmp_path, node_class(world), OWNED, *claims))
    assert (code, [row["launches"] for row in rows]) == (1, [True, False, False])
    belongs = f"reservation {world.odcr} belongs to vision/gpus, and the claim draws from no reservation"
    assert belongs in rows[2]["decision"]

    client, kubeconfig = cluster
    install(client)
    client.create(Namespace.KIND, {"metadata": {"name": "vision"}})
    for kind, document in ((CapacityReservation.KIND, OWNED), (EC2NodeClass.KIND, node_class(world))):
        client.create(kind, document)
    options = ("--aws-endpoint", world.endpoint, "--kubeconfig", kubeconfig, "-o", "json")
    result = run("plan", "-f", files(tmp_path, *claims), *options)
    assert (result.stderr.count("\n"), json.loads(result.stdout)) == (
        2,
        rows,
    )  # what it costs, how it was solved, and no more

    for claim_document in claims:
        client.create(NodeClaim.KIND, claim_document)
    decisions = [
        json.loads(run("explain", "claim", row["claim"], *options).stdout)["decision"] for row in rows
    ]
    assert decisions == [row["decision"] for row in rows]


@pytest.mark.covers("USR-01")
def test_plan_distinguishes_objects_by_kind_namespace_and_name(world: World, tmp_path: Path) -> None:
    """Two reservations of one name, one in each namespace, without a uid: each owns one ODCR."""
    second = world.ec2.create_capacity_reservation(
        InstanceType="p5.48xlarge",
        InstancePlatform="Linux/UNIX",
        AvailabilityZone="us-east-1a",
        InstanceCount=1,
        InstanceMatchCriteria="targeted",
    )["CapacityReservation"]["CapacityReservationId"]
    other = {**OWNED, "metadata": {"name": "gpus", "namespace": "speech"}}
    classes = []
    for namespace, odcr in (("vision", world.odcr), ("speech", second)):
        tag = {"Key": "capacity-broker.io/reservation", "Value": f"{namespace}/gpus"}
        world.ec2.create_tags(Resources=[odcr], Tags=[tag])
        target = {"capacityReservationTarget": {"capacityReservationId": odcr}}
        document = node_class(world, capacityReservationSpec=target)
        classes.append({**document, "metadata": {"name": namespace}})
    claims = []
    for namespace in ("vision", "speech"):
        document = drawing(f"own-{namespace}", f"{namespace}/gpus")
        document["spec"]["nodeClassRef"]["name"] = namespace
        claims.append(document)
    stranger = drawing("stranger", "vision/gpus")
    stranger["spec"]["nodeClassRef"]["name"] = "speech"
    runs = drawing("runs", "vision/gpus") | {"status": {"providerID": "aws:///us-east-1a/i-1"}}
    code, rows = planned(world, files(tmp_path, OWNED, other, *classes, *claims, stranger, runs))
    assert (code, [row["launches"] for row in rows]) == (1, [True, True, False, False])
    assert [row["pool"].rpartition(":")[2] for row in rows[:2]] == [world.odcr, second]
    assert f"{second} belongs to speech/gpus; the claim draws from vision/gpus" in rows[2]["decision"]
    assert (rows[3]["runs"], rows[3]["decision"]) == (True, "runs already: i-1")


def test_plan_without_cluster_name_reports_unowned_reservations(world: World, tmp_path: Path) -> None:
    """A reservation with the tag of a cluster belongs to that cluster alone."""
    arguments = (
        "plan",
        "-f",
        files(tmp_path, node_class(world), claim("c-0")),
        "--aws-endpoint",
        world.endpoint,
    )
    tag = {"Key": "capacity-broker.io/cluster", "Value": "prod"}
    world.ec2.create_tags(Resources=[world.odcr], Tags=[tag])
    assert (
        "reservations of prod count as unowned: name the cluster by --cluster-name" in run(*arguments).stderr
    )
    assert "unowned" not in run(*arguments, "--cluster-name", "blue").stderr


def test_plan_without_a_cluster_reports_its_source(world: World, tmp_path: Path) -> None:
    result = run(
        "plan", "-f", files(tmp_path, node_class(world), claim("c-0")), "--aws-endpoint", world.endpoint
    )
    source = "planned from the files alone; no cluster was read: none is configured"
    assert result.stderr.startswith(source)


def test_plan_counts_the_claims_that_wait_in_the_cluster(
    world: World, cluster: tuple[Client, str], tmp_path: Path
) -> None:
    client, kubeconfig = cluster
    install(client)
    for name in ("w-0", "w-1", "w-2", "w-3", "z-0"):
        client.create(NodeClaim.KIND, claim(name))
    karpenters = claim("theirs")
    karpenters["spec"]["nodeClassRef"]["group"] = "karpenter.k8s.aws"
    client.create(NodeClaim.KIND, karpenters)
    client.create(NodeClaim.KIND, claim("runs"))
    running = {"metadata": {"name": "runs"}, "status": {"providerID": "aws:///us-east-1a/i-1"}}
    client.apply(NodeClaim.KIND, running, subresource="status")
    path = files(tmp_path, node_class(world), claim("z-0"))
    result = run("plan", "-f", path, "--aws-endpoint", world.endpoint, "--kubeconfig", kubeconfig)
    assert result.stderr.splitlines()[0].endswith("that wait in the cluster: w-0, w-1, w-2 and 1 more")
    assert "waits: AllReservationsFull: " in " ".join(result.stdout.split()), "older claims have both slots"


def test_plan_without_claims_is_no_success(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = files(tmp_path, node_class(world))
    monkeypatch.setattr("sys.argv", ["capacity-broker", "plan", "-f", path, "--aws-endpoint", world.endpoint])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert f"{path}: no NodeClaim (karpenter.sh/v1) and no pod to plan: add a" in capsys.readouterr().err


def test_plan_names_the_version_of_claims_that_it_does_not_read(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older = {**claim("older"), "apiVersion": "karpenter.sh/v1beta1"}
    ignored = "ignored 1 NodeClaim of karpenter.sh/v1beta1: write apiVersion karpenter.sh/v1\n"
    path = files(tmp_path, node_class(world), older)
    assert main("plan", "-f", path, "--aws-endpoint", world.endpoint) == 2
    assert capsys.readouterr().err.endswith(
        f"{path}: no NodeClaim (karpenter.sh/v1) and no pod to plan: {ignored}"
    )
    path = files(tmp_path, node_class(world), older, claim("c-0"))
    result = run("plan", "-f", path, "--aws-endpoint", world.endpoint)
    assert result.exit_code == 0
    assert result.stderr.startswith(ignored)


def test_plan_refuses_misspelt_fields_before_anything_is_planned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No cluster and no EC2 is asked: none is there."""
    misspelt = claim("x")
    misspelt["spec"]["requirments"] = misspelt["spec"].pop("requirements")
    pod = body("v1", "Pod", "y", container=requesting("1")["containers"])
    path = files(tmp_path, misspelt, pod)
    assert main("plan", "-f", path, "--aws-endpoint", "http://127.0.0.1:1") == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        f"capacity-broker: {path}: NodeClaim x: spec.requirments: unknown field; did you mean requirements?",
        f"capacity-broker: {path}: Pod y: spec.container: unknown field; did you mean containers?",
    ]


def test_plan_warns_of_a_field_that_a_newer_karpenter_may_have(world: World, tmp_path: Path) -> None:
    newer = node_class(world, bootMode="uefi")
    path = files(tmp_path, newer, claim("c-0"))
    result = run("plan", "-f", path, "--aws-endpoint", world.endpoint, "-o", "json")
    warning = f"{path}: EC2NodeClass training: spec.bootMode: unknown field; the plan ignores it"
    assert (result.exit_code, result.stderr.splitlines()[0]) == (0, warning)
    assert json.loads(result.stdout)[0]["launches"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", ("not YAML",)),
        ("a: 1", ("kind is missing",)),
        (
            "apiVersion: karpenter.sh/v1\nkind: NodeClaim\nmetadata: {name: x}\nspec: {requirements: 7}",
            ("NodeClaim x", "spec.requirements", "7"),
        ),
        ("apiVersion: karpenter.sh/v1\nkind: NodeClaim", ("NodeClaim", "metadata.name is missing")),
        (
            "apiVersion: karpenter.k8s.aws/v1\nkind: EC2NodeClass\nmetadata: {name: x}\n"
            "spec: {amiSelectorTerms: [{id: '${AMI}'}], role: '${ROLE}'}",
            (
                "spec.amiSelectorTerms[0].id is ${AMI}; ",
                "bad.yaml: spec.role is ${ROLE}: replace",
                "or set it in the environment and pipe the file through envsubst",
            ),
        ),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(manifests.BadManifest) as caught:
        for document in manifests.read([str(path)]):
            manifests.decode(document)
    for word in words:
        assert word in str(caught.value)


def test_file_that_is_not_utf_8_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also one file of a folder, and standard input."""
    files(tmp_path, claim("x"))
    path = tmp_path / "zz.yaml"
    path.write_bytes(b"kind: ConfigMap\nmetadata: {name: caf\xe9}\n")
    problem = "not UTF-8 text (byte 37): save it as UTF-8"
    for given in (path, tmp_path):
        assert main("plan", "-f", str(given), "--aws-endpoint", "http://127.0.0.1:1") == 2
        assert capsys.readouterr().err == f"capacity-broker: {path}: {problem}\n"
    piped = CliRunner().invoke(cli.app, ["plan", "-f", "-"], input=path.read_bytes())
    assert str(piped.exception) == f"standard input: {problem}"


def test_variables_of_scripts_and_other_objects_are_no_placeholders(tmp_path: Path) -> None:
    path = tmp_path / "good.yaml"
    path.write_text(
        "apiVersion: karpenter.k8s.aws/v1\nkind: EC2NodeClass\nmetadata: {name: x}\n"
        "spec: {userData: 'echo ${HOME}'}\n---\nkind: ConfigMap\nmetadata: {name: y}\ndata: {a: '${B}'}\n"
    )
    assert [document["kind"] for document in manifests.read([str(path)])] == ["EC2NodeClass", "ConfigMap"]


COMMANDS = ("run", "demo", "plan", "inventory", "idle", "crds install", "crds patch", "explain claim")


@pytest.mark.parametrize("command", ["", "crds", "explain", "crds print", *COMMANDS])
def test_help_fits_a_terminal_and_cuts_no_name(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = run(*command.split(), "--help")
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "…" not in result.stdout


def test_each_command_shows_its_own_options_under_headings() -> None:
    shown = {command: run(*command.split(), "--help").stdout for command in COMMANDS}
    assert "\nReserving in EC2:\n  --buy-dollars <float>" in shown["run"]
    assert "[env var: AWS_REGION]" in shown["idle"]
    assert [command for command, text in shown.items() if "--buy-dollars" in text] == ["run"]
    headings = {command: re.findall(r"^(\w.*):$", text, re.MULTILINE) for command, text in shown.items()}
    for command in ("inventory", "idle"):
        assert headings[command] == ["Options", "Cluster that instances join", "AWS", "Kubernetes"]
    assert headings["crds patch"] == ["Options", "Kubernetes"]
    assert headings["demo"] == ["Options", "Log"]
    assert len(headings["run"]) == 14


@pytest.mark.covers("USR-25")
def test_kubectl_s_plugin_is_the_same_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (plugin,) = [
        entry_point
        for entry_point in entry_points(group="console_scripts")
        if entry_point.name == "kubectl-odcr"
    ]
    monkeypatch.setattr("sys.argv", ["/usr/local/bin/kubectl-odcr", "idle", "--help"])
    with pytest.raises(SystemExit) as ended:
        plugin.load()()
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("Usage: kubectl odcr idle [OPTIONS]")


@pytest.mark.covers("USR-25")
def test_version_and_completion_need_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    assert re.fullmatch(r"capacity-broker \d+\.\d+\.\d+\n", run("--version").stdout)
    monkeypatch.setenv("_CAPACITY_BROKER_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "capacity-broker expl")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert run().stdout.split() == ["explain"]


def reserve(client: Client) -> None:
    """A CapacityReservation research/gpus."""
    client.create(Namespace.KIND, {"metadata": {"name": "research"}})
    quota = {"name": "nvidia.com/gpu", "nominalQuota": "8"}
    flavors = [{"name": "h100", "resources": [quota]}]
    groups = [{"coveredResources": ["nvidia.com/gpu"], "flavors": flavors}]
    body = {"metadata": {"name": "gpus", "namespace": "research"}, "spec": {"resourceGroups": groups}}
    client.create(CapacityReservation.KIND, body)


@pytest.mark.parametrize(
    ("name", "way_out"),
    [
        ("gpus", "no ClusterCapacityReservation 'gpus': write NAMESPACE/NAME to name a CapacityReservation"),
        ("nope/gpus", "no CapacityReservation 'gpus' in namespace 'nope': `kubectl get capacityreservations"),
    ],
)
def test_unknown_reservation_of_a_verb_is_named_with_its_namespace(
    cluster: tuple[Client, str], name: str, way_out: str
) -> None:
    client, kubeconfig = cluster
    install(client)
    error = run("hold", name, "--kubeconfig", kubeconfig).exception
    assert isinstance(error, troubles.EXPECTED_ERRORS) and troubles.format_error(error).startswith(way_out)


@pytest.fixture
def reserved(cluster: tuple[Client, str], monkeypatch: pytest.MonkeyPatch) -> Client:
    """A cluster with the reservation research/gpus, which commands reach without an option."""
    client, kubeconfig = cluster
    monkeypatch.setenv("KUBECONFIG", kubeconfig)
    install(client)
    reserve(client)
    return client


def test_adopt_reports_ids_that_ec2_does_not_show_and_where_to_look_next(reserved: Client) -> None:
    client = reserved
    shown, ended, unknown = (f"cr-0123456789abcdef{n}" for n in range(3))
    for id_, state in ((shown, "active"), (ended, "cancelled")):
        client.create(OnDemandCapacityReservation.KIND, {"metadata": {"name": id_}})
        body = {"status": {"state": state}}
        client.patch(OnDemandCapacityReservation.KIND, id_, body, subresource="status")
    good = run("adopt", "research/gpus", shown)
    assert good.exit_code == 0
    assert "`kubectl describe capacityreservation -n research gpus` shows" in good.stderr
    bad = run("adopt", "research/gpus", shown, ended, unknown, "-o", "json")
    assert bad.exit_code == 1 and bad.stdout == ""
    metadata = client.get(CapacityReservation.KIND, "gpus", namespace="research")["metadata"]
    assert metadata["annotations"] == {"capacity-broker.io/reservation-ids": shown}
    assert f"the broker's last read of EC2 has no reservation {unknown}" in bad.stderr
    assert f"reservation {ended} has ended (cancelled)" in bad.stderr


def test_hold_reports_a_reservation_without_a_queue(reserved: Client) -> None:
    client = reserved
    without_kueue = "the cluster has no Kueue, so research/gpus has no queue that could be held"
    assert without_kueue in run("hold", "research/gpus").stderr
    kueue.install(client)
    assert "no ClusterQueue research--gpus exists" in run("hold", "research/gpus").stderr
    client.create(ClusterQueue.KIND, {"metadata": {"name": "research--gpus"}, "spec": {}})
    assert run("hold", "research/gpus").stderr == ""


@pytest.mark.covers("USR-25")
def test_verbs_change_one_annotation_and_report_it(reserved: Client) -> None:
    client = reserved

    def annotations() -> dict[str, str]:
        obj = client.get(CapacityReservation.KIND, "gpus", namespace="research")
        return dict(obj["metadata"].get("annotations", {}))

    domain, first_id, second_id = "capacity-broker.io", "cr-0123456789abcdef0", "cr-0123456789abcdef1"
    ran = run("hold", "research/gpus", "-o", "json")
    assert json.loads(ran.stdout) == [
        {
            "reservation": "research/gpus",
            "annotation": f"{domain}/stop-policy",
            "before": None,
            "now": "Hold",
        }
    ]
    assert annotations() == {f"{domain}/stop-policy": "Hold"}
    assert run("hold", "research/gpus", "--drain").exit_code == 0
    assert annotations() == {f"{domain}/stop-policy": "HoldAndDrain"}
    assert run("resume", "research/gpus").exit_code == 0
    assert annotations() == {}
    assert run("give-back", "research/gpus").exit_code == 0
    assert run("adopt", "research/gpus", first_id).exit_code == 0
    assert run("adopt", "research/gpus", first_id, second_id).exit_code == 0
    assert annotations() == {
        f"{domain}/deletion-policy": "Cancel",
        f"{domain}/reservation-ids": f"{first_id},{second_id}",
    }
    assert run("adopt", "research/gpus", "--remove", first_id).exit_code == 0
    assert annotations()[f"{domain}/reservation-ids"] == second_id
    with pytest.raises(ValueError, match=f"{first_id} is not among the ids .* adopts: {second_id}"):
        cli.app(["adopt", "research/gpus", "--remove", first_id], standalone_mode=False)
    assert run("adopt", "research/gpus", "--remove", second_id).exit_code == 0
    assert annotations() == {f"{domain}/deletion-policy": "Cancel"}
    with pytest.raises(ValueError, match="'cr-xyz' is no id of EC2"):
        cli.app(["adopt", "research/gpus", "cr-xyz"], standalone_mode=False)


def test_inventory_counts_idle_slots(world: World) -> None:
    result = run("inventory", "--aws-endpoint", world.endpoint, "-o", "json")
    rows = json.loads(result.stdout)
    assert [(row["id"], row["total"], row["free"]) for row in rows] == [(world.odcr, 2, 2)]
    assert rows[0]["usd_hour"] > 50
    table = run("inventory", "--aws-endpoint", world.endpoint).stdout
    head, _line, total = table.splitlines()
    assert head.split()[:3] == ["ID", "TYPE", "ZONE"]
    assert total == f"{ACCOUNT}, {REGION}: 2 of 2 slots idle in 1 reservation; {rows[0]['usd_hour']:.2f} $/h"
    assert "\x1b[" not in table


def test_inventory_counts_no_slots_of_cancelled_reservations(world: World) -> None:
    world.ec2.cancel_capacity_reservation(CapacityReservationId=world.odcr)
    _head, line, total = run("inventory", "--aws-endpoint", world.endpoint).stdout.splitlines()
    assert " cancelled " in line
    assert total == f"{ACCOUNT}, {REGION}: 0 of 0 slots idle in 0 reservations; 0.00 $/h; 1 not active"


def test_crds_are_installed_and_karpenters_own_left_alone(cluster: tuple[Client, str]) -> None:
    client, kubeconfig = cluster
    first = json.loads(run("crds", "install", "--kubeconfig", kubeconfig, "-o", "json").stdout)
    assert {row["did"] for row in first} == {"created"}
    again = json.loads(run("crds", "install", "--kubeconfig", kubeconfig, "-o", "json").stdout)
    assert {row["did"] for row in again} == {"unchanged"}
    karpenters_crd = "nodeclaims.karpenter.sh"
    body = {"metadata": {"annotations": {"capacity-broker.io/managed": None}}}
    before = client.patch(CRD, karpenters_crd, body)["metadata"]["resourceVersion"]
    rows = {row["name"]: row["did"] for row in install(client)}
    assert rows[karpenters_crd] == "kept"
    assert client.get(CRD, karpenters_crd)["metadata"]["resourceVersion"] == before


def test_run_without_a_cluster_name_names_the_option(
    cluster: tuple[Client, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["capacity-broker", "run", "--kubeconfig", cluster[1]])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert (
        "not set, though nodes cannot join without: --cluster-name (CLUSTER_NAME)" in capsys.readouterr().err
    )


def test_no_cluster_is_one_line_and_exit_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "nowhere")
    monkeypatch.setattr("sys.argv", ["capacity-broker", "explain", "claim", "x", "--kubeconfig", missing])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert missing in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (NotFound(404, "NotFound", "404 page not found"), "`capacity-broker crds install` adds"),
        (Forbidden(403, "Forbidden", 'User "x" cannot list nodeclaims'), "bound to a role that allows it"),
        (Forbidden(401, "Unauthorized", "Unauthorized"), "log in to it again, or name another --context"),
        (Unavailable(0, "NewConnectionError", "no answer from the\nAPI server"), "check that it is up"),
        (
            ProviderError(
                "UnauthorizedOperation",
                "You are not authorized",
                class_=ErrorClass.PERMISSION,
                request_id="req-1",
                operation="DescribeCapacityReservations",
            ),
            "(request req-1): let your user or role do DescribeCapacityReservations",
        ),
        (
            ProviderError("InvalidClientTokenId", "The token is invalid", class_=ErrorClass.PERMISSION),
            "AWS does not accept these credentials; --aws-profile names others",
        ),
        (
            ProviderError("Unavailable", "try later", class_=ErrorClass.TRANSIENT),
            "AWS: call: Unavailable",
        ),
    ],
)
def test_external_error_is_one_line_with_a_remedy(error: Exception, words: str) -> None:
    assert isinstance(error, troubles.EXPECTED_ERRORS)
    message = troubles.format_error(error)
    assert words in message
    assert "\n" not in message


@pytest.mark.covers("USR-06")
@pytest.mark.parametrize(
    "code", ["ExpiredToken", "ExpiredTokenException", "RequestExpired", "Client.RequestExpired"]
)
def test_expired_credentials_have_one_way_out(code: str) -> None:
    answer: Any = {"Error": {"Code": code, "Message": "The provided token has expired"}}
    message = troubles.format_error(
        errors.translate(ClientError(answer, "DescribeInstances"), operation="DescribeInstances")
    )
    assert "renew them (aws sso login, or the role of the process)" in message
    assert "let your user or role" not in message and "--aws-profile" not in message


def test_no_credentials_is_one_line_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], aws: LocalAws
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setattr("sys.argv", ["capacity-broker", "inventory", "--aws-endpoint", aws.endpoint])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert "credentials" in capsys.readouterr().err
