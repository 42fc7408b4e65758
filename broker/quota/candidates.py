"""The workloads that may be preempted for another, in order.

Invariant: a candidate uses a resource that the incoming workload lacks, and the preemptor's policy allows
it: `within` for its own queue, `reclaim` for the others of its cohort tree. Of these, only queues and
cohorts over their quota are searched, and workloads on their own slots are skipped. Evicted workloads
come first, then lower priority, then the last to get its quota, then by name. The rules are Kueue's
(pkg/scheduler/preemption/common).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from broker.quota.ledger import Entry, QuotaLedger
from broker.quota.model import Amounts, FlavorResource, Policy, Preemption, QuotaRequest
from broker.quota.tree import QuotaNode

Keys = Collection[FlavorResource]


def allowed(
    ledger: QuotaLedger, queue: str, keys: Keys, *, evicted: bool, policy: Policy, request: QuotaRequest
) -> Iterator[Entry]:
    """A queue's workloads that the policy allows to preempt, in the order of preemption."""
    if policy == "Never":
        return iter(())
    entries = ledger.using(queue, keys, evicted=evicted)
    if queue != request.queue:
        entries = (entry for entry in entries if not entry[3].on_own_slots)
    return by_policy(entries, policy, request)


def by_policy(entries: Iterator[Entry], policy: Policy, request: QuotaRequest) -> Iterator[Entry]:
    """The workloads that the policy allows, in the given order."""
    return (
        entries if policy == "Any" else _lower(entries, request, equal=policy == "LowerOrNewerEqualPriority")
    )


def _lower(entries: Iterator[Entry], request: QuotaRequest, *, equal: bool) -> Iterator[Entry]:
    for entry in entries:
        if entry[0] < request.priority or (
            equal and entry[0] == request.priority and request.queued < entry[3].queued
        ):
            yield entry
        elif entry[0] > request.priority or not equal:
            return


def borrowers(cohort: QuotaNode, keys: Keys) -> Iterator[QuotaNode]:
    """The queues in a cohort's subtree over their quota; subtrees within quota are skipped."""
    if len(keys) == 1:
        (key,) = keys
        over = list(cohort.over.get(key, ()))
    else:
        over = list({node: None for key in keys for node in cohort.over.get(key, ())})
    for node in over:
        if node.queue is None:
            yield from borrowers(node, keys)
        else:
            yield node


def outranked(policy: Policy, victim: int, priority: int) -> bool:
    """Whether the policy allows a victim of this priority, apart from the age of equals."""
    return policy == "Any" or (policy != "Never" and victim < priority)


def below_threshold(rule: Preemption, victim: int, priority: int) -> bool:
    """Whether a claim of this priority may preempt the victim and borrow afterwards."""
    if rule.borrow == "Never" or victim >= priority:
        return False
    return rule.threshold is None or victim <= rule.threshold


def fits(node: QuotaNode, amounts: Amounts, *, borrow: bool) -> bool:
    """Whether a queue has room for the amounts now, within its own quota unless it may borrow."""
    if not borrow and not node.covers(amounts):
        return False
    return all(value <= max(0, node.available(key)) for key, value in amounts.items())
