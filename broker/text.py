"""Decodes text from outside: JSON in annotations, quantities, times, durations, whole numbers.

Invariant: for any text, a decoder raises nothing but `InvalidText`. It allocates little more than the text
itself, and returns no number or time with which arithmetic can overflow. All text from outside the broker
is decoded here. A message names the text, shortened, and a valid form; the caller adds the field.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Final

import orjson

# All annotations of an object together hold no more (apimachinery, pkg/api/validation/objectmeta.go).
LONGEST_JSON: Final = 256 * 1024
DEEPEST_JSON: Final = 32
LONGEST_SCALAR: Final = 64
# The range of 64 bits: "no quantity may represent a number greater than 2^63-1 in magnitude", and one that is
# more counts as that (https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/).
LARGEST_INTEGER: Final = 2**63 - 1
# A Go duration is at most 2^63 nanoseconds, 292 years: added to a time within these bounds, or taken from it,
# it leaves a time that Python can hold.
LONGEST_DURATION: Final = timedelta(microseconds=LARGEST_INTEGER // 1000)
EARLIEST: Final = datetime(300, 1, 1, tzinfo=UTC)
LATEST: Final = datetime(9700, 1, 1, tzinfo=UTC)

SCALES: Final[Mapping[str, Decimal]] = {
    **{f"{prefix}i": Decimal(1024) ** power for power, prefix in enumerate("KMGTPE", 1)},
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate("num", -3)},
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate("kMGTPE", 1)},
}
_QUANTITY: Final = re.compile(
    rf"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:({'|'.join(SCALES)})|[eE]([+-]?[0-9]{{1,18}}))?", re.ASCII
)
_GROUP_ARN: Final = re.compile(r"arn:[\w-]+:resource-groups:[\w-]+:\d+:(?=group/)")
# A pool as keys and logs have it: capacity type, instance type, zone, reservation or group, placement.
# Type and zone are empty for a reservation that EC2 does not show.
_POOL: Final = re.compile(
    r"\b(reserved|on-demand|spot):([\w-]+\.[\w-]+|(?=::)):([\w-]+|(?<=::)(?=:))"
    rf"(?::(cr-\w+|(?:{_GROUP_ARN.pattern})?group/[\w./-]*[\w-]))?(?:@(\S+?)(?=[:,;)]*(?:\s|$)))?"
)
_WHOLE: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_SECONDS: Final[Mapping[str, float]] = {
    "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9
}  # fmt: skip
_PART: Final = re.compile(rf"([0-9]+\.?[0-9]*|\.[0-9]+)({'|'.join(sorted(_SECONDS, key=len, reverse=True))})")
_DURATION: Final = re.compile(rf"[+-]?(?:0|(?:{_PART.pattern})+)")


class InvalidText(ValueError):
    """Text that cannot be decoded; the message has the text and a valid form."""


def counted(count: int, singular: str, plural: str = "") -> str:
    """`1 instance`, `2 instances`. `plural`: a plural that is not `singular` with an s."""
    return f"{count} {singular if count == 1 else plural or f'{singular}s'}"


def with_unpriced(cost: str, unpriced: int) -> str:
    """A sum of dollars, with the number of parts that have no known price and so are not in it."""
    return f"{cost} and {unpriced} without a price" if unpriced else cost


def abridged(texts: Sequence[str], most: int) -> str:
    """The first texts and the number of the others: `a, b and 3 more`."""
    more = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {more} more" if more > 0 else "")


def similar(word: str, known: Iterable[str], *, ratio: float = 0.6) -> str:
    """The most similar known word; empty if none has difflib's ratio."""
    return next(iter(all_similar(word, known, most=1, ratio=ratio)), "")


def all_similar(word: str, known: Iterable[str], *, most: int, ratio: float = 0.6) -> list[str]:
    """The known words that have difflib's ratio, the most similar first."""
    folded = {name.casefold(): name for name in sorted(known)}
    return [folded[near] for near in get_close_matches(word.casefold(), folded, n=most, cutoff=ratio)]


def nearest(word: str, known: Iterable[str], *, ratio: float = 0.6) -> str:
    """The most similar known word, as the end of a message; empty if none has difflib's ratio."""
    near = similar(word, known, ratio=ratio)
    return f"; the nearest name is {near}" if near else ""


def group_name(arn: str) -> str:
    """The name of a resource group, which AWS may write with an id of its own behind it."""
    return f":{arn}".partition(":group/")[2].partition("/")[0] or arn


def plain(text: str) -> str:
    """A text with a name for each key of a pool. An ARN that stands alone is shown in full."""
    return _POOL.sub(lambda pool: pool_name(*pool.groups("")), text)


@lru_cache(maxsize=10_000)
def pool_name(
    capacity_type: str, instance_type: str, zone: str, reservation: str = "", placement: str = ""
) -> str:
    """`cr-1 (p5.48xlarge, us-east-1a)`, `group gpus (...)`, or `on-demand p5.48xlarge in us-east-1a`."""
    if capacity_type == "reserved":
        group = f"group {group_name(reservation)}" if reservation else "open reservations"
        source = reservation if reservation.startswith("cr-") else group
        name = f"{source} ({instance_type}, {zone})" if instance_type else source
    else:
        name = f"{capacity_type} {instance_type} in {zone}"
    return f"{name} with placement {group_name(placement)}" if placement else name


