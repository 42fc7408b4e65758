"""The permissions that EC2's calls about reservations and launches need.

A launch needs its action on every resource that it uses or makes, and the permissions of EC2's own steps: to
tag the new resources, to pass the node's role, to read the targeted group. A fleet launches as its caller: it
needs the permissions of CreateFleet and of RunInstances. Here a fleet that lacks one is refused as a whole,
with EC2's code. EC2 itself may list the refusal of one pool.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.utils import EC2_PREFIX_TO_RESOURCE

from local.aws.ec2 import launches, templates
from local.aws.ec2.launch_needs import SPOT
from local.aws.ec2.world import world
from local.aws.iam.needs import Need, Params, Where, pass_role, requested, tagged

# Parameters that name one thing or several, by their own ids.
_NAMED = (
    ("CapacityReservationId", ""),
    ("CapacityReservationIds", ""),
    ("SourceCapacityReservationId", ""),
    ("DestinationCapacityReservationId", ""),
    ("CapacityReservationFleetId", ""),
    ("CapacityReservationFleetIds", ""),
    ("InstanceId", ""),
    ("InstanceIds", ""),
    ("LaunchTemplateId", ""),
    ("LaunchTemplateName", "launch-template"),
)
# Resources that an action makes, beside those that it names.
_MADE: Mapping[str, tuple[str, ...]] = {
    "CreateCapacityReservation": ("capacity-reservation",),
    "CreateCapacityReservationBySplitting": ("capacity-reservation",),
    "CreateCapacityReservationFleet": ("capacity-reservation-fleet",),
    "PurchaseCapacityBlock": ("capacity-reservation", "capacity-block"),
    "CreateLaunchTemplate": ("launch-template",),
}
_LAUNCHES = ("RunInstances", "CreateFleet")
_TAGS = ("CreateTags", "DeleteTags")


def needs(backend: Any, where: Where, action: str, params: Params) -> Iterator[Need]:
    if action in _LAUNCHES:
        yield from _launch(backend, where, action, params)
    elif action in _TAGS:
        yield from _tags(backend, where, action, params)
    elif action.startswith(("Describe", "Get", "List")):
        yield Need(action=f"ec2:{action}", context=where.context)
    else:
        yield from _change(backend, where, action, params)


def _change(backend: Any, where: Where, action: str, params: Params) -> Iterator[Need]:
    tags_by_kind = templates.tags_of(params.get("TagSpecifications"), params.get("TagSpecification"))
    request_tags = requested({key: value for tags in tags_by_kind.values() for key, value in tags.items()})
    named = [] if action in ("CreateLaunchTemplate",) else list(_named(backend, params))
    for id_ in named:
        resource, tags = _resource(backend, where, id_)
        yield Need(action=f"ec2:{action}", resource=resource, context={**where.context, **tagged(tags)})
    for kind in _MADE.get(action, ()):
        resource = where.arn("ec2", f"{kind}/*")
        yield Need(action=f"ec2:{action}", resource=resource, context={**where.context, **request_tags})
        yield from _tagging(where, action, kind, tags_by_kind.get(kind, {}))
    if not named and action not in _MADE:
        yield Need(action=f"ec2:{action}", context={**where.context, **request_tags})


def _named(backend: Any, params: Params) -> Iterator[str]:
    for parameter, by_name in _NAMED:
        value = params.get(parameter)
        for id_or_name in value if isinstance(value, list) else [value] if value else []:
            if not by_name:
                yield id_or_name
            elif (id_ := backend.launch_template_name_to_ids.get(id_or_name)) is not None:
                yield id_


def _tags(backend: Any, where: Where, action: str, params: Params) -> Iterator[Need]:
    new_tags = {tag["Key"]: tag.get("Value", "") for tag in params.get("Tags") or ()}
    for id_ in params.get("Resources") or ():
        resource, tags = _resource(backend, where, id_)
        context = {**where.context, **requested(new_tags), **tagged(tags)}
        yield Need(action=f"ec2:{action}", resource=resource, context=context)


def _tagging(where: Where, action: str, kind: str, new_tags: Mapping[str, str]) -> Iterator[Need]:
    """Tagging the resources of an action needs a separate permission, which may name the action."""
    if new_tags:
        context = {**where.context, **requested(new_tags), "ec2:CreateAction": [action]}
        yield Need(action="ec2:CreateTags", resource=where.arn("ec2", f"{kind}/*"), context=context)


# ---- launches


def _launch(backend: Any, where: Where, action: str, params: Params) -> Iterator[Need]:
    request_tags = templates.tags_of(params.get("TagSpecifications"), params.get("TagSpecification"))
    calls = ("CreateFleet", "RunInstances") if action == "CreateFleet" else ("RunInstances",)
    needs_: dict[tuple[str, str], Need] = {}
    for template, data, spot in _pools(backend, action, params):
        tags_by_kind = templates.tags_of(
            data.get("TagSpecifications"), *([_listed(request_tags)] if request_tags else [])
        )
        uses = dict(_uses(backend, where, data))
        if template is not None:
            uses.update([_resource(backend, where, template.id)])
        created_kinds = (
            "instance",
            "volume",
            "network-interface",
            *(["spot-instances-request"] if spot else []),
        )
        for call in calls:
            for resource, tags in uses.items():
                context = {**where.context, **tagged(tags)}
                needs_[call, resource] = Need(action=f"ec2:{call}", resource=resource, context=context)
            for kind in created_kinds if call == "RunInstances" else (*created_kinds, "fleet"):
                resource = where.arn("ec2", f"{kind}/*")
                context = {**where.context, **requested(tags_by_kind.get(kind, {}))}
                needs_[call, resource] = Need(action=f"ec2:{call}", resource=resource, context=context)
        for kind in (*created_kinds, "fleet") if action == "CreateFleet" else created_kinds:
            for need in _tagging(where, action, kind, tags_by_kind.get(kind, {})):
                needs_[need.action, need.resource] = need
        for need in (*_role(backend, where, data), *_group(where, data)):
            needs_[need.action, need.resource] = need
    yield from needs_.values() or [Need(action=f"ec2:{action}", context=where.context)]


def _pools(backend: Any, action: str, params: Params) -> Iterator[tuple[Any, dict[str, Any], bool]]:
    """The template, its launch parameters, whether as Spot; an unreadable template is refused later."""
    try:
        if action == "RunInstances":
            named = params.get("LaunchTemplate")
            template = templates.version_of(backend, named)[0] if named else None
            data = templates.of_request(backend, params)
            yield template, data, templates.market_of(data) == SPOT
            return
        kind = (params.get("TargetCapacitySpecification") or {}).get("DefaultTargetCapacityType")
        for config in params.get("LaunchTemplateConfigs") or ():
            template, version = templates.version_of(backend, config.get("LaunchTemplateSpecification") or {})
            for override in config.get("Overrides") or [{}]:
                yield template, templates.of_override(backend, version.data, override), kind == SPOT
    except EC2ClientError:
        return


def _uses(backend: Any, where: Where, data: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, str]]]:
    placement = data.get("Placement") or {}
    target = (data.get("CapacityReservationSpecification") or {}).get("CapacityReservationTarget") or {}
    group = placement.get("GroupName")
    ids = (data.get("ImageId"), templates.subnet_of(data), *templates.security_groups_of(data))
    for id_ in (*ids, target.get("CapacityReservationId"), placement.get("GroupId")):
        if id_:
            yield _resource(backend, where, id_)
    if group:
        yield where.arn("ec2", f"placement-group/{group}"), {}
    if data.get("KeyName"):
        yield where.arn("ec2", f"key-pair/{data['KeyName']}"), {}
    if arn := target.get("CapacityReservationResourceGroupArn"):
        yield arn, {}


def _role(backend: Any, where: Where, data: Mapping[str, Any]) -> Iterator[Need]:
    try:
        profile = launches.profile_of(backend, data)
    except EC2ClientError:
        return
    for role in profile.roles if profile is not None else ():
        yield pass_role(where, role.arn)


def _group(where: Where, data: Mapping[str, Any]) -> Iterator[Need]:
    target = (data.get("CapacityReservationSpecification") or {}).get("CapacityReservationTarget") or {}
    if arn := target.get("CapacityReservationResourceGroupArn"):
        yield Need(action="resource-groups:ListGroupResources", resource=arn, context=where.context)


def _listed(tags: Mapping[str, Mapping[str, str]]) -> list[dict[str, Any]]:
    return [
        {"ResourceType": kind, "Tags": [{"Key": key, "Value": value} for key, value in kind_tags.items()]}
        for kind, kind_tags in tags.items()
    ]


def _resource(backend: Any, where: Where, id_: str) -> tuple[str, Mapping[str, str]]:
    """The ARN of the resource with this id, and its tags; a reservation may belong to another account."""
    kind = EC2_PREFIX_TO_RESOURCE.get(id_.partition("-")[0], "")
    if not kind:
        return "*", {}
    owner: str | None = None
    if kind == "capacity-reservation":
        known = world().ledger.in_scope(where.account, where.region).get(id_)
        owner = known.owner_id if known is not None else None
    elif kind == "image":
        owner = ""
    return where.arn("ec2", f"{kind}/{id_}", account=owner), dict(backend.tags.get(id_, {}))
