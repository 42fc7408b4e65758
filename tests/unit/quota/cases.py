"""Rows of Kueue's own test tables, as data, and the ledgers built from them.

`kueue.json` holds values transcribed from kubernetes-sigs/kueue (Apache-2.0), each row with its file and
line; CPU in milli, everything else in base units. Each row's flavors are those that its table sets up.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from broker.apis.core import Taint, Toleration
from broker.quota.assign import Oracle
from broker.quota.flavors import Expression, Flavor, FlavorRequest
from broker.quota.ledger import QuotaLedger
from broker.quota.model import (
    UNLIMITED,
    AdmittedWorkload,
    FlavorGroup,
    FlavorResource,
    Possibility,
    Preemption,
    Queue,
    Quota,
    QuotaCohort,
    QuotaRequest,
    amount,
)
from broker.quota.tree import Tree
from tests.unit.quota.builders import ledger_of

Row = dict[str, Any]

# The fields of each part of a row. A row with an unread field would prove nothing.
_FIELDS: Final[Mapping[str, frozenset[str]]] = {
    part: frozenset(fields.split())
    for part, fields in {
        "": "suite source name clusterQueues cohorts admitted incoming want wantCount usage oracle podSets",
        "clusterQueues": "name cohort quotas flavorOrder preemption flavorFungibility",
        "preemption": "withinClusterQueue reclaimWithinCohort borrowWithinCohort",
        "borrowWithinCohort": "policy max",
        "flavorFungibility": "WhenCanBorrow WhenCanPreempt Preference",
        "cohorts": "name parent quotas",
        "quotas": "nominal borrowingLimit lendingLimit",
        "admitted": "name cq priority reservedAt queueTs usage evicted",
        "incoming": "cq priority queueTs request needPreemption",
        "usage": "cq usage",
        "podSets": "name count request tolerations nodeSelector affinity group minCount",
        "tolerations": "Key Operator Value Effect __t",
        "affinity": "Key Operator Values __t",
        "want": "name reason mode podSetFlavors borrowingLevel",
    }.items()
}
_WORDS: Final[Mapping[str, frozenset[str]]] = {
    field: frozenset(words.split())
    for field, words in {
        "suite": "TestPreemption TestHierarchicalPreemptions TestAssignFlavors",
        "withinClusterQueue": "Never LowerPriority LowerOrNewerEqualPriority",
        "reclaimWithinCohort": "Never LowerPriority Any",
        "policy": "Never LowerPriority",
        "WhenCanBorrow": "MayStopSearch TryNextFlavor Borrow",
        "WhenCanPreempt": "MayStopSearch TryNextFlavor Preempt",
        "Preference": "BorrowingOverPreemption PreemptionOverBorrowing",
        "strategies": "LessThanOrEqualToFinalShare LessThanInitialShare",
        "Operator": "Equal Exists In NotIn DoesNotExist Gt Lt",
        "Effect": "NoSchedule NoExecute PreferNoSchedule",
    }.items()
}
# Keyed by name or amount, so without fields of their own.
_FREE: Final = frozenset({"request", "nodeSelector", "oracle", "podSetFlavors", "flavorOrder"})
# The tables' name for a flavor that the cluster does not have.
_ABSENT: Final = ("missing", "nonexist", "non-exist")
_PREFIXES: Final = ("corev1.TolerationOp", "corev1.TaintEffect", "corev1.NodeSelectorOp")


def checked(row: Row) -> Row:
    """The row, if this module can read all of its fields. If flavors are chosen, an unknown flavor is an
    error.

    It would otherwise count as a flavor that the cluster does not have, since rows do not define
    flavors.
    """
    _check(row, "", row.get("name", ""))
    if row["suite"] != "TestAssignFlavors":
        return row
    flavors = {
        name for queue in row["clusterQueues"] for group in queue["flavorOrder"] or () for name in group
    }
    if odd := sorted(name for name in flavors - FLAVORS.keys() if not name.startswith(_ABSENT)):
        raise ValueError(f"{row['name']}: unknown flavor {', '.join(odd)}")
    return row


def _check(content: Any, part: str, row: str) -> None:
    if isinstance(content, list):
        for item in content:
            _check(item, part, row)
    elif isinstance(content, dict):
        by_name = part in ("quotas", "usage") and any("|" in name for name in content)
        if not by_name and (odd := sorted(content.keys() - _FIELDS[part])):
            raise ValueError(f"{row}: {part or 'the row'} has unknown fields {', '.join(odd)}")
        for field, value in content.items():
            if field not in _FREE:
                _check(value, part if by_name else field, row)
    elif content and part in _WORDS and _word(content) not in _WORDS[part]:
        raise ValueError(f"{row}: {part} {content!r} is not one of {', '.join(sorted(_WORDS[part]))}")


def _word(word: str) -> str:
    return next((word.removeprefix(prefix) for prefix in _PREFIXES if word.startswith(prefix)), word)


# Each row is checked by its own test: an unreadable row fails alone.
CASES: Final[list[Row]] = json.loads((Path(__file__).parent / "kueue.json").read_text())["cases"]

_SPOT: Final = Taint(key="instance", value="spot", effect="NoSchedule")
# TestAssignFlavors, resourceFlavors.
FLAVORS: Final[Mapping[str, Flavor]] = {
    flavor.name: flavor
    for flavor in (
        Flavor(name="default"),
        Flavor(name="one", labels={"type": "one"}),
        Flavor(name="two", labels={"type": "two"}),
        Flavor(name="three", labels={"type": "three"}),
        Flavor(name="b_one", labels={"b_type": "one"}),
        Flavor(name="b_two", labels={"b_type": "two"}),
        Flavor(name="tainted", taints=(_SPOT,)),
        Flavor(
            name="taint_and_toleration",
            taints=(_SPOT,),
            tolerations=(Toleration(key="instance", value="spot", effect="NoSchedule"),),
        ),
        Flavor(name="label-x-a", labels={"x": "a"}),
        Flavor(name="label-xy-b", labels={"x": "b", "y": "k"}),
    )
}
_POSSIBILITY: Final = {
    "NoCandidates": Possibility.NO_CANDIDATES,
    "Preempt": Possibility.PREEMPT,
    "Reclaim": Possibility.RECLAIM,
}


def row_id(row: Row) -> str:
    return f"{row['suite']}:{row['source'].rpartition(':')[2]} {row['name']}"


def key(written: str) -> FlavorResource:
    flavor, _, resource = written.partition("|")
    return FlavorResource(flavor, resource)


def amounts(written: Mapping[str, int] | None) -> dict[FlavorResource, int]:
    return {key(name): amount(value) for name, value in (written or {}).items()}


def quota(written: Row) -> Quota:
    def limit(name: str) -> int | None:
        return None if written.get(name) in (None, "unlimited") else amount(written[name])

    nominal = written["nominal"]
    return Quota(
        nominal=UNLIMITED if nominal == "unlimited" else amount(nominal),
        borrowing_limit=limit("borrowingLimit"),
        lending_limit=limit("lendingLimit"),
    )


def queue(written: Row) -> Queue:
    quotas = {key(name): quota(value) for name, value in (written.get("quotas") or {}).items()}
    rule = written.get("preemption") or {}
    borrow = rule.get("borrowWithinCohort") or {}
    return Queue(
        name=written["name"],
        cohort=written.get("cohort") or "",
        groups=tuple(
            FlavorGroup(
                frozenset(
                    flavor_resource.resource
                    for flavor_resource in quotas
                    if flavor_resource.flavor in flavors
                ),
                tuple(flavors),
            )
            for flavors in written.get("flavorOrder") or ()
        ),
        quotas=quotas,
        preemption=Preemption(
            within=rule.get("withinClusterQueue") or "Never",
            reclaim=rule.get("reclaimWithinCohort") or "Never",
            borrow=borrow.get("policy") or "Never",
            threshold=borrow.get("max"),
        ),
    )


def cohort(written: Row) -> QuotaCohort:
    return QuotaCohort(
        name=written["name"],
        parent=written.get("parent") or "",
        quotas={key(name): quota(value) for name, value in (written.get("quotas") or {}).items()},
    )


def tree(row: Row) -> Tree:
    return Tree(
        [queue(spec) for spec in row["clusterQueues"]], [cohort(spec) for spec in row.get("cohorts") or ()]
    )


def ledger(row: Row) -> QuotaLedger:
    return ledger_of(
        tree(row),
        [
            AdmittedWorkload(
                name=admitted["name"],
                queue=admitted["cq"],
                usage=amounts(admitted["usage"]),
                priority=admitted["priority"],
                queued=admitted["queueTs"],
                reserved=admitted["reservedAt"],
                evicted=admitted["evicted"],
            )
            for admitted in row["admitted"]
        ],
    )


def incoming_request(row: Row) -> tuple[QuotaRequest, frozenset[FlavorResource]]:
    incoming = row["incoming"]
    needed = frozenset(key(name) for name in incoming["needPreemption"])
    return (
        QuotaRequest(
            queue=incoming["cq"],
            amounts=amounts(incoming["request"]),
            priority=incoming["priority"],
            queued=incoming["queueTs"],
        ),
        needed,
    )


def oracle(row: Row) -> Oracle:
    """The table's stand-in for a simulation: its listed results, otherwise preemption in the queue."""
    results = {
        key(name): (_POSSIBILITY[mode], level) for name, (mode, level) in (row["oracle"] or {}).items()
    }
    return lambda flavor_resource, _: results.get(flavor_resource, (Possibility.PREEMPT, 0))