def format_time(at: datetime) -> str:
    """A time in whole seconds, in UTC: in messages, and as metav1.Time. The year has four digits."""
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="seconds") + "Z"


def format_micros(at: datetime) -> str:
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def shortened(text: object, length: int = LONGEST_SCALAR) -> str:
    """The value as a message shows it: quoted, and cut if it is long."""
    whole = text if isinstance(text, str) else f"{text}"
    return repr(whole) if len(whole) <= length else f"{whole[:length]!r}... ({len(whole)} characters)"


def decode_json(text: str | bytes) -> Any:
    """Any JSON value within the limits: length, depth, and numbers that 64 bits hold."""
    if len(text) > LONGEST_JSON:
        raise InvalidText(f"has {len(text)} characters: write at most {LONGEST_JSON}")
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidText(f"is not JSON ({error})") from error
    _within_limits(value)
    return value


def decode_object(text: str | bytes) -> dict[str, Any]:
    """Decodes a JSON object like `decode_json`."""
    value = decode_json(text)
    if not isinstance(value, dict):
        raise InvalidText("is not a JSON object")
    return value


def levels(value: Any) -> Iterator[list[Any]]:
    """The value alone, then what its objects and lists hold, level by level."""
    level = [value]
    while level:
        yield level
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]


def _within_limits(value: Any) -> None:
    for depth, level in enumerate(levels(value)):
        if depth == DEEPEST_JSON:
            raise InvalidText(f"is nested more than {DEEPEST_JSON} levels deep: write it flatter")
        for item in level:
            if isinstance(item, float) and not (math.isfinite(item) and abs(item) <= LARGEST_INTEGER):
                raise InvalidText(f"has the number {item:g}: write one of at most {LARGEST_INTEGER}")


def exact(text: str) -> Decimal:
    """`100m`, `2Gi`, `1e3` in base units (cores, bytes, counts), at most 2^63-1 in magnitude."""
    if len(text) > LONGEST_SCALAR:
        raise InvalidText(
            f"not a quantity: {shortened(text)}; write a number of at most {LONGEST_SCALAR} characters"
        )
    return _exact(text)


@lru_cache(maxsize=4096)
def _exact(text: str) -> Decimal:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise InvalidText(f"not a quantity: {text!r}; write a number with a suffix such as m, k, Mi or Gi")
    number, suffix, exponent = match.groups()
    power = max(
        -99, min(int(exponent or 0), 99)
    )  # beyond these it is more than LARGEST_INTEGER, or next to nothing
    value = Decimal(number) * SCALES.get(suffix, Decimal(1)) * Decimal(10) ** power
    return max(Decimal(-LARGEST_INTEGER), min(value, Decimal(LARGEST_INTEGER)))


def quantity(text: str) -> float:
    """Reads like `exact`, with the precision of a float."""
    return float(exact(text))


def quantities(values: Mapping[str, str]) -> dict[str, float]:
    """Each as `quantity`. The message names the key."""
    amounts: dict[str, float] = {}
    for name, value in values.items():
        try:
            amounts[name] = quantity(value)
        except InvalidText as error:
            raise InvalidText(f"{shortened(name, 128)}: {error}") from error
    return amounts


def decode_whole(text: str, *, least: int = -LARGEST_INTEGER, most: int = LARGEST_INTEGER) -> int:
    """A whole number in decimal digits between `least` and `most`."""
    given = text.strip() if len(text) <= LONGEST_SCALAR else ""
    value = int(given) if _WHOLE.fullmatch(given) else None
    if value is None or not least <= value <= most:
        raise InvalidText(f"not a whole number between {least} and {most}: {shortened(text)}")
    return value


def decode_time(text: str) -> datetime:
    """A time with its zone, in UTC, as ISO 8601 and RFC 3339 write it."""
    try:
        if len(text) > LONGEST_SCALAR:
            raise InvalidText
        return bounded(datetime.fromisoformat(text.strip()))
    except (ValueError, OverflowError) as error:
        message = f"not a time: {shortened(text)}; write one with its zone, such as 2027-01-31T00:00:00Z"
        raise InvalidText(message) from error


def bounded(value: datetime) -> datetime:
    """The time in UTC. Refused: one without a zone, and one near the ends of the calendar."""
    if value.tzinfo is None:
        raise InvalidText(f"the time {value} has no zone: write Z at its end")
    if not EARLIEST.year <= value.year < LATEST.year:
        raise InvalidText(f"the time {value} is not between the years {EARLIEST.year} and {LATEST.year}")
    return value.astimezone(UTC)


@lru_cache(maxsize=1024)
def decode_duration(text: str) -> timedelta:
    """`1h30m`, `1.5s`, `-3ms`, `0`: as Go writes a duration (https://pkg.go.dev/time#ParseDuration)."""
    if len(text) > LONGEST_SCALAR or not _DURATION.fullmatch(text):
        raise InvalidText(f"not a duration: {shortened(text)}; write one such as 90s, 1h30m or 300ms")
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))
    if seconds > LONGEST_DURATION.total_seconds():
        raise InvalidText(f"a duration of more than 292 years: {shortened(text)}")
    return timedelta(seconds=-seconds if text.startswith("-") else seconds)
