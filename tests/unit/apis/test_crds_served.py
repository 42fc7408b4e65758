"""The CRDs on API servers: what each accepts, what it refuses, and what a user then reads."""

from __future__ import annotations

from typing import Any

import pytest

from tests.controlplane.client import Api, Reply
from tests.unit.apis.cases import (
    ID,
    MALFORMED,
    RESERVATION_SPECS,
    Case,
    Json,
    node_claim,
    node_class,
    node_pool,
    preference,
    target,
)

PLURALS = {"EC2NodeClass": "ec2nodeclasses", "NodeClaim": "nodeclaims", "NodePool": "nodepools"}


def path(obj: Json) -> str:
    return f"/apis/{obj['apiVersion']}/{PLURALS[obj['kind']]}"


def dry(api: Api, obj: Json) -> Reply:
    return api.request("POST", path(obj), {"dryRun": "All"}, obj)


def judge(reply: Reply, case: Case) -> None:
    assert reply.status == (422 if case.refused else 201), reply.body
    for word in case.refused:
        assert word in reply.body["message"]


def named(cases: tuple[Case, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


@pytest.mark.covers("KRP-01", "KRP-02")
@pytest.mark.parametrize("version", ["v1", "v1beta1"])
@named(RESERVATION_SPECS + MALFORMED)
def test_the_api_server_judges_a_reservation_spec(served: Api, version: str, case: Case) -> None:
    obj = node_class(version=version, spec={"capacityReservationSpec": case.given})
    judge(dry(served, obj), case)


@pytest.mark.covers("KRP-01")
@pytest.mark.parametrize(("written", "read"), [("v1", "v1beta1"), ("v1beta1", "v1")])
def test_a_reservation_spec_is_served_at_both_versions(served: Api, written: str, read: str) -> None:
    obj = node_class(version=written, spec={"capacityReservationSpec": target(capacityReservationId=ID)})
    obj["metadata"]["name"] = f"written-at-{written}"
    assert served.request("POST", path(obj), body=obj).status == 201
    other = f"/apis/karpenter.k8s.aws/{read}/ec2nodeclasses/{obj['metadata']['name']}"
    got = served.request("GET", other).body
    assert got["apiVersion"] == f"karpenter.k8s.aws/{read}"
    assert got["spec"]["capacityReservationSpec"] == target(capacityReservationId=ID)
    assert served.request("DELETE", other).status == 200


@pytest.mark.covers("KRP-01")
def test_what_v1beta1_allowed_can_be_changed_at_v1(served: Api) -> None:
    old = node_class(version="v1beta1", spec={"amiFamily": "AL2023"}, without=("amiSelectorTerms",))
    old["metadata"]["name"] = "without-terms"
    assert served.request("POST", path(old), body=old).status == 201
    reply = served.request(
        "PATCH",
        "/apis/karpenter.k8s.aws/v1/ec2nodeclasses/without-terms",
        body={"spec": {"capacityReservationSpec": preference("open")}},
        headers={"Content-Type": "application/merge-patch+json"},
    )
    assert reply.status == 200, reply.body
    assert served.request("DELETE", "/apis/karpenter.k8s.aws/v1/ec2nodeclasses/without-terms").status == 200


def with_spec(**spec: Any) -> Json:
    return node_class(spec=spec)


ALONE = ("selects by that alone",)
CLASSES = (
    Case(name="the least", given=with_spec()),
    Case(name="instance profile", given=node_class(spec={"instanceProfile": "node"}, without=("role",))),
    Case(name="both", given=with_spec(instanceProfile="node"), refused=("role and instanceProfile",)),
    Case(name="neither", given=node_class(without=("role",)), refused=("role and instanceProfile",)),
    Case(name="empty role", given=with_spec(role=""), refused=("role is empty",)),
    Case(
        name="no subnets",
        given=node_class(without=("subnetSelectorTerms",)),
        refused=("subnetSelectorTerms",),
    ),
    Case(
        name="empty subnets",
        given=with_spec(subnetSelectorTerms=[]),
        refused=("subnetSelectorTerms must have at least one term",),
    ),
    Case(
        name="empty subnet term",
        given=with_spec(subnetSelectorTerms=[{}]),
        refused=("each term must set at least one of tags, id",),
    ),
    Case(
        name="one bad subnet term of two",
        given=with_spec(subnetSelectorTerms=[{"id": "subnet-1", "tags": {"a": "b"}}, {"tags": {"a": "b"}}]),
        refused=ALONE,
    ),
    Case(
        name="no security groups",
        given=with_spec(securityGroupSelectorTerms=[]),
        refused=("securityGroupSelectorTerms must have at least one term",),
    ),
    Case(
        name="security group name with tags",
        given=with_spec(securityGroupSelectorTerms=[{"name": "a", "tags": {"a": "b"}}]),
        refused=ALONE,
    ),
    Case(
        name="tag without a value",
        given=with_spec(subnetSelectorTerms=[{"tags": {"a": ""}}]),
        refused=("use '*' for any value",),
    ),
    Case(name="no AMI", given=node_class(without=("amiSelectorTerms",)), refused=("amiFamily must be set",)),
    Case(
        name="AMI by id needs a family",
        given=with_spec(amiSelectorTerms=[{"id": "ami-1"}]),
        refused=("amiFamily must be set",),
    ),
    Case(name="AMI by id", given=with_spec(amiFamily="Custom", amiSelectorTerms=[{"id": "ami-1"}])),
    Case(
        name="AMI by parameter",
        given=with_spec(amiFamily="AL2023", amiSelectorTerms=[{"ssmParameter": "/golden/image"}]),
    ),
    Case(name="windows alias", given=with_spec(amiSelectorTerms=[{"alias": "windows2022@latest"}])),
    Case(
        name="windows alias with a version",
        given=with_spec(amiSelectorTerms=[{"alias": "windows2022@v1"}]),
        refused=("must have the version latest",),
    ),
    Case(
        name="alias without a version",
        given=with_spec(amiSelectorTerms=[{"alias": "al2023"}]),
        refused=("alias must be family@version",),
    ),
    Case(
        name="alias of nobody",
        given=with_spec(amiSelectorTerms=[{"alias": "ubuntu@latest"}]),
        refused=("alias has an unknown family",),
    ),
    Case(
        name="alias with another term",
        given=with_spec(amiSelectorTerms=[{"alias": "al2023@latest"}, {"name": "mine"}]),
        refused=("must be the only term",),
    ),
    Case(
        name="alias with another family",
        given=with_spec(amiFamily="Bottlerocket"),
        refused=("amiFamily must be AL2023",),
    ),
    Case(name="alias with Custom", given=with_spec(amiFamily="Custom")),
    Case(name="al2023 is not al2", given=with_spec(amiFamily="AL2"), refused=("amiFamily must be AL2023",)),
    Case(name="unknown family", given=with_spec(amiFamily="Arch"), refused=("amiFamily", "Arch")),
    Case(
        name="reservation terms",
        given=with_spec(
            capacityReservationSelectorTerms=[{"id": ID}, {"ownerID": "123456789012", "tags": {"a": "*"}}]
        ),
    ),
    Case(
        name="reservation owner alone",
        given=with_spec(capacityReservationSelectorTerms=[{"ownerID": "123456789012"}]),
        refused=("each term must set at least one of",),
    ),
    Case(
        name="reservation id with tags among others",
        given=with_spec(capacityReservationSelectorTerms=[{"id": ID, "tags": {"a": "b"}}, {"id": ID}]),
        refused=ALONE,
    ),
    Case(
        name="too many reservation terms",
        given=with_spec(capacityReservationSelectorTerms=[{"id": ID}] * 31),
        refused=("capacityReservationSelectorTerms",),
    ),
    Case(name="tags", given=with_spec(tags={"team": "ml"})),
    Case(
        name="tag of a launcher",
        given=with_spec(tags={"karpenter.sh/nodepool": "x"}),
        refused=("set by whoever launches",),
    ),
    Case(
        name="tag of the cluster",
        given=with_spec(tags={"kubernetes.io/cluster/demo": "owned"}),
        refused=("set by whoever launches",),
    ),
    Case(
        name="volumes",
        given=with_spec(
            blockDeviceMappings=[
                {"deviceName": "/dev/xvda", "rootVolume": True, "ebs": {"volumeSize": "100Gi"}},
                {"deviceName": "/dev/xvdb", "ebs": {"snapshotID": "snap-1", "volumeInitializationRate": 200}},
            ]
        ),
    ),
    Case(
        name="two root volumes",
        given=with_spec(blockDeviceMappings=[{"rootVolume": True}, {"rootVolume": True}]),
        refused=("at most one of blockDeviceMappings",),
    ),
    Case(
        name="volume of no size",
        given=with_spec(blockDeviceMappings=[{"ebs": {"volumeType": "gp3"}}]),
        refused=("snapshotID or volumeSize",),
    ),
    Case(
        name="volume without a unit",
        given=with_spec(blockDeviceMappings=[{"ebs": {"volumeSize": "100"}}]),
        refused=("volumeSize",),
    ),
    Case(
        name="kubelet",
        given=with_spec(
            kubelet={
                "maxPods": 110,
                "kubeReserved": {"cpu": "100m", "memory": "1Gi"},
                "evictionHard": {"memory.available": "5%"},
                "evictionSoft": {"nodefs.available": "10Gi"},
                "evictionSoftGracePeriod": {"nodefs.available": "1m"},
            }
        ),
    ),
    Case(
        name="kubelet reserves a GPU",
        given=with_spec(kubelet={"kubeReserved": {"nvidia.com/gpu": "1"}}),
        refused=("kubeReserved has an unknown key",),
    ),
    Case(
        name="kubelet reserves less than nothing",
        given=with_spec(kubelet={"systemReserved": {"cpu": "-1"}}),
        refused=("systemReserved must not be negative",),
    ),
    Case(
        name="soft eviction without grace",
        given=with_spec(kubelet={"evictionSoft": {"nodefs.available": "10%"}}),
        refused=("must be in evictionSoftGracePeriod",),
    ),
    Case(
        name="image thresholds crossed",
        given=with_spec(kubelet={"imageGCHighThresholdPercent": 50, "imageGCLowThresholdPercent": 60}),
        refused=("imageGCHighThresholdPercent must be greater",),
    ),
    Case(
        name="network interfaces",
        given=with_spec(
            networkInterfaces=[
                {"networkCardIndex": 0, "deviceIndex": 0, "interfaceType": "interface"},
                {"networkCardIndex": 1, "deviceIndex": 1, "interfaceType": "efa-only"},
            ]
        ),
    ),
    Case(
        name="no primary network interface",
        given=with_spec(
            networkInterfaces=[{"networkCardIndex": 1, "deviceIndex": 0, "interfaceType": "interface"}]
        ),
        refused=("networkInterfaces must hold the primary one",),
    ),
    Case(
        name="a network interface twice",
        given=with_spec(
            networkInterfaces=[{"networkCardIndex": 0, "deviceIndex": 0, "interfaceType": "interface"}] * 2
        ),
        refused=("must differ in networkCardIndex or deviceIndex",),
    ),
    Case(
        name="two efa-only interfaces on a card",
        given=with_spec(
            networkInterfaces=[
                {"networkCardIndex": 0, "deviceIndex": 0, "interfaceType": "interface"},
                {"networkCardIndex": 1, "deviceIndex": 1, "interfaceType": "efa-only"},
                {"networkCardIndex": 1, "deviceIndex": 2, "interfaceType": "efa-only"},
            ]
        ),
        refused=("one efa-only interface a network card",),
    ),
    Case(name="placement group", given=with_spec(placementGroupSelector={"name": "cluster"})),
    Case(
        name="placement group twice",
        given=with_spec(placementGroupSelector={"name": "cluster", "id": "pg-1"}),
        refused=("one of name and id",),
    ),
    Case(
        name="no idle timeout",
        given=with_spec(connectionTracking={}),
        refused=("connectionTracking must set",),
    ),
    Case(name="idle timeout", given=with_spec(connectionTracking={"udpTimeout": 45})),
    Case(
        name="metadata hops",
        given=with_spec(metadataOptions={"httpPutResponseHopLimit": 65}),
        refused=("httpPutResponseHopLimit",),
    ),
)


@pytest.mark.covers("KRP-14")
@named(CLASSES)
def test_the_api_server_judges_a_class(served: Api, case: Case) -> None:
    judge(dry(served, case.given), case)


def requirement(key: str, operator: str, *values: str, **more: Any) -> Json:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {}), **more}


