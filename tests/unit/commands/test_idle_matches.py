"""`You can`: idle slots beside what waits for one, and never nothing to do while a pod waits."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from broker.apis import names
from broker.apis.capacity_broker import OnDemandCapacityReservation
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.ome import CapacityReservation
from broker.commands.explain.explanation import explain
from broker.commands.explain.parts import of_class, of_reservation
from broker.oncall.pod_reports import PodReport
from broker.oncall.situation import Situation

NOW = datetime(2026, 11, 26, 3, 0, tzinfo=UTC)
A, B, P5 = "us-east-1a", "us-east-1b", "p5.48xlarge"


def mirror(name: str = "cr-1", *, free: int = 1, type_: str = P5, classes: tuple[str, ...] = ("gpu",)) -> Any:
    status = {"type": type_, "zone": A, "total": 4, "available": free, "state": "active"}
    return OnDemandCapacityReservation.decode(
        {"metadata": {"name": name}, "status": status | {"nodeClasses": list(classes)}}
    )


def claim(name: str = "c-0", *, group: str = names.BROKER, draws: str = "", **wanted: Any) -> NodeClaim:
    keys = {"types": names.INSTANCE_TYPE, "zones": names.ZONE, "capacity": names.CAPACITY_TYPE}
    requirements = [{"key": keys[k], "operator": "In", "values": v} for k, v in wanted.items()]
    metadata: dict[str, Any] = {"name": name, "labels": {names.NODEPOOL: "workers"}}
    metadata["annotations"] = {names.DRAWS_FROM: draws} if draws else {}
    ref = {"group": group, "kind": "EC2NodeClass", "name": "gpu"}
    return NodeClaim.decode(
        {"metadata": metadata, "spec": {"requirements": requirements, "nodeClassRef": ref}}
    )


def pool(name: str = "gpus", node_class: str = "gpu", **wanted: str) -> NodePool:
    keys = {"type": names.INSTANCE_TYPE, "zone": names.ZONE, "capacity": names.CAPACITY_TYPE}
    keys |= {"tenancy": names.INSTANCE_TENANCY}
    requirements = [{"key": keys[k], "operator": "In", "values": [v]} for k, v in wanted.items()]
    ref = {"group": names.BROKER, "kind": "EC2NodeClass", "name": node_class}
    spec = {"requirements": requirements, "nodeClassRef": ref}
    status = {"conditions": [{"type": names.READY, "status": "True", "reason": "Ready"}]}
    return NodePool.decode(
        {"metadata": {"name": name}, "spec": {"template": {"spec": spec}}, "status": status}
    )


def tainted(pool: NodePool) -> NodePool:
    wire = pool.wire()
    wire["spec"]["template"]["spec"]["taints"] = [{"key": "team", "value": "other", "effect": "NoSchedule"}]
    return NodePool.decode(wire)


def launched(type_: str = P5, *, pods: str = "", **allocatable: str) -> NodeClaim:
    """A claim of the type with an instance, whose node has these resources."""
    labels = {names.INSTANCE_TYPE: type_, names.ARCH: "amd64", names.ZONE: B}
    room = {"cpu": "190", "memory": "2000Gi", "pods": "100", "nvidia.com/gpu": "8"} | allocatable
    metadata = {"name": "running", "labels": labels, "annotations": {names.PODS: pods} if pods else {}}
    status = {"providerID": "aws:///z/i-1", "allocatable": room}
    ref = {"group": names.BROKER, "kind": "EC2NodeClass", "name": "gpu"}
    return NodeClaim.decode({"metadata": metadata, "spec": {"nodeClassRef": ref}, "status": status})


def requesting(**amounts: str) -> list[dict[str, Any]]:
    given = {"gpu": "nvidia.com/gpu", "efa": "vpc.amazonaws.com/efa"}
    return [{"name": "c", "resources": {"requests": {given.get(k, k): v for k, v in amounts.items()}}}]


def gang(count: int, size: int, **spec: Any) -> list[Pod]:
    marks = {names.GANG: "g", names.GANG_SIZE: str(size)}
    pods = [pod(f"g-{n}", **spec) for n in range(count)]
    for member in pods:
        member.metadata.annotations.update(marks)
    return pods


def pod(name: str = "train", **spec: Any) -> Pod:
    unschedulable = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "no node",
    }
    return Pod.decode(
        {
            "metadata": {"name": name, "namespace": "team", "uid": name},
            "spec": spec,
            "status": {"phase": "Pending", "conditions": [unschedulable]},
        }
    )


def owner(*ids: str) -> CapacityReservation:
    metadata = {"name": "gpus", "namespace": "team"}
    return CapacityReservation.decode(
        {"metadata": metadata, "status": {"cloudReservations": [{"id": id_} for id_ in ids]}}
    )


def commands(situation: Situation) -> dict[str, str]:
    return {row["command"]: row["why"] for row in explain(situation).parts["do"]}


def situation(**more: Any) -> Situation:
    return Situation(now=NOW, mirrors=[mirror()], **more)


def lent(draws: str = "", **rule: str) -> Situation:
    """One slot of `team/gpus` with an instance that draws from `draws`, and a waiting pod of the owner."""
    spec = {"preemptionRule": {"reclaimWithinCohort": rule["reclaim"]}} if rule else {}
    reservation = owner("cr-1")
    reservation = CapacityReservation.decode({**reservation.wire(), "spec": spec})
    running = launched()
    running.metadata.labels[names.RESERVATION_ID] = "cr-1"
    running.metadata.annotations[names.DRAWS_FROM] = draws
    waits = pod()
    waits.metadata.annotations[names.DRAWS_FROM] = "team/gpus"
    pools = [pool()]
    return Situation(
        now=NOW,
        mirrors=[mirror(free=0)],
        claims=[running],
        pods=[waits],
        pools=pools,
        reservations=[reservation],
    )


@pytest.mark.covers("FLT-22")
@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({}, "reclaimWithinCohort is Never"),
        ({"reclaim": "LowerPriority"}, "a borrower of lower priority than what waits gives its slot back"),
        ({"reclaim": "Any"}, "a borrower gives its slot back"),
    ],
)
def test_explain_reservation_names_its_pods_that_wait_while_slots_are_lent(
    rule: dict[str, str], words: str
) -> None:
    subject, part = of_reservation(lent(**rule), "team/gpus")
    ((command, why),) = (
        (row["command"], row["why"]) for row in explain(part, subject).parts["do"] if "lent" in row["why"]
    )
    edits = command == "kubectl edit capacityreservation -n team gpus"
    assert edits == (rule.get("reclaim", "Never") == "Never"), (
        "only the owner's own rule keeps its slots away"
    )
    borrower = "running of priority 0" if rule.get("reclaim") == "LowerPriority" else "running"
    assert f"1 pod of the owner waits (team/train) while 1 slot of team/gpus is lent to {borrower}: " in why
    assert words in why


@pytest.mark.covers("FLT-22")
def test_no_slot_is_promised_back_from_a_claim_of_karpenter() -> None:
    world = lent(reclaim="Any")
    raw = world.claims[0].wire()
    raw["spec"]["nodeClassRef"]["group"] = names.KARPENTER_AWS
    world = replace(world, claims=[NodeClaim.decode(raw)])
    _, part = of_reservation(world, "team/gpus")
    (why,) = (why for why in commands(part).values() if "lent" in why)
    assert "is lent to running: the broker takes no slot back from a claim of Karpenter" in why


@pytest.mark.covers("FLT-22")
def test_several_waiters_of_an_owner_are_named_by_their_kind() -> None:
    situation = lent(reclaim="Any")
    second = pod()
    second.metadata.annotations[names.DRAWS_FROM] = "team/gpus"
    meta = second.metadata.model_copy(update={"name": "more", "uid": "more"})
    pods = [*situation.pods, second.model_copy(update={"metadata": meta})]
    subject, part = of_reservation(replace(situation, pods=pods), "team/gpus")
    (why,) = (row["why"] for row in explain(part, subject).parts["do"] if "lent" in row["why"])
    assert "2 pods of the owner wait (team/" in why and "team/more" in why and "team/train" in why


@pytest.mark.covers("FLT-22")
def test_slots_that_the_owner_uses_itself_are_not_lent() -> None:
    subject, part = of_reservation(lent("team/gpus"), "team/gpus")
    assert not [row for row in explain(part, subject).parts["do"] if "lent" in row["why"]]


@pytest.mark.covers("FLT-54")
@pytest.mark.parametrize(
    ("waits", "command", "between"),
    [
        ({"claims": [claim(zones=[B])]}, "kubectl edit nodepool workers", f"zone may be {B}, not {A}"),
        (
            {"claims": [claim(capacity=["on-demand"])]},
            "kubectl edit nodepool workers",
            "capacity type may be on-demand, not reserved",
        ),
        (
            {"claims": [claim()], "mirrors": [mirror(classes=("other",))]},
            "kubectl edit ec2nodeclass gpu",
            "the target of its class gpu is another reservation",
        ),
        (
            {"claims": [claim()], "reservations": [owner("cr-1")]},
            "capacity-broker explain reservation team/gpus",
            "the slot's owner is team/gpus, and no capacity-broker.io/draws-from names it",
        ),
        (
            {"claims": [claim(draws="team/gpus")], "reservations": [owner("cr-1")]},
            "capacity-broker explain claim c-0",
            "nothing known stands between",
        ),
        (
            {"claims": [claim(group=names.KARPENTER_AWS, zones=[B])]},
            "kubectl edit nodepool workers",
            f"claim of Karpenter c-0 could have a slot of cr-1 (1 free slot, {P5} in {A}): its zone",
        ),
        (
            {"pods": [pod(nodeSelector={names.ZONE: B})], "pools": [pool()]},
            "kubectl get pod -n team train -o yaml",
            f"pod team/train excludes by selector or affinity the slot of cr-1 (1 free slot, {P5} in {A}): "
            f"its zone may be {B}",
        ),
        (
            {"pods": [pod()], "pools": [pool(zone=B)]},
            "kubectl edit nodepool gpus",
            f"the NodePool's zone may be {B}, not {A}",
        ),
        (
            {"pods": [pod()], "pools": [pool(zone=B), pool("near", zone=A)]},
            "capacity-broker explain pod -n team train",
            "nothing known stands between",
        ),
        (
            {"pods": [pod()], "pools": [pool(node_class="cpu")]},
            "kubectl edit ec2nodeclass cpu",
            "the target of its class cpu is another reservation",
        ),
        (
            {"pods": [pod(nodeSelector={names.ZONE: A})], "pools": [pool(zone=B)]},
            "capacity-broker explain pod -n team train",
            "no NodePool accepts it: NodePool gpus: ",
        ),
        (
            {"pods": [pod()], "mirrors": [mirror(classes=())]},
            "capacity-broker explain pod -n team train",
            "it is the target of no EC2NodeClass",
        ),
        (
            {"pods": [pod(schedulingGates=[{"name": "kueue.x-k8s.io/admission"}])]},
            "capacity-broker explain pod -n team train",
            "it waits for its scheduling gate kueue.x-k8s.io/admission",
        ),
        (
            {"pods": gang(2, 3)},
            "capacity-broker explain pod -n team g-0",
            "gang team/g has 2 of 3 pods: it gets room once all of them exist",
        ),
        (
            {
                "pods": gang(3, 3, containers=requesting(gpu="8")),
                "claims": [launched()],
                "pools": [pool()],
            },
            "capacity-broker explain pod -n team g-0",
            "3 pods team/g-0, team/g-1, team/g-2 could have a slot of cr-1 "
            f"(1 free slot, {P5} in {A}): its gang needs 3 slots at once",
        ),
        (
            {
                "pods": gang(3, 3, containers=requesting(gpu="2")),
                "claims": [launched()],
                "pools": [pool()],
            },
            "capacity-broker explain pod -n team g-0",
            "nothing known stands between",
        ),
        (
            {"pods": [pod(containers=requesting(gpu="8", efa="4"))], "claims": [launched()]},
            "capacity-broker explain pod -n team train",
            f"{P5} has too little vpc.amazonaws.com/efa",
        ),
    ],
)
def test_an_idle_slot_is_matched_with_what_waits(waits: Any, command: str, between: str) -> None:
    rows = explain(replace(situation(), **waits)).parts["do"]
    assert [row for row in rows if row["command"] == command and between in row["why"]], rows


@pytest.mark.covers("FLT-54")
@pytest.mark.parametrize(
    ("waits", "between"),
    [
        ({"pods": [pod(schedulingGates=[{"name": "example.com/later"}])]}, "its scheduling gate"),
        ({"pods": gang(2, 3)}, "gang team/g has 2 of 3 pods"),
        ({"pods": [pod(containers=requesting(efa="4"))]}, f"{P5} has too little"),
        (
            {
                "pods": [pod()],
                "reports": {"train": PodReport('persistentvolumeclaim "data" not found', held=True)},
            },
            'persistentvolumeclaim "data" not found',
        ),
        (
            {"pods": [pod()], "pools": [tainted(pool(node_class="cpu"))]},
            "no NodePool accepts it: NodePool",
        ),
    ],
    ids=["gate", "gang", "resource", "volume", "taint"],
)
def test_no_class_is_edited_for_pods_that_a_slot_does_not_help(waits: Any, between: str) -> None:
    """They are named with what holds them up, after a pod that the slot helps."""
    around = {"pools": [pool(node_class="cpu")], "claims": [launched()]} | waits
    rows = explain(replace(situation(), **around)).parts["do"]
    assert not [row for row in rows if "kubectl edit" in row["command"]], rows
    (row,) = [row for row in rows if "could have a slot" in row["why"]]
    assert row["command"].startswith("capacity-broker explain pod -n team ") and between in row["why"]
    helped = pod("web", tolerations=[{"operator": "Exists"}])
    pools = [*around["pools"], tainted(pool("web", node_class="cpu"))]
    more = replace(situation(), **around | {"pods": [*waits["pods"], helped], "pools": pools})
    first, last = more.matches
    assert first.named == "pod team/web" and first.command == "kubectl edit ec2nodeclass cpu"
    assert between in last.why


@pytest.mark.covers("FLT-54")
def test_an_owner_is_not_advised_to_read_what_it_reads() -> None:
    whole = replace(situation(), reservations=[owner("cr-1")], claims=[claim()])
    subject, part = of_reservation(whole, "team/gpus")
    rows = explain(part, subject).parts["do"]
    assert "capacity-broker explain reservation team/gpus" not in [row["command"] for row in rows]
    (row,) = [row for row in rows if "could have a slot" in row["why"]]
    assert row["command"] == "capacity-broker explain claim c-0"


@pytest.mark.covers("FLT-54")
@pytest.mark.parametrize(
    "waits",
    [
        {"claims": [claim(types=["m5.large"])]},
        {"pods": [pod(nodeSelector={names.INSTANCE_TYPE: "m5.large"})]},
        {
            "pods": [pod(containers=[{"name": "c", "resources": {"requests": {"nvidia.com/gpu": "8"}}}])],
            "mirrors": [mirror(type_="m5.large")],
        },
        {"pods": [pod(containers=requesting(gpu="9"))], "claims": [launched()]},
        {"pods": [pod(containers=requesting(cpu="191"))], "claims": [launched()]},
        {"pods": [pod(nodeSelector={names.ARCH: "arm64"})], "claims": [launched()]},
        {"pods": [pod()], "pools": [pool(type="m5.large")]},
    ],
)
def test_a_slot_of_another_type_is_matched_with_nothing(waits: Any) -> None:
    why = commands(replace(situation(), **waits))
    assert not [text for text in why.values() if "could have" in text]
    assert "of another type than all that waits takes" in why["capacity-broker idle"]


@pytest.mark.covers("FLT-54")
@pytest.mark.parametrize("part", ["cluster", "class"])
@pytest.mark.parametrize(
    "waits",
    [
        {"pods": [pod()]},
        {"claims": [claim(group=names.KARPENTER_AWS)]},
        {"claims": [claim()]},
        {"claims": [launched(pods="team/train")], "pods": [pod()]},
    ],
    ids=["pod without a claim", "Karpenter's claim", "claim", "pod of a launched claim"],
)
def test_something_can_be_done_while_a_pod_waits(waits: Any, part: str) -> None:
    """Also without an idle slot and without a shortage."""
    whole = Situation(now=NOW, classes=[EC2NodeClass.decode({"metadata": {"name": "gpu"}})], **waits)
    subject = None
    if part == "class":
        subject, whole = of_class(whole, "gpu")
    explanation = explain(whole, subject)
    assert explanation.parts["do"] and (explanation.parts["waiting"] or explanation.parts["pods"])


@pytest.mark.covers("FLT-54")
def test_part_matches_its_slots_with_all_that_waits() -> None:
    """Also a pod that draws from nothing, for a reservation without one of its own."""
    whole = replace(situation(), reservations=[owner("cr-1")], pods=[pod()], claims=[claim()])
    subject, part = of_reservation(whole, "team/gpus")
    texts = [row["why"] for row in explain(part, subject).parts["do"]]
    assert [text for text in texts if "pod team/train could have a slot of cr-1" in text]
    assert [text for text in texts if "claim c-0 could have a slot of cr-1" in text]


@pytest.mark.covers("FLT-54")
def test_reservation_without_a_slot_names_the_pods_that_wait_for_something_else() -> None:
    foreign = CapacityReservation.decode({"metadata": {"name": "gpus", "namespace": "other"}})
    subject, part = of_reservation(Situation(now=NOW, reservations=[foreign], pods=[pod()]), "other/gpus")
    assert {row["why"] for row in explain(part, subject).parts["do"]} >= {"1 pod waits for something else"}


@pytest.mark.covers("FLT-54")
def test_pods_of_a_claim_are_not_without_one() -> None:
    served, bound = pod("served"), pod("bound", nodeName="n")
    with_pods = NodeClaim.decode(
        {"metadata": {"name": "c-1", "annotations": {names.PODS: "team/served"}}, "spec": {}}
    )
    new = Pod.decode({"metadata": {"name": "new", "namespace": "team"}})
    given = [served, bound, pod("alone"), new]
    waiters = Situation(now=NOW, claims=[with_pods], pods=given).waiters
    assert [waiter.name for waiter in waiters] == ["c-1", "team/alone", "team/new"]
