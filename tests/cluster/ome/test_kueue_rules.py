"""A rule that a person changes releases the workloads that it kept waiting, at once."""

from __future__ import annotations

import pytest

from broker.apis import names
from broker.apis.ome import CapacityReservation
from broker.controllers.kueue import admission
from tests.cluster.ome.test_kueue import QUEUE, TEAM, TYPE, World, odcr_of_the_team, spec
from tests.cluster.stack import Stack


def test_a_workload_is_admitted_at_once_when_its_reservation_may_borrow(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "RECHECK_SECONDS", 1e9)
    world = World(stack)
    world.namespace("team")
    world.flavor()
    world.reserve(body=spec("16", cohort="ml"))
    world.reserve("other", body=spec("8", cohort="ml"))
    odcr_of_the_team(stack)
    marks = [{"Key": names.TAG_RESERVATION, "Value": "team/other"}]
    stack.aws.odcr(TYPE, TagSpecifications=[{"ResourceType": "capacity-reservation", "Tags": marks}])
    broker = stack.start(kubelets=False)
    world.until_queue()
    stack.until(lambda: len(broker.reads.snapshot().odcrs.owned.owner) == 2, "the instances are known")
    stack.until(lambda: broker.reads.snapshot().odcrs.owned.of(TEAM), "the team's are known")
    world.kueue.takes(QUEUE)
    world.job("big", pods=2)

    def waits() -> bool:
        world.kueue.turns(namespace="team")
        return world.parked("big")

    stack.until(waits, "it waits for a second instance")
    stack.polls(3)  # the pass that its own write wakes is done
    borrows = {"spec": spec("16", cohort="ml", allowBorrowing=True)}
    world.client.patch(CapacityReservation.KIND, "gpu", borrows, namespace="team")
    stack.until(lambda: not world.parked("big"), "Kueue may admit it")
    world.until_admitted("big")
