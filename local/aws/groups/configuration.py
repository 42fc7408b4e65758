"""Which group configurations AWS accepts: a table of item types, their parameters and permitted values.

A group that carries an `AWS::EC2::CapacityReservationPool` item also carries an
`AWS::ResourceGroups::Generic` item that allows `AWS::EC2::CapacityReservation` and nothing else; so nothing
but reservations can ever join it.

Source: Resource Groups User Guide, "Supported configuration types and parameters"; the 2-item bound and the
type pattern are those of the API model (GroupConfigurationList, GroupConfigurationType). AWS publishes no
error texts for these refusals: the code is `BadRequestException`, the texts are this project's.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from moto.resourcegroups.exceptions import BadRequestException

GENERIC = "AWS::ResourceGroups::Generic"
RESERVATION_POOL = "AWS::EC2::CapacityReservationPool"
HOST_MANAGEMENT = "AWS::EC2::HostManagement"
APPLICATION_GROUP = "AWS::ResourceGroups::ApplicationGroup"
RESERVATION = "AWS::EC2::CapacityReservation"
HOST = "AWS::EC2::Host"

MAX_ITEMS = 2

# The types that GroupResources accepts, and the resource type that may join each (its API reference).
GROUPABLE: Mapping[str, str | None] = {
    RESERVATION_POOL: RESERVATION,
    HOST_MANAGEMENT: HOST,
    APPLICATION_GROUP: None,
}

# item type -> parameter -> permitted values (None: any); None for a type whose parameters are not known.
PARAMETERS: Mapping[str, Mapping[str, frozenset[str] | None] | None] = {
    GENERIC: {
        "allowed-resource-types": frozenset({RESERVATION, HOST}),
        "deletion-protection": frozenset({"UNLESS_EMPTY"}),
    },
    RESERVATION_POOL: {},
    HOST_MANAGEMENT: {
        "allowed-host-based-license-configurations": None,
        "allowed-host-families": None,
        "any-host-based-license-configuration": frozenset({"true", "false"}),
        "auto-allocate-host": frozenset({"true", "false"}),
        "auto-host-recovery": frozenset({"true", "false"}),
        "auto-release-host": frozenset({"true", "false"}),
    },
    APPLICATION_GROUP: None,
    "AWS::AppRegistry::Application": None,
    "AWS::AppRegistry::ApplicationResourceGroup": None,
    "AWS::CloudFormation::Stack": None,
    "AWS::NetworkFirewall::RuleGroup": None,
}

Configuration = Sequence[Mapping[str, Any]]


def validate(configuration: Configuration) -> None:
    """Raise BadRequestException unless AWS would attach this configuration to a group."""
    if len(configuration) > MAX_ITEMS:
        raise BadRequestException(
            f"Configuration has {len(configuration)} items, a group takes at most {MAX_ITEMS}"
        )
    types = item_types(configuration)
    if len(set(types)) != len(types):
        raise BadRequestException(f"Configuration repeats a type, each may occur once: {', '.join(types)}")
    for item in configuration:
        _validate_item(item)
    for pool_type in (RESERVATION_POOL, HOST_MANAGEMENT):
        required = GROUPABLE[pool_type]
        if pool_type in types and parameter(configuration, "allowed-resource-types") != [required]:
            raise BadRequestException(
                f"Configuration type {pool_type} needs an item of type {GENERIC} "
                f"whose parameter allowed-resource-types is [{required}]"
            )


def _validate_item(item: Mapping[str, Any]) -> None:
    item_type = str(item.get("Type", ""))
    if item_type not in PARAMETERS:
        raise BadRequestException(
            f"Configuration type '{item_type}' is not supported; supported types: {', '.join(PARAMETERS)}"
        )
    known = PARAMETERS[item_type]
    if known is None:
        return
    seen: set[str] = set()
    for entry in item.get("Parameters") or ():
        name, values = str(entry.get("Name", "")), list(entry.get("Values") or ())
        if name not in known:
            names = ", ".join(known) or "none"
            raise BadRequestException(
                f"Parameter '{name}' is not valid for {item_type}; valid parameters: {names}"
            )
        if name in seen:
            raise BadRequestException(f"Parameter '{name}' of {item_type} is given twice")
        seen.add(name)
        permitted = known[name]
        if not values:
            raise BadRequestException(f"Parameter '{name}' of {item_type} needs at least one value")
        if permitted is not None and (wrong := [value for value in values if value not in permitted]):
            raise BadRequestException(
                f"Value '{wrong[0]}' is not valid for parameter '{name}' of {item_type}; "
                f"valid values: {', '.join(sorted(permitted))}"
            )


def item_types(configuration: Configuration | None) -> list[str]:
    return [str(item.get("Type", "")) for item in configuration or ()]


def parameter(configuration: Configuration | None, name: str) -> list[str]:
    """The values of one parameter of the Generic item; empty where it is not given."""
    for item in configuration or ():
        if item.get("Type") == GENERIC:
            for entry in item.get("Parameters") or ():
                if entry.get("Name") == name:
                    return list(entry.get("Values") or ())
    return []


def pool_types(configuration: Configuration | None) -> list[str]:
    """The items of a group with members that are named one by one, not found by a query."""
    return [item_type for item_type in item_types(configuration) if item_type in GROUPABLE]


def is_reservation_pool(configuration: Configuration | None) -> bool:
    return RESERVATION_POOL in item_types(configuration)
