"""One CreateFleet of type instant, with EC2's own record of the result.

Invariants:
- No request is sent that EC2 rejects as a whole: two pools of one instance type and zone
(InvalidFleetConfig, "The fleet configuration contains duplicate instance pools"), or a count outside 1 to
1,000.
- Every entry of `Errors` has a class of its own; throttling inside a response is throttling, never capacity.
- An instance's reservation is read from DescribeInstances: a fleet's response has no reservation id, and a
request is not a fact.
- Below `minimum` no instance is left, also in markets for which EC2 has no such option.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import structlog

from providers.aws import errors, instances, tags
from providers.aws.clients import Aws, request_id
from providers.aws.instances import AwsInstances
from providers.aws.launch_templates import LaunchTemplates
from providers.aws.profiles import Profiles
from providers.aws.tags import Owner
from providers.errors import ErrorClass, ProviderError
from providers.launch import LaunchError, LaunchRequest, LaunchResult, Override
from providers.model import Instance

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import (
        CreateFleetErrorTypeDef,
        CreateFleetRequestTypeDef,
        CreateFleetResultTypeDef,
        FleetLaunchTemplateOverridesRequestTypeDef,
    )

_log = structlog.get_logger("aws.fleet")

MOST_INSTANCES = 1000
TOKEN_LENGTH = 64
# A launched instance may not be described for some seconds (EC2's eventual consistency): waits between reads.
DESCRIBE_WAITS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
CAPACITY_TYPES = {
    "on-demand": "on-demand",
    "spot": "spot",
    "capacity-block": "capacity-block",
    "interruptible-capacity-reservation": "reserved-capacity",
}


class Fleets(LaunchTemplates, Profiles, AwsInstances):
    """Launches by CreateFleet."""

    def launch(self, request: LaunchRequest) -> LaunchResult:
        """Launches, then describes the launched instances."""
        try:
            result = self._launch(request)
        except ProviderError as error:
            self._forget({error.class_}, request)
            raise
        self._forget({error.class_ for error in result.errors}, request)
        return result

    def _launch(self, request: LaunchRequest) -> LaunchResult:
        aws = self._aws
        answer = aws.call(aws.ec2.create_fleet, **fleet_request(request, cluster=self._owner))
        refused = tuple(_error(item, request) for item in answer.get("Errors", []))
        if any(error.class_ is ErrorClass.THROTTLING for error in refused):
            aws.throttled_inside("CreateFleet")
        launched = _launched(aws, answer, self._owner)
        if request.minimum and len(launched) < request.minimum and launched:
            self.terminate([instance.id for instance in launched])
            launched = ()
        return LaunchResult(instances=launched, errors=refused, request_id=request_id(answer))

    def _forget(self, refused: Collection[ErrorClass], request: LaunchRequest) -> None:
        """Forgets objects that EC2 does not know: the next caller reads or creates them."""
        if ErrorClass.TEMPLATE_GONE in refused:
            self._forget_template(request.template)
        if ErrorClass.PROFILE_UNKNOWN in refused:
            self._forget_profiles()


def fleet_request(request: LaunchRequest, *, cluster: Owner) -> CreateFleetRequestTypeDef:
    """EC2's CreateFleetRequest; ValueError for one that EC2 would refuse as a whole."""
    _check(request)
    labels = {**tags.checked(request.tags), **cluster.labels()}
    listed = tags.to_ec2(labels)
    built: dict[str, Any] = {
        "Type": "instant",
        "ClientToken": client_token(request.token),
        "LaunchTemplateConfigs": [
            {
                "LaunchTemplateSpecification": {
                    "LaunchTemplateName": request.template.name,
                    "Version": "$Latest",
                },
                "Overrides": [_override(override) for override in request.overrides],
            }
        ],
        "TargetCapacitySpecification": {
            "TotalTargetCapacity": request.count,
            "DefaultTargetCapacityType": CAPACITY_TYPES[request.market],
        },
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": listed} for kind in ("instance", "volume", "fleet")
        ],
    }
    if request.context:
        built["Context"] = request.context
    if request.market == "on-demand":
        prioritized = any(override.priority is not None for override in request.overrides)
        built["OnDemandOptions"] = {
            "AllocationStrategy": "prioritized" if prioritized else "lowest-price",
            **_all_or_nothing(request),
            **_ceiling(request),
        }
    elif request.market == "spot":
        built["SpotOptions"] = {
            "AllocationStrategy": "price-capacity-optimized",
            **_all_or_nothing(request),
            **_ceiling(request),
        }
    elif request.market == "interruptible-capacity-reservation":
        built["ReservedCapacityOptions"] = {"ReservationTypes": ["interruptible-capacity-reservation"]}
    return built  # type: ignore[return-value]


