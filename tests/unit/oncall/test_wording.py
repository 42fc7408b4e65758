"""Names of pools and shortages on the page."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.capacity.shortages import Scope, class_scope, placement_scope, quota_scope
from broker.oncall.wording import scope_name, way_out
from broker.text import plain
from providers.errors import ErrorClass
from tests.unit.history.facts import GROUP, OTHER, POOL


def test_a_pool_is_named_by_type_zone_and_reservation() -> None:
    pools = {
        POOL: "cr-1 (p5.48xlarge, us-east-1a)",
        OTHER: "on-demand p5.48xlarge in us-east-1b",
        replace(POOL, reservation=GROUP): "group training (p5.48xlarge, us-east-1a)",
        replace(POOL, reservation=""): "open reservations (p5.48xlarge, us-east-1a)",
        replace(OTHER, placement="near"): "on-demand p5.48xlarge in us-east-1b with placement near",
        replace(
            POOL, placement="dedicated,near"
        ): "cr-1 (p5.48xlarge, us-east-1a) with placement dedicated,near",
    }
    for pool, name in pools.items():
        assert pool.shown == plain(str(pool)) == name
        assert plain(f"before {pool}: after {pool}, {pool}") == f"before {name}: after {name}, {name}"
        assert plain(name) == name
    assert plain("unknown") == "unknown"


@pytest.mark.parametrize(
    ("scope", "name"),
    [
        (Scope("reservation", "cr-1"), "EC2 reservation cr-1"),
        (Scope("reservation", GROUP), "group training"),
        (Scope("pool", str(OTHER)), "on-demand p5.48xlarge in us-east-1b"),
        (class_scope("gpu", OTHER), "on-demand p5.48xlarge in us-east-1b, for EC2NodeClass gpu"),
        (placement_scope(replace(OTHER, placement="near")), "placement group near in us-east-1b"),
        (quota_scope(OTHER), "the account's on-demand limit of P instances"),
        (Scope("subnet", "subnet-1"), "subnet subnet-1"),
    ],
)
def test_a_shortage_has_a_description(scope: Scope, name: str) -> None:
    assert scope_name(scope.kind, scope.key) == name and "arn:" not in name


def test_each_class_of_shortage_has_a_remedy() -> None:
    remedies = {class_: class_.policy.remedy for class_ in ErrorClass if class_.policy.elsewhere}
    assert len({*remedies.values()}) == len(remedies)
    assert all(way_out(class_.value) == text for class_, text in remedies.items())
    assert "explain claim" in way_out("") and "explain claim" in way_out("new")
