"""`You can`: a pod is offered only slots that it can use, and the change is named at the narrowest object."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker.apis import names
from broker.apis.capacity_broker import OnDemandCapacityReservation
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.capacity.successors import HOLD
from broker.commands.explain.explanation import explain
from broker.controllers.left_slots import slots_of_claims
from broker.oncall import idle_matches as module
from broker.oncall.pod_reports import PodReport
from broker.oncall.situation import Situation
from broker.oncall.state import is_brokers
from broker.text import format_time
from providers.model import Gpu, InstanceType

from .test_idle_matches import NOW, P5, A, B, claim, commands, launched, lent, mirror, pod, pool, tainted

GPUS = (Gpu(name="H100", manufacturer="NVIDIA", count=8, memory_mib=81920),)
TYPES = {P5: InstanceType(name=P5, vcpus=192, memory_mib=2097152, gpus=GPUS)}


def in_zone(name: str, zone: str) -> OnDemandCapacityReservation:
    document = mirror(name).wire()
    document["status"]["zone"] = zone
    return OnDemandCapacityReservation.decode(document)


def of_deployment(name: str, **spec: Any) -> Pod:
    document = pod(f"{name}-6d4b-x", **spec).wire()
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"{name}-6d4b", "uid": name}
    document["metadata"] |= {"labels": {"pod-template-hash": "6d4b"}, "ownerReferences": [owner]}
    return Pod.decode(document)


def do(**objects: Any) -> list[tuple[str, str]]:
    kept = slots_of_claims(objects.get("claims", ()), NOW, owns=is_brokers)
    given = {"mirrors": [mirror()], "types": TYPES, "inventory": kept, **objects}
    return [(r["command"], r["why"]) for r in explain(Situation(now=NOW, **given)).parts["do"]]


def successor() -> NodeClaim:
    """It has a slot of `cr-1` by name."""
    document = claim("next").wire()
    hold = {names.REPLACES: "old/uid", names.TAKES_SLOT: f"cr-1/{format_time(NOW + HOLD)}"}
    document["metadata"] |= {"uid": "next", "annotations": hold}
    return NodeClaim.decode(document)


def ended_for_another() -> NodeClaim:
    """A claim of Karpenter that leaves its slot of `cr-1` to its replacement."""
    document = claim("old", group=names.KARPENTER_AWS).wire()
    labels = {names.NODEPOOL: "theirs", names.RESERVATION_ID: "cr-1"}
    document["metadata"] |= {"uid": "old", "labels": labels, "deletionTimestamp": format_time(NOW)}
    drifted = {"type": names.DISRUPTION_REASON, "status": "True", "reason": "Drifted"}
    document["status"] = {"providerID": "aws:///z/i-9", "conditions": [drifted]}
    return NodeClaim.decode(document)


def texts(rows: list[tuple[str, str]], words: str) -> list[str]:
    return sorted(text for _, why in rows for text in why.split("; ") if words in text)


@pytest.mark.covers("ONC-01", "FLT-54")
def test_each_of_two_pods_is_offered_the_slot_of_its_own_zone() -> None:
    near, far = pod("near", nodeSelector={names.ZONE: A}), pod("far", nodeSelector={names.ZONE: B})
    rows = do(pods=[near, far], pools=[pool()], mirrors=[in_zone("cr-a", A), in_zone("cr-b", B)])
    offered = [text.partition(" (")[0] for text in texts(rows, "could have")]
    assert offered == ["pod team/far could have a slot of cr-b", "pod team/near could have a slot of cr-a"]
    assert not texts(rows, "exclude")


@pytest.mark.covers("ONC-01", "FLT-54")
@pytest.mark.parametrize(
    ("selector", "words"),
    [
        ({names.ZONE: B}, f"its zone may be {B}, not {A}"),
        ({names.CAPACITY_TYPE: "on-demand"}, "its capacity type may be on-demand, not reserved"),
    ],
)
def test_pod_whose_own_selector_excludes_the_slot_is_to_edit_its_workload(
    selector: dict[str, str], words: str
) -> None:
    rows = do(pods=[of_deployment("web", nodeSelector=selector)], pools=[pool()])
    assert not texts(rows, "could have")
    (why,) = [why for command, why in rows if command == "kubectl edit deployment -n team web"]
    assert "excludes by selector or affinity" in why and words in why
    assert not [command for command, _ in rows if "nodepool" in command or "ec2nodeclass" in command]


@pytest.mark.covers("ONC-01", "FLT-54")
@pytest.mark.parametrize(
    "selector", [{names.INSTANCE_TYPE: "m5.large"}, {names.ARCH: "arm64"}, {names.INSTANCE_FAMILY: "m5"}]
)
def test_slot_of_a_type_that_the_pod_excludes_is_not_named_at_all(selector: dict[str, str]) -> None:
    rows = do(pods=[of_deployment("web", nodeSelector=selector)], pools=[pool()])
    assert not texts(rows, "could have") and not texts(rows, "exclude")


@pytest.mark.covers("ONC-01")
def test_class_that_other_pools_use_too_is_named_with_them() -> None:
    alone = do(pods=[pod()], pools=[pool(node_class="cpu")])
    shared = do(
        pods=[pod(nodeSelector={names.NODEPOOL: "gpus"})],
        pools=[pool(node_class="cpu"), pool("web", "cpu"), pool("batch", "cpu"), pool("other", "else")],
    )
    for rows, words in (
        (alone, "the target of its class cpu is another reservation"),
        (shared, "its class cpu (also used by NodePools batch, web) is another reservation"),
    ):
        (why,) = [why for command, why in rows if command == "kubectl edit ec2nodeclass cpu"]
        assert words in why


@pytest.mark.covers("ONC-01", "FLT-54")
@pytest.mark.parametrize(
    ("pool_zone", "command"),
    [(B, "kubectl edit nodepool workers"), ("", "capacity-broker explain claim c-0")],
)
def test_pool_is_to_be_edited_only_if_it_excludes_the_slot_of_the_claim(pool_zone: str, command: str) -> None:
    wanted = {"zone": pool_zone} if pool_zone else {}
    rows = do(claims=[claim(zones=[B])], pools=[pool("workers", **wanted)])
    (offers,) = [cmd for cmd, why in rows if f"its zone may be {B}, not {A}" in why]
    assert offers == command


@pytest.mark.covers("ONC-06")
def test_equal_waiters_and_equal_reservations_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compared, obstacles = [], module._obstacles

    def counting(*arguments: Any) -> Any:
        compared.append(arguments)
        return obstacles(*arguments)

    monkeypatch.setattr(module, "_obstacles", counting)
    waiters = [pod(f"a-{n}") for n in range(50)] + [
        pod(f"b-{n}", nodeSelector={names.ZONE: B}) for n in range(50)
    ]
    mirrors = [*(in_zone(f"cr-a{n}", A) for n in range(40)), *(in_zone(f"cr-b{n}", B) for n in range(40))]
    rows = do(pods=waiters, pools=[pool()], mirrors=mirrors)
    assert len(compared) == 4
    assert texts(rows, "50 pods team/a-0, team/a-1, team/a-10 and 47 more could have a slot of cr-a0")


def changed(pool: NodePool, ready: str = "True", **spec: Any) -> NodePool:
    document = pool.wire()
    document["spec"] |= spec
    condition = {"type": names.READY, "status": ready, "reason": "NoSubnets", "message": "none"}
    return NodePool.decode({**document, "status": {"conditions": [condition]}})


@pytest.mark.covers("FLT-54")
@pytest.mark.parametrize(
    ("pools", "command", "between"),
    [
        (
            [changed(pool(), "False")],
            "kubectl describe nodepool gpus",
            "NodePool gpus: it is not Ready: NoSubnets: none",
        ),
        ([changed(pool(), replicas=2)], "kubectl describe nodepool gpus", "its number of nodes is its own"),
        (
            [tainted(pool("near", zone=A)), pool("far", zone=B)],
            "kubectl edit nodepool far",
            f"the NodePool's zone may be {B}, not {A}",
        ),
    ],
    ids=["not ready", "static", "another pool's taint"],
)
def test_pool_that_gives_the_pod_no_node_is_no_way_to_a_slot(
    pools: list[NodePool], command: str, between: str
) -> None:
    (offer,) = [row for row in do(pods=[pod()], pools=pools) if "could have a slot" in row[1]]
    assert offer[0] == command and between in offer[1]


@pytest.mark.covers("FLT-54")
def test_last_report_on_a_pod_stands_between_if_nothing_else_does() -> None:
    reports = {"train": PodReport("NodePool gpus: its limit of cpu is reached")}
    (offer,) = texts(do(pods=[pod()], pools=[pool()], reports=reports), "could have a slot")
    assert offer.endswith(": its last report is: NodePool gpus: its limit of cpu is reached")


@pytest.mark.covers("FLT-54")
@pytest.mark.parametrize(
    "waits",
    [
        {"pods": [pod()], "pools": [pool()]},
        {"pods": [pod(nodeSelector={names.INSTANCE_TENANCY: "dedicated"})], "pools": [pool()]},
        {"claims": [claim()]},
    ],
    ids=["pod", "pod that selects it, in a NodePool of both tenancies", "claim"],
)
def test_dedicated_slot_is_only_for_what_requires_dedicated_tenancy(waits: dict[str, Any]) -> None:
    document = mirror().wire()
    document["status"]["tenancy"] = "dedicated"
    slots = [OnDemandCapacityReservation.decode(document)]
    (offer,) = [row for row in do(**waits, mirrors=slots) if "could have a slot" in row[1]]
    assert offer[0].startswith("kubectl edit nodepool")
    assert f"the slot's tenancy is dedicated, and no {names.INSTANCE_TENANCY}" in offer[1]
    required = do(pods=[pod()], pools=[pool(tenancy="dedicated")], mirrors=slots)
    (offered,) = texts(required, "could have a slot")
    assert offered.endswith("nothing known stands between")


@pytest.mark.covers("FLT-54")
def test_pod_that_names_its_node_says_nothing_about_the_type_of_idle_slots() -> None:
    field = {"key": "metadata.name", "operator": "In", "values": ["n-1"]}
    required = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    rows = dict(do(pods=[pod(affinity=affinity)], pools=[pool()]))
    assert rows["capacity-broker idle"] == "1 reserved slot is free: the owners, and the cost"


@pytest.mark.covers("FLT-22", "FLT-54")
def test_pod_whose_claim_has_its_instance_waits_for_no_slot() -> None:
    """Neither for a lent one nor for an idle one, of whatever type."""
    situation = lent(reclaim="Any")
    waits = situation.pods[0]
    given = replace(situation, mirrors=[mirror(), mirror("cr-2")])
    without, with_instance = (
        [*commands(replace(given, claims=[*situation.claims, claim])).values()]
        for claim in (launched(), launched(pods=waits.key))
    )
    assert [why for why in without if "while 1 slot of team/gpus is lent" in why]
    assert not [why for why in with_instance if " lent " in why or "could have a slot" in why]
    assert "2 reserved slots are free: the owners, and the cost" in with_instance


@pytest.mark.covers("FLT-22", "ONC-02")
def test_pod_of_a_daemon_set_waits_for_no_slot() -> None:
    situation = lent()
    document = situation.pods[0].wire()
    document["metadata"]["annotations"] = {names.DRAWS_FROM: "team/gpus"}
    waits = Pod.decode(document)
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "d", "controller": True}
    document["metadata"]["ownerReferences"] = [owner]
    shown = [commands(replace(situation, pods=[item])).values() for item in (waits, Pod.decode(document))]
    assert [any("while 1 slot of team/gpus is lent" in why for why in whys) for whys in shown] == [
        True,
        False,
    ]


@pytest.mark.covers("ONC-01")
@pytest.mark.parametrize(
    ("status", "reason", "named"),
    [
        ("False", "ReservationNotFound", True),
        ("False", "ReservationsPending", False),
        ("True", "ReservationsFound", False),
    ],
)
def test_class_that_names_no_usable_reservation_is_the_one_to_edit(
    status: str, reason: str, named: bool
) -> None:
    resolved = {"type": names.RESERVATIONS_RESOLVED, "status": status, "reason": reason}
    node_class = EC2NodeClass.decode(
        {"metadata": {"name": "noid"}, "spec": {}, "status": {"conditions": [resolved]}}
    )
    remedy = ("kubectl edit ec2nodeclass noid", f"no reservation that it names can serve: {reason}")
    assert (remedy in do(classes=[node_class])) is named


def with_reason(waits: NodeClaim, reason: str) -> NodeClaim:
    document = waits.wire()
    launched = {"type": names.LAUNCHED, "status": "Unknown", "reason": reason, "message": "it is gone"}
    document["status"] = {"conditions": [launched]}
    return NodeClaim.decode(document)


@pytest.mark.covers("ONC-02")
@pytest.mark.parametrize("reason", ["NodeClassNotFound", "NodeClassTerminating"])
def test_claim_of_a_class_that_is_gone_is_offered_no_slot_and_no_edit_of_the_class(reason: str) -> None:
    rows = do(claims=[with_reason(claim(), reason)], mirrors=[mirror(classes=())])
    assert not texts(rows, "could have")
    assert not [command for command, _ in rows if command.startswith("kubectl edit ec2nodeclass")]
    assert not [command for command, _ in rows if command.startswith("capacity-broker explain claim")]


@pytest.mark.covers("ONC-01")
def test_nodepools_of_a_class_that_is_being_deleted_are_the_ones_to_edit() -> None:
    ends = {"type": names.LAUNCHABLE, "status": "False", "reason": "NodeClassTerminating"}
    document = {"metadata": {"name": "gpu"}, "spec": {}, "status": {"conditions": [ends]}}
    rows = do(classes=[EC2NodeClass.decode(document)], pools=[pool("gpus"), pool("cpus", "cpu")])
    assert rows[0] == ("kubectl edit nodepool gpus", "name another EC2NodeClass: gpu is being deleted")
    assert not [command for command, _ in rows if "cpus" in command or "edit ec2nodeclass" in command]


@pytest.mark.covers("ONC-02")
@pytest.mark.parametrize(("claims", "idle"), [(3, 1), (4, 0)])
def test_slot_that_a_claim_took_since_the_last_description_costs_nothing_idle(claims: int, idle: int) -> None:
    document = launched().wire()
    document["metadata"]["labels"] |= {names.CAPACITY_TYPE: "reserved", names.RESERVATION_ID: "cr-1"}
    holders = [
        NodeClaim.decode(document | {"metadata": document["metadata"] | {"name": f"c-{n}"}})
        for n in range(claims)
    ]
    page = explain(Situation(now=NOW, claims=holders, mirrors=[mirror()], types=TYPES))
    assert [row["count"] for row in page.parts["costs"]] == [1] * idle


@pytest.mark.covers("FUL-04", "FUL-06")
@pytest.mark.parametrize("free", [1, 2])
@pytest.mark.parametrize("keeper", [successor(), ended_for_another()])
def test_slot_that_is_kept_for_a_node_is_offered_to_no_other(keeper: NodeClaim, free: int) -> None:
    rows = do(claims=[keeper, claim()], mirrors=[mirror(free=free)])
    offers = [text.partition(" could have a slot of ")[2] for text in texts(rows, "could have")]
    assert (
        offers == ["cr-1 (1 free slot, p5.48xlarge in us-east-1a): nothing known stands between"][: free - 1]
    )


@pytest.mark.covers("ONC-01", "FLT-54")
def test_slot_that_a_claim_of_karpenter_has_is_offered_to_no_pod_before_ec2_counts_it() -> None:
    document = claim("theirs", group=names.KARPENTER_AWS).wire()
    document["metadata"] |= {"labels": {names.RESERVATION_ID: "cr-1", names.CAPACITY_TYPE: "reserved"}}
    document["status"] = {"providerID": "aws:///z/i-9"}
    claims = [NodeClaim.decode(document)]
    given: dict[str, Any] = {"pods": [pod()], "pools": [pool()], "mirrors": [mirror(free=4)]}
    situation = Situation(now=NOW, types=TYPES, claims=claims, **given)
    assert situation.slot_uses["cr-1"].free == 3
    assert [match.slots.free for match in situation.matches] == [3]
