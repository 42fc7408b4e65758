"""Karpenter as released, with the broker beside it: both work, and neither touches the other's resources.

The tests share one cluster, and each has a NodePool, a class and instance types of its own. All run without
Karpenter's alpha gates, and with them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import pytest

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.meta import condition, is_true
from broker.commands.crds.install import patch
from broker.kube.errors import NotFound
from broker.kube.identity import cluster_uid
from providers.names import TAG_CLUSTER, TAG_CLUSTER_UID, TAG_EKS_CLUSTER, TAG_NODECLASS
from tests.cluster.account import CLUSTER, A, B
from tests.cluster.objects import reservation_spec
from tests.peers import objects
from tests.peers.objects import ON_DEMAND, RESERVED, Json
from tests.peers.programs import until
from tests.peers.stage import ALPHA, BROKER, KARPENTER, UNPLAYED, Stage, missing

FIELD = "capacityReservationSpec"
# One worker starts the peers, once.
pytestmark = [pytest.mark.peers, pytest.mark.covers("CUR-02")]


@pytest.fixture(scope="module", params=["", ALPHA], ids=["gates off", "alpha gates on"])
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    reason = missing()
    if reason and os.environ.get("CI_REQUIRE_PEERS") == "1":
        pytest.fail(f"CI_REQUIRE_PEERS=1, but {reason}")
    if reason:
        pytest.skip(reason)
    with Stage(gates=request.param) as running:
        yield running


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """A claim of each of the two from one class, and after that, for each, an instance that it must end."""

    odcr: str
    launched: NodeClaim  # by the broker
    karpenters: NodeClaim
    abandoned: Mapping[str, str]  # the program that must end it, to its id


@pytest.fixture(scope="module", autouse=True)
def neighbours(stage: Stage) -> Neighbours:
    """Before every other test, since Karpenter lets an instance without a claim live for half a minute."""
    odcr = stage.aws.odcr("m5.xlarge", A, 1)
    stage.offer(
        objects.node_class("shared", stage.aws, spec=reservation_spec(id_=odcr)),
        objects.node_pool("shared", node_class="shared", types=["m5.xlarge"], capacity=[ON_DEMAND]),
    )
    until(lambda: shown(stage, "shared") == {odcr}, "Karpenter has found the reservation")
    stage.create(objects.claim("launched", node_class="shared", types=["m5.xlarge"]))
    pods(stage, "shared", 1)
    until(lambda: is_true(_claim(stage, "launched"), names.READY), "the broker's claim has a node")
    (karpenters,) = stage.claims("shared")
    return Neighbours(
        odcr=odcr,
        launched=_claim(stage, "launched"),
        karpenters=karpenters,
        abandoned={
            KARPENTER: _abandoned(
                stage,
                {
                    TAG_EKS_CLUSTER: CLUSTER,
                    names.NODEPOOL: "gone",
                    names.NODECLASS_LABEL: "gone",
                },
            ),
            BROKER: _abandoned(
                stage,
                {
                    TAG_CLUSTER: CLUSTER,
                    TAG_CLUSTER_UID: cluster_uid(stage.client),
                    TAG_NODECLASS: "gone",
                },
            ),
        },
    )


def test_karpenter_launches_into_a_reservation_that_its_class_names(stage: Stage) -> None:
    odcr = stage.aws.odcr("m5.large", A, 2)
    stage.offer(
        objects.node_class("named", stage.aws, terms=[{"id": odcr}]),
        objects.node_pool("named", node_class="named", types=["m5.large"]),
    )
    pods(stage, "named", 3)
    assert launches(stage, "named") == [(ON_DEMAND, "", ""), (RESERVED, odcr, odcr), (RESERVED, odcr, odcr)]
    assert stage.aws.free(odcr) == 0


@pytest.mark.covers("KRP-31")
def test_karpenter_launches_into_an_id_that_the_broker_resolved_until_the_reservation_ends(
    stage: Stage,
) -> None:
    odcr = stage.aws.odcr("m5.2xlarge", A, 3)
    advised(stage, "by-id", reservation_spec(id_=odcr), "m5.2xlarge")
    until(lambda: shown(stage, "by-id") == {odcr}, "Karpenter has found the reservation")
    pods(stage, "by-id", 1, cpu="5")
    assert launches(stage, "by-id") == [(RESERVED, odcr, odcr)]

    # It ends with two free slots: nothing more goes there, and running instances run on.
    stage.aws.ec2.cancel_capacity_reservation(CapacityReservationId=odcr)
    until(lambda: not shown(stage, "by-id"), "Karpenter launches into the reservation no more")
    pods(stage, "by-id", 1, cpu="5")
    assert [reserved for _, _, reserved in launches(stage, "by-id")] == ["", ""]
    assert stage.bound("by-id") == 2


@pytest.mark.covers("KRP-31")
def test_karpenter_launches_into_every_member_of_a_group_that_the_broker_resolved(stage: Stage) -> None:
    first, second = stage.aws.odcr("c5.large", A), stage.aws.odcr("c5.large", B)
    group = stage.aws.group(first, second, name="both")
    advised(stage, "by-group", reservation_spec(group=group), "c5.large")
    until(lambda: shown(stage, "by-group") == {first, second}, "Karpenter has found the group's members")
    pods(stage, "by-group", 2)
    assert launches(stage, "by-group") == sorted((RESERVED, odcr, odcr) for odcr in (first, second))


@pytest.mark.covers("KRP-31")
def test_karpenter_launches_into_open_reservations_by_the_broker_s_term(stage: Stage) -> None:
    odcr = stage.aws.odcr("g5.12xlarge", A, criteria="open")
    advised(stage, "by-open", reservation_spec(preference="open"), "g5.12xlarge")
    until(lambda: shown(stage, "by-open") == {odcr}, "Karpenter has found the open reservation")
    pods(stage, "by-open", 1)
    assert launches(stage, "by-open") == [(RESERVED, odcr, odcr)]


@pytest.mark.covers("KRP-31")
def test_karpenter_finds_more_reservations_than_its_list_holds_by_the_broker_s_tag(stage: Stage) -> None:
    odcrs = {stage.aws.odcr("c5.xlarge", A) for _ in range(31)}
    group = stage.aws.group(*odcrs, name="many")
    advised(stage, "by-tag", reservation_spec(group=group), "c5.xlarge")
    until(lambda: shown(stage, "by-tag") == odcrs, "Karpenter has found all 31 members of the group")
    pods(stage, "by-tag", 2, cpu="3")
    launched = launches(stage, "by-tag")
    assert [(type_, labelled == counted) for type_, labelled, counted in launched] == [(RESERVED, True)] * 2
    assert len({counted for _, _, counted in launched} & odcrs) == 2


@pytest.mark.covers("KRP-03")
def test_the_field_in_karpenter_s_own_definition_outlives_an_upgrade_of_it(stage: Stage) -> None:
    # More than needed: Karpenter counts a launch twice if it describes the reservation meanwhile.
    odcr = stage.aws.odcr("g6.12xlarge", A, 9)
    spec = reservation_spec(id_=odcr)
    patch(stage.client)
    body = objects.node_class("by-field", stage.aws)
    body["spec"][FIELD] = spec
    until(lambda: FIELD in stage.would_create(body)["spec"], "the API server serves the field")
    stage.offer(body, objects.node_pool("by-field", node_class="by-field", types=["g6.12xlarge"]))
    until(lambda: shown(stage, "by-field") == {odcr}, "Karpenter has found the reservation")
    pods(stage, "by-field", 1, cpu="30")
    # It is written once every API server can be expected to know the field.
    until(
        lambda: names.ACCEPTED_SPEC in _class(stage, "by-field")["metadata"]["annotations"], "a copy is kept"
    )

    stage.install_karpenter()
    until(lambda: FIELD not in _class(stage, "by-field")["spec"], "the API server serves it no more")
    # The next write by any client takes the value out of etcd.
    stage.client.patch(EC2NodeClass.KIND, "by-field", {"metadata": {"annotations": {"tests/write": "any"}}})
    assert FIELD not in _class(stage, "by-field")["spec"]
    pods(stage, "by-field", 1, cpu="30")
    assert launches(stage, "by-field") == [(RESERVED, odcr, odcr)] * 2

    patch(stage.client)
    until(lambda: _class(stage, "by-field")["spec"].get(FIELD) == spec, "the broker writes the value back")


@pytest.mark.covers("KRP-26")
def test_neither_touches_the_instances_of_the_other(stage: Stage, neighbours: Neighbours) -> None:
    # The program that ended the younger one has read the older ones. A new broker reads at once.
    stage.restart_broker()
    for program, id_ in neighbours.abandoned.items():
        until(partial(_ended, stage, id_), f"{program} ends an instance that is its own and no claim's")

    assert not _ended(stage, neighbours.launched.instance_id)
    assert not _ended(stage, neighbours.karpenters.instance_id)
    assert stage.aws.instance(neighbours.launched.instance_id)["CapacityReservationId"] == neighbours.odcr

    for program, others in ((KARPENTER, neighbours.launched), (BROKER, neighbours.karpenters)):
        written = {w.name for w in stage.plane.writes() if w.user == program and w.on("nodeclaims", "nodes")}
        assert not written & {others.name, _claim(stage, others.name).status.node_name}
        assert others.instance_id not in json.dumps(stage.calls(program, *ON_INSTANCES))
    templates = {
        program: {
            call["params"]["LaunchTemplateName"]
            for call in stage.calls(program, "CreateLaunchTemplate")
            if call["status"] == 200
        }
        for program in (KARPENTER, BROKER)
    }
    assert templates[KARPENTER] and templates[BROKER] and not templates[KARPENTER] & templates[BROKER]
    assert templates[BROKER] <= {*stage.aws.template_names()}  # Karpenter deletes its own after a minute
    assert stage.calls(BROKER, "DeleteLaunchTemplate") == []


def test_karpenter_marks_no_claim_drifted_and_logs_no_error(stage: Stage, neighbours: Neighbours) -> None:
    def reconciles() -> float:
        return stage.karpenter_metric("controller_runtime_reconcile_total", controller="nodeclaim.disruption")

    claims = [claim for claim in stage.claims() if claim.labels.get(names.NODEPOOL)]
    before = reconciles()
    for claim in claims:  # each is read again
        stage.client.patch(NodeClaim.KIND, claim.name, {"metadata": {"annotations": {"tests/look": "again"}}})
    until(lambda: reconciles() >= before + len(claims), "Karpenter has looked at every claim for drift")
    # And it does mark a drifted claim, after those that it read before.
    stage.client.patch(
        NodePool.KIND, "shared", {"spec": {"template": {"metadata": {"labels": {"tests": "changed"}}}}}
    )
    shared = neighbours.karpenters.name
    until(lambda: is_true(_claim(stage, shared), "Drifted"), "Karpenter finds that the NodePool changed")

    drifted = [claim.name for claim in stage.claims() if is_true(claim, "Drifted")]
    assert drifted == [shared]
    assert stage.karpenter_errors() == []
    assert stage.broker_errors() == []


@pytest.mark.covers("KRP-35")
def test_pools_of_both_serve_different_pods_and_a_pod_of_either_gets_one_node(stage: Stage) -> None:
    karpenter_pool = objects.node_pool(
        "theirs", node_class="mixed", types=["p5.48xlarge"], capacity=[ON_DEMAND]
    )
    broker_pool = objects.node_pool("ours", node_class="mixed", types=["p5.48xlarge"], capacity=[ON_DEMAND])
    broker_pool["spec"]["template"]["spec"]["nodeClassRef"]["group"] = names.BROKER
    stage.offer(objects.node_class("mixed", stage.aws), karpenter_pool)
    stage.create(broker_pool)
    until(lambda: stage.usable("theirs") and stage.usable("ours"), "both pools are ready")
    before = len(stage.plane.writes())
    either = objects.pod("either-0", pool="either", requests={"cpu": "100"})
    either["spec"]["nodeSelector"] = {names.INSTANCE_TYPE: "p5.48xlarge"}
    broker_pod = objects.pod("ours-0", pool="ours", requests={"cpu": "100"})
    stage.create(either)  # alone: kube-scheduler would give it any node of the others
    until(lambda: stage.bound("either"), "the pod that both could serve has a node")
    assert [len(stage.claims(pool)) for pool in ("theirs", "ours")] == [1, 0]
    stage.create(objects.pod("theirs-0", pool="theirs", requests={"cpu": "100"}), broker_pod)
    until(lambda: stage.bound("theirs") and stage.bound("ours"), "every pod has a node")

    served = {pool: stage.claims(pool) for pool in ("theirs", "ours")}
    assert {pool: len(claims) for pool, claims in served.items()} == {"theirs": 2, "ours": 1}
    nodes = {claim.status.node_name: pool for pool, claims in served.items() for claim in claims}
    assert [nodes[pod.spec.node_name] for pod in stage.pods("either")] == ["theirs"]
    until(lambda: NodePool.decode(stage.client.get(NodePool.KIND, "ours")).status.nodes == 1, "the count")
    writes = [w for w in stage.plane.writes()[before:] if w.on("nodeclaims", "nodes", "pods")]
    for program, others in ((KARPENTER, "ours"), (BROKER, "theirs")):
        touched = {w.name for w in writes if w.user == program}
        strange = {claim.name for claim in served[others]} | {
            n for n, pool in nodes.items() if pool == others
        }
        strange |= {pod.name for pod in stage.pods(others)}
        assert not touched & strange


@pytest.mark.skipif(
    os.environ.get("KARPENTER") == "1.14", reason="Karpenter 1.14 ends no node before its replacement"
)
@pytest.mark.covers("FUL-06")
def test_slot_that_karpenter_frees_for_its_replacement_is_left_to_it(
    stage: Stage, request: pytest.FixtureRequest
) -> None:
    """Karpenter ends the only node of a full reservation first; a claim of the broker waits for its slot."""
    once(request)
    odcr = stage.aws.odcr("r5.large", A, 1)
    pool = objects.node_pool("full", node_class="full", types=["r5.large"], capacity=[RESERVED])
    pool["spec"]["disruption"]["budgets"] = [{"nodes": "1"}]
    stage.offer(objects.node_class("full", stage.aws, spec=reservation_spec(id_=odcr)), pool)
    until(lambda: shown(stage, "full") == {odcr}, "Karpenter has found the reservation")
    pods(stage, "full", 1)
    (old,) = stage.claims("full")
    stage.create(objects.claim("rival", node_class="full", types=["r5.large"], capacity=[RESERVED]))
    until(lambda: waits(stage, "rival") == "AllReservationsFull", "the broker's claim waits for the slot")
    before = len(stage.calls(BROKER, "CreateFleet"))
    stage.restart_karpenter(gates=ALPHA)
    changed = {"spec": {"template": {"metadata": {"labels": {"tests": "changed"}}}}}
    stage.client.patch(NodePool.KIND, "full", changed)
    until(lambda: replaced(stage, "full", old), "Karpenter has replaced its node")
    assert launches(stage, "full") == [(RESERVED, odcr, odcr)]
    assert len(stage.calls(BROKER, "CreateFleet")) == before
    stage.client.delete(NodeClaim.KIND, "rival")


@pytest.mark.covers("USR-23")
def test_the_terms_count_again_after_karpenter_s_gate_was_off(
    stage: Stage, request: pytest.FixtureRequest
) -> None:
    """The last test: it restarts Karpenter, and its old log would hide errors of the others."""
    once(request)
    odcr = stage.aws.odcr("r5.large", A, 2)
    advised(stage, "gated", reservation_spec(id_=odcr), "r5.large")
    until(lambda: shown(stage, "gated") == {odcr}, "Karpenter has found the reservation")
    pods(stage, "gated", 1)
    stage.restart_karpenter(gates="ReservedCapacity=false")
    pods(stage, "gated", 1)
    # It calls the node in the reservation on-demand as well, though EC2 counts it there.
    demoted = [(ON_DEMAND, "", ""), (ON_DEMAND, "", odcr)]
    until(lambda: launches(stage, "gated") == demoted, "Karpenter knows no capacity type reserved")
    assert _class(stage, "gated")["spec"]["capacityReservationSelectorTerms"] == [{"id": odcr}]
    stage.restart_karpenter(gates="ReservedCapacity=true")
    until(lambda: shown(stage, "gated") == {odcr}, "Karpenter has found the reservation again")
    pods(stage, "gated", 1)
    assert (RESERVED, odcr, odcr) in launches(stage, "gated") and stage.aws.free(odcr) == 0


def once(request: pytest.FixtureRequest) -> None:
    """Skips a test for the first set of gates: it restarts Karpenter with gates of its own."""
    if not request.node.callspec.params["stage"]:
        pytest.skip("restarts Karpenter with gates of its own, and runs once")


def advised(stage: Stage, name: str, spec: Json | None, *types: str) -> None:
    """A class with a reservation spec for the broker, in a NodePool of Karpenter's."""
    stage.offer(
        objects.node_class(name, stage.aws, spec=spec),
        objects.node_pool(name, node_class=name, types=types),
    )


