"""The label values that a claim accepts.

Invariant: a `Requirements` is exactly the set of label values that satisfy all its requirements, in any
order (several on one key intersect). Operators and their meaning are those of a NodeClaim's
`spec.requirements`: In, NotIn, Exists, DoesNotExist of Kubernetes node selectors, and Gt, Lt, Gte, Lte on
whole numbers. A missing label satisfies NotIn and DoesNotExist and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from broker.apis.label_names import stable
from broker.text import InvalidText, abridged, decode_whole, shortened

OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Gte", "Lte")

_MOST: Final = 10**18 - 1
# kubernetes.io, "Labels and Selectors", syntax and character set; a claim's value becomes its node's label.
_LONGEST: Final = 63
_LONGEST_PREFIX: Final = 253
_VALUE: Final = re.compile(rf"(?=.{{0,{_LONGEST}}}\Z)([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?", re.ASCII)


class InvalidRequirement(ValueError):
    """A malformed requirement: unknown operator, or values that do not go with it."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One requirement as it is written in a claim."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        where = f"requirement {self.key or '(no key)'} {self.operator} {list(self.values)}"
        if not self.key:
            raise InvalidRequirement(f"{where}: the key is empty; name a label")
        prefix, _, name = self.key.rpartition("/")
        if len(name) > _LONGEST or len(prefix) > _LONGEST_PREFIX:
            raise InvalidRequirement(
                f"requirement {shortened(self.key)}: no label is named so; "
                f"a name has at most {_LONGEST} characters, and {_LONGEST_PREFIX} before the /"
            )
        if self.operator not in OPERATORS:
            raise InvalidRequirement(f"{where}: the operator is unknown; use one of {', '.join(OPERATORS)}")
        if self.operator == "In" and not self.values:
            raise InvalidRequirement(f"{where}: In needs at least one value")
        if self.operator == "In" and (bad := [value for value in self.values if not _VALUE.fullmatch(value)]):
            raise InvalidRequirement(
                f"requirement {self.key} In: {shortened(bad[0])} is the value of no label; "
                f"a value has at most {_LONGEST} letters, digits, and -_. between them"
            )
        if self.operator in ("Exists", "DoesNotExist") and self.values:
            raise InvalidRequirement(f"{where}: {self.operator} takes no values; remove them")
        if self.operator in ("Gt", "Lt", "Gte", "Lte") and (
            len(self.values) != 1 or _number(self.values[0]) is None
        ):
            raise InvalidRequirement(f"{where}: {self.operator} takes one whole number, zero or more")


@dataclass(frozen=True, slots=True)
class _Allowed:
    """The allowed states of one label: absent, or with a value.

    `among` None means any value; only then do `except_` and the bounds (inclusive) apply.
    """

    absent: bool
    among: frozenset[str] | None
    except_: frozenset[str] = frozenset()
    low: int | None = None
    high: int | None = None

    def takes(self, value: str) -> bool:
        if self.among is not None:
            return value in self.among
        if value in self.except_:
            return False
        if self.low is None and self.high is None:
            return True
        number = _number(value)
        if number is None:
            return False
        return (self.low is None or number >= self.low) and (self.high is None or number <= self.high)

    def and_(self, other: _Allowed) -> _Allowed:
        absent = self.absent and other.absent
        if self.among is not None:
            return _Allowed(absent, frozenset(v for v in self.among if other.takes(v)))
        if other.among is not None:
            return _Allowed(absent, frozenset(v for v in other.among if self.takes(v)))
        lows = [bound for bound in (self.low, other.low) if bound is not None]
        highs = [bound for bound in (self.high, other.high) if bound is not None]
        low, high = max(lows, default=None), min(highs, default=None)
        except_ = self.except_ | other.except_
        if high is not None and _exhausted(low or 0, high, except_):
            return _Allowed(absent, frozenset())
        return _Allowed(absent, None, except_, low, high)

    def or_(self, other: _Allowed) -> _Allowed:
        """The values of both; any value if these cannot be listed."""
        absent = self.absent or other.absent
        if self.among is None or other.among is None:
            return _Allowed(absent, None)
        return _Allowed(absent, self.among | other.among)

    @property
    def impossible(self) -> bool:
        return not self.absent and self.among is not None and not self.among

    def within(self, other: _Allowed) -> bool:
        """Whether the other allows each state that this allows."""
        if self.absent and not other.absent:
            return False
        if self.among is not None:
            return all(map(other.takes, self.among))
        if other.among is not None or any(map(self.takes, other.except_)):
            return False
        low, high = self.low, self.high
        return (other.low is None or (low is not None and low >= other.low)) and (
            other.high is None or (high is not None and high <= other.high)
        )

    def __str__(self) -> str:
        if self.among is not None:
            if not self.among:
                return "absent" if self.absent else "nothing"
            return ("absent or " if self.absent else "") + "one of " + abridged(sorted(self.among), 8)
        words = []
        if self.low is not None:
            words.append(f"at least {self.low}")
        if self.high is not None:
            words.append(f"at most {self.high}")
        if self.except_:
            words.append("none of " + abridged(sorted(self.except_), 8))
        return " and ".join(words) or ("anything" if self.absent else "present")


