"""Rows of Kueue's own test tables, as data, and the worlds they describe.

`kueue.json` holds values transcribed from kubernetes-sigs/kueue (Apache-2.0), each row with its file and
line; CPU in milli, everything else in base units. Each row's flavors are those that its table sets up.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from broker.quota.assign import Oracle, Rules
from broker.quota.flavors import Expression, Flavor, PodSet, Taint, Toleration
from broker.quota.ledger import Ledger
from broker.quota.model import (
    Ask,
    Cohort,
    FlavorResource,
    Fungibility,
    Possibility,
    Preemption,
    Queue,
    Quota,
    ResourceGroup,
    Workload,
    amount,
)
from broker.quota.tree import Tree

Row = dict[str, Any]

CASES: Final[list[Row]] = json.loads((Path(__file__).parent / "kueue.json").read_text())["cases"]

_SPOT: Final = Taint(key="instance", value="spot")
# TestAssignFlavors, resourceFlavors.
FLAVORS: Final[Mapping[str, Flavor]] = {
    each.name: each
    for each in (
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
    return {key(each): amount(value) for each, value in (written or {}).items()}


def quota(written: Row) -> Quota:
    def limit(name: str) -> int | None:
        return None if written.get(name) in (None, "unlimited") else amount(written[name])

    return Quota(
        nominal=amount(written["nominal"]),
        borrowing_limit=limit("borrowingLimit"),
        lending_limit=limit("lendingLimit"),
    )


def queue(written: Row) -> Queue:
    quotas = {key(each): quota(value) for each, value in (written.get("quotas") or {}).items()}
    rule = written.get("preemption") or {}
    borrow = rule.get("borrowWithinCohort") or {}
    search = written.get("flavorFungibility") or {}
    weight = written.get("fairWeight")
    return Queue(
        name=written["name"],
        cohort=written.get("cohort") or "",
        groups=tuple(
            ResourceGroup(
                frozenset(each.resource for each in quotas if each.flavor in flavors), tuple(flavors)
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
        fungibility=Fungibility(
            when_can_borrow=search.get("WhenCanBorrow") or "MayStopSearch",
            when_can_preempt=search.get("WhenCanPreempt") or "TryNextFlavor",
            preference=search.get("Preference") or "",
        ),
        weight=1.0 if weight is None else weight,
    )


def cohort(written: Row) -> Cohort:
    weight = written.get("fairWeight")
    return Cohort(
        name=written["name"],
        parent=written.get("parent") or "",
        quotas={key(each): quota(value) for each, value in (written.get("quotas") or {}).items()},
        weight=1.0 if weight is None else weight,
    )


def tree(row: Row) -> Tree:
    return Tree(
        [queue(each) for each in row["clusterQueues"]], [cohort(each) for each in row.get("cohorts") or ()]
    )


def ledger(row: Row) -> Ledger:
    return Ledger(
        tree(row),
        [
            Workload(
                name=each["name"],
                queue=each["cq"],
                usage=amounts(each["usage"]),
                priority=each["priority"],
                queued=each["queueTs"],
                reserved=each["reservedAt"],
                evicted=each["evicted"],
            )
            for each in row["admitted"]
        ],
    )


def ask(row: Row) -> tuple[Ask, frozenset[FlavorResource]]:
    incoming = row["incoming"]
    needed = frozenset(key(each) for each in incoming["needPreemption"])
    return (
        Ask(
            queue=incoming["cq"],
            amounts=amounts(incoming["request"]),
            priority=incoming["priority"],
            queued=incoming["queueTs"],
        ),
        needed,
    )


def rules(row: Row) -> Rules:
    strategies = {"strategies": tuple(row["strategies"])} if row.get("strategies") else {}
    return Rules(flavors=FLAVORS, fair=bool(row["fairSharing"]), **strategies)


def oracle(row: Row) -> Oracle:
    """The table's stand-in for a simulation: what it lists, otherwise that preemption in the queue would
    do.
    """
    said = {key(each): (_POSSIBILITY[mode], level) for each, (mode, level) in (row["oracle"] or {}).items()}
    return lambda each, _: said.get(each, (Possibility.PREEMPT, 0))


def pods(written: Row) -> PodSet:
    return PodSet(
        name=written["name"],
        count=written["count"],
        requests=written["request"],
        tolerations=tuple(_toleration(each) for each in written.get("tolerations") or ()),
        selector=written.get("nodeSelector") or {},
        affinity=tuple(
            tuple(Expression(each["Key"], each["Operator"], tuple(each.get("Values") or ())) for each in term)
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
