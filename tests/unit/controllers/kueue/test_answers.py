"""Whether a workload's reserved instances exist, and its check state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.apis import names
from broker.apis.kueue import Workload
from broker.controllers.kueue.answers import (
    SKEW,
    backoff,
    body,
    demands,
    increase,
    pending,
    ready,
    retry,
    shortage,
)
from broker.controllers.kueue.room import InstanceRoom, InstanceSlots, PodGroup
from broker.quota.tree import cycle
from broker.quota.usage import ReservationKey
from broker.text import format_time

Json = dict[str, Any]
GPU = "nvidia.com/gpu"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
EACH = {GPU: 8.0, "cpu": 192.0, "memory": 2048.0}


def slots(count: int, odcr: str = "cr-1") -> InstanceSlots:
    return InstanceSlots(odcr=odcr, count=count, resources=EACH)


def pods(count: int, gpus: float, **more: float) -> PodGroup:
    return PodGroup(count=count, requests={GPU: gpus, **more})


@pytest.mark.parametrize(
    ("instances", "running", "groups", "fits"),
    [
        (1, [], [pods(1, 8)], True),
        (1, [], [pods(2, 8)], False),
        (2, [pods(1, 8)], [pods(1, 8)], True),
        (2, [pods(3, 5)], [pods(1, 5)], False),  # 15 of 16 by count, but no instance of eight fits two fives
        (2, [pods(2, 5)], [pods(2, 3)], True),
        (1, [pods(4, 1)], [pods(4, 1)], True),
        (1, [pods(4, 1)], [pods(5, 1)], False),
        (0, [], [pods(1, 1)], False),
        (1, [pods(99, 8)], [pods(1, 1)], False),  # more pods run than there is room for
        (1, [], [pods(1, 8, memory=4096.0)], True),  # counted by the accelerator
        (1, [], [PodGroup(count=1, requests={"cpu": 193.0})], False),
        (
            1,
            [],
            [PodGroup(count=1, requests={"cpu": 100.0}), PodGroup(count=1, requests={"cpu": 92.0})],
            True,
        ),
        (1, [], [PodGroup(count=1, requests={"tpu": 1.0})], True),  # known only from a node that has it
        (1, [], [PodGroup(count=1, requests={"nvidia.com/mig-1g.10gb": 1.0, "cpu": 193.0})], False),
        (1, [], [PodGroup(count=5, requests={})], True),
    ],
)
def test_pods_fit_instances(
    instances: int, running: list[PodGroup], groups: list[PodGroup], fits: bool
) -> None:
    room = InstanceRoom([slots(instances)])
    room.fill(running)
    assert (room.place(groups) is not None) is fits


def test_small_pods_share_an_instance() -> None:
    room = InstanceRoom([slots(2)])
    assert room.place([pods(1, 2)]) is not None
    assert room.place([pods(1, 2)]) is not None
    assert room.place([pods(1, 8)]) is not None


SIZES = st.lists(st.tuples(st.integers(1, 4), st.sampled_from([1.0, 2.0, 4.0, 8.0])), max_size=6)


@given(SIZES, st.integers(0, 6))
def test_pods_that_do_not_fit_take_no_room(sizes: Sequence[tuple[int, float]], instances: int) -> None:
    room = InstanceRoom([slots(instances)])
    placed = room.place([pods(count, size) for count, size in sizes])
    needed = sum(count * size for count, size in sizes)
    # Sizes that divide each other leave no gaps: it fits if and only if the sum does.
    assert (placed is not None) is (needed <= 8 * instances)
    left = 8 * instances - (needed if placed is not None else 0)
    assert room.place([pods(int(left), 1.0)] if left else []) is not None
    assert room.place([pods(1, 1.0)]) is None


@given(SIZES, st.integers(1, 6))
def test_freed_room_is_available_again(sizes: Sequence[tuple[int, float]], instances: int) -> None:
    room = InstanceRoom([slots(instances)])
    room.free(room.place([pods(count, size) for count, size in sizes]) or [])
    assert room.place([pods(instances, 8.0)]) is not None


def workload(
    usage: Mapping[str, str], flavors: Mapping[str, str], *, count: int = 1, **template: Any
) -> Workload:
    assigned = {"name": "main", "flavors": flavors, "resourceUsage": usage, "count": count}
    return Workload.decode(
        {
            "metadata": {"name": "w", "namespace": "team", "uid": "u", "resourceVersion": "7"},
            "spec": {"podSets": [{"name": "main", "count": count, "template": {"spec": template}}]},
            "status": {"admission": {"clusterQueue": "q", "podSetAssignments": [assigned]}},
        }
    )


def test_demand_is_by_flavor_and_pod() -> None:
    by_flavor = demands(workload({GPU: "16", "cpu": "4"}, {GPU: "h100", "cpu": "small"}, count=2))
    assert by_flavor == {
        "h100": (pods(2, 8),),
        "small": (PodGroup(count=2, requests={"cpu": 2.0}, optional=True),),
    }
    assert demands(workload({}, {}, count=0)) == {}


ONE = {"h100": [slots(1)]}
TWO = {"h100": [slots(1), slots(1, "cr-2")]}
RESERVED = {names.CAPACITY_TYPE: "reserved"}
TEAM = ReservationKey("team", "gpu")
DRAWS = {"annotations": {names.DRAWS_FROM: "team/gpu"}}
PINNED = RESERVED | {names.RESERVATION_ID: "cr-1"}


@pytest.mark.parametrize(
    ("used", "labels", "template", "added"),
    [
        (ONE, {}, {}, PINNED),
        (TWO, {}, {}, RESERVED),  # the pods may be in either, and a selector can name only one
        ({}, {}, {}, None),  # a flavor without an EC2 reservation
        # Labels that the flavor or the pods already set are left out: Kueue would fail the admission.
        (ONE, {"h100": RESERVED}, {}, {names.RESERVATION_ID: "cr-1"}),
        (ONE, {}, {"nodeSelector": {names.CAPACITY_TYPE: "spot"}}, {names.RESERVATION_ID: "cr-1"}),
        (ONE, {"h100": PINNED}, {}, {}),
    ],
)
def test_ready_selects_the_nodes_of_the_pods(
    used: Mapping[str, list[InstanceSlots]], labels: Json, template: Json, added: Json | None
) -> None:
    workload_ = workload({GPU: "8"}, {GPU: "h100"}, **template)
    answer = ready(workload_, TEAM, used, labels)
    assert answer.state == "Ready"
    selected = {"nodeSelector": added} if added else {}
    assert answer.updates == ({} if added is None else {"main": selected | DRAWS})


def test_an_update_of_a_pod_set_names_all_pod_sets() -> None:
    """Kueue's webhook refuses an answer with fewer updates than pod sets."""
    raw = workload({GPU: "8"}, {GPU: "h100"}).model_dump(by_alias=True)
    raw["spec"]["podSets"] = [{"name": name, "count": 1} for name in ("driver", "main")]
    driver = {"name": "driver", "flavors": {"cpu": "small"}, "resourceUsage": {"cpu": "1"}, "count": 1}
    raw["status"]["admission"]["podSetAssignments"] += (driver,)
    workload_ = Workload.decode(raw)
    answer = ready(workload_, TEAM, ONE, {})
    assert answer.updates == {"driver": {}, "main": {"nodeSelector": PINNED} | DRAWS}
    (entry,) = body(workload_, "check", answer, NOW)["status"]["admissionChecks"]
    assert entry["podSetUpdates"] == [{"name": "driver"}, {"name": "main", "nodeSelector": PINNED} | DRAWS]
    assert not ready(workload_, TEAM, {}, {}).updates


