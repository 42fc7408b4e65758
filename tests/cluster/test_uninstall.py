"""`capacity-broker uninstall` leaves nothing of the broker in Kubernetes and only listed resources in EC2."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from broker import cli
from broker.apis import names
from broker.apis.capacity_broker import OnDemandCapacityReservation
from broker.apis.coordination import Lease
from broker.apis.core import ConfigMap, Node, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.kueue import AdmissionCheck, ClusterQueue, LocalQueue, ResourceFlavor
from broker.apis.ome import CapacityReservation
from broker.apis.policy import PodDisruptionBudget
from broker.commands.uninstall import leftovers_kube
from broker.commands.uninstall.leftovers import Removal, RemovalPlan, apply
from broker.commands.uninstall.removal import account_of, find
from broker.controllers.advisor.terms import Record, tag_key
from broker.controllers.lifecycle.registration import MARK
from broker.kube import identity
from broker.kube.client import Client, Request
from broker.kube.clock import SystemClock
from broker.kube.errors import Forbidden, Unavailable
from broker.placement.pool_choice import SERVED
from broker.scheduler import SCHEDULER_LEASE
from broker.text import format_micros
from local.kube import Cluster
from providers.names import TAG_CLUSTER, TAG_CLUSTER_UID
from tests.cluster import test_provisioning as provisioning
from tests.cluster.account import ACCOUNT, CLUSTER, REGION, A
from tests.cluster.conftest import ServedStack
from tests.cluster.karpenter import LIST, pool, terms, until_terms
from tests.cluster.objects import PROFILE
from tests.cluster.ome.bought import broker_odcrs, h100, reservation_body
from tests.cluster.stack import Stack
from tests.cluster.taps import writes_of
from tests.cluster.test_prometheus import led
from tests.kueue.definitions import install

NOW = "2026-11-01T12:00:00Z"
OTHER = "11111111-2222-4333-8444-555555555555"  # the UID of another cluster


@dataclass(frozen=True)
class Installed:
    """A stack, and its kubeconfig for commands."""

    stack: Stack
    kubeconfig: str
    server: Cluster

    def run(self, *arguments: str) -> Result:
        where = ("--kubeconfig", self.kubeconfig, "--aws-endpoint", self.stack.server.endpoint)
        return CliRunner().invoke(cli.app, [*arguments, *where])

    def uninstall(self, *arguments: str) -> dict[str, Any]:
        result = self.run("uninstall", "-o", "json", *arguments)
        assert result.stdout, (result.exception, result.stderr)
        return dict(json.loads(result.stdout))

    def objects(self) -> list[dict[str, Any]]:
        """Every object of the API server, without definitions and events."""
        client = self.stack.client
        groups = client.raw("GET", "/apis")["groups"]
        versions = ["/api/v1"] + [f"/apis/{g['preferredVersion']['groupVersion']}" for g in groups]
        return [
            item
            for version in versions
            for resource in client.raw("GET", version)["resources"]
            if "list" in resource["verbs"] and resource["name"] not in ("customresourcedefinitions", "events")
            for item in client.raw("GET", f"{version}/{resource['name']}")["items"] or ()
        ]


@pytest.fixture
def installed(served: ServedStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installed:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("AWS_REGION", REGION)
    return Installed(served.stack, served.kubeconfig, served.server)


def facts(stack: Stack) -> dict[str, str]:
    uid = identity.cluster_uid(stack.client)
    return {"clusterUID": uid, "clusterName": CLUSTER, "accountID": ACCOUNT, "region": REGION}


def used(installed: Installed) -> str:
    """Every trace that a broker leaves; returns the reservation of the class. The broker is stopped."""
    stack = installed.stack
    odcr = stack.aws.odcr("m5.large", A, 2)
    install(stack.client)
    identity.pin(stack.client, facts(stack))
    stack.client.create(ResourceFlavor.KIND, h100())
    stack.client.create(CapacityReservation.KIND, reservation_body(2))
    stack.node_class(id_=odcr, instanceProfile=None, role=PROFILE)
    pool(stack)
    stack.start(buy_dollars=1000.0)
    stack.claim("c-0", zones=(A,))
    stack.until_ready("c-0")
    until_terms(stack, {"id": odcr})
    stack.until(lambda: broker_odcrs(stack.aws.ec2), "the broker has bought")
    stack.until(lambda: len(stack.all(OnDemandCapacityReservation)) == 2, "both are mirrored")
    stack.until(lambda: stack.all(ClusterQueue), "the queue is there")
    stack.until(lambda: stack.all(LocalQueue), "its local queue is there")
    stack.until(lambda: stack.all(AdmissionCheck), "the check is there")
    stack.stop()
    stack.kubelets.stop()  # they take an instance without the cluster's tag for ended
    return odcr


def finalizers(installed: Installed) -> list[str]:
    return [
        finalizer
        for item in installed.objects()
        for finalizer in item["metadata"].get("finalizers", [])
        if names.BROKER in finalizer or "karpenter.sh" in finalizer
    ]


def marked(installed: Installed) -> dict[str, list[str]]:
    """Objects with an annotation or label of the broker's domain that no user wrote."""
    by_user = {names.RESERVATION_POLICY, names.RESERVATION_SPEC}
    annotations = {}
    for item in installed.objects():
        metadata = item["metadata"]
        keys = {*metadata.get("annotations", {}), *metadata.get("labels", {})}
        if left := sorted(key for key in keys - by_user if key.startswith(f"{names.BROKER}/")):
            annotations[f"{item.get('kind')}/{metadata['name']}"] = left
    return annotations


