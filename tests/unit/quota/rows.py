"""Builds rows of flavor assignment and of preemption as those of Kueue's tables are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

Row = dict[str, Any]
Amount = int | tuple[int, int | None] | tuple[int, int | None, int | None]
Group = Mapping[str, Mapping[str, Amount]]  # flavor -> resource -> nominal, borrowing and lending limit
Expected = tuple[str, Sequence[Mapping[str, str]], int]  # mode, a pod set's "flavor mode" by resource, level

TEST: Final = "test-clusterqueue"


def pods(
    count: int = 1,
    *,
    name: str = "main",
    on: str = "",
    tolerations: Sequence[Row] = (),
    **request: int,
) -> Row:
    """`on`: the `type` in the node selector."""
    return {
        "name": name,
        "count": count,
        "request": request,
        "tolerations": list(tolerations),
        "nodeSelector": {"type": on} if on else {},
    }


def row(
    name: str,
    groups: Sequence[Group],
    pod_set: Row,
    expected: Expected,
    *,
    peer: Group | None = None,
    used: Mapping[str, int] | None = None,
    peer_used: Mapping[str, int] | None = None,
    oracle: Mapping[str, tuple[str, int]] | None = None,
    reclaim: str = "Never",
    borrow: str = "",
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
    queues = [_queue(TEST, shared, groups, rule)]
    usage = [{"cq": TEST, "usage": dict(used or {})}]
    if peer is not None:
        queues.append(_queue("peer", peer_cohort or shared, [peer], None))
        usage.append({"cq": "peer", "usage": dict(peer_used or {})})
    mode, flavors, level = expected
    chosen = [
        {
            resource: dict(zip(("flavor", "mode"), choice.split(), strict=True))
            for resource, choice in by.items()
        }
        for by in flavors
    ]
    return {
        "suite": "TestAssignFlavors",
        "source": "own",
        "name": name,
        "clusterQueues": queues,
        "cohorts": list(cohorts),
        "usage": usage,
        "oracle": {key: list(result) for key, result in (oracle or {}).items()},
        "podSets": [pod_set],
        "want": {"mode": mode, "podSetFlavors": chosen, "borrowingLevel": level},
    }


def _queue(
    name: str,
    cohort: str | None,
    groups: Sequence[Group],
    rule: Row | None,
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
        "flavorFungibility": None,
    }


def _quota(amount: Amount) -> Row:
    nominal, borrow, lend = (*(amount if isinstance(amount, tuple) else (amount,)), None, None)[:3]
    return {"nominal": nominal, "borrowingLimit": borrow, "lendingLimit": lend}


def member(
    cohort: str = "",
    *,
    within: str = "Never",
    reclaim: str = "Never",
    borrow: str = "",
    threshold: int | None = None,
    **quota: Amount,
) -> Row:
    """A queue of one flavor in a world of preemptions, by resource."""
    return {
        "cohort": cohort or None,
        "quotas": {f"default|{resource}": _quota(amount) for resource, amount in quota.items()},
        "flavorOrder": [["default"]],
        "preemption": {
            "withinClusterQueue": within,
            "reclaimWithinCohort": reclaim,
            "borrowWithinCohort": {"policy": borrow, "max": threshold} if borrow else None,
        },
        "flavorFungibility": None,
    }


def shared(parent: str = "", **quota: Amount) -> Row:
    """A cohort."""
    quotas = {f"default|{resource}": _quota(amount) for resource, amount in quota.items()}
    return {"parent": parent or None, "quotas": quotas}


def held(
    queue: str, priority: int = 0, *, since: int = 0, queued: int = 0, evicted: bool = False, **usage: int
) -> Row:
    """A workload that is admitted."""
    return {
        "cq": queue,
        "priority": priority,
        "reservedAt": since,
        "queueTs": queued,
        "usage": {f"default|{resource}": amount for resource, amount in usage.items()},
        "evicted": evicted,
    }


def incoming(queue: str, priority: int = 0, *, queued: int = 0, lacks: str = "cpu", **request: int) -> Row:
    """The request; `lacks`: its missing resources."""
    return {
        "cq": queue,
        "priority": priority,
        "queueTs": queued,
        "request": {f"default|{resource}": amount for resource, amount in request.items()},
        "needPreemption": [f"default|{resource}" for resource in lacks.split()],
    }


QUEUE: Final = "InClusterQueue"
RECLAIM: Final = "InCohortReclamation"
WHILE_BORROWING: Final = "InCohortReclaimWhileBorrowing"


def preempts(
    name: str,
    queues: Mapping[str, Row],
    admitted: Mapping[str, Row],
    incoming: Row,
    expected: Mapping[str, str],
    *,
    cohorts: Mapping[str, Row] | None = None,
) -> Row:
    return {
        "suite": "TestHierarchicalPreemptions",
        "source": "own",
        "name": name,
        "clusterQueues": [{"name": key, **fields} for key, fields in queues.items()],
        "cohorts": [{"name": key, **fields} for key, fields in (cohorts or {}).items()],
        "admitted": [{"name": key, **fields} for key, fields in admitted.items()],
        "incoming": incoming,
        "want": [{"name": key, "reason": reason} for key, reason in expected.items()],
        "wantCount": len(expected),
    }
