"""The one way to AWS: takes a token, sends the call, counts it, classes its error and repeats it.

Invariant: every request to AWS goes through `Aws.call`. The SDK's own retries are off for every client: they
repeat any 5xx, insufficient capacity among them, and are not counted. In botocore `max_attempts` counts
retries; `total_max_attempts=1` is the setting that means one attempt.
"""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from difflib import get_close_matches
from functools import cache, cached_property, partial
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

import boto3
import botocore.session
from botocore.config import Config
from botocore.utils import parse_timestamp
from prometheus_client import CollectorRegistry, Counter, Histogram

from providers.aws import errors
from providers.aws.clock import AwsClock
from providers.aws.parser import Parsers
from providers.aws.ratelimit import RateLimiter
from providers.aws.service_models import lean_loader
from providers.errors import ErrorClass, ProviderError

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_iam import IAMClient
    from mypy_boto3_pricing import PricingClient
    from mypy_boto3_resource_groups import ResourceGroupsClient
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_ssm import SSMClient
    from mypy_boto3_sts import STSClient

P = ParamSpec("P")
R = TypeVar("R")

CONNECT_TIMEOUT = 5
# A fleet of hundreds answers in well under a minute; a later reply is requested again.
READ_TIMEOUT = 60
POOL = 32
# Where a partition's Price List API answers (AWS General Reference, "AWS Price List endpoints").
_REGION = re.compile(r"[a-z]+(-[a-z]+)+-[0-9]+")
PRICE_LISTS = {"cn-": "cn-northwest-1"}
BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
T = TypeVar("T")


def price_list_region(region: str) -> str:
    return next(
        (list_region for prefix, list_region in PRICE_LISTS.items() if region.startswith(prefix)), "us-east-1"
    )


@cache
def _user_agent() -> str:
    try:
        return f"capacity-broker/{version('capacity-broker')}"
    except PackageNotFoundError:
        return "capacity-broker"


def configured_region(profile: str | None) -> str:
    """The Region that the SDK finds: AWS_DEFAULT_REGION, then the profile's; empty if none is set.

    Raises ProviderError for a profile that is not there."""
    try:
        return str(botocore.session.Session(profile=profile).get_config_variable("region") or "")
    except errors.RAISED as error:
        raise errors.translate(error, operation="session") from error


def no_region(region: str, *, endpoint: str) -> str:
    """An error text if EC2 has no such Region; empty if it has. A custom endpoint may have any Region."""
    if endpoint:
        return "" if _REGION.fullmatch(region) else "write the name of a Region, such as us-east-1"
    session = botocore.session.Session()
    known = {
        region
        for partition in session.get_available_partitions()
        for region in session.get_available_regions("ec2", partition_name=partition)
    }
    near = get_close_matches(region, sorted(known), n=3) or ["us-east-1"]
    return "" if region in known else f"write a Region that EC2 has, such as {', '.join(near)}"


def _core() -> botocore.session.Session:
    core = botocore.session.Session()
    core.register_component("response_parser_factory", Parsers(timestamp_parser=_parse_timestamp))
    search_paths = dict.fromkeys(core.get_component("data_loader").search_paths)  # AWS_DATA_PATH's among them
    core.register_component("data_loader", lean_loader(tuple(search_paths)))
    return core


def _parse_timestamp(value: Any) -> datetime:
    """Reads a timestamp as the SDK does, which takes it longer than all else of an instance."""
    try:
        parsed = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        parsed = None
    return parsed if parsed is not None and parsed.tzinfo else parse_timestamp(value)


def _when_used(service: str) -> Any:
    """A client takes a while to make, and most commands need few."""
    return cached_property(lambda aws: aws._client(service))


