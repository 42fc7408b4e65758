"""Cohorts above cohorts, as Kueue's Cohort objects say.

Members of one tree share their quota, whichever of its cohorts they name: unused quota of one cohort is lent
through the common parent (pkg/cache/scheduler/resource_node.go).

Kueue makes a whole tree inactive in which cohorts are each other's parents, and says so nowhere on its
ClusterQueues' specs (pkg/cache/hierarchy/manager.go).
"""

from __future__ import annotations

from broker.apis.kueue import Cohort
from broker.kube.cache import Cache


def cycle(cohort: str, cohorts: Cache[Cohort]) -> tuple[str, ...]:
    """The ring that the cohort is in or under, its first name again at the end; empty where there is none."""
    path: list[str] = []
    name = cohort
    while name:
        if name in path:
            return (*path[path.index(name) :], name)
        path.append(name)
        found = cohorts.get(name)
        name = found.spec.parent_name if found is not None else ""
    return ()


def root(cohort: str, cohorts: Cache[Cohort]) -> str:
    """The cohort at the top of its tree; the cohort itself in a ring, where Kueue admits nothing."""
    if cycle(cohort, cohorts):
        return cohort
    while (found := cohorts.get(cohort)) is not None and found.spec.parent_name:
        cohort = found.spec.parent_name
    return cohort