def tagged(stack: Stack) -> dict[str, set[str]]:
    """The tags of the broker by resource. Local AWS keeps those of deleted templates and fleets."""
    keys: dict[str, set[str]] = {}
    for tag in stack.aws.ec2.describe_tags()["Tags"]:
        if tag["Key"].startswith(f"{names.BROKER}/") and not tag["ResourceId"].startswith(("fleet-", "lt-")):
            keys.setdefault(tag["ResourceId"], set()).add(tag["Key"])
    return keys


@pytest.mark.covers("USR-23")
def test_uninstall_leaves_nothing_of_the_broker_and_ends_nothing(installed: Installed) -> None:
    stack = installed.stack
    odcr = used(installed)
    # Of another cluster with the same name.
    foreign = stack.aws.odcr("c5.large", A, 1)
    foreign_tags = [
        {"Key": TAG_CLUSTER, "Value": CLUSTER},
        {"Key": TAG_CLUSTER_UID, "Value": OTHER},
    ]
    stack.aws.ec2.create_tags(Resources=[foreign], Tags=foreign_tags)
    alive = stack.aws.instances()
    (bought,) = broker_odcrs(stack.aws.ec2)

    planned = installed.uninstall()  # without --yes
    assert not planned["removed"] and {row["result"] for row in planned["rows"]} == {"dry run"}
    assert terms(stack) == [{"id": odcr}] and finalizers(installed)

    done = installed.uninstall("--yes")
    results = {row["kind"]: row["result"] for row in done["rows"]}
    # The instance would lose its credentials without the profile.
    assert results.pop("instance profile").startswith("stays: an instance runs with it")
    assert set(results.values()) == {"done"}, done
    assert [dict(row, result="") for row in done["rows"]] == [dict(row, result="") for row in planned["rows"]]

    assert finalizers(installed) == [] and marked(installed) == {}
    for model in (OnDemandCapacityReservation, ClusterQueue, LocalQueue, AdmissionCheck):
        assert stack.all(model) == []
    assert [m.name for m in stack.all(ConfigMap) if m.name.startswith("capacity-broker")] == []
    assert terms(stack) == []
    conditions = {c.type for c in stack.get(EC2NodeClass, "gpu").status.conditions}
    assert not {c for c in conditions if "eservation" in c or c == names.LAUNCHABLE}

    assert stack.aws.instances(own_only=False) and [
        i["InstanceId"] for i in stack.aws.instances(own_only=False)
    ] == [i["InstanceId"] for i in alive]
    assert tagged(stack) == {foreign: {TAG_CLUSTER, TAG_CLUSTER_UID}}
    assert stack.aws.template_names() == []
    assert stack.aws.groups.list_groups()["GroupIdentifiers"] == []
    stays = {(row["kind"], row["name"]): row["command"] for row in done["stays"]}
    instance, reservation = alive[0]["InstanceId"], bought["CapacityReservationId"]
    assert stays[("NodeClaim", "c-0")] == "kubectl delete nodeclaim c-0"
    assert stays[("instance", instance)] == (
        f"aws ec2 terminate-instances --instance-ids {instance} --region {REGION}"
    )
    assert stays[("reservation", reservation)] == (
        f"aws ec2 cancel-capacity-reservation --capacity-reservation-id {reservation} --region {REGION}"
    )

    # Without an owner the Node outlives its claim, with its pods.
    stack.delete(NodeClaim, "c-0")
    stack.until_gone(NodeClaim, "c-0")
    (node,) = stack.all(Node)
    assert node.metadata.owner_references == ()

    again = ("--yes", "--cluster-name", CLUSTER)
    assert [row["kind"] for row in installed.uninstall(*again)["rows"]] == ["instance profile"]
    stack.aws.ec2.terminate_instances(InstanceIds=[instance])
    assert [row["result"] for row in installed.uninstall(*again)["rows"]] == ["done"]
    assert installed.uninstall(*again)["rows"] == []


