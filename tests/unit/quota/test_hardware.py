"""The hardware of each reservation and its users, as tables and over random machines."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.quota.hardware import (
    EntitledReservation,
    Machine,
    SteadyMachines,
    UnattributedKey,
    associations,
    attribute,
    beyond,
    free,
    shares,
    steady,
    taken,
    usage,
)
from broker.quota.model import Amounts, FlavorResource
from broker.quota.usage import HolderKind, ReservationHolder, ReservationKey

GPU, MEMORY, CPU = "nvidia.com/gpu", "memory", "cpu"
TI = 2**40
NODE = {GPU: 8, MEMORY: 2 * TI, CPU: 128_000}
A, B, C = ReservationKey("a", "r"), ReservationKey("b", "r"), ReservationKey("", "r")


def of(flavor: str = "h100", gpus: int = 0, memory: int = 0, cpu: int = 0) -> dict[FlavorResource, int]:
    amounts = {GPU: gpus, MEMORY: memory, CPU: cpu}
    return {FlavorResource(flavor, name): value for name, value in amounts.items()}


WHOLE = of(gpus=64, memory=16 * TI, cpu=1024_000)


def nodes(
    count: int, *, out: int = 0, owner: ReservationKey | None = None, flavor: str = "h100"
) -> list[Machine]:
    return [
        Machine(
            name=f"n-{n}",
            flavor=flavor,
            resources=NODE,
            owner=owner,
            out_of_service="cordoned" if n < out else "",
        )
        for n in range(count)
    ]


def gpus(amounts: Amounts, flavor: str = "h100") -> int:
    return amounts.get(FlavorResource(flavor, GPU), 0)


@pytest.mark.covers("OME-027", "OME-028")
def test_node_out_of_service_removes_all_its_resources() -> None:
    share = shares([EntitledReservation(reserved=A, nominal=WHOLE)], nodes(8, out=1))[A]
    assert share.supplied == WHOLE
    assert share.allocatable == of(gpus=56, memory=14 * TI, cpu=896_000)


@pytest.mark.parametrize(
    ("machines", "expected"),
    [
        ([], (0, 0)),
        (nodes(8), (64, 64)),
        (nodes(9, out=1), (64, 64)),
        (nodes(20), (64, 64)),
        (nodes(7), (56, 56)),
        (nodes(8, out=8), (64, 0)),
        (nodes(8, flavor="a100"), (0, 0)),
        (nodes(4, owner=A) + nodes(4), (64, 64)),
        (nodes(4, owner=B) + nodes(4), (32, 32)),
        (nodes(4, owner=A, out=2) + nodes(4), (64, 48)),
    ],
)
def test_share_of_one_reservation_of_sixty_four(machines: list[Machine], expected: tuple[int, int]) -> None:
    share = shares([EntitledReservation(reserved=A, nominal=of(gpus=64))], machines)[A]
    assert (gpus(share.supplied), gpus(share.allocatable)) == expected


@pytest.mark.covers("OME-098")
def test_two_reservations_of_one_flavor_share_hardware_older_first() -> None:
    both = [
        EntitledReservation(reserved=A, nominal=of(gpus=64), since=2.0),
        EntitledReservation(reserved=B, nominal=of(gpus=64), since=1.0),
    ]
    by_reservation = shares(both, nodes(12, out=1))
    assert (gpus(by_reservation[B].supplied), gpus(by_reservation[A].supplied)) == (64, 32)
    assert (gpus(by_reservation[B].allocatable), gpus(by_reservation[A].allocatable)) == (64, 24)


def test_resources_that_no_machine_has_are_not_missing() -> None:
    licence = FlavorResource("h100", "example.com/licence")
    sold = {GPU, MEMORY, CPU}
    share = shares([EntitledReservation(reserved=A, nominal={licence: 5})], nodes(1), sold=sold)[A]
    assert share.supplied == share.allocatable == {licence: 5}
    # Machines of another flavor do not count; resources sold with each machine are missing without any.
    other = Machine(name="n", flavor="a100", resources={licence.resource: 8})
    gpu = FlavorResource("h100", GPU)
    share = shares([EntitledReservation(reserved=A, nominal={licence: 5, gpu: 8})], [other], sold=sold)[A]
    assert share.supplied == {licence: 5, gpu: 0}
    own_machine = Machine(name="m", flavor="h100", resources={licence.resource: 2})
    share = shares([EntitledReservation(reserved=A, nominal={licence: 5})], [own_machine, other], sold=sold)[
        A
    ]
    assert share.supplied == {licence: 2}
    share = shares([EntitledReservation(reserved=A, nominal={licence: 5})], nodes(1))[A]
    assert share.supplied == {licence: 0}


def _amounts(most: int) -> st.SearchStrategy[dict[FlavorResource, int]]:
    keys = [FlavorResource(flavor, name) for flavor in ("x", "y") for name in (GPU, CPU)]
    return st.dictionaries(st.sampled_from(keys), st.integers(0, most))


MACHINES = st.lists(
    st.builds(
        Machine,
        name=st.text("abc", min_size=1, max_size=3),
        flavor=st.sampled_from(["x", "y"]),
        resources=st.dictionaries(st.sampled_from([GPU, CPU]), st.integers(0, 16)),
        owner=st.sampled_from([None, A, B]),
        out_of_service=st.sampled_from(["", "cordoned"]),
        count=st.integers(1, 3),
    ),
    max_size=8,
)
CLAIMANTS = st.lists(
    st.builds(
        EntitledReservation,
        reserved=st.sampled_from([A, B, C]),
        nominal=_amounts(40),
        since=st.integers(0, 2).map(float),
    ),
    max_size=3,
    unique_by=lambda claimant: claimant.reserved,
)


@pytest.mark.covers("OME-028", "OME-098")
@given(claimants=CLAIMANTS, machines=MACHINES)
def test_shares_exceed_neither_requests_nor_hardware(
    claimants: list[EntitledReservation], machines: list[Machine]
) -> None:
    computed = shares(claimants, machines)
    assert computed == shares(claimants[::-1], machines)
    for claimant in claimants:
        share = computed[claimant.reserved]
        for key, nominal in claimant.nominal.items():
            assert 0 <= share.allocatable[key] <= share.supplied[key] <= nominal
    keys = {key for claimant in claimants for key in claimant.nominal}
    for key in keys:
        amounts = [
            (machine.resources.get(key.resource, 0) * machine.count, not machine.out_of_service)
            for machine in machines
            if machine.flavor == key.flavor
        ]
        assert sum(s.supplied.get(key, 0) for s in computed.values()) <= sum(value for value, _ in amounts)
        usable = sum(value for value, good in amounts if good)
        assert sum(s.allocatable.get(key, 0) for s in computed.values()) <= usable


FLAVORS = {
    "h100": {"node.kubernetes.io/instance-type": "p5.48xlarge"},
    "h100-a": {"node.kubernetes.io/instance-type": "p5.48xlarge", "topology.kubernetes.io/zone": "a"},
    "twin": {"node.kubernetes.io/instance-type": "p5.48xlarge"},
    "team": {"team": "blue"},
}


@pytest.mark.covers("OME-030")
@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({}, ()),
        ({"node.kubernetes.io/instance-type": "p4d.24xlarge"}, ()),
        ({"node.kubernetes.io/instance-type": "p5.48xlarge"}, ("h100", "twin")),
        (FLAVORS["h100-a"], ("h100-a",)),
        ({**FLAVORS["h100-a"], "team": "blue"}, ("h100-a",)),
        ({"team": "blue"}, ("team",)),
    ],
)
def test_node_belongs_to_the_flavor_with_most_matching_labels(
    labels: dict[str, str], expected: tuple[str, ...]
) -> None:
    assert attribute(labels, FLAVORS) == expected
    assert attribute(labels, dict(reversed(FLAVORS.items()))) == expected


def counted(seen: SteadyMachines, machines: Sequence[Machine], now: float) -> tuple[SteadyMachines, int]:
    steadied, steady_machines = steady(seen, machines, now, 60)
    return steadied, sum(not machine.out_of_service for machine in steady_machines)


@pytest.mark.covers("OME-031")
def test_rolling_drain_counts_one_node_as_out_of_service() -> None:
    seen, steady_machines = steady(None, nodes(4), 0, 60)
    assert all(not machine.out_of_service for machine in steady_machines)
    shown: list[int] = []
    for step in range(1, 50):  # a pass every 10 s; each node is cordoned for 90 s, one after another
        now = step * 10.0
        gone = int(now // 90)
        machines = [
            Machine(
                name=f"n-{n}",
                flavor="h100",
                resources=NODE,
                out_of_service="cordoned" if n == gone and gone < 4 else "",
            )
            for n in range(4)
        ]
        seen, usable = counted(seen, machines, now)
        shown.append(usable)
    assert min(shown) == 3 and shown[-1] == 4
    assert sum(before != after for before, after in pairwise(shown)) == 2


def test_change_counts_after_its_window() -> None:
    seen, _ = steady(None, nodes(2), 0, 60)
    seen, usable = counted(seen, nodes(2, out=1), 10)
    assert (usable, seen.since) == (2, {("n-0", None): 10})
    seen, usable = counted(seen, nodes(2), 30)
    assert (usable, seen.since) == (2, {})
    seen, _ = counted(seen, nodes(2, out=1), 40)
    seen, usable = counted(seen, nodes(2, out=1), 100)
    assert (usable, seen.since) == (1, {})
    seen, usable = counted(seen, nodes(2), 110)
    assert usable == 1
    _, machines = steady(seen, nodes(2), 120, 60)
    late = "n-0 has been in service for less than 60 s"
    assert [machine.out_of_service for machine in machines] == [late, ""]
    assert counted(seen, nodes(2), 170)[1] == 2


def test_new_machines_count_as_seen_and_slots_with_starting_instances_as_usable() -> None:
    seen, steady_machines = steady(None, nodes(2, out=1, owner=A), 0, 60)
    assert [bool(machine.out_of_service) for machine in steady_machines] == [True, False]
    late = Machine(name="late", flavor="h100", resources=NODE, out_of_service="not ready")
    slot = Machine(name="slot", flavor="h100", resources=NODE, out_of_service="not ready", owner=A)
    ending = Machine(
        name="ends", flavor="h100", resources=NODE, out_of_service="it ends", owner=A, sudden=True
    )
    assert counted(seen, [late], 1)[1] == 0
    assert counted(seen, [slot], 1)[1] == 1
    assert counted(seen, [ending], 1)[1] == 0


def test_a_starting_node_that_turns_out_to_be_in_a_slot_counts_as_the_slot_did() -> None:
    seen, _ = counted(SteadyMachines({}), nodes(1, out=1), 0)
    seen, usable = counted(seen, nodes(1, out=1, owner=A), 1)
    assert usable == 1
    assert counted(seen, nodes(1, owner=A), 2)[1] == 1


def holder(
    name: str, amounts: Amounts, kind: HolderKind = "Workload", reserved: ReservationKey = A
) -> ReservationHolder:
    return ReservationHolder(kind=kind, name=name, reserved=reserved, usage=amounts)


@pytest.mark.covers("OME-057", "OME-059")
def test_users_are_listed_once_by_name_without_unused_resources() -> None:
    users = [
        holder("team/b", of(gpus=8)),
        holder("team/a", of(gpus=4, memory=TI)),
        holder("prod", of(gpus=32), "DedicatedAICluster"),
        holder("prod", of(gpus=1)),
        holder("idle", of(), "DedicatedAICluster"),
    ]
    gpu, memory = FlavorResource("h100", GPU), FlavorResource("h100", MEMORY)
    assert associations(users) == (
        ("DedicatedAICluster/prod", {gpu: 32}),
        ("Workload/prod", {gpu: 1}),
        ("team/a", {gpu: 4, memory: TI}),
        ("team/b", {gpu: 8}),
    )


@pytest.mark.covers("OME-060")
@given(st.lists(_amounts(50), max_size=6), _amounts(100))
def test_usage_is_supplied_plus_borrowed(used: list[Amounts], nominal: Amounts) -> None:
    holders = [holder(f"w/{n}", amounts) for n, amounts in enumerate(used)]
    total = usage(holders)
    borrowed = beyond(total, nominal)
    assert all(value > 0 for value in borrowed.values())
    for key, value in total.items():
        assert value <= nominal.get(key, 0) + borrowed.get(key, 0)
        assert value == sum(amounts.get(key, 0) for _, amounts in associations(holders))
    assert all(0 <= value <= nominal[key] for key, value in free(nominal, total).items())


H100 = FlavorResource("h100", GPU)


@pytest.mark.covers("OME-033", "OME-098")
@pytest.mark.parametrize(
    ("machines", "used", "unattributed", "anywhere", "expected"),
    [
        # Two of 32 on 64: unattributed usage takes the free share of the younger, then of the older.
        (nodes(8), {}, {UnattributedKey(None, H100): 8}, False, {B: 8}),
        (nodes(8), {}, {UnattributedKey(None, H100): 40}, False, {B: 32, A: 8}),
        (nodes(8), {B: 24}, {UnattributedKey(None, H100): 40}, False, {B: 8, A: 32}),
        (nodes(8), {A: 32, B: 32}, {UnattributedKey(None, H100): 40}, False, {}),
        # Hardware beyond all quotas is taken first.
        (nodes(10), {}, {UnattributedKey(None, H100): 16}, False, {}),
        (nodes(10), {}, {UnattributedKey(None, H100): 24}, False, {B: 8}),
        # On machines of an owner it takes from the owner, after hardware beyond the owner's quota.
        (nodes(4, owner=A) + nodes(4), {}, {UnattributedKey(A, H100): 16}, False, {A: 16}),
        (nodes(5, owner=A) + nodes(4), {}, {UnattributedKey(A, H100): 16}, False, {A: 8}),
        (nodes(4, owner=A) + nodes(4, owner=B), {A: 32}, {UnattributedKey(B, H100): 8}, False, {B: 8}),
        # Usage with unknown machines may be on any machine.
        (nodes(5, owner=A) + nodes(4, owner=B), {}, {UnattributedKey(None, H100): 8}, True, {}),
        (nodes(4, owner=A) + nodes(4, owner=B), {}, {UnattributedKey(None, H100): 8}, True, {B: 8}),
    ],
)
def test_unattributed_usage_takes_free_amounts(
    machines: list[Machine],
    used: dict[ReservationKey, int],
    unattributed: dict[UnattributedKey, int],
    anywhere: bool,
    expected: dict[ReservationKey, int],
) -> None:
    both = [
        EntitledReservation(reserved=reserved, nominal={H100: 32}, since=since)
        for since, reserved in enumerate((A, B))
    ]
    taken_amounts = taken(
        both,
        machines,
        shares(both, machines),
        {reserved: {H100: amount} for reserved, amount in used.items()},
        unattributed,
        anywhere=anywhere,
    )
    assert taken_amounts == {reserved: {H100: amount} for reserved, amount in expected.items()}


@given(st.floats(0, 1e6), st.floats(0.1, 1e4))
def test_change_counts_exactly_at_the_end_of_its_window(began: float, window: float) -> None:
    seen, _ = steady(None, nodes(2), began, window)
    seen, _ = steady(seen, nodes(2, out=1), began, window)
    seen, steady_machines = steady(seen, nodes(2, out=1), seen.since["n-0", None] + window, window)
    assert [bool(machine.out_of_service) for machine in steady_machines] == [True, False] and not seen.since
