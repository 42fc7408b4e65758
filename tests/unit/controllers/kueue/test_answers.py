"""Whether a workload's reserved instances exist, and its check state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.apis import names
from broker.apis.kueue import Cohort, Workload
from broker.controllers.kueue.answers import SKEW, backoff, body, demands, pending, ready, retry, shortage
from broker.controllers.kueue.cohorts import cycle
from broker.controllers.kueue.room import InstanceRoom, InstanceSlots, PodGroup
from broker.kube.cache import Cache
from broker.kube.conditions import timestamp

Json = dict[str, Any]
GPU = "nvidia.com/gpu"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
EACH = {GPU: 8.0, "cpu": 192.0, "memory": 2048.0}


def slots(count: int, odcr: str = "cr-1") -> InstanceSlots:
    return InstanceSlots(odcr=odcr, count=count, each=EACH)


def pods(count: int, gpus: float, **more: float) -> PodGroup:
    return PodGroup(count=count, each={GPU: gpus, **more})


@pytest.mark.parametrize(
    ("instances", "there", "asked", "fits"),
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
        (1, [], [PodGroup(count=1, each={"cpu": 193.0})], False),
        (1, [], [PodGroup(count=1, each={"cpu": 100.0}), PodGroup(count=1, each={"cpu": 92.0})], True),
        (1, [], [PodGroup(count=1, each={"tpu": 1.0})], False),
        (1, [], [PodGroup(count=5, each={})], True),
    ],
)
def test_pods_fit_instances(instances: int, there: list[PodGroup], asked: list[PodGroup], fits: bool) -> None:
    room = InstanceRoom([slots(instances)])
    room.fill(there)
    assert (room.place(asked) is not None) is fits


def test_small_pods_share_an_instance_so_that_whole_ones_stay() -> None:
    room = InstanceRoom([slots(2)])
    assert room.place([pods(1, 2)]) is not None
    assert room.place([pods(1, 2)]) is not None
    assert room.place([pods(1, 8)]) is not None


SIZES = st.lists(st.tuples(st.integers(1, 4), st.sampled_from([1.0, 2.0, 4.0, 8.0])), max_size=6)


@given(SIZES, st.integers(0, 6))
def test_what_does_not_fit_takes_nothing(asked: Sequence[tuple[int, float]], instances: int) -> None:
    room = InstanceRoom([slots(instances)])
    placed = room.place([pods(count, size) for count, size in asked])
    wanted = sum(count * size for count, size in asked)
    # Sizes that divide each other leave no gaps: it fits if and only if the sum does.
    assert (placed is not None) is (wanted <= 8 * instances)
    left = 8 * instances - (wanted if placed is not None else 0)
    assert room.place([pods(int(left), 1.0)] if left else []) is not None
    assert room.place([pods(1, 1.0)]) is None


@given(SIZES, st.integers(1, 6))
def test_what_is_given_back_is_there_again(asked: Sequence[tuple[int, float]], instances: int) -> None:
    room = InstanceRoom([slots(instances)])
    room.free(room.fill([pods(count, size) for count, size in asked]))
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


def test_what_is_asked_is_by_flavor_and_pod() -> None:
    found = demands(workload({GPU: "16", "cpu": "4"}, {GPU: "h100", "cpu": "small"}, count=2))
    assert found == {"h100": (pods(2, 8),), "small": (PodGroup(count=2, each={"cpu": 2.0}),)}
    assert demands(workload({}, {}, count=0)) == {}


ONE = {"h100": [slots(1)]}
TWO = {"h100": [slots(1), slots(1, "cr-2")]}
RESERVED = {names.CAPACITY_TYPE: "reserved"}
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
        (ONE, {"h100": PINNED}, {}, None),
    ],
)
def test_ready_says_where_the_pods_go(
    used: Mapping[str, list[InstanceSlots]], labels: Json, template: Json, added: Json | None
) -> None:
    one = workload({GPU: "8"}, {GPU: "h100"}, **template)
    answer = ready(one, used, labels)
    assert answer.state == "Ready"
    assert answer.updates == ({"main": added} if added else {})


def test_where_one_pod_set_is_told_where_to_go_all_are_named() -> None:
    """Kueue's webhook refuses an answer with fewer updates than pod sets."""
    raw = workload({GPU: "8"}, {GPU: "h100"}).model_dump(by_alias=True)
    raw["spec"]["podSets"] = [{"name": name, "count": 1} for name in ("driver", "main")]
    driver = {"name": "driver", "flavors": {"cpu": "small"}, "resourceUsage": {"cpu": "1"}, "count": 1}
    raw["status"]["admission"]["podSetAssignments"] += (driver,)
    two = Workload.decode(raw)
    answer = ready(two, ONE, {})
    assert answer.updates == {"driver": {}, "main": PINNED}
    (entry,) = body(two, "check", answer, NOW)["status"]["admissionChecks"]
    assert entry["podSetUpdates"] == [{"name": "driver"}, {"name": "main", "nodeSelector": PINNED}]
    assert not ready(two, {}, {}).updates


def test_retry_names_no_time_to_come_since_kueue_would_keep_the_quota_until_then() -> None:
    answer = retry(["flavor h100: no room"])
    made = body(workload({GPU: "8"}, {GPU: "h100"}), "check", answer, NOW)
    (said,) = made["status"]["admissionChecks"]
    assert (said["state"], said["message"]) == ("Retry", "flavor h100: no room")
    assert "requeueAfterSeconds" not in said
    assert made["status"]["requeueState"] == {"requeueAt": timestamp(NOW - SKEW)}


@pytest.mark.parametrize(
    ("retried", "seconds"), [(0, 60), (1, 60), (2, 120), (4, 480), (5, 600), (10_000, 600)]
)
def test_a_workload_is_parked_longer_each_time(retried: int, seconds: int) -> None:
    assert backoff(retried) == seconds


def test_what_is_sent_is_of_the_workload_that_was_decided_about() -> None:
    one = workload({GPU: "8"}, {GPU: "h100"})
    said = body(one, "check", ready(one, ONE, {}), NOW)
    assert said["metadata"] == {"name": "w", "namespace": "team", "uid": "u", "resourceVersion": "7"}
    (entry,) = said["status"]["admissionChecks"]
    assert entry["podSetUpdates"] == [{"name": "main", "nodeSelector": PINNED}]
    assert "requeueAfterSeconds" not in entry
    (waits,) = body(one, "check", pending("x"), NOW)["status"]["admissionChecks"]
    assert waits["state"] == "Pending" and "podSetUpdates" not in waits


def test_what_is_missing_is_said_with_numbers() -> None:
    said = shortage("h100", [pods(2, 8, memory=5.0)], [slots(1), slots(2, "cr-2")], borrows=True)
    assert said == (
        "flavor h100: 3 reserved instances are active, and it and its cohort's idle ones have no room for "
        "2 pods of 8 nvidia.com/gpu"
    )


def cohorts(**parents: str) -> Cache[Cohort]:
    cache: Cache[Cohort] = Cache(Cohort)
    items = [
        {"metadata": {"name": name, "resourceVersion": "1"}, "spec": {"parentName": parent}}
        for name, parent in parents.items()
    ]
    cache.replace(items, 1)
    return cache


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
def test_cohorts_that_are_each_others_parents(parents: dict[str, str], ring: tuple[str, ...]) -> None:
    assert cycle("ai", cohorts(**parents)) == ring
