"""The CRDs on API servers: accepted and refused objects, and the messages of the refusals."""

from __future__ import annotations

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
from tests.unit.apis.claim_cases import CLAIMS, POOLS
from tests.unit.apis.class_cases import CLASSES

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
def test_the_api_server_validates_a_reservation_spec(served: Api, version: str, case: Case) -> None:
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
def test_objects_valid_in_v1beta1_can_be_patched_at_v1(served: Api) -> None:
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


@pytest.mark.covers("KRP-14")
@named(CLASSES)
def test_the_api_server_validates_a_class(served: Api, case: Case) -> None:
    judge(dry(served, case.given), case)


@named(CLAIMS)
def test_the_api_server_validates_a_claim(served: Api, case: Case) -> None:
    judge(dry(served, case.given), case)


@named(POOLS)
def test_the_api_server_validates_a_pool(served: Api, case: Case) -> None:
    judge(dry(served, case.given), case)


def test_a_claims_spec_is_immutable(served: Api) -> None:
    claim = node_claim()
    claim["metadata"]["name"] = "immutable"
    assert served.request("POST", path(claim), body=claim).status == 201
    reply = served.request(
        "PATCH",
        f"{path(claim)}/immutable",
        body={"spec": {"expireAfter": "1h"}},
        headers={"Content-Type": "application/merge-patch+json"},
    )
    assert reply.status == 422
    assert "spec is immutable: delete the claim and make another" in reply.body["message"]
    assert served.request("DELETE", f"{path(claim)}/immutable").status == 200


def test_a_pools_class_group_is_immutable(served: Api) -> None:
    pool = node_pool()
    pool["metadata"]["name"] = "immutable"
    assert served.request("POST", path(pool), body=pool).status == 201
    reply = served.request(
        "PATCH",
        f"{path(pool)}/immutable",
        body={"spec": {"template": {"spec": {"nodeClassRef": {"group": "karpenter.k8s.aws"}}}}},
        headers={"Content-Type": "application/merge-patch+json"},
    )
    assert reply.status == 422
    assert "nodeClassRef.group is immutable" in reply.body["message"]
    assert served.request("DELETE", f"{path(pool)}/immutable").status == 200


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
def test_status_keeps_the_resolved_resources(served: Api) -> None:
    ec2_node_class = node_class()
    ec2_node_class["metadata"]["name"] = "resolved"
    assert served.request("POST", path(ec2_node_class), body=ec2_node_class).status == 201
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
        f"{path(ec2_node_class)}/resolved/status",
        body={"status": status},
        headers={"Content-Type": "application/merge-patch+json"},
    )
    assert reply.status == 200, reply.body
    assert served.request("GET", f"{path(ec2_node_class)}/resolved").body["status"] == status
    table = served.request(
        "GET",
        f"{path(ec2_node_class)}/resolved",
        headers={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"},
    ).body
    row = dict(zip((c["name"] for c in table["columnDefinitions"]), table["rows"][0]["cells"], strict=True))
    assert row["Reservations"] == "True"
    assert served.request("DELETE", f"{path(ec2_node_class)}/resolved").status == 200