_ANYTHING: Final = _Allowed(absent=True, among=None)


class Requirements:
    """Requirements on labels, intersected by key. Immutable; equal if they allow the same values."""

    __slots__ = ("_by_key", "_hash", "_written")

    def __init__(self, requirements: Iterable[Requirement] = ()) -> None:
        by_key: dict[str, _Allowed] = {}
        written: dict[str, tuple[str, ...]] = {}
        for requirement in requirements:
            key = stable(requirement.key)
            by_key[key] = by_key.get(key, _ANYTHING).and_(_allowed(requirement))
            written[key] = (*written.get(key, ()), _text(requirement))
        self._by_key = dict(sorted(by_key.items()))
        self._written = written
        self._hash = hash(frozenset(by_key.items()))

    @classmethod
    def of(cls, requirements: Iterable[tuple[str, str, Sequence[str]]]) -> Requirements:
        """From (key, operator, values). Raises InvalidRequirement, naming the first malformed one."""
        return cls(Requirement(key, operator, tuple(values)) for key, operator, values in requirements)

    @classmethod
    def of_labels(cls, labels: Mapping[str, str]) -> Requirements:
        """One In for each label, as a node selector."""
        return cls(Requirement(key, "In", (value,)) for key, value in labels.items())

    def __iter__(self) -> Iterator[str]:
        """The keys with a requirement, sorted."""
        return iter(self._by_key)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and stable(key) in self._by_key

    def __len__(self) -> int:
        return len(self._by_key)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Requirements) and self._by_key == other._by_key

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return "Requirements(" + "; ".join(f"{key} {self.describe(key)}" for key in self) + ")"

    def __and__(self, other: Requirements) -> Requirements:
        """The requirements of both."""
        both = Requirements()
        both._by_key, both._written = dict(self._by_key), dict(self._written)
        for key, allowed in other._by_key.items():
            both._by_key[key] = both._by_key.get(key, _ANYTHING).and_(allowed)
            both._written[key] = (*both._written.get(key, ()), *other._written[key])
        both._by_key = dict(sorted(both._by_key.items()))
        both._hash = hash(frozenset(both._by_key.items()))
        return both

    def __or__(self, other: Requirements) -> Requirements:
        """What labels of either satisfy, key by key: a combination of values may satisfy neither."""
        either = Requirements()
        either._by_key = {
            key: allowed.or_(other._by_key[key]) for key, allowed in self._by_key.items() if key in other
        }
        either._written = {key: (*self._written[key], *other._written[key]) for key in either._by_key}
        either._hash = hash(frozenset(either._by_key.items()))
        return either

    def allows(self, key: str, value: str | None) -> bool:
        """Whether the label may have this value; with None, whether it may be absent."""
        allowed = self._by_key.get(key, _ANYTHING)
        return allowed.absent if value is None else allowed.takes(value)

    def implies(self, requirement: Requirement) -> bool:
        """Whether every label that is allowed satisfies the requirement."""
        return self._by_key.get(stable(requirement.key), _ANYTHING).within(_allowed(requirement))

    def values(self, key: str) -> frozenset[str] | None:
        """The remaining values of a label; None if they cannot be listed, or without a requirement."""
        return self._by_key.get(key, _ANYTHING).among

    def choices(self, key: str) -> list[str]:
        """Values that a node may get for a label that it must have: all that can be listed, else the least
        number. Karpenter takes any of them (pkg/scheduling/requirement.go, Any).
        """
        allowed = self._by_key.get(key, _ANYTHING)
        if allowed.absent or allowed.among is not None:
            return sorted(() if allowed.absent else allowed.among or ())
        numbers = map(str, count(allowed.low or 0))
        return [next(number for number in numbers if number not in allowed.except_)]

    def single(self, key: str) -> str | None:
        """The only remaining value, if there is exactly one and the label is required."""
        allowed = self._by_key.get(key, _ANYTHING)
        if allowed.absent or allowed.among is None or len(allowed.among) != 1:
            return None
        return next(iter(allowed.among))

    def labels(self) -> dict[str, str]:
        """Labels that follow from the requirements alone: those with one remaining value."""
        return {key: value for key in self if (value := self.single(key)) is not None}

    def accepts(self, labels: Mapping[str, str], *, among: Collection[str] | None = None) -> str | None:
        """None if these labels satisfy every requirement, else the first reason in key order.

        With `among`, only requirements on those keys count: the other labels are set by the claim
        itself.
        """
        unmet = self.unmet(labels, among=among)
        if not unmet:
            return None
        return f"{unmet[0]} is {labels.get(unmet[0], 'not set')}, needs {self.describe(unmet[0])}"

    def unmet(self, labels: Mapping[str, str], *, among: Collection[str] | None = None) -> list[str]:
        """The keys with a requirement that these labels do not satisfy, in order."""
        return [
            key
            for key, allowed in self._by_key.items()
            if (among is None or key in among)
            and not (allowed.absent if (value := labels.get(key)) is None else allowed.takes(value))
        ]

    def problems(self) -> list[str]:
        """Keys that no label can satisfy, each with the requirements that exclude one another."""
        return [
            f"{key}: no value satisfies {' and '.join(self._written[key])}"
            for key in self
            if self._by_key[key].impossible
        ]

    def describe(self, key: str) -> str:
        """The remaining values of a label, in words."""
        return str(self._by_key.get(key, _ANYTHING))


