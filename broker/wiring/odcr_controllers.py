"""Builds the controllers about ODCRs and the claims in them: labels, endings, mirror."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from broker.apis.capacity_broker import OnDemandCapacityReservation
from broker.apis.karpenter_aws import EC2NodeClass
from broker.controllers.claim_caches import ClaimCaches, Ec2State
from broker.controllers.nodeclass.controller import NodeClassController
from broker.controllers.odcr.endings import EndingController
from broker.controllers.odcr.instance_labels import InstanceLabelController
from broker.controllers.odcr.mirror import MirrorController
from broker.controllers.odcr.mirror_status import temporarily_unresolved, users
from broker.kube.cache import Cache
from broker.kube.context import ControllerContext
from broker.kube.informer import Informer


@dataclass(frozen=True, kw_only=True)
class OdcrControllers:
    """`mirrors` is read by `mirror` alone."""

    mirrors: Informer[OnDemandCapacityReservation]
    instance_labels: InstanceLabelController
    endings: EndingController
    mirror: MirrorController


def odcr_controllers(
    context: ControllerContext,
    caches: ClaimCaches,
    ec2: Ec2State,
    classes: Cache[EC2NodeClass],
    nodeclasses: NodeClassController,
    *,
    relist: Callable[[], None],
) -> OdcrControllers:
    """`relist` requests a new listing of instances."""
    client, clock, recorder = context.client, context.clock, context.recorder

    def class_users() -> Mapping[str, Sequence[str]]:
        return users((node_class.name for node_class in classes.list()), nodeclasses.resolved_reservations)

    def unresolved_classes() -> Collection[str]:
        return temporarily_unresolved(
            (node_class.name for node_class in classes.list()), nodeclasses.resolved_reservations
        )

    mirrors = Informer(client, OnDemandCapacityReservation, clock=clock)
    return OdcrControllers(
        mirrors=mirrors,
        instance_labels=InstanceLabelController(context, caches, ec2.inventory, ec2.view, relist=relist),
        endings=EndingController(
            client,
            caches.claims,
            classes,
            ec2.inventory,
            clock=clock,
            recorder=recorder,
            owns=caches.owns,
            users=class_users,
        ),
        mirror=MirrorController(
            client,
            ec2.provider,
            mirrors.cache,
            ec2.inventory,
            clock=clock,
            users=class_users,
            unresolved=unresolved_classes,
        ),
    )
