"""Which preferences count, on worlds of a few machines that each pod can have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.controllers.provisioning.preferences import Drops, by_preference
from broker.placement.model import NodeInfo, PodInfo
from broker.placement.packing_model import MachineOption, PackedBin, Packing, PendingPod

SLOT, BUYS, NONE = "slot", "buys", "none"


@dataclass
class World:
    """`gets`: what each pod gets after each number of drops; `slots` of them get the free slots, in order."""

    gets: Mapping[str, list[str]]
    slots: int = 0
    calls: list[dict[str, int]] = field(default_factory=list)

    def decide(self, drops: Drops) -> Decision:
        self.calls.append(dict(drops))
        left, got = self.slots, {}
        for pod, drop in drops.items():
            got[pod] = self.gets[pod][drop]
            if got[pod] == SLOT:
                got[pod] = SLOT if left > 0 else BUYS
                left -= 1
        return Decision(dict(drops), got, bool(self.slots))

    def result(self) -> Decision:
        return by_preference({pod: len(gets) - 1 for pod, gets in self.gets.items()}, self.decide)


@dataclass
class Decision:
    drops: dict[str, int]
    got: dict[str, str]
    slots: bool

    @property
    def reasons(self) -> Mapping[str, str]:
        return {pod: "no machine" for pod, got in self.got.items() if got == NONE}

    @property
    def packing(self) -> Packing:
        return Packing(bins=tuple(_bin(pod, got) for pod, got in self.got.items() if got != NONE))


def _bin(pod: str, got: str) -> PackedBin:
    option = MachineOption(
        pool="p",
        node=NodeInfo(name="m"),
        instance_type="m5.large",
        zone="a",
        capacity_type="",
        cost=1.0,
        source="cr-1" if got == SLOT else "",
    )
    namespace, _, name = pod.partition("/")
    return PackedBin(option=option, pods=(PendingPod(info=PodInfo(namespace=namespace, name=name)),))


@pytest.mark.covers("FLT-34")
@pytest.mark.parametrize(
    ("gets", "slots", "drops", "calls"),
    [
        ([BUYS, SLOT], 0, 0, 1),  # no slot is free: nothing else is tried
        ([NONE, NONE, BUYS, BUYS], 0, 2, 3),
        ([NONE, NONE], 0, 1, 2),  # in vain: the reason is that of the rules
        ([BUYS, BUYS, SLOT], 1, 2, 3),
        ([BUYS, BUYS, BUYS], 1, 0, 4),
        ([SLOT, SLOT], 1, 0, 1),
        ([NONE, BUYS, SLOT], 1, 2, 3),
    ],
)
def test_fewest_preferences_are_dropped(gets: list[str], slots: int, drops: int, calls: int) -> None:
    world = World({"t/p": gets}, slots)
    decision = world.result()
    assert (decision.drops, len(world.calls)) == ({"t/p": drops}, calls)
    assert bool(decision.reasons) == (gets[drops] == NONE)


@pytest.mark.covers("FLT-34")
@given(
    st.dictionaries(
        st.sampled_from([f"t/p-{n}" for n in range(5)]),
        st.lists(st.sampled_from([SLOT, BUYS, NONE]), min_size=1, max_size=4),
        min_size=1,
    ),
    st.integers(0, 3),
)
def test_no_pod_waits_that_gets_a_machine_without_preferences(gets: dict[str, list[str]], slots: int) -> None:
    world = World(gets, slots)
    decision = world.result()
    assert len(world.calls) <= max(map(len, gets.values())) + 2, "a plan for each drop, not for each mixture"
    waiting = decision.reasons.keys()
    assert all(NONE in gets[pod] and set(gets[pod]) == {NONE} for pod in waiting)