def test_pods_that_name_a_reservation_keep_it() -> None:
    raw = workload({GPU: "8"}, {GPU: "h100"}).model_dump(by_alias=True)
    metadata = {"annotations": {names.DRAWS_FROM: "other"}}
    raw["spec"]["podSets"][0]["template"]["metadata"] = metadata
    answer = ready(Workload.decode(raw), TEAM, ONE, {})
    assert answer.updates == {"main": {"nodeSelector": PINNED}}


def test_retry_has_no_future_time() -> None:
    answer = retry(["flavor h100: no room"])
    body_ = body(workload({GPU: "8"}, {GPU: "h100"}), "check", answer, NOW)
    (check,) = body_["status"]["admissionChecks"]
    assert (check["state"], check["message"]) == ("Retry", "flavor h100: no room")
    assert "requeueAfterSeconds" not in check
    assert body_["status"]["requeueState"] == {"requeueAt": format_time(NOW - SKEW)}


@pytest.mark.parametrize(
    ("retried", "seconds"), [(0, 60), (1, 60), (2, 120), (4, 480), (5, 600), (10_000, 600)]
)
def test_the_delay_of_a_parked_workload_doubles_up_to_a_limit(retried: int, seconds: int) -> None:
    assert backoff(retried) == seconds


def test_a_decision_is_written_at_the_version_of_its_workload() -> None:
    workload_ = workload({GPU: "8"}, {GPU: "h100"})
    body_ = body(workload_, "check", ready(workload_, TEAM, ONE, {}), NOW)
    assert body_["metadata"] == {"name": "w", "namespace": "team", "uid": "u", "resourceVersion": "7"}
    (entry,) = body_["status"]["admissionChecks"]
    assert entry["podSetUpdates"] == [{"name": "main", "nodeSelector": PINNED} | DRAWS]
    assert "requeueAfterSeconds" not in entry
    (waits,) = body(workload_, "check", pending("x"), NOW)["status"]["admissionChecks"]
    assert waits["state"] == "Pending" and "podSetUpdates" not in waits


def test_a_shortage_is_described_with_its_numbers() -> None:
    message = shortage("h100", [pods(2, 8, memory=5.0)], [slots(1), slots(2, "cr-2")], borrows=True)
    assert message == (
        "flavor h100: 3 reserved instances are active, with no room there or in idle ones of its cohort for "
        "2 pods of 8 nvidia.com/gpu"
    )