def claim_of(*requirements: Json) -> Json:
    return node_claim(requirements=list(requirements))


CLAIMS = (
    Case(name="no requirements", given=claim_of()),
    Case(
        name="reserved only",
        given=claim_of(
            requirement("karpenter.sh/capacity-type", "In", "reserved"),
            requirement("node.kubernetes.io/instance-type", "In", "p5.48xlarge", "p5e.48xlarge", minValues=2),
            requirement("karpenter.k8s.aws/instance-gpu-count", "Gt", "3"),
            requirement("karpenter.k8s.aws/capacity-reservation-id", "Exists"),
            requirement("team.example.com/pool", "NotIn", "a"),
        ),
    ),
    Case(name="whole numbers as requests", given=node_claim(resources={"requests": {"cpu": 4}})),
    Case(name="quantities as requests", given=node_claim(resources={"requests": {"memory": "1.5Gi"}})),
    Case(
        name="no quantity",
        given=node_claim(resources={"requests": {"memory": "much"}}),
        refused=("spec.resources.requests",),
    ),
    Case(
        name="In without values", given=claim_of(requirement("a", "In")), refused=("at least one of values",)
    ),
    Case(name="Gt of text", given=claim_of(requirement("a", "Gt", "x")), refused=("one whole number",)),
    Case(name="Lte of two", given=claim_of(requirement("a", "Lte", "1", "2")), refused=("one whole number",)),
    Case(name="Gte of nothing", given=claim_of(requirement("a", "Gte")), refused=("one whole number",)),
    Case(
        name="unknown operator", given=claim_of(requirement("a", "Near", "1")), refused=("operator", "Near")
    ),
    Case(
        name="minValues beyond values",
        given=claim_of(requirement("a", "In", "1", minValues=2)),
        refused=("at least that many values",),
    ),
    Case(
        name="hostname",
        given=claim_of(requirement("kubernetes.io/hostname", "In", "a")),
        refused=("kubernetes.io/hostname may not be used",),
    ),
    Case(
        name="Karpenter's own domain",
        given=claim_of(requirement("karpenter.sh/registered", "In", "true")),
        refused=("of the domain karpenter.sh only",),
    ),
    Case(
        name="a subdomain of it",
        given=claim_of(requirement("x.karpenter.sh/y", "Exists")),
        refused=("of the domain karpenter.sh only",),
    ),
    Case(
        name="Karpenter's AWS domain",
        given=claim_of(requirement("karpenter.k8s.aws/instance-colour", "Exists")),
        refused=("of the domain karpenter.k8s.aws only",),
    ),
    Case(name="a look-alike domain", given=claim_of(requirement("karpenter.sh.example.com/y", "Exists"))),
    Case(
        name="too many requirements",
        given=claim_of(*[requirement("a", "Exists")] * 101),
        refused=("spec.requirements",),
    ),
    Case(
        name="no class",
        given=node_claim(nodeClassRef={"group": "capacity-broker.io", "kind": "EC2NodeClass", "name": ""}),
        refused=("nodeClassRef.name is empty",),
    ),
    Case(
        name="no group of the class",
        given=node_claim(nodeClassRef={"kind": "EC2NodeClass", "name": "gpu"}),
        refused=("spec.nodeClassRef.group",),
    ),
    Case(name="lives for ever", given=node_claim(expireAfter="Never", terminationGracePeriod="48h30m")),
    Case(name="lives for days", given=node_claim(expireAfter="30d"), refused=("expireAfter",)),
    Case(
        name="a taint without effect",
        given=node_claim(taints=[{"key": "gpu"}]),
        refused=("spec.taints[0].effect",),
    ),
)


