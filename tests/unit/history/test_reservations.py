"""Launches through a group or an open match reach the history with the reservations of EC2."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.capacity.attempts import Attempt
from broker.capacity.launches import distribute
from broker.capacity.model import NodeClass, Selection
from broker.controllers.launch.bind import Binder
from broker.controllers.launch.launch_pass import FleetResult
from broker.history.entries import of_attempt, reservations
from broker.kube.cache import Cache
from broker.kube.clock import SystemClock
from broker.oncall.journal import Journal
from providers.launch import LaunchResult
from providers.model import Instance
from tests.unit.capacity.builders import GROUP, claim, instance, inventory, node_class, odcr
from tests.unit.capacity.test_launches import OPEN, groups, only

CLASS: Any = SimpleNamespace(source=SimpleNamespace(name="by-id"))


def attempts(selection: Selection, *instances: Instance) -> tuple[str, list[Attempt]]:
    """The pool's reservation, and the attempts of a call for one claim."""
    stock = inventory(odcr("cr-1"), odcr("cr-2"), groups={GROUP: ["cr-1", "cr-2"]})
    known: NodeClass = node_class(selection, stock)
    group = only(groups([claim("c0", kinds=["reserved"])], known, stock))
    cache: Cache[NodeClaim] = Cache(NodeClaim)
    labels = {names.NODEPOOL: "gpu"}
    cache.observe({"metadata": {"name": "c0", "resourceVersion": "1", "labels": labels}})
    missing = cast(Any, None)
    binder = Binder(missing, cache, missing, Journal(), missing, clock=SystemClock(), done=lambda _: None)
    result = FleetResult(group=group, distribution=distribute(group, LaunchResult(instances=instances)))
    written, _ = binder.bind_all(result, CLASS, {}, skipped={}, before={}, begin=lambda bind, stories: list)
    for left in result.distribution.refused:
        written += binder.refusals(result, left, CLASS)
    return group.assignments[0].option.pool.reservation, written


@pytest.mark.parametrize(("selection", "named"), [(Selection(group_arn=GROUP), GROUP), (OPEN, "")])
def test_a_launch_is_found_by_the_reservation_that_it_uses(selection: Selection, named: str) -> None:
    pool, (launched,) = attempts(selection, instance("i-1", reservation="cr-2"))
    assert pool == named and launched.node_pool == "gpu"
    assert of_attempt(launched).reservation == "cr-2"
    assert set(reservations(launched)) == {"cr-2", named} - {""}


@pytest.mark.parametrize(("selection", "named"), [(Selection(group_arn=GROUP), GROUP), (OPEN, "")])
@pytest.mark.parametrize("instances", [(), (instance("i-1", described=False),)])
def test_an_attempt_is_found_by_all_reservations_while_ec2_shows_none(
    selection: Selection, named: str, instances: tuple[Instance, ...]
) -> None:
    _, (attempt,) = attempts(selection, *instances)
    assert of_attempt(attempt).reservation == named
    assert set(reservations(attempt)) == {"cr-1", "cr-2", named} - {""}