@pytest.mark.parametrize(
    ("parents", "ring"),
    [
        ({}, ()),
        ({"ai": "all"}, ()),
        ({"ai": "all", "all": ""}, ()),
        ({"ai": "ai"}, ("ai", "ai")),
        ({"ai": "all", "all": "ai"}, ("ai", "all", "ai")),
        ({"ai": "all", "all": "top", "top": "all"}, ("all", "top", "all")),
    ],
)
def test_a_cycle_of_cohorts_is_detected(parents: dict[str, str], ring: tuple[str, ...]) -> None:
    assert cycle("ai", parents) == ring


SMALL = InstanceSlots(odcr="cr-1", count=1, resources={"cpu": 4.0, "memory": 2.0**34, "pods": 58.0})


@pytest.mark.covers("FLT-43")
@pytest.mark.parametrize(
    "resource",
    [
        "ephemeral-storage",
        "example.com/licence",
        "hugepages-2Mi",
        "credits",
        "nvidia.com/mig-1g.24gb",
        "nvidia.com/gpu.shared",
        "nvidia.com/gpumem",
        "aws.amazon.com/neurondevice",
        "vpc.amazonaws.com/efa",
        "smarter-devices/fuse",
    ],
)
def test_lack_of_what_ec2_does_not_sell_is_no_lack_of_machines(resource: str) -> None:
    room = InstanceRoom([SMALL])
    alone, beside = {resource: 3.0}, {resource: 3.0, "cpu": 4.0}
    assert room.place([PodGroup(count=9, requests=alone)]) is not None
    assert room.place([PodGroup(count=1, requests=beside)]) is not None
    assert room.place([PodGroup(count=1, requests=beside)]) is None, "what it sells still counts"


@pytest.mark.covers("FLT-43")
@pytest.mark.parametrize("flavor", ["h100", "small"], ids=["in the same flavor", "in another"])
def test_pod_set_of_cpu_alone_does_not_block_a_gpu_job(flavor: str) -> None:
    raw = workload({GPU: "8"}, {GPU: "h100"}).model_dump(by_alias=True)
    driver = {"name": "driver", "flavors": {"cpu": flavor}, "resourceUsage": {"cpu": "500"}, "count": 1}
    raw["status"]["admission"]["podSetAssignments"] += (driver,)
    by_flavor = demands(Workload.decode(raw))
    rooms = {"h100": InstanceRoom([slots(1)]), "small": InstanceRoom([SMALL])}
    assert all(rooms[name].place(groups) is not None for name, groups in by_flavor.items())
    # The room that it finds is taken all the same; without a GPU beside it, it is waited for.
    raw["status"]["admission"]["podSetAssignments"] = (driver,)
    (groups,) = demands(Workload.decode(raw)).values()
    assert InstanceRoom([slots(1)]).place(groups) is None


@pytest.mark.covers("FLT-43")
@pytest.mark.parametrize(
    ("requests", "text"),
    [
        ({"cpu": 2.0, "memory": 2.0**32}, "1 pod of 2 cpu, 4Gi memory"),
        ({"cpu": 0.25, "memory": 1.5 * 2**30}, "1 pod of 0.25 cpu, 1.5Gi memory"),
        ({"memory": 2.0**44, "ephemeral-storage": 9.0}, "1 pod of 16Ti memory"),
        ({GPU: 8.0, "memory": 2.0**40}, "1 pod of 8 nvidia.com/gpu"),
    ],
)
def test_amounts_of_a_shortage_have_units(requests: dict[str, float], text: str) -> None:
    groups = [PodGroup(count=1, requests=requests), PodGroup(count=1, requests={"cpu": 1.0}, optional=True)]
    assert shortage("f", groups, []).endswith(f"no room for {text}")


@pytest.mark.covers("FLT-07")
@pytest.mark.parametrize(
    ("demand", "replaced", "more"),
    [
        ({"f": [pods(3, 8)]}, {"f": [pods(2, 8)]}, {"f": (pods(1, 8),)}),
        ({"f": [pods(1, 8)]}, {"f": [pods(2, 8)]}, {"f": (pods(0, 8),)}),
        ({"f": [pods(2, 8)]}, {"g": [pods(2, 8)]}, {"f": (pods(2, 8),)}),
        ({"f": [pods(2, 8)]}, {"f": [pods(2, 4)]}, {"f": (pods(2, 8),)}),
        ({"f": [pods(2, 8), pods(1, 8)]}, {"f": [pods(1, 8), pods(1, 8)]}, {"f": (pods(0, 8), pods(1, 8))}),
        ({"f": [pods(1, 8)]}, {}, {"f": (pods(1, 8),)}),
    ],
)
def test_increase_is_what_the_replaced_pods_do_not_cover(demand: Json, replaced: Json, more: Json) -> None:
    assert increase(demand, replaced) == more
