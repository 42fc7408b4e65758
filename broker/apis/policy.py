"""policy/v1: PodDisruptionBudget, as far as disruption reads it."""

from __future__ import annotations

from typing import ClassVar

from broker.apis.core import LabelSelector
from broker.apis.meta import Kind, Model, Object


class PodDisruptionBudgetSpec(Model):
    selector: LabelSelector | None = None
    unhealthy_pod_eviction_policy: str = ""


class PodDisruptionBudgetStatus(Model):
    disruptions_allowed: int = 0


class PodDisruptionBudget(Object):
    """The number of pods of a selector that may be evicted now."""

    KIND: ClassVar[Kind] = Kind(group="policy", version="v1", kind="PodDisruptionBudget", namespaced=True)

    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()
