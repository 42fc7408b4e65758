"""Random worlds of owners, borrowers, dedicated clusters, gangs, flavors and claims that may not be
disturbed."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from tests.unit.quota.rounds import TYPES, Dedicated, Job, Reservation, Setting

FLAVORS = tuple(TYPES)
LAST = 12  # the last round in which anything comes or grows


def setting(seed: int) -> Setting:
    """A random setting; the same seed gives the same setting."""
    random = Random(seed)
    flavors = FLAVORS[: random.choice((1, 1, 2))]
    reservations = [_reservation(random, name, flavors) for name in "abcd"[: random.choice((1, 2, 2, 3, 4))]]
    slots: dict[str, tuple[str, str, int]] = {}
    for reservation in reservations:
        for flavor in reservation.nominal:
            # Usually the quota's amount, in one block or in two; sometimes more, less, or none.
            count = max(0, reservation.nominal[flavor] + random.choice((0, 0, 0, 0, -1, 1)))
            parts = [count] if count < 2 or random.random() < 0.6 else [1, count - 1]
            for number, part in enumerate(parts):
                if part:
                    slots[f"cr-{reservation.name}{flavor[:2]}{number}"] = (reservation.name, flavor, part)
    if random.random() < 0.15:
        slots["cr-open"] = ("", random.choice(flavors), random.choice((1, 2)))
    jobs = [
        job for number in range(random.randint(2, 10)) for job in _jobs(random, number, reservations, flavors)
    ]
    clusters = [_cluster(random, number, reservations) for number in range(random.choice((0, 0, 1, 1, 2, 3)))]
    return Setting(reservations=reservations, slots=slots, jobs=jobs, clusters=clusters)


def _reservation(random: Random, name: str, flavors: tuple[str, ...]) -> Reservation:
    chosen = [flavor for flavor in flavors if random.random() < 0.85] or [flavors[0]]
    rule: dict[str, Any] = {}
    if reclaim := random.choice(("Any", "Any", "LowerPriority", "Never", "")):
        rule["reclaimWithinCohort"] = reclaim
    if within := random.choice(("", "LowerPriority", "Never", "LowerOrNewerEqualPriority")):
        rule["withinClusterQueue"] = within
    if rule.get("reclaimWithinCohort", "Never") != "Never" and random.random() < 0.4:
        rule["borrowWithinCohort"] = {"policy": "LowerPriority"} | (
            {"maxPriorityThreshold": random.choice((0, 1))} if random.random() < 0.4 else {}
        )
    nominal = {flavor: random.choice((0, 1, 1, 2, 2, 3)) for flavor in chosen}
    cohort = random.choice(("ml",) * 8 + ("other", ""))
    return Reservation(
        name=name,
        nominal=nominal,
        cohort=cohort,
        borrows=bool(cohort) and random.random() < 0.8,
        borrowing=_limits(random, dict.fromkeys(chosen, 2)) if cohort else {},
        lending=_limits(random, nominal) if cohort else {},
        rule=rule,
    )


def _limits(random: Random, most: Mapping[str, int]) -> Mapping[str, int]:
    return {
        flavor: random.randint(0, count) for flavor, count in most.items() if count and random.random() < 0.25
    }


def _jobs(
    random: Random, number: int, reservations: list[Reservation], flavors: tuple[str, ...]
) -> list[Job]:
    reservation = random.choice(reservations)
    common: dict[str, Any] = {
        "draws": reservation.name,
        "flavors": [random.choice(flavors)] if random.random() < 0.6 else [*flavors],
        "priority": random.choice((0, 0, 1, 2)),
        "round": random.choice((0, 0, 1, 3, 6, LAST)),
        "drains": random.choice((1, 1, 2, 4)),
    }
    if random.random() < 0.2:
        size = random.choice((2, 2, 3))
        gang = f"gang-{number}"
        fallback = random.random() < 0.15
        return [
            Job(name=f"j{number}-{member}", gang=gang, gang_size=size, fallback=fallback, **common)
            for member in range(size)
        ]
    return [
        Job(
            name=f"j{number}",
            fallback=random.random() < 0.25,
            non_preemptible=random.random() < 0.15,
            **common,
        )
    ]


def _cluster(random: Random, number: int, reservations: list[Reservation]) -> Dedicated:
    count = random.choice((1, 1, 2, 3))
    grows = random.random() < 0.3
    return Dedicated(
        name=f"c{number}",
        draws=random.choice(reservations).name,
        count=count,
        priority=random.choice((0, 0, 1, 2)),
        round=random.choice((0, 1, 2, 5, 8)),
        grows=random.choice((4, 8, LAST)) if grows else 0,
        then=max(1, count + random.choice((1, 1, 2, -1))) if grows else 0,
    )
