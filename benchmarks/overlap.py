"""560 random worlds of classes whose reservations overlap, with EC2 choosing the worst member of each call.

A world loses a slot if some order of its calls, and some choice of EC2, leaves a planned claim without its
slot. Every order and choice is tried. The baseline makes the calls of the same plans by
group and by open match, as the classes are written, and names no member.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from unittest import mock

from benchmarks.figures import Figure, run
from tests.unit.capacity.test_overlap import WORLDS, loses, world


def measure(*, small: bool) -> Sequence[Figure]:
    """Overlapping classes: worlds in which a call can take the slot of another."""
    seeds = range(40 if small else WORLDS)
    began = time.process_time()
    lost, owned = (sum(loses(world(seed, owned=owners)) for seed in seeds) for owners in (False, True))
    spent = time.process_time() - began
    with mock.patch("broker.capacity.plan.separated", lambda assignments, *_: assignments):
        plain, plain_owned = (
            sum(loses(world(seed, owned=owners)) for seed in seeds) for owners in (False, True)
        )
    return [
        Figure(name="worlds", measured=len(seeds)),
        Figure(
            name="worlds that lose a slot", measured=lost, most=0, baseline=plain, of="no member is named"
        ),
        Figure(
            name="worlds that lose a slot, with owners",
            measured=owned,
            most=0,
            baseline=plain_owned,
            of="no member is named",
        ),
        Figure(name="CPU time of plans and choices", measured=spent, unit="s"),
    ]


if __name__ == "__main__":
    run(measure)
