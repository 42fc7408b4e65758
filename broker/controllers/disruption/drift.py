"""Compares a claim with its NodePool and its class as they are now.

The order of checks and the reasons are Karpenter's (pkg/controllers/nodeclaim/disruption/drift.go; its AWS
provider, pkg/cloudprovider/drift.go). A class that cannot be resolved now drifts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from broker.apis import names
from broker.apis.hashes import VERSION, class_hash, pool_hash
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.meta import since, true_condition
from broker.capacity.model import Selection
from broker.capacity.requirements import InvalidRequirement
from broker.capacity.types import WELL_KNOWN
from broker.controllers.nodeclass.resolve import LaunchClass
from broker.controllers.provisioning.pools import required_by
from providers.model import Instance

# A group may lack a member in one answer of EC2, and have it in the next.
RESERVATION_DRIFT: Final = "CapacityReservationDrift"
CONFIRMED_AFTER: Final = timedelta(minutes=1)
# Labels that follow from the instance alone, and from nothing that changes while it runs.
OF_INSTANCES: Final = WELL_KNOWN - names.SHOWN_LATER - {*names.UNLABELED_KEYS}


def drift(
    claim: NodeClaim,
    pool: NodePool,
    ready: LaunchClass | None,
    instance: Instance | None,
    facts: Mapping[str, str] | None,
) -> str:
    """The reason of the drift; empty without one. `instance`: as EC2 describes it, if it does.

    `facts`: the labels that follow from the instance, as in `instance_facts`.
    """
    if stale(claim, names.NODEPOOL_HASH, names.NODEPOOL_HASH_VERSION, pool_hash(pool)):
        return "NodePoolDrifted"
    if _requirements_differ(claim, pool, facts):
        return "RequirementsDrifted"
    if ready is None:
        return ""
    if stale(claim, names.NODECLASS_HASH, names.NODECLASS_HASH_VERSION, class_hash(ready.source)):
        return "NodeClassDrift"
    return _surroundings_drift(claim, ready, instance)


def confirmed(claim: NodeClaim, now: datetime) -> bool:
    """Whether the claim has drifted for so long that the drift is no single odd answer."""
    drifted, began = true_condition(claim, names.DRIFTED), since(claim, names.DRIFTED)
    if drifted is None or began is None:
        return False
    return drifted.reason != RESERVATION_DRIFT or now - began >= CONFIRMED_AFTER


def stale(claim: NodeClaim, hash_key: str, version_key: str, current: str) -> bool:
    """Whether the claim's hash is of this version and of another content."""
    annotations = claim.annotations
    return annotations.get(version_key) == VERSION and annotations.get(hash_key, current) != current


def _requirements_differ(claim: NodeClaim, pool: NodePool, facts: Mapping[str, str] | None) -> bool:
    """Whether the instance does not meet the pool's requirements.

    A label that the claim lacks is read from the instance: the claim may be older than the label. While EC2
    does not show the instance, such a label is not known.
    """
    try:
        requirements = required_by(pool)
    except InvalidRequirement:
        return False  # reported where claims are made
    known = {**claim.labels, **(facts or {})}
    read = frozenset() if facts is None else OF_INSTANCES - ({names.ZONE_ID} - facts.keys())
    return any(key in known or key in read for key in requirements.unmet(known))


def _surroundings_drift(claim: NodeClaim, ready: LaunchClass, instance: Instance | None) -> str:
    around = ready.surroundings
    image = claim.status.image_id
    if image and around.images and image not in {known_image.id for known_image in around.images}:
        return "AMIDrift"
    if instance is not None and instance.described:
        if instance.subnet_id and instance.subnet_id not in {subnet.id for subnet in around.subnets}:
            return "SubnetDrift"
        groups = {group.id for group in around.security_groups}
        if (
            instance.security_group_ids
            and not ready.plan.interfaces
            and instance.security_group_ids != groups
        ):
            return "SecurityGroupDrift"
    reservation = claim.labels.get(names.RESERVATION_ID, "")
    if not reservation or reservation in _selected(ready) or _chosen_by_ec2(ready, instance):
        return ""
    return RESERVATION_DRIFT


def _chosen_by_ec2(ready: LaunchClass, instance: Instance | None) -> bool:
    """Whether EC2 chose the reservation of an instance that the class let it count in one.

    Another instance of the class could be counted there, too.
    """
    selects = ready.plan.selection not in (Selection(), Selection(preference="none"))
    return selects and instance is not None and instance.reservation_preference == "open"


def _selected(ready: LaunchClass) -> frozenset[str]:
    """The reservations that the class selects, usable or not."""
    both = (ready.plan.resolved, ready.plan.dedicated)
    live = (odcr.id for resolved in both for odcr in (*resolved.usable, *resolved.pending))
    return frozenset(live) | {misfit.id for resolved in both for misfit in resolved.misfits}
