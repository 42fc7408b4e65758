"""Bodies of the control calls. An invalid body is refused in one sentence: field, value, remedy."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from local.aws.ec2.launch_needs import ON_DEMAND
from local.aws.ec2.world import AwsWorld

ACCOUNT = "123456789012"
REGION = "us-east-1"


class BadControlCall(ValueError):
    """An invalid control call; its text names the field, the value and the permitted values."""


class ControlCall(NamedTuple):
    here: AwsWorld
    rest: str  # of the path, after the noun
    body: dict[str, Any]
    query: Mapping[str, str]


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


class QuotaBody(Body):
    account: str = ACCOUNT
    region: str = REGION
    instance_type: str
    market: Literal["on-demand", "spot"] = "on-demand"
    vcpus: int | None = Field(ge=0)


class SettingsBody(Body):
    describe_lag_s: float | None = Field(default=None, ge=0)
    slot_release_s: float | None = Field(default=None, ge=0)
    pending_s: float | None = Field(default=None, ge=0)
    grouping_s: float | None = Field(default=None, ge=0)
    payment_s: float | None = Field(default=None, ge=0)
    assessment_s: float | None = Field(default=None, ge=0)
    assessment_outcome: Literal["scheduled", "unsupported"] | None = None
    check_offerings: bool | None = None
    freed_slot_absorbs: bool | None = None
    codes: dict[str, str] | None = None


class ClockBody(Body):
    advance_s: float | None = None
    freeze: bool | datetime | None = None
    unfreeze: bool | None = None


class ReservationBody(BaseModel):
    model_config = ConfigDict(extra="allow")  # the rest is CreateCapacityReservation's, checked there
    account: str = ACCOUNT
    region: str = REGION
    owner_id: str | None = None
    shared_with: list[str] = []
    reservation_type: Literal["default", "capacity-block"] = "default"
    interruptible: bool = False
    state: str | None = None
    capacity_block_id: str | None = None
    ultraserver_type: str | None = None
    source_id: str | None = None


class ReservationPatch(Body):
    state: str | None = None
    shared_with: list[str] | None = None
    launchable: bool | None = None


class OfferBody(Body):
    account: str = ACCOUNT
    region: str = REGION
    instance_type: str
    zone: str
    count: int = Field(ge=1)
    start: datetime
    end: datetime
    fee: float | None = Field(default=None, ge=0)
    ultraserver_type: str | None = None
    ultraservers: int = Field(default=0, ge=0)


class HealthBody(Body):
    """`check` fails from now on, or passes; or an event with this code is scheduled, or is over."""

    instance_id: str
    check: Literal["instance", "system"] | None = None
    event: str | None = None
    in_s: float = Field(default=3600.0, ge=0)
    over: bool = False


class NoticeBody(Body):
    kind: str
    instance_id: str | None = None
    reservation_id: str | None = None
    queue: str | None = None
    state: str | None = None
    in_s: float = Field(default=120.0, ge=0)
    ends: bool = False
    code: str = "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED"
    category: str = "scheduledChange"


Read = TypeVar("Read", bound=BaseModel)


def read(model: type[Read], body: Any) -> Read:
    try:
        return model.model_validate(body)
    except ValidationError as bad:
        raise BadControlCall(_sentence(model, bad)) from bad


def _sentence(model: type[BaseModel], bad: ValidationError) -> str:
    problems = sorted(bad.errors(include_url=False), key=lambda problem: problem["type"] != "extra_forbidden")
    texts = "; ".join(_problem(problem["type"], problem) for problem in problems)
    known = f"it takes {', '.join(model.model_fields)}"
    return f"{texts}; {known}" if any(p["type"] in LISTS_FIELDS for p in problems) else texts


LISTS_FIELDS = frozenset({"missing", "extra_forbidden", "model_type"})


def _problem(kind: str, problem: Mapping[str, Any]) -> str:
    field = ".".join(str(part) for part in problem["loc"])
    if kind == "missing":
        return f"{field}: it is missing"
    if kind == "extra_forbidden":
        return f"{field}: there is no such field"
    if kind == "model_type":
        return f"the body is {problem['input']!r} and has to be a JSON object"
    rule = problem["msg"].removeprefix("Input ").removeprefix("should ").removeprefix("Value error, ")
    return f"{field}: {problem['input']!r} is invalid: it should {rule}"
