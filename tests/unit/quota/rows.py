"""Builds rows of flavor assignment as those of Kueue's table are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

Row = dict[str, Any]
Amount = int | tuple[int, int | None] | tuple[int, int | None, int | None]
Group = Mapping[str, Mapping[str, Amount]]  # flavor -> resource -> nominal, borrowing and lending limit
Wanted = tuple[str, Sequence[Mapping[str, str]], int]  # mode, a pod set's "flavor mode" by resource, level

TEST: Final = "test-clusterqueue"


def pods(
    count: int = 1,
    *,
    name: str = "main",
    on: str = "",
    group: str = "",
    tolerations: Sequence[Row] = (),
    **request: int,
) -> Row:
    """`on`: the `type` that the node selector wants; `group`: with whom it takes its flavors."""
    return {
        "name": name,
        "count": count,
        "request": request,
        "tolerations": list(tolerations),
        "nodeSelector": {"type": on} if on else {},
        "group": group,
    }


def row(
    name: str,
    groups: Sequence[Group],
    asked: Sequence[Row] | Row,
    want: Wanted,
    *,
    peer: Group | None = None,
    used: Mapping[str, int] | None = None,
    peer_used: Mapping[str, int] | None = None,
    oracle: Mapping[str, tuple[str, int]] | None = None,
    reclaim: str = "Never",
    borrow: str = "",
    fair: bool = False,
    fungibility: Mapping[str, str] | None = None,
    cohorts: Sequence[Row] = (),
    cohort: str = "",
    peer_cohort: str = "",
) -> Row:
    shared = cohort or ("test-cohort" if peer is not None else None)
    rule = {
        "withinClusterQueue": "LowerPriority",
        "reclaimWithinCohort": reclaim,
        "borrowWithinCohort": {"policy": borrow, "max": None} if borrow else None,
    }
    queues = [_queue(TEST, shared, groups, rule, fungibility)]
    usage = [{"cq": TEST, "usage": dict(used or {})}]
    if peer is not None:
        queues.append(_queue("peer", peer_cohort or shared, [peer], None, None))
        usage.append({"cq": "peer", "usage": dict(peer_used or {})})
    mode, flavors, level = want
    chosen = [
        {resource: dict(zip(("flavor", "mode"), each.split(), strict=True)) for resource, each in by.items()}
        for by in flavors
    ]
    return {
        "suite": "TestAssignFlavors",
        "source": "own",
        "name": name,
        "clusterQueues": queues,
        "cohorts": list(cohorts),
        "usage": usage,
        "oracle": {key: list(said) for key, said in (oracle or {}).items()},
        "podSets": [asked] if isinstance(asked, dict) else list(asked),
        "fairSharing": fair,
        "want": {"mode": mode, "podSetFlavors": chosen, "borrowingLevel": level},
    }


def _queue(
    name: str,
    cohort: str | None,
    groups: Sequence[Group],
    rule: Row | None,
    fungibility: Mapping[str, str] | None,
) -> Row:
    quotas = {
        f"{flavor}|{resource}": _quota(amount)
        for group in groups
        for flavor, resources in group.items()
        for resource, amount in resources.items()
    }
    return {
        "name": name,
        "cohort": cohort,
        "quotas": quotas,
        "flavorOrder": [list(group) for group in groups],
        "preemption": rule,
        "fairWeight": 1.0,
        "flavorFungibility": fungibility,
    }


def _quota(amount: Amount) -> Row:
    nominal, borrow, lend = (*(amount if isinstance(amount, tuple) else (amount,)), None, None)[:3]
    return {"nominal": nominal, "borrowingLimit": borrow, "lendingLimit": lend}
