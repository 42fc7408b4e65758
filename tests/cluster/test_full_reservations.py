"""Short now: the full reservations that pods wait for, beside the pools that EC2 refused."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import names
from broker.commands.explain.explanation import Explanation, explain
from broker.commands.explain.reading import read
from broker.oncall.full_reservations import FullReservations
from broker.webpage.live import live_state
from tests.cluster.account import A, B
from tests.cluster.objects import RESERVED
from tests.cluster.stack import Stack
from tests.cluster.test_provisioning import capacity, pods, pool, start

INSISTS: dict[str, Any] = {names.CAPACITY_TYPE: RESERVED}


def on_page(stack: Stack) -> list[FullReservations]:
    assert stack.broker is not None and stack.current is not None
    return live_state(stack.broker).full


def by_command(stack: Stack) -> Explanation:
    return explain(read(stack.client, stack.clock.now()))


def until_shown(stack: Stack, *scopes: str) -> list[dict[str, Any]]:
    """The rows of the command once page and command show these reservations alone."""

    def same() -> bool:
        shown = [row["pool"] for row in by_command(stack).shown["short"]]
        return sorted(shown) == sorted(row.scope for row in on_page(stack)) == sorted(scopes)

    stack.until(same, f"the page and the command show {scopes}", step=1.0)
    return [dict(row) for row in by_command(stack).shown["short"]]


@pytest.mark.covers("ONC-01", "ONC-02")
def test_full_reservation_that_only_pods_wait_for_is_short_now(stack: Stack) -> None:
    odcr = stack.aws.odcr("m5.large", A, 1)
    stack.aws.rival(odcr)
    stack.node_class(id_=odcr)
    pool(stack)
    start(stack)
    pods(stack, 2, spec={"nodeSelector": INSISTS})
    until_shown(stack, f"{odcr} (m5.large, {A})")
    (row,) = stack.until(
        lambda: [row for row in by_command(stack).shown["short"] if "p-1" in row["who"]],
        "both pods",
        step=1.0,
    )
    assert row["code"] == "ReservationFull" and row["for"]
    assert row["who"].startswith("2 pods wait: pod default/p-0, pod default/p-1; held by ")
    assert "1 instance of no claim of this cluster" in row["who"]
    explanation = by_command(stack)
    assert "0 shortages; 1 full reservation that pods wait for" in explanation.headline
    (machine,) = explanation.parts["short"]
    assert machine["pods"] == ["default/p-0", "default/p-1"]
    assert machine["command"] == "capacity-broker explain pod -n default p-0"
    assert on_page(stack)[0].who == row["who"]


@pytest.mark.covers("ONC-01", "ONC-06")
def test_equal_reservations_are_one_row_and_those_of_other_pods_are_another(stack: Stack) -> None:
    first, second = (stack.aws.odcr("m5.large", A, 1) for _ in range(2))
    other = stack.aws.odcr("m5.large", B, 1)
    for odcr in (first, second, other):
        stack.aws.rival(odcr)
    stack.node_class(group=stack.aws.group(first, second, other))
    pool(stack, template={"requirements": [capacity(RESERVED)]})
    start(stack)
    pods(stack, 1, "a", spec={"nodeSelector": {names.ZONE: A}})
    pods(stack, 1, "b", spec={"nodeSelector": {names.ZONE: B}})
    equal = ", ".join(sorted((first, second)))
    rows = until_shown(stack, f"{equal} (m5.large, {A})", f"{other} (m5.large, {B})")
    who = {row["pool"]: row["who"].partition(";")[0] for row in rows}
    assert who == {
        f"{equal} (m5.large, {A})": "1 pod waits: pod default/a-0",
        f"{other} (m5.large, {B})": "1 pod waits: pod default/b-0",
    }
