"""The loops that work on classes for Karpenter. The broker's own launches wait for none of them."""

from __future__ import annotations

from broker.apis.karpenter_aws_definition import NAME as CLASS_DEFINITION
from broker.apis.karpenter_aws_definition import CustomResourceDefinition
from broker.controllers.advisor.accepted import AcceptedSpecController
from broker.controllers.advisor.controller import Advisor
from broker.controllers.advisor.definition import DefinitionController
from broker.controllers.advisor.pools import class_of
from broker.controllers.advisor.tags import ReservationTags
from broker.kube.informer import Informer
from broker.wiring.term import Term


def add_advisor(term: Term) -> None:
    """Advises Karpenter, if that is enabled."""
    if not term.settings.advise:
        return
    manager, read, inventory, nodeclasses = term.manager, term.read, term.inventory, term.nodeclasses
    client, clock, classes = term.client, term.clock, read.classes.cache
    definitions = Informer(
        client, CustomResourceDefinition, clock=clock, field_selector=f"metadata.name={CLASS_DEFINITION}"
    )
    definition = DefinitionController(
        client, definitions.cache, classes, clock=clock, keep=term.settings.keep_definition
    )
    cluster = term.settings.cluster_name
    tags = ReservationTags(
        client, term.provider, inventory, clock=clock, cluster=cluster, describe=term.describe
    )
    advisor = Advisor(
        term,
        inventory,
        nodeclasses,
        classes,
        term.caches.pools,
        tags,
        account_id=lambda: term.provider.account_id(),
        cluster=cluster,
    )
    accepted = AcceptedSpecController(client, classes, definition, clock=clock, recorder=term.recorder)
    manager.follow(definitions)
    (
        manager.controller("advisor", advisor.reconcile)
        .watches(read.classes)
        .watches(read.pools, lambda pool: filter(None, (class_of(pool),)))
        # A new description may show a tag, or the tag of a class that is gone.
        .on(inventory.on_change, lambda: sorted({*term.every_class(), *tags.classes()}))
        .on(nodeclasses.on_change)
    )
    manager.singleton("definition", lambda _: definition.run(), synced=lambda: True).watches(definitions)
    (
        manager.controller("accepted", accepted.reconcile)
        .watches(read.classes)
        .watches(definitions, term.every_class)
    )
