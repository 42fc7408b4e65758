"""The present options of a waiting claim, in the planner's order, and why earlier ones are not taken.

Invariant: nothing is decided here. Classes, options and the plan come from the functions of the launch
loop. Their inputs are present data of EC2, all waiting claims, and the shortages that the running broker
published. Nothing is changed in EC2 or the cluster. The slots that the running broker took since EC2's last
count are not seen.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from typing import Any, Final

from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from broker.capacity.domains import LaunchedGangs
from broker.capacity.entitlement import NO_ENTITLEMENTS
from broker.capacity.inventory import Inventory
from broker.capacity.mismatches import misfits
from broker.capacity.model import RESERVATION_PENDING, Claim, LaunchDefaults, Option, Skipped
from broker.capacity.option_catalog import CandidateOptions, OptionCatalog
from broker.capacity.plan import plan
from broker.capacity.shortages import Shortage, Shortages
from broker.capacity.supply import LaunchSupply
from broker.capacity.ways import ways
from broker.commands.dry_run import AccountReads, Entitle
from broker.commands.explain.decision import Decision, decided, unplanned
from broker.commands.plan.claims import PlanInputs, considered
from broker.oncall.journal import repeated
from broker.placement.claims import in_gangs
from broker.reservations.claims import ending_claims
from broker.text import format_time, plain
from providers.model import InstanceType

VERDICTS: Final = ("next", "then", "skipped", "soon", "later", "unfit")  # of an option, the best first


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimForecast:
    """`decision` in a sentence; `rows`, one an option, in the order in which they are considered.

    `shortages` are the current ones that keep the claim from an option. `waits_for`: the reservations (by id)
    of the slot that the claim waits for.
    """

    decision: str
    rows: Sequence[Mapping[str, Any]] = ()
    shortages: Sequence[Shortage] = ()
    waits_for: Sequence[str] = ()


def forecast_claim(
    subject: NodeClaim,
    claims: Iterable[NodeClaim],
    classes: Iterable[EC2NodeClass],
    provider: AccountReads,
    *,
    now: datetime,
    defaults: LaunchDefaults,
    entitle: Entitle | None,
    published: Shortages,
    odds: Mapping[str, int],
    pods: Callable[[], Iterable[Pod]],
) -> ClaimForecast:
    """`published`: the running broker's shortages. `odds`, `pods`: as of `considered`.

    Raises ProviderError if EC2 cannot be read.
    """
    every = list(claims)
    waiting = [claim for claim in every if claim.waits]
    named = {claim.spec.node_class_ref.name for claim in (*waiting, subject)}
    inputs = considered(
        [node_class for node_class in classes if node_class.name in named],
        waiting,
        provider,
        among=every,
        now=now,
        where="in the cluster",
        defaults=defaults,
        pods=pods,
        odds=odds,
    )
    return forecast_among(
        subject, every, inputs, provider.instance_types(), published, now=now, entitle=entitle
    )


def forecast_among(
    subject: NodeClaim,
    claims: Sequence[NodeClaim],
    inputs: PlanInputs,
    types: Mapping[str, InstanceType],
    shortages: Shortages,
    *,
    now: datetime,
    entitle: Entitle | None,
) -> ClaimForecast:
    """`claims`: all that exist, and the subject."""
    planned = next((claim for claim in inputs.waiting if claim.name == subject.name), None)
    if planned is None:
        return ClaimForecast(
            decision=unplanned(inputs.refused.get(subject.name, "it is being deleted")).sentence
        )
    entitlements = NO_ENTITLEMENTS
    if entitle is not None:
        objects = {claim.name: claim for claim in claims}
        by_uid = {claim.uid: objects[claim.name] for claim in inputs.waiting}
        entitlements = entitle(by_uid, inputs.inventory)
    supply = LaunchSupply(
        classes=inputs.classes,
        types=types,
        inventory=inputs.inventory,
        shortages=shortages,
        now=now,
        entitlements=entitlements,
        ending=ending_claims(claims),
    )
    forecast = forecast_planned(planned, inputs.waiting, supply, launched=in_gangs(claims))
    return _tried_again(forecast, subject)


def forecast_planned(
    planned: Claim,
    waiting: Sequence[Claim],
    supply: LaunchSupply,
    *,
    launched: LaunchedGangs,
) -> ClaimForecast:
    """The forecast of one of these claims, planned together; no clock runs, so it is the same everywhere."""
    result = plan(waiting, supply, launched=launched)
    decision = decided(result, planned.uid)
    catalog = OptionCatalog(supply)
    candidates = catalog.candidates(planned)
    nominated = result.nominated.get(planned.uid)
    slot = (planned.slot,) if planned.slot else ()
    return ClaimForecast(
        decision=decision.sentence,
        rows=[*_rows(planned, supply.inventory, candidates, decision, _lent(planned, candidates, supply))],
        shortages=blocking(catalog.shortage(option, candidates.known) for option in candidates.options),
        waits_for=nominated.odcr_ids if nominated is not None else slot,
    )


def _tried_again(forecast: ClaimForecast, claim: NodeClaim) -> ClaimForecast:
    """The forecast of a claim whose next launch EC2 may refuse as it did the last one."""
    option = next((row["pool"] for row in forecast.rows if row["verdict"] == "next"), "")
    if not option or (last := repeated(claim)) is None:
        return forecast
    refusal = f"EC2 refused the last launch at {format_time(last.at)} with {last.code}: {last.next_step}"
    return replace(forecast, decision=f"is tried again into {plain(option)}; {refusal}")


def any_of(forecasts: Sequence[ClaimForecast]) -> ClaimForecast:
    """The forecast of a pod that gets one of these claims: that in a slot, or else the cheapest."""
    if len(forecasts) == 1:
        return forecasts[0]
    best = min(forecasts, key=lambda forecast: min(map(_rank, forecast.rows), default=(len(VERDICTS),)))
    rows: dict[str, Mapping[str, Any]] = {}
    theirs = (none_next(forecast.rows) for forecast in forecasts if forecast is not best)
    for row in sorted(chain(best.rows, *theirs), key=_rank):
        rows.setdefault(row["pool"], row)
    shortages = blocking(shortage for forecast in forecasts for shortage in forecast.shortages)
    return replace(best, rows=[*rows.values()], shortages=shortages)


def none_next(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The options of a claim that the broker does not make: none is launched next."""
    yield from ({**row, "verdict": "then" if row["verdict"] == "next" else row["verdict"]} for row in rows)


