"""Which repair of one node is due when."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim
from broker.placement.reboots import Reboot, Reboots, reboots_of
from broker.placement.repair import Diagnosis, diagnose, obstacle_of_repair
from broker.placement.repair_policies import DEFAULT, RepairRules
from broker.text import format_time

NOW = datetime(2026, 11, 23, 3, 0, tzinfo=UTC)
GPU = "AcceleratedHardwareReady"


def ago(minutes: float) -> datetime:
    return NOW - timedelta(minutes=minutes)


def condition(type_: str, minutes: float, status: str = "False", reason: str = "Broken") -> dict[str, Any]:
    at = format_time(ago(minutes))
    return {"type": type_, "status": status, "reason": reason, "message": "m", "lastTransitionTime": at}


def node(*conditions: dict[str, Any], created: float = 600, boot: str = "boot-1", **annotations: Any) -> Node:
    metadata = {"name": "n", "creationTimestamp": format_time(ago(created)), "annotations": annotations}
    status = {"conditions": [*conditions], "nodeInfo": {"bootID": boot} if boot else {}}
    return Node.decode({"metadata": metadata, "status": status})


def claim(reboots: str = "", *conditions: dict[str, Any], initialized: bool = True, **more: Any) -> NodeClaim:
    annotations = {**({names.REBOOTS: reboots} if reboots else {}), **more}
    ready = [condition(names.INITIALIZED_CONDITION, 500, "True", "Initialized")] if initialized else []
    metadata = {"name": "c", "uid": "c", "annotations": annotations}
    return NodeClaim.decode({"metadata": metadata, "status": {"conditions": [*ready, *conditions]}})


def step(diagnosis: Diagnosis | None) -> tuple[str, float]:
    """The action, and in how many minutes it is due."""
    assert diagnosis is not None
    return diagnosis.sign.action, (diagnosis.sign.due - NOW) / timedelta(minutes=1)


XID48, XID79 = condition(GPU, 4, reason="NvidiaXID48Error"), condition(GPU, 4, reason="NvidiaXID79Error")


@pytest.mark.covers("FUL-20")
@pytest.mark.parametrize(
    ("conditions", "created", "expected"),
    [
        ([XID48], 600, ("reboot", 6)),
        ([XID79], 600, ("replace", 6)),
        ([condition(GPU, 4, reason="Other")], 600, ("replace", 26)),
        ([condition("Ready", 29, "Unknown")], 600, ("replace", 1)),
        ([condition("Ready", 40, "Unknown")], 3, ("replace", 27)),  # from the creation of the Node
        # The first that is due; of those that are, a replacement before a reboot.
        ([XID48, condition("KernelReady", 25)], 600, ("replace", 5)),
        ([condition(GPU, 20, reason="XID48"), condition("KernelReady", 25)], 600, ("reboot", -10)),
        ([condition(GPU, 20, reason="XID48"), condition("KernelReady", 31)], 600, ("replace", -1)),
    ],
)
def test_sign_is_due_after_its_toleration(
    conditions: list[dict[str, Any]], created: float, expected: tuple[str, float]
) -> None:
    assert step(diagnose(node(*conditions, created=created), claim(), DEFAULT, NOW)) == expected


@pytest.mark.covers("FUL-20")
def test_ec2s_report_on_the_claim_is_a_sign() -> None:
    impaired = condition("SystemImpaired", 1, "True", reason="SystemImpaired")
    diagnosis = diagnose(node(), claim("", impaired), DEFAULT, NOW)
    assert step(diagnosis) == ("replace", 1)
    assert diagnosis is not None and (diagnosis.sign.text, diagnosis.drain) == ("SystemImpaired", timedelta())
    event = condition("EventScheduled", 0, "True", reason="EventScheduled")
    diagnosis = diagnose(node(), claim("", event), DEFAULT, NOW)
    assert step(diagnosis) == ("replace", 0)
    assert diagnosis is not None and (diagnosis.drain, diagnosis.counts) == (None, False)


@pytest.mark.covers("FUL-20", "FUL-21")
@pytest.mark.parametrize(
    ("ages", "off", "due", "ends_first", "drain", "counts"),
    [
        # Minutes since the event, the failed check of the host, and that of the instance.
        ((9, 3, None), (), True, True, 0, True),
        ((9, 1, None), (), True, False, None, True),  # the check is tolerated, and counts
        ((9, 3, None), ("EventScheduled",), True, True, 0, True),
        ((9, 1, None), ("EventScheduled",), False, True, 0, True),
        ((None, 3, 3), ("SystemImpaired",), True, True, 0, True),
        ((9, 3, 3), ("SystemImpaired", "InstanceImpaired"), True, False, None, False),
    ],
)
def test_all_problems_of_an_instance_are_signs(
    ages: tuple[float | None, ...],
    off: tuple[str, ...],
    due: bool,
    ends_first: bool,
    drain: float | None,
    counts: bool,
) -> None:
    types = ("EventScheduled", "SystemImpaired", "InstanceImpaired")
    seen = [condition(type_, age, "True", type_) for type_, age in zip(types, ages, strict=True) if age]
    rules = RepairRules(rows=tuple(row for row in DEFAULT.rows if row.sign not in off))
    diagnosis = diagnose(node(), claim("", *seen), rules, NOW)
    assert diagnosis is not None
    assert (diagnosis.sign.due <= NOW) == due
    assert (diagnosis.ends_first, diagnosis.counts) == (ends_first, counts)
    assert diagnosis.drain == (None if drain is None else timedelta(minutes=drain))
    shown = {type_ for type_, age in zip(types, ages, strict=True) if age and type_ not in off}
    assert set(diagnosis.text.split(", ")) == shown


@pytest.mark.covers("FUL-20")
def test_the_shortest_drain_of_the_due_signs_holds() -> None:
    both = node(condition(GPU, 20, reason="XID79"), condition("KernelReady", 31))
    diagnosis = diagnose(both, claim(), DEFAULT, NOW)
    assert diagnosis is not None and diagnosis.drain == timedelta(minutes=5)


@pytest.mark.covers("FUL-20")
def test_toleration_counts_from_the_registration_by_the_clock_of_the_broker() -> None:
    registered = condition(names.REGISTERED_CONDITION, 2, "True", "Registered")
    broken = diagnose(node(condition("Ready", 600), created=600), claim("", registered), DEFAULT, NOW)
    assert step(broken) == ("replace", 28)


@pytest.mark.covers("FUL-20")
def test_sign_without_a_time_is_shown_and_never_due() -> None:
    timeless = condition("Ready", 600) | {"lastTransitionTime": None}
    assert step(diagnose(node(timeless), claim(), DEFAULT, NOW)) == ("replace", 30)


@pytest.mark.covers("FUL-20")
def test_node_that_joins_is_not_broken_until_it_is_late() -> None:
    young, late = condition("Ready", 1), condition("Ready", 31)
    assert diagnose(node(young), claim(initialized=False), DEFAULT, NOW) is None
    assert step(diagnose(node(late), claim(initialized=False), DEFAULT, NOW)) == ("replace", -1)
    assert diagnose(node(condition("Ready", 1, "True")), claim(), DEFAULT, NOW) is None


def reboot(phase: Any, began: float, until: float | None = None) -> str:
    end = None if until is None else ago(until)
    return str(Reboot(phase=phase, began=ago(began), boot_id="boot-0", until=end))


@pytest.mark.covers("FUL-21")
@pytest.mark.parametrize(
    ("reboots", "boot", "expected"),
    [
        ([("Succeeded", 8, 5)], "boot-1", ("reboot", 5)),  # tolerated again since its end
        ([("Succeeded", 90, 80), ("Succeeded", 30, 20)], "boot-1", ("replace", -5)),  # two a day
        ([("Succeeded", 1500, 1490), ("Succeeded", 30, 20)], "boot-1", ("reboot", -5)),
        ([("Failed", 25, 5)], "boot-1", ("replace", -5)),  # at once
        ([], "", ("replace", -5)),  # no boot id to compare
    ],
)
def test_node_is_rebooted_twice_a_day_then_replaced(
    reboots: list[tuple[str, float, float]], boot: str, expected: tuple[str, float]
) -> None:
    known = ",".join(reboot(*item) for item in reboots)
    broken = node(condition(GPU, 15, reason="NvidiaXID48Error"), boot=boot)
    if len(reboots) == 1 and reboots[0][0] == "Succeeded":
        broken = node(condition(GPU, 40, reason="NvidiaXID48Error"), boot=boot)
    assert step(diagnose(broken, claim(known), DEFAULT, NOW)) == expected


@pytest.mark.covers("FUL-21")
def test_failed_reboot_of_the_past_does_not_hasten_a_later_sign() -> None:
    known = reboot("Failed", 200, 180)
    assert step(diagnose(node(XID48), claim(known), DEFAULT, NOW)) == ("reboot", 6)


@pytest.mark.covers("FUL-21")
def test_reboots_are_read_as_they_were_written() -> None:
    draining = Reboot(phase="Draining", began=ago(3), until=ago(-2))
    requested = Reboot(phase="Requested", began=ago(1), boot_id="0a1b-2c")
    reboots = Reboots().begin(requested.ended("Succeeded", NOW), NOW).begin(draining, NOW)
    assert reboots_of(claim(str(reboots))) == reboots
    assert reboots.current == draining and reboots.left(NOW) == 1
    assert reboots.updated(requested).left(NOW) == 0
    assert reboots.without_last().current is None
    assert Reboots().left(NOW) == 2


@pytest.mark.covers("FUL-21")
@pytest.mark.parametrize("text", ["often", "Requested/yesterday/b/", "Requested"])
def test_annotation_that_was_changed_by_hand_allows_no_reboot(text: str) -> None:
    reboots = reboots_of(claim(text))
    assert names.REBOOTS in reboots.problem and reboots.left(NOW) == 0
    assert step(diagnose(node(XID48), claim(text), DEFAULT, NOW))[0] == "replace"


@pytest.mark.covers("FUL-21")
@pytest.mark.parametrize(
    ("on_node", "on_claim", "rules", "reason"),
    [
        ({}, {}, DEFAULT, ""),
        ({names.DO_NOT_REPAIR: "true"}, {}, DEFAULT, "Node n has karpenter.sh/do-not-repair: true"),
        ({}, {names.DO_NOT_REPAIR: "true"}, DEFAULT, "NodeClaim c has karpenter.sh/do-not-repair: true"),
        ({names.DO_NOT_REPAIR: "True"}, {}, DEFAULT, ""),
        ({names.DO_NOT_DISRUPT: "true"}, {names.DO_NOT_DISRUPT: "true"}, DEFAULT, ""),
        ({}, {}, RepairRules(on=False), "its NodePool has capacity-broker.io/repair: off"),
    ],
)
def test_do_not_repair_is_honoured(
    on_node: dict[str, Any], on_claim: dict[str, Any], rules: RepairRules, reason: str
) -> None:
    assert obstacle_of_repair(node(**on_node), claim(**on_claim), rules) == reason
