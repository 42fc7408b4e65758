"""The times of `explain claim`: one format and one order for attempts and events."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from broker.apis.karpenter import NodeClaim
from broker.commands.explain import claims
from providers.names import MANAGER

CLAIM = NodeClaim.decode(
    {"metadata": {"name": "c"}, "spec": {"nodeClassRef": {"group": "capacity-broker.io"}}}
)
ATTEMPT = {"outcome": "Refused", "code": "C", "class": "", "message": "", "instance": "", "next": ""}
ATTEMPT |= {"request_id": "", "pool": "on-demand:m5.large:us-east-1a"}


def event(second: int) -> dict[str, Any]:
    return {
        "metadata": {"name": f"e-{second}", "namespace": "default"},
        "involvedObject": {"kind": "NodeClaim", "name": "c"},
        "source": {"component": MANAGER},
        "reason": f"R{second}",
        "lastTimestamp": f"2026-11-28T08:02:{second:02}Z",
    }


def test_attempts_and_events_have_one_format_and_one_order() -> None:
    listed = [event(9), event(1), event(5)]
    client: Any = SimpleNamespace(list=lambda *_, **__: (listed, ""))
    events = claims.format_events(claims.events(client, CLAIM))
    assert [row["at"] for row in events] == [f"2026-11-28 08:02:0{second}Z" for second in (1, 5, 9)]
    at = ("2026-11-28T08:02:00Z", "2026-11-28T08:02:04Z")
    attempts = claims.format_attempts([ATTEMPT | {"at": time, "also": []} for time in at])
    assert [row["when"] for row in attempts] == ["2026-11-28 08:02:00Z", "2026-11-28 08:02:04Z"]