def client_token(token: str) -> str:
    """EC2's token: the caller's where EC2 takes it (64 ASCII characters), else a hash of it."""
    if token and token.isascii() and token.isprintable() and len(token) <= TOKEN_LENGTH:
        return token
    return hashlib.sha256(token.encode()).hexdigest()


def _check(request: LaunchRequest) -> None:
    if not request.token:
        raise ValueError("a launch has a token: without one a repeat would launch twice")
    if not request.overrides:
        raise ValueError("a launch names at least one pool (instance type, zone, subnet)")
    if not 1 <= request.count <= MOST_INSTANCES:
        raise ValueError(f"a launch is of 1 to {MOST_INSTANCES} instances, not {request.count}")
    if not 0 <= request.minimum <= request.count:
        raise ValueError(f"the minimum of a launch is 0 to its count {request.count}, not {request.minimum}")
    pools = Counter((override.instance_type, override.zone) for override in request.overrides)
    twice = sorted(f"{kind} in {zone}" for (kind, zone), times in pools.items() if times > 1)
    if twice:
        raise ValueError(
            f"a fleet has one entry an instance type and zone; more than one: {', '.join(twice)}"
        )


def _override(override: Override) -> FleetLaunchTemplateOverridesRequestTypeDef:
    built: FleetLaunchTemplateOverridesRequestTypeDef = {
        "InstanceType": override.instance_type,  # type: ignore[typeddict-item]
        "SubnetId": override.subnet_id,
        # The subnet implies it; but EC2 repeats it in its errors, which name no zone otherwise.
        "AvailabilityZone": override.zone,
    }
    if override.priority is not None:
        built["Priority"] = override.priority
    return built


def _ceiling(request: LaunchRequest) -> dict[str, str]:
    """EC2's own limit of the fleet's price, in dollars an hour."""
    return {"MaxTotalPrice": f"{request.max_price:.4f}"} if request.max_price > 0 else {}


def _all_or_nothing(request: LaunchRequest) -> dict[str, Any]:
    """EC2's minimum, which it takes only together with a single zone or a single type."""
    if not request.minimum:
        return {}
    one_type = len({override.instance_type for override in request.overrides}) == 1
    one_zone = len({override.zone for override in request.overrides}) == 1
    single = "SingleInstanceType" if one_type and not one_zone else "SingleAvailabilityZone"
    return {"MinTargetCapacity": request.minimum, single: True}


def _launched(aws: Aws, answer: CreateFleetResultTypeDef, owner: Owner) -> tuple[Instance, ...]:
    """The instances as EC2 describes them; one that it does not show yet, as the fleet's answer has it."""
    from_fleet = {
        instance_id: Instance(
            id=instance_id,
            instance_type=item.get("InstanceType", ""),
            zone=item.get("AvailabilityZone", "")
            or item.get("LaunchTemplateAndOverrides", {}).get("Overrides", {}).get("AvailabilityZone", ""),
            zone_id=item.get("AvailabilityZoneId", ""),
            subnet_id=item.get("LaunchTemplateAndOverrides", {}).get("Overrides", {}).get("SubnetId", ""),
            described=False,
        )
        for item in answer.get("Instances", [])
        for instance_id in item.get("InstanceIds", [])
    }
    seen: dict[str, Instance] = {}
    for wait in (0.0, *DESCRIBE_WAITS):
        if not (missing := from_fleet.keys() - seen.keys()):
            break
        if wait:
            aws.clock.sleep(wait)
        try:
            seen |= instances.described(aws, missing, owner)
        except ProviderError as error:
            # The instances exist: failing here would lose them to the caller.
            _log.warning("launched instances could not be described", ids=sorted(missing), error=str(error))
            break
    return tuple(seen.get(instance_id, instance) for instance_id, instance in from_fleet.items())


def _error(item: CreateFleetErrorTypeDef, request: LaunchRequest) -> LaunchError:
    code, message = item.get("ErrorCode", ""), item.get("ErrorMessage", "")
    where = item.get("LaunchTemplateAndOverrides", {}).get("Overrides", {})
    subnet = where.get("SubnetId", "")
    kind = where.get("InstanceType", "")
    zone = where.get("AvailabilityZone", "") or next(
        (o.zone for o in request.overrides if o.subnet_id == subnet and o.instance_type == kind), ""
    )
    return LaunchError(
        code=code,
        message=message,
        class_=errors.classify(code, message=message),
        instance_type=kind,
        zone=zone,
        subnet_id=subnet,
    )
