"""`plan -f` gives the answer that applying the files gives, and names the claims that this would evict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.meta import Kind
from broker.apis.ome import CapacityReservation
from broker.commands import manifests
from broker.commands.dry_run import DryRun
from broker.commands.plan import claims, drafts
from broker.kube.client import Client
from tests.cluster import objects
from tests.cluster.account import A
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.ome.bought import P5
from tests.cluster.ome.reserved import GPU, spec
from tests.cluster.ome.test_borrowing import (
    BORROWER,
    OWNER,
    cluster,
    lending,
    owned,
    terminating_claims,
    until_cluster,
)
from tests.cluster.stack import Stack

Json = dict[str, Any]
VISION = "default/vision"


def document(kind: Kind, body: Mapping[str, Any]) -> Json:
    return {"apiVersion": kind.api_version, "kind": kind.kind, **body}


def reservation(name: str, gpus: int, **more: Any) -> Json:
    body = {"metadata": {"name": name}, "spec": spec(P5, quotas={GPU: str(gpus)}, **more)}
    return document(CapacityReservation.KIND, body)


def class_of(stack: Stack, name: str, odcr: str) -> Json:
    body = objects.node_class(
        name,
        image=stack.aws.image,
        subnets=[*stack.aws.subnets.values()],
        security_group=stack.aws.security_group,
        spec=objects.reservation_spec(id_=odcr, group="", preference=""),
    )
    return document(EC2NodeClass.KIND, body)


def claim(name: str, draws: str, node_class: str, *capacity: str) -> Json:
    body = objects.claim(
        name,
        node_class=node_class,
        types=(P5,),
        capacity=capacity or (RESERVED,),
        annotations={"capacity-broker.io/draws-from": draws},
    )
    return document(NodeClaim.KIND, body)


def dry_run(stack: Stack, documents: Sequence[Json]) -> Mapping[str, Mapping[str, Any]]:
    """The rows of the plan, by claim."""
    client, alone = drafts.drafted(documents, lambda: Client(stack.tap))
    assert not alone
    given = [decoded for document in documents if (decoded := manifests.decode(document))]
    provider = stack.provider()
    dry = DryRun(client, provider, stack.settings, stack.clock)
    objects_ = [*given, *claims.classes(client, given, dry)]
    rows, _, _ = claims.rows(objects_, provider, now=stack.clock.now(), dry_run=dry)
    return {row["claim"]: row for row in rows}


def apply(stack: Stack, documents: Sequence[Json]) -> None:
    for document in documents:
        model = manifests.KINDS[document["apiVersion"], document["kind"]]
        namespace = {"namespace": "default"} if model.KIND.namespaced else {}
        stack.client.create(model.KIND, {**document, "metadata": {**namespace, **document["metadata"]}})


@pytest.mark.covers("USR-01")
def test_dry_run_gives_the_answer_of_applying_the_files_and_names_each_victim(stack: Stack) -> None:
    first, second = owned(stack, 1), owned(stack, 1, VISION)
    documents = [
        reservation("training", 8, cohort="ml", preemptionRule={"reclaimWithinCohort": "Any"}),
        reservation("research", 0, cohort="ml", allowBorrowing=True, borrow="8"),
        reservation("vision", 8),
        class_of(stack, "gpu", first),
        class_of(stack, "eye", second),
        claim("lent", BORROWER, "gpu"),
        claim("vision-0", VISION, "eye"),
        claim("vision-1", VISION, "eye", RESERVED, ON_DEMAND),
    ]
    rows = dry_run(stack, documents)
    expected = {"lent": first, "vision-0": second, "vision-1": ""}
    assert {name: row["pool"].partition(f"{A}:")[2] for name, row in rows.items()} == expected
    assert all(row["launches"] and not row["evicts"] for row in rows.values())
    stack.start()
    apply(stack, documents)
    stack.until_ready(*expected)
    stack.until_shown(*expected)
    assert {name: stack.reservation_of(name) for name in expected} == expected

    # Claims that run are not planned again, and a new one names its victim.
    more = [*documents, claim("owner", OWNER, "gpu", RESERVED, ON_DEMAND)]
    rows = dry_run(stack, more)
    assert [(name, row["runs"], row["launches"]) for name, row in rows.items()] == [
        ("lent", True, False),
        ("vision-0", True, False),
        ("vision-1", True, False),
        ("owner", False, False),
    ]
    assert rows["lent"]["decision"].startswith("runs already: i-")
    assert rows["owner"]["evicts"] == ["lent"]
    stack.passes()
    assert not terminating_claims(stack)
    apply(stack, more[-1:])
    stack.until_ready("owner")
    stack.until_gone(NodeClaim, "lent")
    assert stack.reservation_of("owner") == first
    assert {claim.name for claim in stack.all(NodeClaim)} == {"owner", "vision-0", "vision-1"}


@pytest.mark.covers("USR-01")
@pytest.mark.both_servers
def test_dry_run_names_the_claims_of_a_cluster_that_would_give_back(stack: Stack) -> None:
    lending(stack, 2)
    cluster(stack, "guest", 2, BORROWER)
    until_cluster(stack, "guest", "ACTIVE")
    members = sorted(claim.name for claim in stack.all(NodeClaim))
    stack.until_shown(*members)
    rows = dry_run(stack, [claim("owner", OWNER, "gpu", RESERVED, ON_DEMAND)])
    assert sorted(rows["owner"]["evicts"]) == members
    assert not terminating_claims(stack)
