"""LimitRange as far as it gives containers their requests.

https://kubernetes.io/docs/concepts/policy/limit-range/
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from broker.apis.meta import Kind, Model, Object, Quantity

CONTAINER = "Container"


class LimitRangeItem(Model):
    """The limits of one type of objects; only those of containers have defaults."""

    type: str = ""
    default: dict[str, Quantity] = Field(default_factory=dict)
    default_request: dict[str, Quantity] = Field(default_factory=dict)


class LimitRangeSpec(Model):
    limits: tuple[LimitRangeItem, ...] = ()


class LimitRange(Object):
    KIND: ClassVar[Kind] = Kind(group="", version="v1", kind="LimitRange", namespaced=True)

    spec: LimitRangeSpec = LimitRangeSpec()
