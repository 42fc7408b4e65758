"""Small quota worlds: queues, cohorts and workloads of one flavor with sensible defaults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from broker.quota.cycle import Head
from broker.quota.flavors import Flavor, FlavorRequest
from broker.quota.ledger import QuotaLedger
from broker.quota.model import AdmittedWorkload, FlavorGroup, FlavorResource, Queue, Quota, QuotaCohort
from broker.quota.tree import Tree

GPU = FlavorResource("h100", "gpu")
SPOT = FlavorResource("spot", "gpu")
FLAVORS = {"h100": Flavor(name="h100"), "spot": Flavor(name="spot")}


def quota(nominal: int, borrow: int | None = None, lend: int | None = None) -> Quota:
    return Quota(nominal=nominal, borrowing_limit=borrow, lending_limit=lend)


def queue(
    name: str,
    nominal: int | Quota,
    cohort: str = "",
    *,
    more: Mapping[FlavorResource, Quota] | None = None,
    **rest: Any,
) -> Queue:
    quotas = {GPU: nominal if isinstance(nominal, Quota) else quota(nominal)} | dict(more or {})
    flavors = tuple(dict.fromkeys(key.flavor for key in quotas))
    groups = (FlavorGroup(frozenset(("gpu",)), flavors),)
    return Queue(name=name, cohort=cohort, groups=groups, quotas=quotas, **rest)


def cohort(name: str, nominal: int = 0, parent: str = "", **rest: Any) -> QuotaCohort:
    return QuotaCohort(name=name, parent=parent, quotas={GPU: quota(nominal)} if nominal else {}, **rest)


def workload(name: str, queue: str, gpus: int, **rest: Any) -> AdmittedWorkload:
    return AdmittedWorkload(name=name, queue=queue, usage={GPU: gpus}, **rest)


def head(name: str, queue: str, gpus: int, **rest: Any) -> Head:
    return Head(name=name, queue=queue, request=FlavorRequest(requests={"gpu": gpus}), **rest)


def ledger_of(tree: Tree, workloads: Iterable[AdmittedWorkload]) -> QuotaLedger:
    result = QuotaLedger(tree)
    for workload in workloads:
        result.admit(workload)
    return result


def ledger(*given: Queue | QuotaCohort | AdmittedWorkload) -> QuotaLedger:
    tree = Tree(
        [item for item in given if isinstance(item, Queue)],
        [item for item in given if isinstance(item, QuotaCohort)],
    )
    return ledger_of(tree, (item for item in given if isinstance(item, AdmittedWorkload)))
