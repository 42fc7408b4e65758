"""Selectors of labels: of nodes, pods and namespaces.

An empty selector matches everything, and None matches nothing (apimachinery, pkg/labels/selector.go).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from broker.capacity.requirements import Requirement
from broker.text import abridged

Labels = Mapping[str, str]

IN: Final = "In"
NOT_IN: Final = "NotIn"
EXISTS: Final = "Exists"
DOES_NOT_EXIST: Final = "DoesNotExist"
GREATER: Final = "Gt"
LESS: Final = "Lt"
_INTEGER: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_MOST: Final = 2**63
MOST_SHOWN: Final = 3  # values of one test


class SelectorRequirement(NamedTuple):
    """One test of a label. `bound` is the number of Gt and Lt."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()
    bound: int = 0


Selector = tuple[SelectorRequirement, ...]


def matches(selector: Selector | None, labels: Labels) -> bool:
    """Whether all requirements hold."""
    if selector is None:
        return False
    return all(holds(requirement, labels) for requirement in selector)


def holds(requirement: SelectorRequirement, labels: Labels) -> bool:
    """Whether one requirement holds. A missing label satisfies NotIn and DoesNotExist only."""
    key, operator, values, bound = requirement
    value = labels.get(key)
    if operator == IN:
        return value is not None and value in values
    if operator == NOT_IN:
        return value is None or value not in values
    if operator == EXISTS:
        return value is not None
    if operator == DOES_NOT_EXIST:
        return value is None
    number = None if value is None else integer(value)
    if number is None:
        return False
    return number > bound if operator == GREATER else number < bound


def requirement(key: str, operator: str, values: Iterable[str]) -> SelectorRequirement | None:
    """The requirement; None if the operator does not allow the values."""
    texts = tuple(values)
    if operator in (IN, NOT_IN):
        return SelectorRequirement(key, operator, frozenset(texts)) if texts else None
    if operator in (EXISTS, DOES_NOT_EXIST):
        return None if texts else SelectorRequirement(key, operator)
    if operator in (GREATER, LESS) and len(texts) == 1:
        bound = integer(texts[0])
        return None if bound is None else SelectorRequirement(key, operator, frozenset(), bound)
    return None


def required(item: SelectorRequirement) -> Requirement:
    """The test as a requirement of a claim. Raises InvalidRequirement."""
    values = (str(item.bound),) if item.operator in (GREATER, LESS) else tuple(sorted(item.values))
    return Requirement(item.key, item.operator, values)


def shown(item: SelectorRequirement) -> str:
    """The test in a message: `topology.kubernetes.io/zone In [us-east-1a]`."""
    values = [str(item.bound)] if item.operator in (GREATER, LESS) else sorted(item.values)
    return f"{item.key} {item.operator}" + (f" [{abridged(values, MOST_SHOWN)}]" if values else "")


def equal(labels: Labels) -> Selector:
    """The selector of labels that must all be there."""
    return tuple(SelectorRequirement(key, IN, frozenset((value,))) for key, value in sorted(labels.items()))


def integer(text: str) -> int | None:
    """A 64-bit integer; None for any other text."""
    value = int(text) if len(text) < 64 and _INTEGER.fullmatch(text) else None
    return value if value is not None and -_MOST <= value < _MOST else None