@pytest.mark.covers("USR-23")
def test_uninstall_reopens_nodes_that_drain_and_leaves_no_pool_ready(installed: Installed) -> None:
    """The drain waits for a budget. Nothing would end it, or evict the pod, without a broker."""
    stack = installed.stack
    identity.pin(stack.client, facts(stack))
    stack.node_class(id_=stack.aws.odcr("m5.large", A, 1))
    provisioning.pool(stack)
    karpenters = pool(stack, "karpenters")
    provisioning.start(stack)
    app = {"app": "web"}
    provisioning.pods(stack, 1, labels=app, spec={"nodeSelector": {names.NODEPOOL: provisioning.POOL}})
    stack.until(lambda: provisioning.bound(stack, ["p-0"]), "the pod runs", step=0.5)
    running = {"status": {"phase": "Running"}}
    stack.client.patch(Pod.KIND, "p-0", running, namespace="default", subresource="status")
    budget = {"minAvailable": 1, "selector": {"matchLabels": app}}
    meta = {"name": "web", "namespace": "default"}
    stack.client.create(PodDisruptionBudget.KIND, {"metadata": meta, "spec": budget})
    (claim,) = stack.all(NodeClaim)
    stack.until_ready(claim.name)
    stack.delete(NodeClaim, claim.name)
    label = names.NODE_NO_BALANCERS
    stack.until(lambda: [n for n in stack.all(Node) if n.disrupted and label in n.labels], "the node drains")
    other = {"type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": NOW}
    missing = {**other, "type": SERVED, "status": "False", "reason": "ControllerNotFound"}
    shown = {"status": {"conditions": [other, missing]}}
    stack.client.patch(NodePool.KIND, karpenters, shown, subresource="status")
    stack.stop()
    stack.kubelets.stop()
    (node,) = stack.all(Node)
    closed = [{"key": taint.key, "effect": taint.effect} for taint in node.spec.taints]
    taints = [*closed, {"key": names.REBOOTING_TAINT, "effect": "NoSchedule"}]
    stack.client.patch(Node.KIND, node.name, {"spec": {"taints": taints}})

    installed.uninstall("--yes")
    (node,) = stack.all(Node)
    assert not node.spec.taints and label not in node.labels
    assert stack.get(Pod, "p-0", namespace="default").spec.node_name == node.name
    assert stack.get(NodePool, provisioning.POOL).status.conditions == ()
    assert [item.type for item in stack.get(NodePool, karpenters).status.conditions] == ["Ready"]


