"""Cohorts above cohorts, as Kueue's Cohort objects say.

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
