"""The loops about claims after their launch, and about their nodes: they join, become ready and end."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim
from broker.controllers.claim_caches import BY_INSTANCE
from broker.controllers.interruption.impairments import EVERY, ImpairmentReader
from broker.controllers.interruption.notices import NoticeResponder
from broker.controllers.interruption.reader import QueueReader
from broker.controllers.launch.launcher import Launcher
from broker.controllers.left_slots import LeftSlots
from broker.controllers.lifecycle.abandoned import AbandonedNodes
from broker.controllers.lifecycle.registration import MARK, Registration
from broker.controllers.lifecycle.termination import Termination
from broker.controllers.lifecycle.terminations import Terminations
from broker.controllers.nominations import nominate
from broker.controllers.provisioning.unused import UnusedNodes
from broker.kube.controller import Result
from broker.wiring.predicates import key
from broker.wiring.term import Term


def add_lifecycle(term: Term, launcher: Launcher) -> None:
    """Registers the nodes of launched claims, drains and terminates those of deleted ones."""
    caches, signals = term.caches, term.signals
    terminations = Terminations(
        term.provider, clock=term.clock, check=term.client.check, wake=signals.instance_changed
    )
    nominate_node = partial(nominate, term.client, caches.pods, others=term.settings.schedulers)
    unused = UnusedNodes(term, caches)

    def lost(claim: NodeClaim, why: str) -> None:
        unused.record(claim, term.clock.now(), loss=why)

    registration = Registration(term, caches, nominate=nominate_node, lost=lost)
    termination = Termination(
        term,
        caches,
        terminations,
        term.inventory,
        launching=launcher.launching,
        freed=signals.replan,
        undecided=term.successions.undecided,
    )
    _watch_claims(term, registration, termination, terminations)
    _watch_nodes(term, AbandonedNodes(term.client, caches, terminations))


def _watch_claims(
    term: Term, registration: Registration, termination: Termination, terminations: Terminations
) -> None:
    manager, read, caches, signals = term.manager, term.read, term.caches, term.signals
    claims = caches.claims

    def lives_or_ends(_: NodeClaim | None, new: NodeClaim | None) -> bool:
        return new is not None and caches.owns(new) and not new.waits

    def claims_of_node(node: Node) -> Iterable[str]:
        return claims_of_instance(node.instance_id)

    def claims_of_instance(id_: str) -> Iterable[str]:
        return [claim.name for claim in claims.by(BY_INSTANCE, id_)]

    def reconcile(name: str) -> Result | None:
        """Moves one claim from its launch to its end: it joins, becomes ready, ends."""
        claim = claims.get(name)
        if claim is None or not caches.owns(claim):
            return None
        if claim.deleting:
            return termination.reconcile(claim)
        return registration.reconcile(claim) if claim.status.provider_id else None

    (
        manager.controller("nodeclaim", reconcile, workers=4, about=claims.get)
        .watches(read.claims, key, lives_or_ends)
        .watches(read.nodes, claims_of_node)
        .on(signals.instance_changed.subscribe, claims_of_instance)
        .on(term.successions.decided_now.subscribe, lambda name: (name,))
        .on(signals.owner_changed.subscribe, lambda: [claim.name for claim in claims.list()])
    )

    def forget(old: NodeClaim | None, new: NodeClaim | None) -> None:
        if old is not None and _owned_gone(term, old, new):
            terminations.forget(old.instance_id)

    read.claims.on_change(forget)
    read.claims.on_change(term.successions.observe)
    left = LeftSlots(caches.claims.list, term.inventory.assumed, owns=caches.owns, released=signals.replan)
    read.claims.on_change(left.observe)
    # `terminations` enqueues its own instances: those that its callers look up or end.
    manager.singleton("terminations", terminations.run, batcher=terminations.batcher)


def _watch_nodes(term: Term, abandoned: AbandonedNodes) -> None:
    manager, read, signals = term.manager, term.read, term.signals
    claims, nodes = term.caches.claims, term.caches.nodes

    def without_claim(node: Node) -> Iterable[str]:
        id_ = node.instance_id
        return (node.name,) if id_ and MARK in node.annotations and not claims.by(BY_INSTANCE, id_) else ()

    def nodes_of_claim(claim: NodeClaim) -> Iterable[str]:
        return [node.name for node in nodes.by(BY_INSTANCE, claim.instance_id)]

    def nodes_of_instance(id_: str) -> Iterable[str]:
        return [node.name for node in nodes.by(BY_INSTANCE, id_) if MARK in node.annotations]

    (
        manager.controller("node", abandoned.reconcile)
        .watches(read.nodes, without_claim)
        .watches(read.claims, nodes_of_claim, partial(_owned_gone, term))
        .on(signals.instance_changed.subscribe, nodes_of_instance)
    )
    # The slot of a claim that is gone may be free.
    read.claims.on_change(lambda old, new: signals.describe() if _owned_gone(term, old, new) else None)


def _owned_gone(term: Term, old: NodeClaim | None, new: NodeClaim | None) -> bool:
    return new is None and old is not None and term.caches.owns(old)


def add_interruption(term: Term, launcher: Launcher) -> None:
    """Reads the health of instances, and the queue of notices if there is one."""
    impairments = ImpairmentReader(term, term.caches, term.provider)
    term.manager.singleton("impairments", impairments.run, every=EVERY, synced=term.read.synced)
    if not (queue := term.settings.interruption_queue):
        return
    notices = NoticeResponder(
        term,
        term.caches,
        term.nodeclasses,
        short=launcher.announced,
        describe=term.describe,
    )
    term.manager.run(
        QueueReader(term.provider, queue, notices.take, clock=term.clock, synced=term.read.synced)
    )
