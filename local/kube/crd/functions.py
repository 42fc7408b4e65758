"""Functions that Kubernetes adds to CEL, over plain values; a quantity is a number here.

Rule: https://kubernetes.io/docs/reference/using-api/cel/#kubernetes-cel-libraries
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

from local.kube import quantity
from local.kube.crd.formats import succeeds

_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h|d|w)")
_SECONDS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,
    "ms": 1e-3,
    "s": 1,
    "m": 60,
    "h": 3600,
    "d": 86400,
    "w": 604800,
}


def as_duration(text: str) -> Any:
    """`1h30m` as a duration; text that is none stays text."""
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text.lstrip("+-"):
        return text
    total = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    return timedelta(seconds=-total if text.startswith("-") else total)


def _is_sorted(values: list[Any]) -> bool:
    return all(left <= right for left, right in pairwise(values))


def _find(text: str, pattern: str) -> str:
    match = re.search(pattern, text)
    return match[0] if match else ""


def _find_all(text: str, pattern: str, limit: int = -1) -> list[str]:
    matches = [match[0] for match in re.finditer(pattern, text)]
    return matches if limit < 0 else matches[:limit]


def _index(values: Any, item: Any) -> int:
    if isinstance(values, str):
        return values.find(item)
    return values.index(item) if item in values else -1


def _last_index(values: Any, item: Any) -> int:
    if isinstance(values, str):
        return values.rfind(item)
    return len(values) - 1 - values[::-1].index(item) if item in values else -1


def _quantity(text: str) -> float:
    amount = quantity.amount(text)
    if amount is None:
        raise ValueError(quantity.INVALID)
    return float(amount)


def _compare(left: float, right: float) -> int:
    return (left > right) - (left < right)


def _is_url(text: str) -> bool:
    parts = urlsplit(text)
    return bool(parts.scheme and (parts.netloc or parts.path)) or text.startswith("/")


EXTENSIONS: dict[str, Callable[..., Any]] = {
    "isSorted": _is_sorted,
    "indexOf": _index,
    "lastIndexOf": _last_index,
    "find": _find,
    "findAll": _find_all,
    "quantity": _quantity,
    "isQuantity": lambda text: quantity.amount(text) is not None,
    "isLessThan": lambda left, right: left < right,
    "isGreaterThan": lambda left, right: left > right,
    "compareTo": _compare,
    "sign": lambda value: _compare(value, 0.0),
    "asInteger": int,
    "isInteger": lambda value: float(value).is_integer(),
    "asApproximateFloat": float,
    "isURL": _is_url,
    "isIP": succeeds(ipaddress.ip_address),
    "isCIDR": succeeds(lambda text: ipaddress.ip_network(text, strict=False)),
}