def _allowed(requirement: Requirement) -> _Allowed:
    values = frozenset(requirement.values)
    match requirement.operator:
        case "In":
            return _Allowed(absent=False, among=values)
        case "NotIn":
            return _Allowed(absent=True, among=None, except_=values)
        case "Exists":
            return _Allowed(absent=False, among=None)
        case "DoesNotExist":
            return _Allowed(absent=True, among=frozenset())
    number = int(requirement.values[0])
    match requirement.operator:
        case "Gt":
            return _Allowed(absent=False, among=None, low=number + 1)
        case "Gte":
            return _Allowed(absent=False, among=None, low=number)
        case "Lt":
            return _Allowed(absent=False, among=None, high=number - 1)
        case _:
            return _Allowed(absent=False, among=None, high=number)


def _exhausted(low: int, high: int, except_: frozenset[str]) -> bool:
    # More numbers than exclusions leave one over, so the range is only walked when it is short.
    return high - low < len(except_) and all(str(n) in except_ for n in range(low, high + 1))


def _number(value: str) -> int | None:
    """None for a sign too: a label's value cannot begin with one."""
    try:
        return decode_whole(value, least=0, most=_MOST) if value[:1].isdigit() else None
    except InvalidText:
        return None


def _text(requirement: Requirement) -> str:
    return (
        f"{requirement.operator} [{', '.join(requirement.values)}]"
        if requirement.values
        else requirement.operator
    )