def left_behind(installed: Installed) -> str:
    """Two classes and a tagged reservation, as a broker leaves them. Returns the reservation's id."""
    stack = installed.stack
    identity.pin(stack.client, facts(stack))
    odcr = stack.aws.odcr("m5.large", A, 1)
    for name in ("bad", "gpu"):
        stack.node_class(name, id_=odcr)
        held = {"metadata": {"finalizers": [names.CLASS_FINALIZER]}}
        stack.edit(EC2NodeClass, name, held)
    record = Record(terms=({"id": odcr},), request=odcr).dump()
    advised = {
        "metadata": {"annotations": {names.ADVISED: record}},
        "spec": {LIST: [{"id": "cr-1"}, {"id": odcr}]},
    }
    stack.edit(EC2NodeClass, "gpu", advised)
    own_tags = {TAG_CLUSTER: CLUSTER, TAG_CLUSTER_UID: facts(stack)["clusterUID"]}
    stack.aws.ec2.create_tags(Resources=[odcr], Tags=[{"Key": k, "Value": v} for k, v in own_tags.items()])
    return odcr


@pytest.mark.covers("USR-23")
def test_a_failed_removal_stops_no_other_and_names_the_missing_right(installed: Installed) -> None:
    stack = installed.stack
    odcr = left_behind(installed)
    stack.control.fault(action="DeleteTags", code="UnauthorizedOperation", message="You may not.", status=403)

    def forbid(_: Request) -> None:
        raise Forbidden(403, "Forbidden", 'User "me" cannot patch resource "ec2nodeclasses"')

    stack.tap.on(writes_of("ec2nodeclasses", "bad"), forbid, times=-1)
    client, provider = Client(stack.tap), stack.provider()
    account = account_of(client, lambda *_: provider, cluster="", region="")
    rows = list(find(client, account, keep_terms=False).rows(do=True))
    failed = {row["name"]: row["result"] for row in rows if row["result"].startswith("failed")}
    assert sorted(failed) == sorted(("bad", odcr))
    assert 'cannot patch resource "ec2nodeclasses"' in failed["bad"] and "DeleteTags" in failed[odcr]
    assert stack.get(EC2NodeClass, "gpu").metadata.finalizers == ()
    assert terms(stack) == [{"id": "cr-1"}]  # a user's own
    # The guards of the rest stay until everything else is gone.
    assert rows[-1]["result"].startswith("kept") and stack.get(
        ConfigMap, identity.NAME, namespace=identity.NAMESPACE
    )
    assert installed.run("uninstall", "--yes").exit_code == 0
    assert finalizers(installed) == [] and tagged(stack) == {}
    assert stack.find(ConfigMap, identity.NAME, namespace=identity.NAMESPACE) is None


def machine(stack: Stack, name: str, *, group: str) -> None:
    """A claim with an instance, and its Node with the broker's mark."""
    provider_id, held = f"aws:///us-east-1a/i-{name}", [names.TERMINATION_FINALIZER]
    spec = {"nodeClassRef": {"group": group, "kind": "EC2NodeClass", "name": "gpu"}, "requirements": []}
    claim = {"metadata": {"name": name, "finalizers": held}, "spec": spec}
    uid = stack.client.create(NodeClaim.KIND, claim)["metadata"]["uid"]
    stack.client.patch(NodeClaim.KIND, name, {"status": {"providerID": provider_id}}, subresource="status")
    owner = {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "name": name, "uid": uid}
    metadata = {"name": name, "finalizers": held, "annotations": {MARK: "1"}, "ownerReferences": [owner]}
    stack.client.create(Node.KIND, {"metadata": metadata, "spec": {"providerID": provider_id}})