@named(CLAIMS)
def test_the_api_server_judges_a_claim(served: Api, case: Case) -> None:
    judge(dry(served, case.given), case)


def template(**metadata: Any) -> Json:
    return node_pool(template={"metadata": metadata})


POOLS = (
    Case(name="the least", given=node_pool()),
    Case(name="weight and limits", given=node_pool(weight=10, limits={"cpu": 1000, "nodes": "5"})),
    Case(name="replicas", given=node_pool(replicas=3, limits={"nodes": 5})),
    Case(
        name="replicas with weight", given=node_pool(replicas=3, weight=1), refused=("weight means nothing",)
    ),
    Case(
        name="replicas with a CPU limit",
        given=node_pool(replicas=3, limits={"cpu": 5}),
        refused=("can only be nodes",),
    ),
    Case(name="weight beyond 100", given=node_pool(weight=101), refused=("spec.weight",)),
    Case(name="labels", given=template(labels={"team": "ml", "karpenter.sh/capacity-type": "reserved"})),
    Case(
        name="label of the pool",
        given=template(labels={"karpenter.sh/nodepool": "x"}),
        refused=("set from the pool's own name",),
    ),
    Case(
        name="label of the host",
        given=template(labels={"kubernetes.io/hostname": "x"}),
        refused=("hostname",),
    ),
    Case(
        name="label of Karpenter's",
        given=template(labels={"karpenter.k8s.aws/mine": "x"}),
        refused=("of the domain karpenter.k8s.aws only",),
    ),
    Case(
        name="budget without an end",
        given=node_pool(
            disruption={"consolidateAfter": "1m", "budgets": [{"nodes": "1", "schedule": "@daily"}]}
        ),
        refused=("schedule and duration together",),
    ),
    Case(
        name="unknown consolidation",
        given=node_pool(disruption={"consolidateAfter": "1m", "consolidationPolicy": "Always"}),
        refused=("consolidationPolicy",),
    ),
)