class Aws:
    """The clients of one account and Region."""

    groups: ResourceGroupsClient = _when_used("resource-groups")
    ssm: SSMClient = _when_used("ssm")
    iam: IAMClient = _when_used("iam")
    sts: STSClient = _when_used("sts")
    sqs: SQSClient = _when_used("sqs")
    eks: Any = _when_used("eks")
    pricing: PricingClient = _when_used("pricing")

    def __init__(
        self,
        *,
        region: str,
        clock: AwsClock,
        endpoint_url: str | None = None,
        profile: str | None = None,
        registry: CollectorRegistry | None = None,
    ) -> None:
        self.region = region
        self.clock = clock
        self.metrics = CallMetrics(registry)
        self._endpoint = endpoint_url
        self._making = threading.Lock()  # a session is no thing for two threads at once
        self._limiter = RateLimiter(monotonic=clock.monotonic, sleep=clock.sleep)
        self._config = Config(
            retries={"mode": "standard", "total_max_attempts": 1},
            connect_timeout=CONNECT_TIMEOUT,
            read_timeout=READ_TIMEOUT,
            max_pool_connections=POOL,
            user_agent_extra=_user_agent(),
        )
        try:
            self._session = boto3.Session(botocore_session=_core(), profile_name=profile, region_name=region)
            self.ec2: EC2Client = self._client("ec2")
        except errors.RAISED as error:
            raise errors.translate(error, operation="session") from error

    def _client(self, service: Any) -> Any:
        region = price_list_region(self.region) if service == "pricing" else self.region
        with self._making:
            return self._session.client(
                service, region_name=region, endpoint_url=self._endpoint, config=self._config
            )

    def call(self, method: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls a client's method, again if its error's class allows; raises ProviderError."""
        return self._repeated(partial(method, *args, **kwargs), repeats_lost=True)

    def call_untokened(self, method: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Does `call` for a method without a client token: a call that may have been carried out is not
        repeated.
        """
        return self._repeated(partial(method, *args, **kwargs), repeats_lost=False)

    def _repeated(self, send: partial[R], *, repeats_lost: bool) -> R:
        method = send.func
        client = cast(Any, method).__self__
        operation = client.meta.method_to_api_mapping[cast(Any, method).__name__]
        resources = _resources(send.keywords)
        lost = False

        def once() -> R:
            nonlocal lost
            try:
                return self._once(client.meta, operation, resources, send)
            except ProviderError as error:
                lost = error.lost = lost or error.lost
                raise

        return repeated(once, sleep=self.clock.sleep, repeats_lost=repeats_lost)

    def pages(self, method: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        """Every page of a call that answers with a NextToken, each a call of its own."""
        token: str | None = None
        while True:
            following: dict[str, Any] = {"NextToken": token} if token else {}
            page = self.call(cast("Callable[..., R]", method), *args, **{**kwargs, **following})
            yield page
            token = cast("Mapping[str, Any]", page).get("NextToken")
            if not token:
                return

    def throttled_inside(self, operation: str) -> None:
        """Notes a response that contains throttling errors (a fleet's)."""
        self.metrics.throttled.labels("ec2", operation).inc()
        self._limiter.throttled(operation)

    def _once(self, meta: Any, operation: str, resources: int, send: Callable[[], R]) -> R:
        service = meta.service_model.service_name
        waited = self._limiter.wait(operation, resources=resources)
        if waited:
            self.metrics.waited.labels(operation).inc(waited)
        started = self.clock.monotonic()
        error: ProviderError | None = None
        try:
            return send()
        except errors.RAISED as caught:
            sender = f"{meta.endpoint_url} of Region {meta.region_name}"
            error = errors.translate(caught, operation=operation, sender=sender)
            if error.class_ is ErrorClass.THROTTLING:
                self.metrics.throttled.labels(service, operation).inc()
                self._limiter.throttled(operation)
            raise error from caught
        finally:
            code = error.code if error is not None else ""
            error = None  # its traceback has this frame, and so would keep all that the callers' frames hold
            self.metrics.seconds.labels(service, operation).observe(self.clock.monotonic() - started)
            self.metrics.calls.labels(service, operation, code).inc()


def _resources(kwargs: Mapping[str, Any]) -> int:
    """How many instances a call is about, for the buckets that count them."""
    ids = kwargs.get("InstanceIds")
    return len(ids) if isinstance(ids, list | tuple) else 0


def request_id(answer: Mapping[str, Any]) -> str:
    """The request id that AWS support needs."""
    return str(answer.get("ResponseMetadata", {}).get("RequestId", ""))


class CallMetrics:
    """One set for a registry; without a registry they are kept apart and never scraped."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = registry or CollectorRegistry()
        self.calls = Counter(
            "capacity_broker_aws_calls",
            "Calls to AWS, each attempt; code is empty for a success.",
            ("service", "operation", "code"),
            registry=registry,
        )
        self.throttled = Counter(
            "capacity_broker_aws_throttled",
            "Calls that AWS refused for their rate, those inside a fleet's answer too.",
            ("service", "operation"),
            registry=registry,
        )
        self.seconds = Histogram(
            "capacity_broker_aws_call_seconds",
            "Time from sending a call to its answer.",
            ("service", "operation"),
            registry=registry,
            buckets=BUCKETS,
        )
        self.waited = Counter(
            "capacity_broker_aws_ratelimit_wait_seconds",
            "Time that calls waited for a token of their bucket.",
            ("operation",),
            registry=registry,
        )


def repeated(function: Callable[[], T], *, sleep: Callable[[float], None], repeats_lost: bool = True) -> T:
    """Calls until it succeeds, fails for good, or its class's attempts are used up; then the last error.

    Only THROTTLING and TRANSIENT are ever repeated, with the same parameters and so the same client token. A
    refusal about capacity is never repeated, though EC2 sends it as a server error (EC2 API Reference,
    "Ensuring idempotency": repeat a 5xx; "Error codes": InsufficientInstanceCapacity is one).
    `repeats_lost`: also a call that may have been carried out, which needs a client token.
    """
    attempt = 1
    while True:
        try:
            return function()
        except ProviderError as error:
            retry = error.class_.policy.retry
            if retry is None or attempt >= retry.attempts or (error.lost and not repeats_lost):
                raise
        sleep(random.uniform(0.0, min(retry.longest, retry.first * 2 ** (attempt - 1))))
        attempt += 1
