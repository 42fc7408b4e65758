"""The claims of a dedicated cluster: the request of each, and the pods that may run there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.kueue import ResourceFlavor
from broker.apis.ome import ClusterCapacityReservation
from broker.apis.ome_clusters import ClusterAffinity, DedicatedAICluster
from broker.controllers.dedicatedaicluster.demand import ClusterDemand
from broker.controllers.dedicatedaicluster.machines import claim, dedicated, name, number, outdated
from broker.controllers.dedicatedaicluster.snapshot import quota_flavor
from broker.quota.flavors import misfit
from broker.quota.usage import ReservationKey
from broker.reservations.cluster_sizes import sizes
from broker.reservations.sizing import SizedQuota
from broker.settings import Settings
from providers.model import Gpu, InstanceType

Json = dict[str, Any]
GPU = "nvidia.com/gpu"
P5 = InstanceType(
    name="p5.48xlarge",
    vcpus=192,
    memory_mib=2 << 20,
    architecture="amd64",
    gpus=(Gpu(name="H100", manufacturer="NVIDIA", count=8, memory_mib=81920),),
)
SIZED = SizedQuota(
    count=2, instance_type="p5.48xlarge", counts={"p5.48xlarge": 2, "p5e.48xlarge": 2, "p5.4xlarge": 16}
)


@pytest.mark.parametrize("zones", ["", "us-east-1b, us-east-1a", " us-east-1a ,"])
@pytest.mark.parametrize(("amount", "count"), [(1, 1), (8, 1), (9, 2), (0, 0)])
def test_a_flavor_counts_whole_offered_instances(zones: str, amount: int, count: int) -> None:
    flavor = ResourceFlavor.decode({"spec": {"nodeLabels": {names.INSTANCE_TYPE: P5.name}}})
    types = {P5.name: replace(P5, zones=frozenset({"us-east-1a"}))}
    sized = sizes({"h100": flavor}, {}, types, Settings(buy_zones=zones).bought_zones)(None)(
        "h100", {GPU: amount}
    )
    assert isinstance(sized, SizedQuota) and sized.count == count


@pytest.mark.parametrize(("sizing", "count"), [("accelerator", 1), ("max", 2), ("max\n", 2), ("Max", 1)])
def test_a_cluster_is_sized_as_its_reservation_is(sizing: str, count: int) -> None:
    flavor = ResourceFlavor.decode({"spec": {"nodeLabels": {names.INSTANCE_TYPE: P5.name}}})
    types = {P5.name: replace(P5, zones=frozenset({"us-east-1a"}))}
    reserved = ReservationKey("", "gpu")
    metadata = {"name": "gpu", "annotations": {names.SIZING: sizing}}
    reservation = ClusterCapacityReservation.decode({"metadata": metadata})
    size = sizes({"h100": flavor}, {reserved: reservation}, types, Settings().bought_zones)(reserved)
    sized = size("h100", {GPU: 8, "cpu": 193_000})
    assert isinstance(sized, SizedQuota) and sized.count == count


def cluster(named: str = "train") -> DedicatedAICluster:
    return DedicatedAICluster.decode({"metadata": {"name": named, "uid": "12345678-aaaa"}})


def claim_body(labels: Json, *, taints: tuple[Json, ...] = (), **more: Any) -> Json:
    flavor = ResourceFlavor.decode(
        {"metadata": {"name": "h100"}, "spec": {"nodeLabels": labels, "nodeTaints": list(taints)}}
    )
    return claim(
        cluster(),
        3,
        demand=ClusterDemand(requests={GPU: 16}, **more),
        reserved=ReservationKey("team", "gpu"),
        flavor=flavor,
        sized=SIZED,
        types={"p5.48xlarge": P5},
        node_class="gpu",
        priority=7,
    )


def requirements(body: Json) -> dict[str, list[str]]:
    return {requirement["key"]: list(requirement["values"]) for requirement in body["spec"]["requirements"]}


def test_a_claim_draws_from_the_reservation_and_takes_only_the_clusters_pods() -> None:
    body = claim_body(
        {names.INSTANCE_TYPE: "p5.48xlarge", names.ZONE: "us-east-1a", "team.example/sort": "h100"},
        taints=({"key": "gpu", "value": "yes", "effect": "NoSchedule"},),
    )
    assert body["metadata"]["name"] == "train-12345678-3"
    assert body["metadata"]["labels"] == {names.DEDICATED: "train", "team.example/sort": "h100"}
    assert body["metadata"]["annotations"] == {
        names.DRAWS_FROM: "team/gpu",
        names.TAG_FLAVOR: "h100",
        names.PRIORITY: "7",
    }
    assert body["metadata"]["ownerReferences"][0]["uid"] == "12345678-aaaa"
    assert requirements(body) == {
        names.INSTANCE_TYPE: ["p5.48xlarge"],
        names.ZONE: ["us-east-1a"],
        names.CAPACITY_TYPE: ["reserved"],
    }
    assert [(taint["key"], taint.get("value")) for taint in body["spec"]["taints"]] == [
        (names.DEDICATED, "train"),
        ("gpu", "yes"),
    ]
    assert body["spec"]["resources"]["requests"] == {GPU: "8"}
    NodeClaim.decode(body)


def test_types_with_the_same_count_are_accepted() -> None:
    assert requirements(claim_body({}))[names.INSTANCE_TYPE] == ["p5.48xlarge", "p5e.48xlarge"]


def test_flavor_or_cluster_may_set_another_capacity_type() -> None:
    assert requirements(claim_body({names.CAPACITY_TYPE: "on-demand"}))[names.CAPACITY_TYPE] == ["on-demand"]
    selected = claim_body({}, node_selector={names.CAPACITY_TYPE: "on-demand", "own": "label"})
    assert requirements(selected)[names.CAPACITY_TYPE] == ["on-demand"]
    assert selected["metadata"]["labels"]["own"] == "label"
    either = {"key": names.CAPACITY_TYPE, "operator": "In", "values": ["reserved", "on-demand"]}
    other = {"key": names.ZONE, "operator": "In", "values": ["us-east-1b"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [other]}, {"matchExpressions": [either]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    body = claim_body({names.ZONE: "us-east-1a"}, affinity=ClusterAffinity.model_validate(affinity))
    assert requirements(body)[names.CAPACITY_TYPE] == ["reserved", "on-demand"]
    assert requirements(body)[names.ZONE] == ["us-east-1a"]


@pytest.mark.covers("FLT-31")
def test_older_names_of_labels_choose_the_machine_as_present_ones() -> None:
    older = {"beta.kubernetes.io/instance-type": "p5.48xlarge"}
    selector = {"failure-domain.beta.kubernetes.io/zone": "us-east-1a"}
    body = claim_body(older, node_selector=selector)
    assert requirements(body)[names.INSTANCE_TYPE] == ["p5.48xlarge"]
    assert requirements(body)[names.ZONE] == ["us-east-1a"]
    flavor = ResourceFlavor.decode({"metadata": {"name": "h100"}, "spec": {"nodeLabels": older}})
    types = {P5.name: replace(P5, zones=frozenset({"us-east-1a"}))}
    sized = sizes({"h100": flavor}, {}, types, Settings().bought_zones)(None)("h100", {GPU: 8})
    assert isinstance(sized, SizedQuota) and sized.count == 1
    demand = ClusterDemand(requests={GPU: 8}, node_selector={next(iter(older)): "m5.large"})
    assert "node selector" in misfit(demand.wants, quota_flavor(flavor))


@pytest.mark.parametrize(
    ("node_class", "labels", "provider_id", "replaced"),
    [
        ("gpu", {names.ZONE: "us-east-1a", "own": "label"}, "", False),
        ("mended", {names.ZONE: "us-east-1a"}, "", True),
        ("gpu", {names.ZONE: "us-east-1b"}, "", True),
        ("gpu", {names.ZONE: "us-east-1a", names.CAPACITY_TYPE: "on-demand"}, "", True),
        ("mended", {names.ZONE: "us-east-1b"}, "aws:///us-east-1a/i-1", False),
    ],
)
def test_an_unlaunched_claim_is_replaced_when_its_requirements_change(
    node_class: str, labels: Json, provider_id: str, replaced: bool
) -> None:
    body = claim_body(
        {names.ZONE: "us-east-1a", "own": "label"}, node_selector={names.INSTANCE_TYPE: P5.name}
    )
    existing = NodeClaim.decode({**body, "status": {"providerID": provider_id}})
    flavor = ResourceFlavor.decode({"metadata": {"name": "h100"}, "spec": {"nodeLabels": labels}})
    assert outdated(existing, flavor, node_class) is replaced
    assert outdated(existing, None, "gpu") is False


def test_names_fit_a_label_and_contain_their_number() -> None:
    long = cluster(f"{'a.very' * 40}")
    made_name = name(long, 12)
    assert len(made_name) <= 63
    assert "." not in made_name
    assert number(NodeClaim.decode({"metadata": {"name": made_name}})) == 12
    assert len(dedicated(long)) <= 63
    assert dedicated(long) != dedicated(cluster(f"{'a.very' * 40}b"))
