"""The elastic quotas of nos: resources that namespaces are guaranteed, and may borrow from each other.

Fields are those of nos, pkg/api/nos.nebuly.com/v1alpha1; columns and conditions are the broker's.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from pydantic import Field

from broker.apis.meta import Condition, Kind, Model, Object, Quantity
from broker.apis.schema import crd

GROUP: Final = "nos.nebuly.com"

# Label of pods: within the min of their quota, or over it.
CAPACITY: Final = f"{GROUP}/capacity"

# Condition: whether the quota limits and guarantees anything.
IN_FORCE: Final = "InForce"

_MIN: Final = "Resources that are guaranteed."
_MAX: Final = "Most that may be used; empty: no limit. A resource in min and max is at least as large here."


class ElasticQuotaSpec(Model):
    """The guaranteed and the largest amounts."""

    min: Annotated[dict[str, Quantity], crd(_MIN)] = Field(default_factory=dict)
    max: Annotated[dict[str, Quantity] | None, crd(_MAX)] = None


class CompositeElasticQuotaSpec(Model):
    """The namespaces, and their amounts together."""

    namespaces: Annotated[
        tuple[str, ...], crd("Namespaces that share the quota.", required=True, minItems=1)
    ] = ()
    min: Annotated[dict[str, Quantity], crd(_MIN)] = Field(default_factory=dict)
    max: Annotated[dict[str, Quantity] | None, crd(_MAX)] = None


class ElasticQuotaStatus(Model):
    """The use of the quota."""

    used: Annotated[
        dict[str, Quantity], crd("Requests of running pods, for the resources of min and max.")
    ] = Field(default_factory=dict)
    conditions: Annotated[
        tuple[Condition, ...],
        crd(
            "InForce=False on a quota without effect.",
            map_key="type",
        ),
    ] = ()


class ElasticQuota(Object):
    """Resources that a namespace is guaranteed, and may borrow beyond."""

    KIND: ClassVar[Kind] = Kind(group=GROUP, version="v1alpha1", kind="ElasticQuota", namespaced=True)

    spec: ElasticQuotaSpec = ElasticQuotaSpec()
    status: ElasticQuotaStatus = ElasticQuotaStatus()


class CompositeElasticQuota(Object):
    """Resources that several namespaces are guaranteed together, and may borrow beyond."""

    KIND: ClassVar[Kind] = Kind(
        group=GROUP, version="v1alpha1", kind="CompositeElasticQuota", namespaced=True
    )

    spec: CompositeElasticQuotaSpec = CompositeElasticQuotaSpec()
    status: ElasticQuotaStatus = ElasticQuotaStatus()