def shown(stage: Stage, name: str) -> set[str]:
    """The reservations that Karpenter itself has found for a class."""
    return {odcr["id"] for odcr in _class(stage, name)["status"].get("capacityReservations", ())}


# EC2's calls that change an instance.
ON_INSTANCES = ("TerminateInstances", "StopInstances", "CreateTags", "DeleteTags", "ModifyInstanceAttribute")


def launches(stage: Stage, pool: str) -> list[tuple[str, str, str]]:
    """Of each claim: its capacity type, its reservation in Karpenter, its reservation in EC2."""
    return sorted(
        (
            claim.labels[names.CAPACITY_TYPE],
            claim.labels.get(names.RESERVATION_ID, ""),
            stage.aws.instance(claim.instance_id).get("CapacityReservationId", ""),
        )
        for claim in stage.claims(pool)
    )


def pods(stage: Stage, pool: str, count: int, *, cpu: str = "1500m") -> None:
    """Pods that only the pool's nodes take, a node each where that has less than twice `cpu`; returns when
    all run."""
    until(lambda: stage.usable(pool), f"Karpenter can launch for NodePool {pool}")
    before = len(stage.pods(pool))
    for number in range(before, before + count):
        stage.create(objects.pod(f"{pool}-{number}", pool=pool, requests={"cpu": cpu}))
    until(lambda: stage.bound(pool) == before + count, f"every pod of {pool} has a node")


