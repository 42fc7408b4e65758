"""Sixty GPU claims and no capacity for half an hour: few calls, nothing remade, and then all launch.

Invariant: no pool is tried before its time, a time that doubles. However many claims wait, half an hour of
refusals costs one refused call a pool and step.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime

import pytest

from broker.capacity.shortages import CAP
from broker.controllers.launch.published import read_shortages
from broker.kube.client import Client
from tests.cluster.account import A, B, pools
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.faults.walk import Process, World, held

CLAIMS = 60
MINUTES = 30
GPU = "p5.48xlarge"


def tries(world: World) -> dict[tuple[str, str], list[datetime]]:
    """The times at which each pool was tried: the first pool of a call, since the others only follow it."""
    times_by_pool: dict[tuple[str, str], list[datetime]] = defaultdict(list)
    for call in world.control.log("CreateFleet"):
        for pool in pools(call["params"]):
            times_by_pool[pool["InstanceType"], pool["AvailabilityZone"]].append(
                datetime.fromisoformat(call["at"])
            )
    return times_by_pool


def calls_before_published_time(world: World, process: Process, odcr: str) -> list[object]:
    """Runs the process for `MINUTES`; returns the calls that name a pool before its published `nextTry`."""
    early: list[object] = []
    client = Client(world.transport)  # no call of the process
    seen = len(world.control.log("CreateFleet"))
    end = world.clock.monotonic() + MINUTES * 60.0
    while world.clock.monotonic() < end:
        published = {
            str(shortage.scope): shortage.next_try for shortage in read_shortages(client).by_scope.values()
        }
        process.run(1.0)
        for call in world.control.log("CreateFleet")[seen:]:
            for pool in pools(call["params"]):
                key = f"pool:on-demand:{pool['InstanceType']}:{pool['AvailabilityZone']}"
                due = [published[scope] for scope in (key, f"reservation:{odcr}") if scope in published]
                if due and datetime.fromisoformat(call["at"]) < min(due):
                    early.append((call["at"], key, due))
        seen = len(world.control.log("CreateFleet"))
    return early


@pytest.mark.covers("KRP-18", "KRP-19")
@pytest.mark.parametrize("capacity", [(RESERVED,), (ON_DEMAND,), (RESERVED, ON_DEMAND)])
def test_sixty_claims_and_nothing_to_be_had(world: World, capacity: tuple[str, ...]) -> None:
    odcr = world.aws.odcr(GPU, A, CLAIMS)
    world.node_class(id_=odcr, zones=(A, B))
    for zone in (A, B):
        world.control.pool(instance_type=GPU, zone=zone, size=0)
    if RESERVED in capacity:
        # EC2 counts slots as free and has none: the reservation's count is no reason to try again.
        world.control.fault(
            action="CreateFleet",
            stage="launch",
            code="ReservationCapacityExceeded",
            match={"CapacityType": "reserved"},
            times=-1,
        )
    process = world.start()
    process.until(lambda: process.broker.inventory.described, "EC2 is described")
    world.claims(CLAIMS, types=(GPU,), capacity=capacity)
    before = {claim.name: claim.uid for claim in world.all_claims()}
    early = calls_before_published_time(world, process, odcr)
    # Slots that EC2 counts as free end the first shortage of a reservation early, once.
    assert len(early) <= (RESERVED in capacity)
    steps = tries(world)
    # A reservation is tried at 0, 3, 9 and 21 minutes; on-demand, the last resort, at 0, 3 and then every 6.
    most = sum(4 if capacity_type == RESERVED else 6 for capacity_type in capacity)
    for times in steps.values():
        assert len(times) <= most
    assert sum(map(len, steps.values())) >= 4
    assert not world.instances()
    assert {claim.name: claim.uid for claim in world.all_claims()} == before
    calls = int(world.control.calls()["CreateFleet"])
    process.run(60.0)
    assert world.control.calls()["CreateFleet"] <= calls + 2
    world.control.clear_faults()
    world.control.clear_pools()
    process.until(lambda: len(held(world.all_claims())) == CLAIMS, "they launch", seconds=CAP.total_seconds())
    assert {claim.name: claim.uid for claim in world.all_claims()} == before
    assert sorted(held(world.all_claims()).values()) == sorted(i["InstanceId"] for i in world.instances())
