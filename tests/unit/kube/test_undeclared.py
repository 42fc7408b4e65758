"""The fields that an API server names in a rejected apply, and the body without them."""

from __future__ import annotations

from typing import Any

import pytest

from broker.kube import undeclared

MANY = (
    "failed to create typed patch object (/cr-1; capacity-broker.io/v1, Kind=X): errors:\n"
    "  .status.zone: field not declared in schema\n"
    '  .status.flavors[name="a.b"].total: field not declared in schema'
)
ONE = (
    "failed to create typed patch object (a/b; ome.io/v1, Kind=X): .status.cost: field not declared in schema"
)


@pytest.mark.parametrize(
    ("message", "paths"),
    [
        (MANY, (".status.zone", '.status.flavors[name="a.b"].total')),
        (ONE, (".status.cost",)),
        ("Operation cannot be fulfilled on x: the object has been modified", ()),
        (".status.conditions: duplicate entries for key", ()),
    ],
)
def test_error_names_undeclared_fields(message: str, paths: tuple[str, ...]) -> None:
    assert undeclared.paths(message) == paths


def test_body_loses_only_the_named_fields() -> None:
    flavors = [{"name": "a.b", "total": 1}, {"name": "c", "total": 2}]
    body: dict[str, Any] = {
        "metadata": {"name": "x"},
        "status": {"zone": "a", "state": "active", "flavors": flavors},
    }
    left = undeclared.without(body, undeclared.paths(MANY))
    assert left["status"] == {"state": "active", "flavors": [{"name": "a.b"}, {"name": "c"}]}
    assert body["status"]["zone"] == "a"
