"""Trees of cohorts, as Kueue's Cohort objects define them.

All members of a tree share their quota: unused quota of one cohort is lent through the common parent
(pkg/cache/scheduler/resource_node.go).

If cohorts are each other's parents, Kueue makes the whole tree inactive, and no ClusterQueue's spec shows it
(pkg/cache/hierarchy/manager.go).
"""

from __future__ import annotations

from broker.apis.kueue import Cohort
from broker.kube.cache import Cache


def cycle(cohort: str, cohorts: Cache[Cohort]) -> tuple[str, ...]:
    """The cycle of parents above the cohort, its first name repeated at the end; empty without a cycle."""
    path: list[str] = []
    name = cohort
    while name:
        if name in path:
            return (*path[path.index(name) :], name)
        path.append(name)
        node = cohorts.get(name)
        name = node.spec.parent_name if node is not None else ""
    return ()
