"""The search for the name on which a decision fails, in any part of the code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from broker.controllers.slots import builder, controller
from broker.kube.suspects import CulpritFound
from broker.quota import part
from broker.quota.joint import QuotaState, SlotState, WaitingClaim
from broker.reservations.slots import SlotSnapshot, entitlements
from tests.unit.quota.rounds import World
from tests.unit.quota.rules import check
from tests.unit.quota.worlds import setting

Decide = Callable[..., Any]
SEEDS = (20096, 20180, 20738, 30544, 70812)  # worlds in which much is decided


def decisions(monkeypatch: pytest.MonkeyPatch, wrapped: Callable[[Decide], Decide]) -> None:
    monkeypatch.setattr(controller, "decide", wrapped(controller.decide))  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_part_of_a_decision_can_be_decided(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the search for the failing name would take a missing name for the failure."""
    seen: list[str] = []

    def in_parts(decide: Decide) -> Decide:
        def decided(
            quota: QuotaState | None, places: SlotState | None, waiting: Sequence[WaitingClaim], **more: Any
        ) -> object:
            names = part.names(quota, places, waiting)
            for count in range(len(names)):
                decide(*part.only({*names[:count]}, quota, places, waiting), **more)
            seen.extend(names)
            whole = decide(quota, places, waiting, **more)
            assert decide(*part.only({*names}, quota, places, waiting), **more) == whole
            return whole

        return decided

    decisions(monkeypatch, in_parts)
    assert [*check(World(setting(seed)))] == []
    assert seen


@pytest.mark.parametrize("seed", SEEDS)
def test_name_on_which_a_decision_fails_is_found(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = ""
    tried: set[str] = set()

    def fails(decide: Decide) -> Decide:
        def decided(
            quota: QuotaState | None, places: SlotState | None, waiting: Sequence[WaitingClaim], **more: Any
        ) -> object:
            if bad in part.names(quota, places, waiting):
                raise ZeroDivisionError
            return decide(quota, places, waiting, **more)

        return decided

    def each_once(decide: Decide) -> Decide:
        judge = fails(decide)

        def decided(
            quota: QuotaState | None, places: SlotState | None, waiting: Sequence[WaitingClaim], **more: Any
        ) -> object:
            nonlocal bad
            for bad in {*part.names(quota, places, waiting)} - tried:
                monkeypatch.setattr(controller, "decide", judge)
                with pytest.raises(CulpritFound) as caught:
                    controller._decide_isolated(quota, places, waiting, more["nominated"])
                assert caught.value.suspect == bad
                tried.add(bad)
            monkeypatch.setattr(controller, "decide", decided)
            return decide(quota, places, waiting, **more)

        return decided

    decisions(monkeypatch, each_once)
    assert [*check(World(setting(seed)))] == []
    assert len(tried) > 3


def test_name_on_which_a_plan_fails_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real, tried = entitlements, set[str]()

    def each_once(snapshot: SlotSnapshot) -> object:
        for bad in {*part.names(None, snapshot.state)} - tried:

            def fails(snapshot: SlotSnapshot, bad: str = bad) -> object:
                if bad in part.names(None, snapshot.state):
                    raise ZeroDivisionError
                return real(snapshot)

            monkeypatch.setattr(builder, "entitlements", fails)
            with pytest.raises(CulpritFound) as caught:
                builder.isolated_entitlements(snapshot)
            assert caught.value.suspect == bad
            tried.add(bad)
        monkeypatch.setattr(builder, "entitlements", each_once)
        return real(snapshot)

    monkeypatch.setattr(builder, "entitlements", each_once)
    assert [*check(World(setting(1)))] == []
    assert len(tried) > 3
