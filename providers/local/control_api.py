"""The control plane of local AWS, as JSON over HTTP under `/moto-api/odcr/`.

    GET    state                                    every knob, pool and fault, and the clock
    POST   faults        {action, stage, code, message, status, match, times, delay_s} -> {"id"}
    GET    faults        DELETE faults              DELETE faults/ID
    POST   pools         {capacity_type, instance_type, zone, size}  (null: no limit)
    GET    pools         DELETE pools
    POST   settings      any of {describe_lag_s, slot_release_s, pending_s, check_offerings, codes}
    POST   clock         one of {"advance_s": 60}, {"freeze": true or a time}, {"unfreeze": true}
    GET    clock
    GET    calls         {action: count}            DELETE calls       GET calls/log?action=CreateFleet
    POST   reservations  what CreateCapacityReservation takes, and account, region, owner_id, shared_with,
                         reservation_type, interruptible, state, capacity_block_id, source_id
    PATCH  reservations/ID  {state, shared_with}
    POST   reset         every knob to its default; AWS's resources stay (/moto-api/reset drops them too)

`handle` is all of it without HTTP: a Control in the same process calls it directly.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlparse

from moto.core.common_types import TYPE_RESPONSE
from moto.core.exceptions import ServiceException
from moto.ec2.models import ec2_backends
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from providers.local.ec2 import changes
from providers.local.ec2.errors import UNDOCUMENTED
from providers.local.ec2.matching import ON_DEMAND, SPOT
from providers.local.ec2.reservations import STATES
from providers.local.ec2.slots import PoolKey
from providers.local.world import LOCK, World, world

ROOT = "/moto-api/odcr/"
PATHS = ("{0}/moto-api/odcr/(?P<what>.+)$",)
ACCOUNT = "123456789012"


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class FaultBody(Body):
    action: str
    stage: str = "request"
    code: str | None = None
    message: str | None = None
    status: int | None = Field(default=None, ge=400, le=599)
    match: dict[str, Any] = {}
    times: int = Field(default=1, ge=-1)
    delay_s: float = Field(default=0.0, ge=0)


class PoolBody(Body):
    capacity_type: str = ON_DEMAND
    instance_type: str
    zone: str
    size: int | None = Field(ge=0)


class SettingsBody(Body):
    describe_lag_s: float | None = Field(default=None, ge=0)
    slot_release_s: float | None = Field(default=None, ge=0)
    pending_s: float | None = Field(default=None, ge=0)
    check_offerings: bool | None = None
    codes: dict[str, str] | None = None


class ClockBody(Body):
    advance_s: float | None = None
    freeze: bool | datetime | None = None
    unfreeze: bool | None = None


class ReservationBody(BaseModel):
    model_config = ConfigDict(extra="allow")  # the rest is CreateCapacityReservation's, checked there
    account: str = ACCOUNT
    region: str = "us-east-1"
    owner_id: str | None = None
    shared_with: list[str] = []
    reservation_type: str = "default"
    interruptible: bool = False
    state: str | None = None
    capacity_block_id: str | None = None
    source_id: str | None = None


class ReservationPatch(Body):
    state: str | None = None
    shared_with: list[str] | None = None


class Call(NamedTuple):
    here: World
    rest: str  # of the path, after the noun
    body: dict[str, Any]
    query: dict[str, str]


class Refused(ValueError):
    """A control call that makes no sense; its text says which field, which value and what would do."""


def respond(request: Any, full_url: str, headers: Any) -> TYPE_RESPONSE:  # noqa: ARG001
    """The HTTP front, as moto calls it."""
    url = urlparse(full_url)
    what = url.path.partition(ROOT)[2].strip("/")
    query = {key: values[-1] for key, values in parse_qs(url.query).items()}
    try:
        body = json.loads(request.get_data() or b"{}")
        answer = handle(request.method, what, body, query)
    except (Refused, ValidationError, json.JSONDecodeError) as refused:
        return 400, {"Content-Type": "application/json"}, json.dumps({"error": str(refused)})
    return 200, {"Content-Type": "application/json"}, json.dumps(answer, default=str)


def handle(method: str, what: str, body: dict[str, Any], query: dict[str, str] | None = None) -> Any:
    here = world()
    noun, _, rest = what.partition("/")
    route = ROUTES.get((method, noun))
    if route is None:
        known = ", ".join(sorted(f"{m} {n}" for m, n in ROUTES))
        raise Refused(f"{method} {what}: no such control call; there are {known}")
    try:
        with LOCK:
            here.ledger.settle()
            return route(Call(here, rest, body, query or {}))
    except ServiceException as refused:
        raise Refused(f"{refused.code}: {refused.message}") from refused
    except ValidationError:
        raise
    except ValueError as bad:
        raise Refused(str(bad)) from bad


def _state(call: Call) -> Any:
    return {
        "now": call.here.clock.now().isoformat(),
        "frozen": call.here.clock.frozen,
        "describe_lag_s": call.here.describe_lag.total_seconds(),
        "slot_release_s": call.here.slot_release,
        "pending_s": call.here.pending,
        "check_offerings": call.here.check_offerings,
        "codes": dict(call.here.codes),
        "pools": call.here.ledger.limits(),
        "faults": call.here.faults.list(),
        "calls": call.here.calls.counts(),
    }


def _add_fault(call: Call) -> Any:
    return {"id": call.here.faults.add(**FaultBody.model_validate(call.body).model_dump())}


def _list_faults(call: Call) -> Any:
    return call.here.faults.list()


def _remove_faults(call: Call) -> Any:
    if not call.rest:
        call.here.faults.clear()
    elif not call.here.faults.remove(call.rest):
        raise Refused(f"faults/{call.rest}: there is no such fault")
    return {}


def _set_pool(call: Call) -> Any:
    pool = PoolBody.model_validate(call.body)
    if pool.capacity_type not in (ON_DEMAND, SPOT):
        raise Refused(
            f"capacity_type: {pool.capacity_type!r} has no pool of its own; use {ON_DEMAND} or {SPOT} "
            "(what a reservation holds is its instance count)"
        )
    call.here.ledger.limit(PoolKey(pool.capacity_type, pool.instance_type, pool.zone), pool.size)
    return call.here.ledger.limits()


def _list_pools(call: Call) -> Any:
    return call.here.ledger.limits()


def _clear_pools(call: Call) -> Any:
    call.here.ledger.clear_limits()
    return []


def _set(call: Call) -> Any:
    settings = SettingsBody.model_validate(call.body)
    if unknown := set(settings.codes or {}) - set(UNDOCUMENTED):
        raise Refused(f"codes: {', '.join(sorted(unknown))} is none of {', '.join(UNDOCUMENTED)}")
    if settings.describe_lag_s is not None:
        call.here.lag(settings.describe_lag_s)
    if settings.slot_release_s is not None:
        call.here.slot_release = settings.slot_release_s
    if settings.pending_s is not None:
        call.here.pending = settings.pending_s
    if settings.check_offerings is not None:
        call.here.check_offerings = settings.check_offerings
    call.here.codes.update(settings.codes or {})
    return _state(call)


def _move_clock(call: Call) -> Any:
    moved = ClockBody.model_validate(call.body)
    if moved.freeze:
        call.here.clock.freeze(None if moved.freeze is True else moved.freeze)
    if moved.unfreeze:
        call.here.clock.unfreeze()
    if moved.advance_s is not None:
        call.here.clock.advance(moved.advance_s)
    call.here.ledger.settle()
    return _clock(call)


def _clock(call: Call) -> Any:
    return {"now": call.here.clock.now().isoformat(), "frozen": call.here.clock.frozen}


def _calls(call: Call) -> Any:
    return call.here.calls.log(call.query.get("action")) if call.rest == "log" else call.here.calls.counts()


def _clear_calls(call: Call) -> Any:
    call.here.calls.clear()
    return {}


def _create_reservation(call: Call) -> Any:
    asked = ReservationBody.model_validate(call.body)
    if asked.reservation_type not in ("default", "capacity-block"):
        raise Refused(f"reservation_type: {asked.reservation_type!r} is neither default nor capacity-block")
    _require_state(asked.state)
    owner = asked.owner_id or asked.account
    shared = frozenset(asked.shared_with) | ({asked.account} if owner != asked.account else frozenset())
    special: dict[str, Any] = {
        "owner_id": owner,
        "shared_with": shared,
        "reservation_type": asked.reservation_type,
        "interruptible": asked.interruptible,
        "capacity_block_id": asked.capacity_block_id,
        "source_id": asked.source_id,
    }
    if asked.state:
        special["state"] = asked.state
    backend: Any = ec2_backends[asked.account][asked.region]
    made = changes.create(call.here, backend, asked.model_extra or {}, **special)
    tags = {str(k): str(v) for k, v in ((asked.model_extra or {}).get("Tags") or {}).items()}
    if tags:
        backend.create_tags([made.id], tags)
    return {"CapacityReservationId": made.id, "CapacityReservationArn": made.arn, "State": made.state}


def _patch_reservation(call: Call) -> Any:
    patch = ReservationPatch.model_validate(call.body)
    _require_state(patch.state)
    reservation = call.here.ledger.reservations.get(call.rest)
    if reservation is None:
        raise Refused(f"reservations/{call.rest}: there is no such reservation")
    if patch.shared_with is not None:
        call.here.ledger.share(reservation, patch.shared_with)
    if patch.state is not None:
        call.here.ledger.change(reservation, state=patch.state)
    return {"CapacityReservationId": reservation.id, "State": reservation.state}


def _require_state(state: str | None) -> None:
    if state is not None and state not in STATES:
        raise Refused(f"state: {state!r} is none of {', '.join(sorted(STATES))}")


def _reset(call: Call) -> Any:
    call.here.reset_knobs()
    return {}


ROUTES = {
    ("GET", "state"): _state,
    ("POST", "faults"): _add_fault,
    ("GET", "faults"): _list_faults,
    ("DELETE", "faults"): _remove_faults,
    ("POST", "pools"): _set_pool,
    ("GET", "pools"): _list_pools,
    ("DELETE", "pools"): _clear_pools,
    ("POST", "settings"): _set,
    ("POST", "clock"): _move_clock,
    ("GET", "clock"): _clock,
    ("GET", "calls"): _calls,
    ("DELETE", "calls"): _clear_calls,
    ("POST", "reservations"): _create_reservation,
    ("PATCH", "reservations"): _patch_reservation,
    ("POST", "reset"): _reset,
}
