"""Quantities in the form in which the API server shows them: `1000m` is `1`, `1024Mi` is `1Gi`.

Rule: k8s.io/apimachinery/pkg/api/resource: the largest exponent without a fraction, in the given family.
Nothing is finer than a nano; a number of more than 18 digits is at most 2^63-1.
"""

from __future__ import annotations

import re
from decimal import Decimal
from functools import lru_cache
from typing import NamedTuple

_PATTERN = re.compile(
    r"([+-]?)([0-9]+\.?[0-9]*|\.[0-9]+)(?:(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE])|[eE]([+-]?[0-9]+))?"
)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_NAMES = {exponent: name for name, exponent in _DECIMAL.items()}
INVALID = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_MAX = 2**63 - 1
_EXACT = 18  # digits of a number that is kept without a cap
_NANO = -9
_FINEST = -40  # digits beyond this place only round up: 1Ei of them is less than a nano
_EXPONENT_DIGITS = 9


class _Number(NamedTuple):
    """`mantissa * 10**exponent`, and the family of the suffix that it was given with."""

    mantissa: int
    exponent: int
    family: str

    @property
    def amount(self) -> Decimal:
        """At most 2^63-1 on either side of 0."""
        if len(str(abs(self.mantissa))) + self.exponent > len(str(_MAX)):
            return Decimal(_MAX if self.mantissa > 0 else -_MAX)
        exact = Decimal(self.mantissa).scaleb(self.exponent)
        return max(min(exact, Decimal(_MAX)), Decimal(-_MAX))


@lru_cache(maxsize=4096)
def canonical(text: str) -> str | None:
    """The canonical form; None when the text is no quantity."""
    number = _parse(text)
    if number is None:
        return None
    if not number.mantissa:
        return "0"
    return _binary(number) if number.family == "binary" else _decimal(number)


@lru_cache(maxsize=4096)
def amount(text: str) -> Decimal | None:
    """The value, at most 2^63-1 on either side of 0; None when the text is no quantity."""
    number = _parse(text)
    return number.amount if number else None


def _parse(text: str) -> _Number | None:
    match = _PATTERN.fullmatch(text)
    if not match:
        return None
    sign, number, suffix, exponent = match.groups()
    whole, _, fraction = number.partition(".")
    digits, factor, power = (whole + fraction).lstrip("0"), 1, 0
    if exponent is not None:
        if len(exponent.lstrip("+-0")) > _EXPONENT_DIGITS:
            return None
        power, family = int(exponent), "exponent"
    elif suffix and suffix in _BINARY:
        factor, family = 1024 ** _BINARY.index(suffix), "binary"
    else:
        power, family = _DECIMAL[suffix or ""], "decimal"
    power -= len(fraction)
    if not digits:
        return _Number(0, 0, family)
    mantissa, power = _bounded(digits, power, factor)
    return _Number(-mantissa if sign == "-" else mantissa, power, family)


def _bounded(digits: str, power: int, factor: int) -> tuple[int, int]:
    """Mantissa and exponent of `digits * 10**power * factor`, rounded away from 0 and capped."""
    if factor == 1 and len(digits) <= _EXACT and power >= _NANO:
        return int(digits), power
    if len(digits) + power > len(str(_MAX)):
        return _MAX, 0
    kept = digits[: max(0, len(digits) + power - _FINEST)] if power < _FINEST else digits
    mantissa, power = int(kept or "0") + (len(kept) < len(digits)), max(power, _FINEST)
    mantissa *= factor
    if power < _NANO:
        mantissa, power = -(-mantissa // 10 ** (_NANO - power)), _NANO
    at_most = _MAX * 10**-power if power < 0 else _MAX // 10**power
    return (_MAX, 0) if mantissa > at_most else (mantissa, power)


def _binary(number: _Number) -> str:
    mantissa, scale = number.mantissa, 10**-number.exponent if number.exponent < 0 else 1
    value, rest = divmod(mantissa * 10 ** max(number.exponent, 0), scale)
    if rest or abs(value) < 1024:
        return _decimal(number)
    power = 0
    while value % 1024 == 0 and power < len(_BINARY) - 1:
        value, power = value // 1024, power + 1
    return f"{value}{_BINARY[power]}"


def _decimal(number: _Number) -> str:
    mantissa, power, family = number
    while mantissa % 10 == 0:
        mantissa, power = mantissa // 10, power + 1
    shown = power - power % 3
    if family != "exponent":
        shown = min(shown, max(_NAMES))
    mantissa *= 10 ** (power - shown)
    if family == "exponent":
        return f"{mantissa}e{shown}" if shown else str(mantissa)
    return f"{mantissa}{_NAMES[shown]}"
