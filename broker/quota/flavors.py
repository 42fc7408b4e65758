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
from typing import Final, Protocol

from broker.text import InvalidText, decode_whole

HARD: Final = ("NoSchedule", "NoExecute")  # the effects of taints that reject a pod


class FlavorTaint(Protocol):
    """A taint of a flavor's nodes: Kubernetes' object, or any with these fields."""

    @property
    def key(self) -> str: ...

    @property
    def value(self) -> str: ...

    @property
    def effect(self) -> str: ...


class FlavorToleration(FlavorTaint, Protocol):
    """A toleration. An empty key tolerates every key, an empty effect every effect."""

    @property
    def operator(self) -> str: ...


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
    """A request for a flavor: the amounts by resource, and its pods' tolerations, selector and affinity.

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
        if taint.effect in HARD and not tolerates(tolerations, taint):
            value = f"={taint.value}" if taint.value else ""
            return f"untolerated taint {taint.key}{value}:{taint.effect} in flavor {flavor.name}"
    if any(flavor.labels.get(key, value) != value for key, value in request.selector.items()):
        return f"flavor {flavor.name} doesn't match the node selector"
    if not _affine(request.affinity, flavor.labels):
        return f"flavor {flavor.name} doesn't match node affinity"
    return ""


def tolerates(tolerations: Iterable[FlavorToleration], taint: FlavorTaint) -> bool:
    """Whether one of them tolerates the taint (Kubernetes, k8s.io/component-helpers/scheduling/corev1)."""
    return any(_tolerates(toleration, taint) for toleration in tolerations)


def _tolerates(toleration: FlavorToleration, taint: FlavorTaint) -> bool:
    if (toleration.effect and toleration.effect != taint.effect) or (
        toleration.key and toleration.key != taint.key
    ):
        return False
    if toleration.operator == "Exists":
        return True
    if toleration.operator in ("Gt", "Lt"):
        return _compares(taint.value, toleration.operator, toleration.value)
    return toleration.operator in ("", "Equal") and toleration.value == taint.value


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
