"""Instance types as JSON values and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from providers.model import Gpu, InstanceType


def decode_types(items: Iterable[dict[str, Any]]) -> dict[str, InstanceType]:
    """The types by name, from the fields that `orjson.dumps(..., default=sorted)` wrote. Raises KeyError and
    TypeError for other fields.
    """
    return {item["name"]: _type(item) for item in items}


def _type(item: dict[str, Any]) -> InstanceType:
    item["gpus"] = tuple(Gpu(**gpu) for gpu in item["gpus"])
    item["interfaces_per_card"] = tuple(item["interfaces_per_card"])
    for name in ("zones", "market_types", "placement_strategies"):
        item[name] = frozenset(item[name])
    return InstanceType(**item)