def _rank(row: Mapping[str, Any]) -> tuple[float, ...]:
    price = row["usd_hour"]
    unreserved = row["capacity_type"] != "reserved"
    return VERDICTS.index(row["verdict"]), unreserved, math.inf if price is None else price


def _lent(claim: Claim, candidates: CandidateOptions, supply: LaunchSupply) -> Counter[Option]:
    """The lent slots of each option that their owner, the claim's queue, gets back."""
    lent: Counter[Option] = Counter()
    for way in ways(claim, candidates, supply):
        lent[way.option] += way.lent
    return lent


def blocking(active: Iterable[Shortage | None]) -> tuple[Shortage, ...]:
    """The shortages that block options, each once, by scope."""
    by_scope = {shortage.scope: shortage for shortage in active if shortage is not None}
    return tuple(by_scope[scope] for scope in sorted(by_scope))


def _rows(
    claim: Claim,
    inventory: Inventory,
    candidates: CandidateOptions,
    decision: Decision,
    lent: Counter[Option],
) -> Iterator[dict[str, Any]]:
    chosen = decision.option
    why = {skip.pool: skip for skip in decision.skipped}
    place = candidates.options.index(chosen) if chosen in candidates.options else len(candidates.options)
    for number, option in enumerate(candidates.options):
        skipped = candidates.refused.get(option) or why.get(option.pool) if option != chosen else None
        outbid = skipped is None and number < place
        yield _row(
            option,
            inventory,
            verdict="next" if option == chosen else "skipped" if skipped or outbid else "then",
            skipped=skipped,
            reason="OutbidInPlan" if outbid else "",
            lent=lent[option],
        )
    unfit = misfits(claim, candidates.suitable_types, candidates.known)
    soon = {odcr.id for odcr, _ in candidates.soon}  # within minutes, so that the claim waits for them
    for skipped in chain(candidates.withheld, unfit):
        begins = "soon" if skipped.pool.reservation in soon else "later"
        verdict = begins if skipped.reason == RESERVATION_PENDING else "unfit"
        yield _row(Option(pool=skipped.pool), inventory, verdict=verdict, skipped=skipped)


def _row(
    option: Option,
    inventory: Inventory,
    *,
    verdict: str,
    skipped: Skipped | None = None,
    reason: str = "",
    lent: int = 0,
) -> dict[str, Any]:
    pool = option.pool
    reserved = pool.capacity_type == "reserved"
    held = option.odcr_ids or ((pool.reservation,) if pool.reservation in inventory.odcrs else ())
    return {
        "pool": str(pool),
        "capacity_type": pool.capacity_type,
        "instance_type": pool.instance_type,
        "zone": pool.zone,
        "reservation": pool.reservation,
        "odcrs": list(held),
        "free": sum(inventory.free(odcr_id) for odcr_id in held) if reserved else None,
        "lent": lent,
        "usd_hour": option.usd_hour,
        "verdict": verdict,
        "reason": skipped.reason if skipped else reason,
        "class": str(skipped.class_ or "") if skipped else "",
        "message": skipped.message
        if skipped
        else "its free slots go to claims that come before"
        if reason
        else "",
    }
