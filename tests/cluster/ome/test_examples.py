"""The examples that pages include, applied unchanged: the promises of the pages hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import condition
from broker.apis.ome import CapacityReservation
from broker.apis.ome_clusters import DedicatedAICluster
from broker.commands import manifests
from local.demo import account as demo_account
from local.demo.examples import apply
from local.demo.kubelets import Kubelets
from tests.cluster.stack import Stack

EXAMPLES = Path(__file__).parents[3] / "examples" / "reservations"
BORROWING = ("vision-0", "speech-0", "speech-1", "speech-2")


@pytest.mark.covers("USR-24")
@pytest.mark.parametrize("stack", ["embedded"], indirect=True)
@pytest.mark.both_servers
def test_every_example_comes_true(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """All examples at once, in the account of the demo of two teams, in a cluster of the demo's name."""
    account = demo_account.teams(stack.server.endpoint)
    monkeypatch.setattr("tests.cluster.stack.CLUSTER", demo_account.CLUSTER)
    stack.kubelets = Kubelets(stack.client, stack.provider(), clock=stack.clock, every=0.1)
    stack.start(cluster_name=demo_account.CLUSTER, buy_dollars=100.0)
    pages = ("borrowing.yaml", "bought.yaml", "dedicated-cluster.yaml")
    given = manifests.read(str(EXAMPLES / page) for page in pages)
    claims = [document for document in given if document["kind"] == NodeClaim.KIND.kind]
    apply(stack.client, [document for document in given if document not in claims])

    def active() -> bool:
        reservations = stack.all(CapacityReservation)
        ready = [condition(reservation.status.conditions, names.READY) for reservation in reservations]
        return len(reservations) == 4 and all(
            condition_ is not None and condition_.status == "True" for condition_ in ready
        )

    stack.until(active, "every CapacityReservation is Ready")
    apply(stack.client, claims)
    stack.until_ready(*(document["metadata"]["name"] for document in claims))

    slots = [stack.reservation_of(name) for name in BORROWING]
    assert sorted(slots) == sorted([account.names["vision"]] * 3 + [account.names["speech"]])
    assert slots[0] == account.names["vision"]
    (bought,) = stack.get(CapacityReservation, "gpus", namespace="research").status.cloud_reservations
    assert stack.reservation_of("research-0") == bought.id

    def tenant() -> str | None:
        return stack.get(DedicatedAICluster, "tenant").status.dac_lifecycle_state

    stack.until(lambda: tenant() == "ACTIVE", "the dedicated cluster is ACTIVE")
    assert stack.get(DedicatedAICluster, "tenant").status.allocated_gpu == 8
