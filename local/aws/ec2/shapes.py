"""Checks a request against EC2's service model, before anything is done.

Invariant: an invalid request about capacity changes nothing. It lacks a required parameter, or has a value
outside the model's list or bounds, or forbidden tags. The SDK checks required parameters and lower bounds;
the server checks other clients, upper bounds and values.

Sources: botocore's service model of EC2 (required, enum, min and max); EC2 User Guide, "Tag restrictions".
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from botocore.model import Shape, StructureShape
from moto.core.utils import get_service_model

from local.aws.ec2 import errors
from local.aws.ec2.errors import Ec2Error

# Not of these: moto has types that the SDK's list lacks, and the reverse.
UNLISTED = frozenset({"InstanceType"})
MOST_TAGS, LONGEST_KEY, LONGEST_VALUE = 50, 128, 256


def check(action: str, params: Mapping[str, Any]) -> None:
    """Refuses parameters that this action may not have; checks only actions on capacity."""
    if "Capacity" not in action and action != "CreateFleet":
        return
    shape = _input(action)
    if shape is not None:
        # A fleet's choices also have older names, which moto's own tests use.
        _structure(shape, params, "", choices=action != "CreateFleet")
    for specification in params.get("TagSpecifications") or ():
        _tags(specification.get("Tags") or ())


@lru_cache(maxsize=128)
def _input(action: str) -> StructureShape | None:
    shape: StructureShape | None = get_service_model("ec2").operation_model(action).input_shape
    return shape


def _structure(shape: StructureShape, members: Mapping[str, Any], path: str, *, choices: bool) -> None:
    for name in shape.required_members:
        if members.get(name) is None:
            raise errors.missing(path + name)
    for name, member in shape.members.items():
        if members.get(name) is not None:
            _value(member, members[name], path + name, choices=choices)


def _value(shape: Shape, value: Any, path: str, *, choices: bool) -> None:
    if isinstance(shape, StructureShape):
        _structure(shape, value, f"{path}.", choices=choices)
    elif shape.type_name == "list":
        for item in value:
            _value(shape.member, item, path, choices=choices)  # type: ignore[attr-defined]
    elif shape.type_name == "string" and choices:
        listed = getattr(shape, "enum", None)
        if listed and shape.name not in UNLISTED and value not in listed:
            raise errors.invalid(path, value, f"Valid values: {', '.join(listed)}.")
    elif shape.type_name in ("integer", "long"):
        lowest, highest = shape.metadata.get("min"), shape.metadata.get("max")
        if (lowest is not None and value < lowest) or (highest is not None and value > highest):
            raise errors.invalid(path, value, f"Expecting a number from {lowest} to {highest}.")


def _tags(tags: Any) -> None:
    keys = [str(tag.get("Key") or "") for tag in tags]
    for key in keys:
        if not key:
            raise _tag("Tag keys must not be empty")
        if key.lower().startswith("aws:"):
            raise _tag(f"Tag keys starting with 'aws:' are reserved for internal use: {key}")
        if len(key) > LONGEST_KEY:
            raise _tag(f"Tag key exceeds the maximum length of {LONGEST_KEY} characters: {key}")
        if keys.count(key) > 1:
            raise _tag(f"Duplicate tag key '{key}' specified.")
    for tag in tags:
        if len(tag.get("Value") or "") > LONGEST_VALUE:
            raise _tag(f"Tag value exceeds the maximum length of {LONGEST_VALUE} characters: {tag['Key']}")
    if len(keys) > MOST_TAGS:
        raise Ec2Error("TagLimitExceeded", "The maximum number of Tags for a resource has been reached.")


def _tag(message: str) -> Ec2Error:
    return Ec2Error("InvalidParameterValue", message)
