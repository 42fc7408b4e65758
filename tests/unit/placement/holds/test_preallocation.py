"""Room that a reservation takes from running pods counts once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.placement.holds import Consumption, HoldOwner
from broker.placement.holds_ledger import HoldLedger, HoldLink
from broker.placement.model import NodeInfo, PodInfo
from broker.placement.preallocation import RunningPod, pre_allocate
from broker.placement.snapshot import PlacementSnapshot
from tests.support.examples import examples
from tests.unit.placement.holds.builders import NOW, hold, occupied

CAPACITY = 10
AMOUNT = st.integers(0, 4)


def pod(name: str, cpu: int, node: str = "") -> PodInfo:
    return PodInfo(namespace="default", name=name, uid=name, node_name=node, requests={"cpu": cpu})


@examples(75)
@given(
    amount=st.integers(1, 6),
    pods=st.lists(st.tuples(AMOUNT, st.sampled_from(["n", "m"]), st.booleans()), max_size=8),
    several=st.booleans(),
)
def test_no_node_is_oversubscribed(amount: int, pods: list[tuple[int, str, bool]], several: bool) -> None:
    bound = [pod(f"p-{place}", cpu, node) for place, (cpu, node, _) in enumerate(pods)]
    nodes = [NodeInfo(name=name, allocatable={"cpu": CAPACITY, "pods": 6}) for name in ("m", "n")]
    snapshot = PlacementSnapshot.of(nodes, bound)
    open_ = [RunningPod(info) for info, (_, _, may) in zip(bound, pods, strict=True) if may]
    result, taken_pods = pre_allocate(pod("r", amount), open_, snapshot, {"cpu": amount}, several=several)
    if not result.node:
        assert set(result.fits.reasons) == {"m", "n"}
        return
    assert taken_pods
    assert several or len(taken_pods) == 1
    assert all(info.node_name == result.node for info in taken_pods)
    kept = hold(cpu=amount, node=result.node, consumption=Consumption.SHARED)
    links = [HoldLink(kept.id, result.node, HoldOwner(info.uid, info.requests)) for info in taken_pods]
    state = HoldLedger.of((kept,), links, NOW).states[kept.id]
    assert state.used["cpu"] <= amount
    present = [info.requests for info in bound if info.node_name == result.node]
    if sum(requests["cpu"] for requests in present) <= CAPACITY and len(present) <= 6:
        taken = occupied(present, [state])
        assert taken.get("cpu", 0) <= CAPACITY
        assert taken["pods"] <= 6


def test_a_node_with_pods_that_are_bound_already_comes_first() -> None:
    nodes = [NodeInfo(name=name, allocatable={"cpu": 4, "pods": 9}) for name in ("a", "b")]
    first, second = pod("first", 2, "a"), pod("second", 2, "b")
    snapshot = PlacementSnapshot.of(nodes, (first, second))
    running = [RunningPod(first), RunningPod(second, bound=True)]
    result, taken = pre_allocate(pod("r", 4), running, snapshot, {"cpu": 4})
    assert (result.node, taken) == ("b", (second,))
