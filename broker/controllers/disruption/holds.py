"""Settles the holds of slots that nodes left for their successors.

Invariant: the claims of a gang are given up together, so that none of its pods stays without the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from broker.apis.karpenter import NodeClaim
from broker.controllers.claim_caches import replacements
from broker.controllers.claim_status import replaces
from broker.controllers.disruption.report import DisruptionReporter
from broker.controllers.successions import bind_successors
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.errors import ApiError, Conflict, NotFound
from broker.kube.removal import remove
from broker.placement.claims import hold_over, successor_units, taken_over


def settle_holds(
    client: Client,
    claims: Cache[NodeClaim],
    reporter: DisruptionReporter,
    now: datetime,
    free: Callable[[str], int],
) -> None:
    """Binds the successors of claims that are gone, and ends those whose slot others took.

    Pods do not wait for a claim without a slot: they get machines as any others do. A claim with a slot
    that EC2 refuses to launch into stays, and with it the rollout. `free`: the free slots by ODCR id.
    """
    units = successor_units(replacements(claims))
    uids = {claim.uid for claim in claims.list()} if units else set()
    for unit in units:
        try:
            for claim in unit:
                old = replaces(claim)[1]
                if old is not None and old not in uids and taken_over(claim)[1] is None:
                    bind_successors(client, claims, old, now)
            if lost := _lost(unit, now, free):
                _give_up(unit, lost, client, reporter)
        except (Conflict, NotFound):
            continue  # the next pass reads the newer object
        except ApiError as error:
            reporter.failed(unit[0], "Ended", f"the API server refused a step: {error}")


def _lost(unit: Sequence[NodeClaim], now: datetime, free: Callable[[str], int]) -> str:
    """The reservation whose slot others took, once all holds of the unit are over; empty if none was."""
    if not hold_over(unit, now):
        return ""
    return next((slot for slot, _ in map(taken_over, unit) if not free(slot)), "")


def _give_up(unit: Sequence[NodeClaim], slot: str, client: Client, reporter: DisruptionReporter) -> None:
    for claim in unit:
        if remove(client, NodeClaim.KIND, claim, unchanged=True):
            reporter.failed(claim, "Ended", f"others took a slot of {slot}: its pods get other machines")
