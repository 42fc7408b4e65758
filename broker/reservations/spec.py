"""Specs of reservations, judged once by the broker's settings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from broker.apis.ome import CapacityReservation, ClusterCapacityReservation, ReservationSpec
from broker.apis.ome_rules import JudgedSpec, judge
from broker.capacity.types import RESOURCES
from broker.quota.resolve import NEAR
from broker.quota.usage import ReservationKey
from broker.text import similar

Reservation = CapacityReservation | ClusterCapacityReservation


def reserved_of(reservation: Reservation) -> ReservationKey:
    """The name of a reservation."""
    return ReservationKey(reservation.namespace, reservation.name)


class JudgedSpecs:
    """Judges each spec once, by the broker's settings.

    Invariant: no controller judges a spec itself, so all of them refuse the same specs.
    """

    def __init__(self, *, default_cohort: str = "", strict: bool = False) -> None:
        self._default_cohort = default_cohort
        self._strict = strict
        self._known: dict[str, tuple[ReservationSpec, JudgedSpec]] = {}  # by the object's UID

    def of(self, reservation: Reservation) -> JudgedSpec:
        """The judgement of the object's spec."""
        known = self._known.get(reservation.uid)
        if known is None or known[0] is not reservation.spec:
            judged = judged_spec(reservation.spec, default_cohort=self._default_cohort, strict=self._strict)
            known = self._known[reservation.uid] = reservation.spec, judged
        return known[1]

    def forget(self, uid: str) -> None:
        """Drops an object that is gone."""
        self._known.pop(uid, None)


def judged_spec(spec: ReservationSpec, *, default_cohort: str, strict: bool) -> JudgedSpec:
    """The judgement of a spec, with the names that EC2 decides; the same at admission and afterwards."""
    judged = judge(spec, default_cohort=default_cohort, strict=strict)
    return replace(judged, problems=(*judged.problems, *_misspelt(spec)))


def _misspelt(spec: ReservationSpec) -> Iterator[str]:
    """Covered resources that resemble one of EC2's: as unknown ones, they would need no machine."""
    for at, group in enumerate(spec.resource_groups):
        for name in group.covered_resources:
            if meant := _meant(name):
                yield (
                    f"spec.resourceGroups[{at}].coveredResources: no instance has {name!r}: write {meant}, "
                    "here and in the flavors"
                )


def _meant(name: str) -> str:
    """The resource of EC2 that a misspelt one means; empty if it is one, or may be a device plugin's."""
    near = "" if name in RESOURCES else similar(name, RESOURCES, ratio=NEAR)
    (domain, _, kind), (near_domain, _, near_kind) = name.rpartition("/"), near.rpartition("/")
    # Device plugins name shares of a device after it, such as nvidia.com/vgpu and nvidia.com/gpu.shared.
    named_after = near_kind in kind and kind not in (near_kind, f"{near_kind}s")
    return near if _alike(domain, near_domain) and _alike(kind, near_kind) and not named_after else ""


def _alike(word: str, known: str) -> bool:
    return word == known or bool(similar(word, [known], ratio=NEAR))
