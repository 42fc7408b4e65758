"""The flavors that a request may have.

Invariant: a flavor matches if the request (with the flavor's own tolerations) tolerates each of its
NoSchedule and NoExecute taints. Its labels must also satisfy the request's node selector and required
node affinity, as far as these concern the flavor's own label keys. For other keys the scheduler decides.
An affinity term without such a key admits the flavor, whatever the other terms require. The rule is
Kueue's (pkg/scheduler/flavorassigner, checkFlavorForPodSets and flavorSelector).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from broker.text import InvalidText, decode_whole

_HARD: Final = ("NoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlavorTaint:
    key: str
    value: str = ""
    effect: str = "NoSchedule"

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlavorToleration:
    """An empty key tolerates every key, an empty effect every effect."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: FlavorTaint) -> bool:
        if (self.effect and self.effect != taint.effect) or (self.key and self.key != taint.key):
            return False
        if self.operator == "Exists":
            return True
        if self.operator in ("Gt", "Lt"):
            return _compares(taint.value, self.operator, self.value)
        return self.operator in ("", "Equal") and self.value == taint.value


@dataclass(frozen=True, slots=True)
class Expression:
    """One requirement of a node selector term."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                return len(self.values) == 1 and _compares(value or "", self.operator, self.values[0])
        raise ValueError(
            f"node affinity {self.key}: operator {self.operator} is unknown; "
            "use In, NotIn, Exists, DoesNotExist, Gt or Lt"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavor:
    """A ResourceFlavor."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[FlavorTaint, ...] = ()
    tolerations: tuple[FlavorToleration, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FlavorRequest:
    """What a flavor must suit: the amounts by resource, and its pods' tolerations, selector and affinity.

    `affinity`: the required terms, of which one suffices.
    """

    requests: Mapping[str, int] = field(default_factory=dict)
    tolerations: tuple[FlavorToleration, ...] = ()
    selector: Mapping[str, str] = field(default_factory=dict)
    affinity: tuple[tuple[Expression, ...], ...] = ()


def misfit(request: FlavorRequest, flavor: Flavor) -> str:
    """Why the pods may not run in the flavor; empty if it may."""
    tolerations = (*request.tolerations, *flavor.tolerations)
    for taint in flavor.taints:
        if taint.effect in _HARD and not any(toleration.tolerates(taint) for toleration in tolerations):
            return f"untolerated taint {taint} in flavor {flavor.name}"
    if any(flavor.labels.get(key, value) != value for key, value in request.selector.items()):
        return f"flavor {flavor.name} doesn't match the node selector"
    if not _affine(request.affinity, flavor.labels):
        return f"flavor {flavor.name} doesn't match node affinity"
    return ""


def _affine(terms: Iterable[tuple[Expression, ...]], labels: Mapping[str, str]) -> bool:
    known = [[expression for expression in term if expression.key in labels] for term in terms]
    if not all(known):
        return True
    return not known or any(all(expression.matches(labels) for expression in term) for term in known)


def _compares(left: str, operator: str, right: str) -> bool:
    try:
        left_number, right_number = decode_whole(left), decode_whole(right)
        return left_number > right_number if operator == "Gt" else left_number < right_number
    except InvalidText:
        return False
