"""The demand of a dedicated cluster: its own spec, completed by its profile.

Invariant: `spec.resources`, if set, is the whole demand, and nothing is added to it. Otherwise the demand is
the profile's resources, multiplied by the count. Each field comes from the cluster if it sets the field, else
from its profile. Fields are not merged: if the cluster sets a map or list, the profile adds no entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from broker.apis.core import Toleration
from broker.apis.label_names import by_present_names, stable
from broker.apis.ome_clusters import (
    ClusterAffinity,
    DedicatedAICluster,
    DedicatedAIClusterProfile,
    ResourceRequirements,
)
from broker.apis.units import units
from broker.quota.flavors import Expression, FlavorRequest


@dataclass(frozen=True, slots=True)
class DemandError:
    """An error in the cluster's spec: `reason` for its condition, `message` for users."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDemand:
    """`requests` is the total, in whole units (cpu in milli)."""

    requests: Mapping[str, int]
    tolerations: tuple[Toleration, ...] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)
    affinity: ClusterAffinity = field(default_factory=ClusterAffinity)
    priority_class: str = ""

    @property
    def wants(self) -> FlavorRequest:
        """The request for quota: all of it gets one flavor."""
        required = (
            self.affinity.node_affinity.required_during_scheduling_ignored_during_execution
            if self.affinity.node_affinity
            else None
        )
        return FlavorRequest(
            requests=self.requests,
            tolerations=self.tolerations,
            selector=by_present_names(self.node_selector),
            affinity=tuple(
                tuple(
                    Expression(stable(expression.key), expression.operator, expression.values)
                    for expression in term.match_expressions
                )
                for term in (required.node_selector_terms if required else ())
            ),
        )


def cluster_demand(
    cluster: DedicatedAICluster, profile: DedicatedAIClusterProfile | None
) -> ClusterDemand | DemandError:
    """The cluster's demand. `profile`: the named profile; None if none is named, or it does not exist.

    A cluster that holds quota keeps its profile even if the profile is disabled now.
    """
    spec, named = cluster.spec, cluster.spec.profile
    if named and profile is None:
        return DemandError(
            "ProfileNotFound",
            f"spec.profile: there is no DedicatedAIClusterProfile {named}: create it, or name another",
        )
    unit = profile.spec if profile else None
    if unit is not None and unit.disabled and cluster.status.admission is None:
        return DemandError(
            "ProfileDisabled",
            f"spec.profile: DedicatedAIClusterProfile {named} is disabled for new clusters; name another, "
            "or set its spec.disabled to false",
        )
    count = spec.count or (unit.count if unit else None)
    requests = _total(spec.resources, unit.resources if unit else None, count, named)
    if isinstance(requests, DemandError):
        return requests
    return ClusterDemand(
        requests=requests,
        tolerations=spec.tolerations or (unit.tolerations if unit else ()),
        node_selector=spec.node_selector or (unit.node_selector if unit else {}),
        affinity=spec.affinity or (unit.affinity if unit else None) or ClusterAffinity(),
        priority_class=spec.priority_class_name or (unit.priority_class_name if unit else ""),
    )


def _total(
    own: ResourceRequirements | None, unit: ResourceRequirements | None, count: int | None, profile: str
) -> Mapping[str, int] | DemandError:
    try:
        if own is not None and (own_requests := _requests(own)):
            total = {name: units(name, text) for name, text in own_requests.items()}
            return _positive(total, "spec.resources.requests")
        where = f"spec.resources.requests of DedicatedAIClusterProfile {profile}"
        if unit is None:
            return DemandError(
                "SizeUnknown",
                "the cluster's size is not set: set spec.resources.requests, or spec.profile and spec.count "
                "(a count alone has no unit)",
            )
        if not count:
            return DemandError(
                "SizeUnknown",
                f"spec.count: neither the cluster nor DedicatedAIClusterProfile {profile} sets the number of "
                "units: set one of them",
            )
        total = {name: units(name, text) * count for name, text in _requests(unit).items()}
        return _positive(total, where)
    except ValueError as error:
        return DemandError("SizeInvalid", f"resources.requests: {error}")


def _positive(total: Mapping[str, int], where: str) -> Mapping[str, int] | DemandError:
    if negative := [name for name, value in sorted(total.items()) if value < 0]:
        return DemandError("SizeInvalid", f"{where}: {negative[0]} is negative; leave it out for none")
    amounts = {name: value for name, value in sorted(total.items()) if value}
    return amounts or DemandError(
        "SizeUnknown", f"{where} requests nothing: name an amount, such as nvidia.com/gpu"
    )


def _requests(given: ResourceRequirements) -> dict[str, str]:
    """A limit without a request is a request of the same size, as everywhere in Kubernetes."""
    return {**given.limits, **given.requests}