def expressible(row: Row) -> bool:
    """Whether a reservation can express it: one request, in a queue of the default fungibility."""
    (queue, *_), pod_sets = row["clusterQueues"], row["podSets"]
    search = queue.get("flavorFungibility") or {}
    return (
        len(pod_sets) == 1
        and pod_sets[0].get("minCount") is None
        and (pod_sets[0]["count"] == 1 or not any("|pods" in key for key in queue.get("quotas") or ()))
        and (search.get("WhenCanBorrow") or "MayStopSearch") in ("MayStopSearch", "Borrow")
        and (search.get("WhenCanPreempt") or "TryNextFlavor") == "TryNextFlavor"
        and not search.get("Preference")
    )


def request(written: Row) -> FlavorRequest:
    """The request of all pods of a pod set."""
    return FlavorRequest(
        requests={resource: value * written["count"] for resource, value in written["request"].items()},
        tolerations=tuple(_toleration(toleration) for toleration in written.get("tolerations") or ()),
        selector=written.get("nodeSelector") or {},
        affinity=tuple(
            tuple(
                Expression(
                    expression["Key"], _word(expression["Operator"]), tuple(expression.get("Values") or ())
                )
                for expression in term
            )
            for term in written.get("affinity") or ()
        ),
    )


def _toleration(written: Row) -> Toleration:
    def word(name: str, prefix: str = "") -> str:
        return str(written.get(name) or "").removeprefix(prefix)

    return Toleration(
        key=word("Key"),
        operator=word("Operator", "corev1.TolerationOp") or "Equal",
        value=word("Value"),
        effect=word("Effect", "corev1.TaintEffect"),
    )
