"""The EC2 actions of local AWS that moto doesn't have, or answers otherwise than EC2; one method an action.

moto finds a method by the action's name in snake case. The way of every call is in `pipeline`.
"""

from __future__ import annotations

from local.aws.ec2_responses.billing import BillingAssignments
from local.aws.ec2_responses.capacity_blocks import CapacityBlocks
from local.aws.ec2_responses.instances import Instances
from local.aws.ec2_responses.interruptible import InterruptibleAllocations
from local.aws.ec2_responses.launch_templates import LaunchTemplateResponses
from local.aws.ec2_responses.placement_groups import PlacementGroups
from local.aws.ec2_responses.reservation_fleets import CapacityReservationFleets


class LocalEC2Response(
    CapacityBlocks,
    InterruptibleAllocations,
    CapacityReservationFleets,
    BillingAssignments,
    Instances,
    LaunchTemplateResponses,
    PlacementGroups,
):
    """Each of its parents goes on to moto's own EC2Response."""
