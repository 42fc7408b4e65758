"""Deliberate faults in what keeps full reservations: successors, rollouts, reboots and absorption."""

from __future__ import annotations

from collections.abc import Sequence

from tests.simulation.mutant import Mutant

_CAPACITY = "broker.capacity"
_DISRUPTION = "broker.controllers.disruption"
_FULL = "full"

FULL_MUTANTS: Sequence[Mutant] = (
    Mutant(
        "slots are kept for no successor",
        f"{_CAPACITY}.successors",
        "    if not any(claim.slot for claim in claims):\n",
        "    if True:\n",
        about=_FULL,
    ),
    Mutant(
        "slots go to successors of nodes that still run",
        f"{_CAPACITY}.successors",
        "key=lambda claim: claim.slot_until is None",
        "key=lambda claim: claim.slot_until is not None",
        about=_FULL,
    ),
    Mutant(
        "slots are kept for hours",
        f"{_CAPACITY}.successors",
        "HOLD: Final = timedelta(minutes=10)",
        "HOLD: Final = timedelta(hours=10)",
        about=_FULL,
    ),
    Mutant(
        "slots are freed before it is known who needs them",
        "broker.controllers.lifecycle.termination",
        "        if self._undecided(claim, self._clock.now()):\n",
        "        if False:\n",
        about=_FULL,
    ),
    Mutant(
        "successors take lent slots that their owners wait for",
        f"{_CAPACITY}.successors",
        "        if full or owner_waits(claim.slot, claims, catalog, supply):\n",
        "        if full:\n",
        about=_FULL,
    ),
    Mutant(
        "nodes of a reservation are replaced two at a time",
        f"{_DISRUPTION}.rollouts",
        "len(away) < at_once(pool):",
        "len(away) <= at_once(pool):",
        about=_FULL,
    ),
    Mutant(
        "a failed launch does not stop a rollout",
        f"{_DISRUPTION}.rollouts",
        "        and not claim.deleting\n",
        "        and not claim.deleting\n        and is_true(claim, names.LAUNCHED)\n",
        about=_FULL,
    ),
    Mutant(
        "nodes end before their successors are ready",
        f"{_DISRUPTION}.moves",
        "    return bool(taken_over(replacement)[0]) or is_true(replacement, names.INITIALIZED_CONDITION)",
        "    return True",
        about=_FULL,
    ),
    Mutant(
        "reboots are called before they are recorded",
        f"{_DISRUPTION}.reboots",
        "        self._record(node, reboots)\n        self._call(",
        "        self._call(",
        about=_FULL,
    ),
    Mutant(
        "a new process reboots again at once",
        f"{_DISRUPTION}.reboots",
        "elif node.node.ready and taken >= FORCED:",
        "elif uid not in self._called:",
        about=_FULL,
    ),
    Mutant(
        "reboots with a lost answer are repeated",
        "providers.aws.instance_health",
        "self._aws.call_untokened(",
        "self._aws.call(",
        about=_FULL,
    ),
    Mutant(
        "broken nodes are rebooted without end",
        "broker.placement.reboots",
        "MOST: Final = 2",
        "MOST: Final = 9",
        about=_FULL,
    ),
    Mutant(
        "pools with too many broken nodes are repaired",
        f"{_DISRUPTION}.repairs",
        "if node.node is None or node.pool.name in view.stopped:",
        "if node.node is None:",
        about=_FULL,
    ),
    Mutant(
        "nodes that are kept from repair are repaired",
        "broker.placement.repair",
        'if holder.annotations.get(names.DO_NOT_REPAIR) == "true":',
        "if False:",
        about=_FULL,
    ),
    Mutant(
        "labels do not follow EC2's count",
        "broker.controllers.odcr.instance_labels",
        "if wanted is None or not any(wanted.lacking(item.labels) for item in (claim, *nodes)):",
        "if True:",
        about=_FULL,
    ),
    Mutant(
        "no node returns into an idle slot",
        f"{_DISRUPTION}.returning",
        "    return consolidates(node.pool) and _put_outside(node.claim)",
        "    return False",
        about=_FULL,
    ),
    Mutant(
        "static pools take promised slots",
        "broker.capacity.static_nodes",
        "        [*waiting, *new],\n",
        "        [*new],\n",
        about=_FULL,
    ),
)
