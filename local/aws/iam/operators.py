"""Operators of conditions: comparisons of a policy's values with a request's.

Invariant: a malformed number, time or address in a request matches nothing; in a policy it is an error, as
IAM takes no such policy. Source: IAM User Guide, "IAM JSON policy elements: Condition operators" (numbers are
integers or decimals, times are ISO 8601 or seconds since 1970, addresses are CIDR blocks or one address).
"""

from __future__ import annotations

import base64
import binascii
import operator
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from functools import lru_cache, partial
from ipaddress import ip_address, ip_network
from typing import Any, Final

# The policy's value, the request's value.
Test = Callable[[str, str], bool]


class BadPolicy(ValueError):
    """A policy with a value that its operator cannot be given."""


def like(pattern: str, value: str) -> bool:
    """`*` is any text, `?` one character; nothing else means anything."""
    return _compiled(pattern).fullmatch(value) is not None


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(
        "".join({"*": ".*", "?": "."}.get(letter, re.escape(letter)) for letter in pattern), re.DOTALL
    )


def _same_in_any_case(pattern: str, value: str) -> bool:
    return pattern.lower() == value.lower()


def _number(text: str) -> Decimal:
    try:
        number = Decimal(text)
    except InvalidOperation as error:
        raise ValueError(f"{text!r} is no number") from error
    if not number.is_finite():
        raise ValueError(f"{text!r} is no number")
    return number


def _parse_date(text: str) -> datetime:
    if re.fullmatch(r"\d+(\.\d+)?", text) and len(text) != len("2026"):
        try:
            return datetime.fromtimestamp(float(text), UTC)
        except (OverflowError, OSError) as error:
            raise ValueError(f"{text!r} is no time") from error
    # W3C's profile of ISO 8601 has a year, or a year and a month, too.
    whole = text if len(text) > len("2026-11") else f"{text}-01-01"[: len("2026-11-01")]
    parsed = datetime.fromisoformat(whole)
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"{text!r} is not base64") from error


def _compared(
    read: Callable[[str], Any],
    holds: Callable[[Any, Any], bool],
    *,
    of_policy: Callable[[str], Any] | None = None,
) -> Test:
    """`of_policy` reads the policy's value, which has another notation than a request's."""

    def test(pattern: str, value: str) -> bool:
        try:
            expected = (of_policy or read)(pattern)
        except ValueError as error:
            raise BadPolicy(f"a condition of a policy: {error}") from error
        try:
            return holds(read(value), expected)
        except ValueError:
            return False

    return test


def _inside(address: Any, block: Any) -> bool:
    return address in block


_WITHIN: Final = _compared(ip_address, _inside, of_policy=partial(ip_network, strict=False))
_ORDERS: Final[Mapping[str, tuple[Callable[[Any, Any], bool], bool]]] = {
    "Equals": (operator.eq, False),
    "NotEquals": (operator.eq, True),
    "LessThan": (operator.lt, False),
    "LessThanEquals": (operator.le, False),
    "GreaterThan": (operator.gt, False),
    "GreaterThanEquals": (operator.ge, False),
}
# operator -> how a value is compared, and whether it holds for those that do not match
OPERATORS: Final[Mapping[str, tuple[Test, bool]]] = {
    "StringEquals": (operator.eq, False),
    "StringNotEquals": (operator.eq, True),
    "StringEqualsIgnoreCase": (_same_in_any_case, False),
    "StringNotEqualsIgnoreCase": (_same_in_any_case, True),
    "StringLike": (like, False),
    "StringNotLike": (like, True),
    "ArnEquals": (like, False),
    "ArnNotEquals": (like, True),
    "ArnLike": (like, False),
    "ArnNotLike": (like, True),
    "Bool": (_same_in_any_case, False),
    "BinaryEquals": (_compared(_bytes, operator.eq), False),
    "IpAddress": (_WITHIN, False),
    "NotIpAddress": (_WITHIN, True),
    **{
        f"{kind}{name}": (_compared(read, holds), negated)
        for kind, read in (("Numeric", _number), ("Date", _parse_date))
        for name, (holds, negated) in _ORDERS.items()
    },
}
