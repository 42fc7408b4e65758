"""Which holds a pod may take.

Owners are an OR over items and an AND inside one item: no item matches nothing, and an empty item matches
every pod (Koordinator, pkg/util/reservation/reservation.go). A Gödel hold is matched by its index within a
namespace. Each matcher has keys and each pod has keys, so that a ledger tests only holds that share one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from broker.apis.koordinator import ReservationOwnerController, ReservationOwnerObject
from broker.apis.meta import OwnerReference
from broker.placement.model import NodeTerm, PodInfo, PodToleration
from broker.placement.selectors import IN, Labels, Selector, matches

HoldKey = tuple[str, ...]
EVERY_POD: Final[HoldKey] = ("*",)
_OF_CONTROLLER: Final = ("api_version", "kind", "name", "uid")


class NamingPod(NamedTuple):
    """A pod that names a hold in its annotation. `owners`: as in `HoldRequest`."""

    namespace: str
    name: str
    uid: str
    labels: Labels
    controllers: tuple[OwnerReference, ...] = ()
    owners: bool = True


class OwnerTest(NamedTuple):
    """One item of a reservation's owners: all of its parts must match. An empty field matches every pod."""

    object: ReservationOwnerObject | None = None
    controller: ReservationOwnerController | None = None
    labels: Selector = ()

    def holds(self, pod: PodInfo | NamingPod, controllers: tuple[OwnerReference, ...]) -> bool:
        if self.object is not None and not _is_object(pod, self.object):
            return False
        if self.controller is not None and not _is_controlled(pod.namespace, controllers, self.controller):
            return False
        return matches(self.labels, pod.labels)

    @property
    def key(self) -> HoldKey:
        """A key that every matching pod has."""
        if self.object is not None and self.object.name:
            return ("name", self.object.name)
        if self.controller is not None and self.controller.name:
            return ("controller", self.controller.name)
        for item in self.labels:
            if item.operator == IN and len(item.values) == 1:
                return ("label", item.key, *item.values)
        return EVERY_POD


def _is_object(pod: PodInfo | NamingPod, test: ReservationOwnerObject) -> bool:
    expected = test.namespace, test.name, test.uid
    return all(
        not value or value == own
        for value, own in zip(expected, (pod.namespace, pod.name, pod.uid), strict=True)
    )


def _is_controlled(
    namespace: str, references: tuple[OwnerReference, ...], test: ReservationOwnerController
) -> bool:
    if test.namespace and test.namespace != namespace:
        return False
    expected = {name: value for name in _OF_CONTROLLER if (value := getattr(test, name))}
    return any(
        all(getattr(reference, name) == value for name, value in expected.items())
        and (test.controller is None or test.controller == reference.controller)
        for reference in references
    )


@dataclass(frozen=True, slots=True)
class OwnerMatcher:
    """The owners of a Koordinator reservation."""

    items: tuple[OwnerTest, ...] = ()

    def matches(self, request: HoldRequest) -> bool:
        return any(item.holds(request.pod, request.controllers) for item in self.items)

    def owned_by(self, pod: NamingPod) -> bool:
        """Whether a pod that runs may be an owner."""
        return pod.owners and any(item.holds(pod, pod.controllers) for item in self.items)

    def index_keys(self) -> frozenset[HoldKey]:
        return frozenset(item.key for item in self.items)


@dataclass(frozen=True, slots=True)
class IndexMatcher:
    """The back pods of a Gödel reservation. An empty index matches no pod."""

    namespace: str
    index: str

    def matches(self, request: HoldRequest) -> bool:
        same = (request.pod.namespace, request.index) == (self.namespace, self.index)
        return bool(self.index) and same

    def owned_by(self, pod: NamingPod) -> bool:
        """Whether a pod that runs may be an owner: one of the reservation's namespace."""
        return pod.namespace == self.namespace

    def index_keys(self) -> frozenset[HoldKey]:
        return frozenset({("index", self.namespace, self.index)})


HoldMatcher = OwnerMatcher | IndexMatcher


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldAffinity:
    """A pod's reservation affinity: it runs in a matching reservation only."""

    name: str = ""
    selector: Selector = ()
    terms: tuple[NodeTerm, ...] | None = None
    tolerations: tuple[PodToleration, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HoldRequest:
    """A pod as holds see it: its owner references, and the annotations that concern holds."""

    pod: PodInfo
    controllers: tuple[OwnerReference, ...] = ()
    affinity: HoldAffinity | None = None
    # Resources of which the pod must request as much as the hold has.
    exact: tuple[str, ...] = ()
    index: str = ""
    # Whether the pod requests Koordinator's reservations.
    owners: bool = True
    # Whether the pod may use reserved room that no owner uses, as a pod that owns none of it.
    ignores: bool = False
    requests: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        positive = {name: amount for name, amount in self.pod.requests.items() if amount > 0}
        object.__setattr__(self, "requests", positive)

    def index_keys(self) -> Iterator[HoldKey]:
        """The keys under which a matching hold is found."""
        if self.owners:
            yield EVERY_POD
            yield ("name", self.pod.name)
            for reference in self.controllers:
                yield ("controller", reference.name)
            for key, value in self.pod.labels.items():
                yield ("label", key, value)
        if self.index:
            yield ("index", self.pod.namespace, self.index)
