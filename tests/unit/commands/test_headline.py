"""The headline of an explanation, beside the tables below it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.commands.explain.explanation import explain
from broker.oncall.situation import Situation
from broker.text import format_time

NOW = datetime(2026, 11, 28, 8, 0, tzinfo=UTC)


def claim(name: str, group: str, minutes: int) -> NodeClaim:
    metadata = {"name": name, "creationTimestamp": format_time(NOW - timedelta(minutes=minutes))}
    return NodeClaim.decode({"metadata": metadata, "spec": {"nodeClassRef": {"group": group, "name": "gpu"}}})


def test_headline_counts_the_claims_that_the_table_lists() -> None:
    claims = [claim("ours", names.BROKER, 5), claim("theirs", names.KARPENTER_AWS, 40)]
    explanation = explain(Situation(now=NOW, claims=claims))
    assert [row["claim"] for row in explanation.parts["waiting"]] == ["ours", "theirs"]
    assert "2 claims wait, the oldest for 40m" in explanation.headline
    others = explain(Situation(now=NOW, claims=claims[1:]))
    assert "1 claim waits, the oldest for 40m" in others.headline
