"""Quantities in the form in which the API server shows them: `1000m` is `1`, `1024Mi` is `1Gi`.

Rule: k8s.io/apimachinery/pkg/api/resource (the largest exponent without a fraction, in the family given).
"""

from __future__ import annotations

import re
from decimal import ROUND_UP, Decimal
from functools import lru_cache

_PATTERN = re.compile(r"^([+-]?)(\d+\.?\d*|\.\d+)(?:(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE])|[eE]([+-]?\d+))?$")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_NAMES = {exponent: name for name, exponent in _DECIMAL.items()}
INVALID = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_NANO = Decimal("1e-9")


@lru_cache(maxsize=4096)
def canonical(text: str) -> str | None:
    """The canonical form; None when the text is no quantity."""
    parsed = _parse(text)
    if parsed is None:
        return None
    value, family = parsed
    if not value:
        return "0"
    return _binary(value) if family == "binary" else _decimal(value, exponent=family == "exponent")


@lru_cache(maxsize=4096)
def amount(text: str) -> Decimal | None:
    parsed = _parse(text)
    return parsed[0] if parsed else None


def _parse(text: str) -> tuple[Decimal, str] | None:
    found = _PATTERN.match(text)
    if not found:
        return None
    sign, digits, suffix, exponent = found.groups()
    value = Decimal(sign + digits)
    if exponent is not None:
        value, family = value.scaleb(int(exponent)), "exponent"
    elif suffix in _BINARY and suffix:
        value, family = value * 1024 ** _BINARY.index(suffix), "binary"
    else:
        value, family = value.scaleb(_DECIMAL[suffix or ""]), "decimal"
    # Nothing finer than a nano is kept; what is cut is rounded away from zero.
    return value.quantize(_NANO, rounding=ROUND_UP) if value.as_tuple().exponent < -9 else value, family  # type: ignore[operator]


def _binary(value: Decimal) -> str:
    if abs(value) < 1024 or value != value.to_integral_value():
        return _decimal(value, exponent=False)
    number, power = int(value), 0
    while number % 1024 == 0 and power < len(_BINARY) - 1:
        number, power = number // 1024, power + 1
    return f"{number}{_BINARY[power]}"


def _decimal(value: Decimal, *, exponent: bool) -> str:
    for power in range(18, -10, -3):
        scaled = value.scaleb(-power)
        if scaled == scaled.to_integral_value():
            number = int(scaled)
            if exponent:
                return f"{number}e{power}" if power else str(number)
            return f"{number}{_NAMES[power]}"
    return str(value)