@named(POOLS)
def test_the_api_server_judges_a_pool(served: Api, case: Case) -> None:
    judge(dry(served, case.given), case)


def test_a_claim_never_changes(served: Api) -> None:
    made = node_claim()
    made["metadata"]["name"] = "settled"
    assert served.request("POST", path(made), body=made).status == 201
    reply = served.request(
        "PATCH",
        f"{path(made)}/settled",
        body={"spec": {"expireAfter": "1h"}},
        headers={"Content-Type": "application/merge-patch+json"},
    )
    assert reply.status == 422
    assert "spec is immutable: delete the claim and make another" in reply.body["message"]
    assert served.request("DELETE", f"{path(made)}/settled").status == 200


def test_a_pool_keeps_its_launcher(served: Api) -> None:
    made = node_pool()
    made["metadata"]["name"] = "settled"
    assert served.request("POST", path(made), body=made).status == 201
    reply = served.request(
        "PATCH",
        f"{path(made)}/settled",
        body={"spec": {"template": {"spec": {"nodeClassRef": {"group": "karpenter.k8s.aws"}}}}},
        headers={"Content-Type": "application/merge-patch+json"},
    )
    assert reply.status == 422
    assert "nodeClassRef.group is immutable" in reply.body["message"]
    assert served.request("DELETE", f"{path(made)}/settled").status == 200


