"""Rebuilds a recorded fleet call from its claims and its class as they are now.

Invariant: a call is repeated only if the rebuilt one is equal to it. So no record, whatever its writer, can
launch more than the claims and the class request. Each pool is an option of each claim, and each subnet is
the class's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from broker.capacity import launches
from broker.capacity.class_catalog import ClassCatalog, ClassCatalogs
from broker.capacity.inventory import Inventory
from broker.capacity.model import Assignment, Claim, NodeClass, Option
from broker.capacity.options import offered, tenancy
from broker.capacity.shortages import Shortages
from broker.controllers.launch.calls import FleetCall
from broker.controllers.nodeclass.resolve import LaunchClass
from broker.text import counted
from providers.launch import Override
from providers.model import InstanceType


class CallDiffers(Exception):
    """The recorded call differs from the request of its claims and class; the text names how."""


def rebuilt(
    call: FleetCall,
    claims: Sequence[Claim],
    ready: LaunchClass,
    types: Mapping[str, InstanceType],
    inventory: Inventory,
    now: datetime,
) -> launches.LaunchGroup:
    """The launch group of these claims of the call, with the recorded overrides. Raises Differs."""
    request = call.request
    if request is None or not request.overrides:
        raise CallDiffers("its record cannot be read")
    if len(set(call.claims)) != request.count:
        raise CallDiffers(
            f"it requests {counted(request.count, 'instance')} for {counted(len(set(call.claims)), 'claim')}"
        )
    if request.token != call.launch:
        raise CallDiffers("its client token is not its launch id")
    plan = ready.plan
    known = ClassCatalogs(types, inventory, now).of(plan.of_tenancy(tenancy(claims[0].requirements)))
    chosen: dict[object, tuple[Option, ...]] = {}
    assignments = []
    places = frozenset((override.instance_type, override.zone) for override in request.overrides)
    closed = places if call.closed else frozenset()
    for claim in claims:
        key = (claim.requirements, frozenset(claim.requests.items()))
        if key not in chosen:
            chosen[key] = tuple(_option(call, override, claim, known) for override in request.overrides)
        first, *_ = chosen[key]
        assignments.append(Assignment(claim=claim, option=first, rest=chosen[key][1:], closed=closed))
    try:
        groups = launches.group(
            assignments, node_classes={plan.name: plan}, types=types, shortages=Shortages(), now=now
        )
    except ValueError as error:
        raise CallDiffers(str(error)) from error
    if len(groups) != 1:
        raise CallDiffers("its claims would not share a call")
    overrides = [
        _with_subnet(new, old, plan) for new, old in zip(groups[0].overrides, request.overrides, strict=False)
    ]
    if overrides != [*request.overrides]:
        raise CallDiffers("its overrides would be others")
    return replace(groups[0], overrides=request.overrides)


def _option(call: FleetCall, override: Override, claim: Claim, known: ClassCatalog) -> Option:
    option = offered(
        claim,
        known,
        capacity_type=call.capacity_type,
        reservation=call.reservation,
        instance_type=override.instance_type,
        zone=override.zone,
    )
    if option is None:
        where = f"{call.capacity_type} {override.instance_type} in {override.zone}"
        raise CallDiffers(
            f"{' of '.join(filter(None, (where, call.reservation)))} is no option of {claim.name}"
        )
    return option


def _with_subnet(new: Override, old: Override, plan: NodeClass) -> Override:
    """The rebuilt override in the recorded subnet, if that subnet is the class's.

    The subnet with the most free addresses changes all the time.
    """
    is_class_subnet = any((subnet.id, subnet.zone) == (old.subnet_id, new.zone) for subnet in plan.subnets)
    return replace(new, subnet_id=old.subnet_id) if is_class_subnet else new
