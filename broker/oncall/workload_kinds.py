"""The kinds of workloads of Kubernetes that `explain` knows, by the names of its commands.

Invariant: the commands, their aliases and the advice read this one table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class WorkloadKind(NamedTuple):
    """`short`: kubectl's short name; empty for none."""

    kind: str
    group: str
    short: str = ""

    @property
    def name(self) -> str:
        return self.kind.lower()

    @property
    def plural(self) -> str:
        return f"{self.name}s"

    @property
    def aliases(self) -> tuple[str, ...]:
        """The names that kubectl has for it."""
        return tuple(filter(None, (self.short, self.name, self.plural)))

    def written(self, group: str) -> bool:
        """Whether `job.GROUP` or `job.v1.GROUP` names this kind; a name without a group does."""
        return not group or self.group in (group, group.partition(".")[2])


WORKLOADS: Final[Mapping[str, WorkloadKind]] = {
    item.name: item
    for item in (
        WorkloadKind("Deployment", "apps", "deploy"),
        WorkloadKind("StatefulSet", "apps", "sts"),
        WorkloadKind("Job", "batch"),
    )
}


def named_kind(kind: str, api_version: str) -> str:
    """The kind of an owner. One that shares its name with a workload of Kubernetes has its group, as kubectl
    writes it: Volcano's Job is `Job.batch.volcano.sh`.
    """
    group = api_version.rpartition("/")[0]
    known = WORKLOADS.get(kind.lower())
    return kind if known is None or not group or known.group == group else f"{kind}.{group}"


def kubectl_type(named: str) -> str:
    """What kubectl calls a kind of `named_kind`: `job`, or `jobs.batch.volcano.sh`."""
    kind, _, group = named.lower().partition(".")
    return f"{kind}s.{group}" if group else kind
