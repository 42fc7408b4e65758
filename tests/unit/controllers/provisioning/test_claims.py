"""The types that a claim lists, if the pods fit more than one claim may have."""

from __future__ import annotations

from broker.controllers.provisioning.from_pool import MOST_TYPES, listed_types


def test_types_beyond_the_limit_are_listed_if_min_values_needs_them() -> None:
    values = {f"t{n:03}": {"family": {"cheap" if n < 80 else f"dear-{n}"}} for n in range(100)}
    ordered = [*values]
    assert listed_types(ordered, {}, values) == ordered[:MOST_TYPES]
    assert listed_types(ordered, {"family": 3}, values) == [*ordered[: MOST_TYPES - 2], "t080", "t081"]
    assert listed_types(ordered[:10], {"family": 3}, values) == ordered[:10]