def test_defaults_are_filled_in(served: Api) -> None:
    claim = dry(served, node_claim()).body
    assert claim["spec"]["expireAfter"] == "720h"
    pool = dry(served, node_pool()).body
    assert pool["spec"]["disruption"] == {
        "budgets": [{"nodes": "10%"}],
        "consolidateAfter": "0s",
        "consolidationPolicy": "WhenEmptyOrUnderutilized",
    }
    hops = {
        version: dry(served, node_class(version=version)).body["spec"]["metadataOptions"]
        for version in ("v1", "v1beta1")
    }
    assert hops["v1"]["httpPutResponseHopLimit"] == 1
    assert hops["v1beta1"]["httpPutResponseHopLimit"] == 2
    assert hops["v1"]["httpTokens"] == "required"


@pytest.mark.covers("KRP-09")
def test_what_the_class_resolved_to_is_kept_in_its_status(served: Api) -> None:
    made = node_class()
    made["metadata"]["name"] = "resolved"
    assert served.request("POST", path(made), body=made).status == 201
    status = {
        "subnets": [{"id": "subnet-1", "zone": "us-east-1a", "zoneID": "use1-az1"}],
        "capacityReservations": [
            {
                "id": ID,
                "availabilityZone": "us-east-1a",
                "instanceType": "p5.48xlarge",
                "ownerID": "123456789012",
                "instanceMatchCriteria": "targeted",
                "reservationType": "default",
                "interruptible": False,
                "state": "pending",
                "endTime": "2027-01-01T00:00:00Z",
                "totalInstanceCount": 4,
                "availableInstanceCount": 3,
            }
        ],
        "capacityReservationMisfits": [
            {"id": "cr-2", "reason": "ZoneMismatch", "message": "us-east-1f has no subnet", "code": ""}
        ],
        "conditions": [
            {
                "type": "ReservationsResolved",
                "status": "True",
                "reason": "Resolved",
                "message": "1 reservation",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
        ],
    }
    reply = served.request(
        "PATCH",
        f"{path(made)}/resolved/status",
        body={"status": status},
        headers={"Content-Type": "application/merge-patch+json"},
    )
    assert reply.status == 200, reply.body
    assert served.request("GET", f"{path(made)}/resolved").body["status"] == status
    table = served.request(
        "GET",
        f"{path(made)}/resolved",
        headers={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"},
    ).body
    row = dict(zip((c["name"] for c in table["columnDefinitions"]), table["rows"][0]["cells"], strict=True))
    assert row["Reservations"] == "True"
    assert served.request("DELETE", f"{path(made)}/resolved").status == 200