@pytest.mark.parametrize("resource", ["nodeclaims", "nodes"])
def test_nodes_and_claims_stay_as_they_are_if_one_of_both_cannot_be_listed(
    installed: Installed, resource: str
) -> None:
    """Without the claims, the Node of a claim of Karpenter's looks like the broker's."""
    stack = installed.stack
    machine(stack, "karpenters", group="karpenter.k8s.aws")
    machine(stack, "brokers", group=names.BROKER)

    def fail(_: Request) -> None:
        raise Unavailable(503, "ServiceUnavailable", "etcd is away")

    def removed() -> list[Removal]:
        plan = RemovalPlan()
        leftovers_kube.find(Client(stack.tap), plan, keep_terms=False)
        return plan.removals

    stack.tap.on(lambda r: r.method == "GET" and r.path.endswith(f"/{resource}"), fail, times=-1)
    (row,) = removed()
    assert (row.kind, row.action) == ("Node, NodeClaim", "list")
    assert "etcd is away" in row.error and "run the command again" in row.error
    stack.tap.heal()
    # A deleting claim takes along the Node that it owns, so the Node loses its owner first.
    assert [(removal.kind, removal.name) for removal in removed()] == [
        ("Node", "brokers"),
        ("Node", "karpenters"),
        ("NodeClaim", "brokers"),
    ]
    assert {apply(removal) for removal in removed()} == {"done"}
    karpenters, brokers = stack.get(Node, "karpenters").metadata, stack.get(Node, "brokers").metadata
    assert karpenters.finalizers == (names.TERMINATION_FINALIZER,) and len(karpenters.owner_references) == 1
    assert brokers.finalizers == () == brokers.owner_references


@pytest.mark.covers("USR-23")
def test_uninstall_refuses_while_a_broker_leads_and_in_another_account(installed: Installed) -> None:
    stack = installed.stack
    left_behind(installed)
    with led(stack):
        refused = installed.run("uninstall", "--yes")
        assert isinstance(refused.exception, ValueError) and "replica-0" in str(refused.exception)
        assert "leads" in installed.run("uninstall").stderr
        assert finalizers(installed)
        assert installed.run("uninstall", "--yes", "--force").exit_code == 0
    assert finalizers(installed) == []
    renewed = format_micros(SystemClock().now())
    spec = {"holderIdentity": "scheduler-0", "leaseDurationSeconds": 15, "renewTime": renewed}
    body = {"metadata": {"name": SCHEDULER_LEASE, "namespace": identity.NAMESPACE}, "spec": spec}
    stack.client.create(Lease.KIND, body)
    assert "scheduler-0 leads" in str(installed.run("uninstall", "--yes").exception)
    assert installed.run("uninstall", "--yes", "--force").exit_code == 0
    assert stack.find(Lease, SCHEDULER_LEASE, namespace=identity.NAMESPACE) is None
    identity.pin(stack.client, facts(stack) | {"region": "eu-west-1"})
    other = installed.run("uninstall", "--yes", "--region", REGION)
    assert "region is 'us-east-1', but the broker of this cluster had 'eu-west-1'" in str(other.exception)


@pytest.mark.covers("USR-23")
def test_uninstall_can_leave_the_selector_terms_to_karpenter(installed: Installed) -> None:
    stack = installed.stack
    odcr = left_behind(installed)
    key = tag_key(CLUSTER, "gpu")
    stack.aws.ec2.create_tags(Resources=[odcr], Tags=[{"Key": key, "Value": "gpu"}])
    done = installed.uninstall("--yes", "--keep-terms")
    assert terms(stack) == [{"id": "cr-1"}, {"id": odcr}]
    assert names.ADVISED not in stack.get(EC2NodeClass, "gpu").annotations
    assert tagged(stack) == {odcr: {key}}
    assert [row["command"] for row in done["stays"] if row["kind"] == "tag"] == [
        f"aws ec2 delete-tags --resources {odcr} --tags Key={key} --region {REGION}"
    ]
