"""The control plane of local AWS, as JSON over HTTP under `/moto-api/odcr/`.

    GET    state                                    every knob, pool and fault, and the clock
    POST   faults        {action, stage, code, message, status, match, times, delay_s} -> {"id"}
    GET    faults        DELETE faults              DELETE faults/ID
    POST   pools         {capacity_type, instance_type, zone, size}  (null: no limit)
    GET    pools         DELETE pools
    POST   quotas        {instance_type, market, vcpus, account, region}  (null: no limit)      GET quotas
    POST   settings      any of {describe_lag_s, slot_release_s, pending_s, grouping_s, payment_s,
                         assessment_s, assessment_outcome, check_offerings, freed_slot_absorbs, codes}
    POST   clock         one of {"advance_s": 60}, {"freeze": true or a time}, {"unfreeze": true}
    GET    clock
    GET    calls         {action: count}            DELETE calls       GET calls/log?action=CreateFleet
    POST   reservations  CreateCapacityReservation's parameters, and account, region, owner_id, shared_with,
                         reservation_type, interruptible, state, capacity_block_id, source_id
    PATCH  reservations/ID  {state, shared_with}
    POST   block-offerings  {instance_type, zone, count, start, end, fee, ultraserver_type, ultraservers}
    POST   health        {instance_id, check: instance | system, or event and in_s; over: true ends it}
    GET    health        {instance: {impaired, events, reboots}}
    POST   notices       {kind, instance_id or reservation_id, queue, state, in_s, ends, code, category}
    GET    notices?detail_type=...                  every event sent, and its queues
    POST   reset         every knob to its default; AWS's resources stay (/moto-api/reset drops them too)

`handle` is the control plane without HTTP: a Control in the same process calls it directly.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any
from urllib.parse import parse_qs, urlparse

from moto.core.common_types import TYPE_RESPONSE
from moto.core.exceptions import ServiceException

from local.aws import control_resources
from local.aws.control_bodies import (
    BadControlCall,
    ClockBody,
    ControlCall,
    FaultBody,
    PoolBody,
    QuotaBody,
    SettingsBody,
    read,
)
from local.aws.ec2.errors import UNDOCUMENTED
from local.aws.ec2.launch_needs import ON_DEMAND, SPOT
from local.aws.ec2.ledger import BLOCK
from local.aws.ec2.quotas import QUOTAS, Key, quota_of
from local.aws.ec2.reservations import PoolKey
from local.aws.ec2.world import LOCK, world
from local.aws.faults import InjectedFault

ROOT = "/moto-api/odcr/"
POOLED = (ON_DEMAND, SPOT, BLOCK)
PATHS = ("{0}/moto-api/odcr/(?P<path>.+)$",)


def respond(request: Any, full_url: str, headers: Any) -> TYPE_RESPONSE:  # noqa: ARG001
    """The HTTP front, as moto calls it."""
    url = urlparse(full_url)
    path = url.path.partition(ROOT)[2].strip("/")
    query = {key: values[-1] for key, values in parse_qs(url.query).items()}
    try:
        body = json.loads(request.get_data() or b"{}")
        answer = handle(request.method, path, body, query)
    except json.JSONDecodeError as bad:
        return _refused(f'the body is not JSON: {bad}; send an object, as in {{"size": 3}}')
    except BadControlCall as refused:
        return _refused(str(refused))
    return 200, {"Content-Type": "application/json"}, json.dumps(answer, default=str)


def _refused(why: str) -> TYPE_RESPONSE:
    return 400, {"Content-Type": "application/json"}, json.dumps({"error": why})


def handle(method: str, path: str, body: dict[str, Any], query: dict[str, str] | None = None) -> Any:
    here = world()
    noun, _, rest = path.partition("/")
    route = ROUTES.get((method, noun))
    if route is None:
        known = ", ".join(sorted(f"{m} {n}" for m, n in ROUTES))
        raise BadControlCall(f"{method} {path}: no such control call; there are {known}")
    try:
        with LOCK:
            here.ledger.run_due()
            return route(ControlCall(here, rest, body, query or {}))
    except ServiceException as refused:
        raise BadControlCall(f"{refused.code}: {refused.message}") from refused
    except BadControlCall:
        raise
    except ValueError as bad:
        raise BadControlCall(str(bad)) from bad


def _state(call: ControlCall) -> Any:
    return {
        "now": call.here.clock.now().isoformat(),
        "frozen": call.here.clock.frozen,
        "describe_lag_s": call.here.describe_lag.total_seconds(),
        **asdict(call.here.knobs),
        "codes": dict(call.here.codes),
        "pools": call.here.ledger.limits(),
        "faults": call.here.faults.list(),
        "calls": call.here.calls.counts(),
    }


def _add_fault(call: ControlCall) -> Any:
    return {"id": call.here.faults.add(InjectedFault(**read(FaultBody, call.body).model_dump()))}


def _list_faults(call: ControlCall) -> Any:
    return call.here.faults.list()


def _remove_faults(call: ControlCall) -> Any:
    if not call.rest:
        call.here.faults.clear()
    elif not call.here.faults.remove(call.rest):
        raise BadControlCall(f"faults/{call.rest}: there is no such fault")
    return {}


def _set_pool(call: ControlCall) -> Any:
    pool = read(PoolBody, call.body)
    if pool.capacity_type not in POOLED:
        raise BadControlCall(
            f"capacity_type: {pool.capacity_type!r} has no pool of its own; use {', '.join(POOLED)} "
            "(a reservation's size is its instance count)"
        )
    call.here.ledger.limit(PoolKey(pool.capacity_type, pool.instance_type, pool.zone), pool.size)
    return call.here.ledger.limits()


def _set_quota(call: ControlCall) -> Any:
    settings = read(QuotaBody, call.body)
    quota = quota_of(settings.instance_type, settings.market)
    if quota is None:
        raise BadControlCall(
            f"instance_type: {settings.instance_type!r} has no {settings.market} quota of vCPUs; with one: "
            + ", ".join(
                sorted({f for q in QUOTAS.values() if q.market == settings.market for f in q.families})
            )
        )
    key = Key(settings.account, settings.region, quota.code)
    if settings.vcpus is None:
        call.here.quotas.limits.pop(key, None)
    else:
        call.here.quotas.limits[key] = settings.vcpus
    return _list_quotas(call)


def _list_quotas(call: ControlCall) -> Any:
    quotas = call.here.quotas
    return [
        {**key._asdict(), "name": QUOTAS[key.code].name, "vcpus": limit, "used": quotas.used(key)}
        for key, limit in quotas.limits.items()
    ]


def _list_pools(call: ControlCall) -> Any:
    return call.here.ledger.limits()


def _clear_pools(call: ControlCall) -> Any:
    call.here.ledger.clear_limits()
    return []


def _set(call: ControlCall) -> Any:
    settings = read(SettingsBody, call.body)
    if unknown := set(settings.codes or {}) - set(UNDOCUMENTED):
        raise BadControlCall(f"codes: {', '.join(sorted(unknown))} is none of {', '.join(UNDOCUMENTED)}")
    if settings.describe_lag_s is not None:
        call.here.lag(settings.describe_lag_s)
    chosen = settings.model_dump(exclude={"describe_lag_s", "codes"}, exclude_none=True)
    call.here.knobs = replace(call.here.knobs, **chosen)
    call.here.codes.update(settings.codes or {})
    return _state(call)


def _move_clock(call: ControlCall) -> Any:
    moved = read(ClockBody, call.body)
    if moved.freeze:
        call.here.clock.freeze(None if moved.freeze is True else moved.freeze)
    if moved.unfreeze:
        call.here.clock.unfreeze()
    if moved.advance_s is not None:
        call.here.clock.advance(moved.advance_s)
    call.here.ledger.run_due()
    return _clock(call)


def _clock(call: ControlCall) -> Any:
    return {"now": call.here.clock.now().isoformat(), "frozen": call.here.clock.frozen}


def _calls(call: ControlCall) -> Any:
    return call.here.calls.log(call.query.get("action")) if call.rest == "log" else call.here.calls.counts()


def _clear_calls(call: ControlCall) -> Any:
    call.here.calls.clear()
    return {}


def _reset(call: ControlCall) -> Any:
    call.here.reset_knobs()
    return {}


ROUTES = {
    ("GET", "state"): _state,
    ("POST", "faults"): _add_fault,
    ("GET", "faults"): _list_faults,
    ("DELETE", "faults"): _remove_faults,
    ("POST", "pools"): _set_pool,
    ("GET", "pools"): _list_pools,
    ("POST", "quotas"): _set_quota,
    ("GET", "quotas"): _list_quotas,
    ("DELETE", "pools"): _clear_pools,
    ("POST", "settings"): _set,
    ("POST", "clock"): _move_clock,
    ("GET", "clock"): _clock,
    ("GET", "calls"): _calls,
    ("DELETE", "calls"): _clear_calls,
    ("POST", "reservations"): control_resources.create_reservation,
    ("PATCH", "reservations"): control_resources.patch_reservation,
    ("POST", "block-offerings"): control_resources.offer_block,
    ("POST", "health"): control_resources.set_health,
    ("GET", "health"): control_resources.list_health,
    ("POST", "notices"): control_resources.send_notice,
    ("GET", "notices"): control_resources.list_notices,
    ("POST", "reset"): _reset,
}
