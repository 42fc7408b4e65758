"""The table of repairs, and the changes of a NodePool."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from broker.apis import names
from broker.apis.karpenter import NodePool
from broker.placement.repair_policies import (
    DEFAULT,
    TABLE,
    RepairPolicy,
    RepairRules,
    most_broken,
    rules_of,
)
from broker.text import InvalidText
from tests.docs.blocks import DOCS

GPU = "AcceleratedHardwareReady"


def minutes(length: timedelta | None) -> int | None:
    return None if length is None else int(length.total_seconds() // 60)


def matched(rules: RepairRules, sign: str, status: str, reason: str) -> list[tuple[int | None, ...]]:
    """Toleration and bound of the drain in minutes, of each row."""
    return [(minutes(row.tolerated), minutes(row.drain)) for row in rules.matching(sign, status, reason)]


def rules(text: str) -> RepairRules:
    return rules_of(NodePool.decode({"metadata": {"name": "web", "annotations": {names.REPAIR: text}}}))


@pytest.mark.covers("FUL-20")
@pytest.mark.parametrize(
    ("sign", "status", "reason", "expected", "action"),
    [
        ("Ready", "False", "KubeletNotReady", (30, 10), "replace"),
        ("Ready", "Unknown", "NodeStatusUnknown", (30, 10), "replace"),
        (GPU, "False", "NvidiaXID48Error", (10, 5), "reboot"),
        (GPU, "False", "NvidiaXID158Error", (10, 5), "reboot"),
        (GPU, "False", "NvidiaXID79Error", (10, 5), "replace"),
        (GPU, "False", "NvidiaXID460Error", (30, 10), "replace"),  # another error than 46
        (GPU, "False", "XID13,XID79", (10, 5), "replace"),
        (GPU, "False", "NvidiaNVLinkError", (30, 10), "replace"),
        ("StorageReady", "False", "EBSVolumeIOPSExceeded", (30, 10), "replace"),
        ("NetworkingReady", "False", "IPAMDNotReady", (30, 10), "replace"),
        ("KernelReady", "False", "ForkFailedOutOfPIDs", (30, 10), "replace"),
        ("ContainerRuntimeReady", "False", "PodStuckTerminating", (30, 10), "replace"),
        ("InstanceImpaired", "True", "InstanceImpaired", (2, 0), "replace"),
        ("SystemImpaired", "True", "SystemImpaired", (2, 0), "replace"),
        ("EventScheduled", "True", "EventScheduled", (0, None), "replace"),
    ],
)
def test_each_sign_has_its_toleration_drain_and_action(
    sign: str, status: str, reason: str, expected: tuple[int | None, ...], action: str
) -> None:
    assert matched(DEFAULT, sign, status, reason) == [expected]
    (row,) = DEFAULT.matching(sign, status, reason)
    assert row.action == action


@pytest.mark.covers("FUL-20")
@pytest.mark.parametrize(
    ("sign", "status"), [("Ready", "True"), (GPU, "Unknown"), (GPU, "True"), ("MemoryPressure", "True")]
)
def test_other_conditions_are_no_signs(sign: str, status: str) -> None:
    assert not matched(DEFAULT, sign, status, "Any")


@pytest.mark.covers("FUL-20")
@pytest.mark.parametrize(
    ("text", "sign", "status", "reason", "expected"),
    [
        (f"{GPU}=5m", GPU, "False", "NvidiaXID48Error", [(5, 5)]),
        (f"{GPU}=5m", GPU, "False", "Other", [(5, 10)]),
        (f"{GPU}=5m", "Ready", "Unknown", "", [(30, 10)]),
        ("Ready=1h, StorageReady=off", "Ready", "False", "", [(60, 10)]),
        ("Ready=1h, StorageReady=off", "StorageReady", "False", "", []),
        ("InstanceImpaired=0s", "InstanceImpaired", "True", "InstanceImpaired", [(0, 0)]),
        ("on", "Ready", "False", "", [(30, 10)]),
    ],
)
def test_a_pool_changes_the_table(
    text: str, sign: str, status: str, reason: str, expected: list[tuple[int | None, ...]]
) -> None:
    assert matched(rules(text), sign, status, reason) == expected
    assert not rules(text).problem


@pytest.mark.covers("FUL-20")
@pytest.mark.parametrize(
    ("text", "actions"),
    [
        (f"{GPU}=replace", {"replace"}),
        (f"{GPU}=reboot", {"reboot"}),
        (f"{GPU}=3m/reboot", {"reboot"}),
        (f" {GPU} = 3m / replace ", {"replace"}),
    ],
)
def test_a_pool_changes_the_action(text: str, actions: set[str]) -> None:
    assert {row.action for row in rules(text).rows if row.sign == GPU} == actions


@pytest.mark.covers("FUL-20")
def test_a_pool_switches_repair_off() -> None:
    assert not rules("off").on
    assert rules("off").rows == TABLE  # what is broken is shown all the same


@pytest.mark.covers("FUL-20")
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Redy=1h", "'Redy' is no sign, write one of Ready"),
        ("Ready", "Ready has no value: write Ready=5m"),
        ("Ready=soon", "not a duration: 'soon'"),
        ("Ready=-5m", "Ready has the duration '-5m'"),
        ("Ready=5m/restart", "Ready has the action 'restart': write reboot or replace"),
        ("Ready=1h, off", "'off' is no sign"),
    ],
)
def test_an_unreadable_value_is_named_and_the_table_holds(text: str, problem: str) -> None:
    broken = rules(text)
    assert problem in broken.problem and names.REPAIR in broken.problem and text[:5] in broken.problem
    assert (broken.on, broken.rows) == (True, TABLE)


@pytest.mark.covers("FUL-21")
@pytest.mark.parametrize(
    ("text", "nodes", "expected"),
    [("20%", 2, 1), ("20%", 5, 1), ("20%", 6, 2), ("100%", 3, 3), ("0%", 3, 0), ("3", 100, 3), ("0", 5, 0)],
)
def test_share_of_broken_nodes_is_rounded_up(text: str, nodes: int, expected: int) -> None:
    assert most_broken(text, nodes) == expected


@pytest.mark.covers("FUL-21")
@pytest.mark.parametrize("text", ["many", "120%", "-1", "%", "1.5"])
def test_unreadable_share_is_named(text: str) -> None:
    with pytest.raises(InvalidText, match=names.REPAIR_AT_MOST):
        most_broken(text, 10)


def shown(row: RepairPolicy) -> tuple[str, ...]:
    """A row as the page has it: sign, status, XIDs, toleration, action, drain."""
    xids = ",".join(map(str, sorted(row.xids)))
    tolerated = f"{minutes(row.tolerated)}m" if row.tolerated else "at once"
    drain = "no bound" if row.drain is None else f"{minutes(row.drain)}m" if row.drain else "none"
    return (
        row.sign,
        row.status,
        xids,
        tolerated,
        row.action + (", ended first" if row.ends_first else ""),
        drain,
    )


@pytest.mark.covers("FUL-20")
def test_the_page_has_the_table() -> None:
    documented = set()
    for line in (DOCS / "use/repair.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and cells[1] in ("False", "Unknown", "True"):
            sign, _, detail = cells[0].replace("`", "").partition(" ")
            xids = ",".join(re.findall(r"\d+", detail))
            documented.add((sign.rstrip(","), cells[1], xids, cells[2], cells[3], cells[4]))
    assert documented == set(map(shown, TABLE))