def waits(stage: Stage, claim: str) -> str:
    """The reason why a claim of the broker has no instance."""
    launched = condition(_claim(stage, claim).status.conditions, names.LAUNCHED)
    return launched.reason if launched else ""


def replaced(stage: Stage, pool: str, old: NodeClaim) -> bool:
    """Plays the kubelet and the Deployment of the only pod; whether it runs on another node."""
    for pod in stage.pods(pool):
        if pod.deleting:
            with suppress(NotFound):
                stage.client.delete(Pod.KIND, pod.name, namespace="default", grace_period=0)
    if not stage.pods(pool):
        name = f"{pool}-{len(stage.plane.writes())}"
        stage.create(objects.pod(name, pool=pool, requests={"cpu": "1500m"}))
    claims = [claim for claim in stage.claims(pool) if claim.uid != old.uid]
    return len(stage.claims(pool)) == len(claims) == stage.bound(pool) == 1


def _abandoned(stage: Stage, marks: Mapping[str, str]) -> str:
    reply = stage.aws.ec2.run_instances(
        ImageId=stage.aws.image,
        InstanceType="m5.large",
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[
            {
                "ResourceType": "instance",
                "Tags": [{"Key": k, "Value": v} for k, v in {**marks, UNPLAYED: "true"}.items()],
            }
        ],
    )
    return str(reply["Instances"][0]["InstanceId"])


def _class(stage: Stage, name: str) -> Json:
    return stage.client.get(EC2NodeClass.KIND, name)


def _claim(stage: Stage, name: str) -> NodeClaim:
    return NodeClaim.decode(stage.client.get(NodeClaim.KIND, name))


def _ended(stage: Stage, id_: str) -> bool:
    return str(stage.aws.instance(id_)["State"]["Name"]) in ("shutting-down", "terminated")
