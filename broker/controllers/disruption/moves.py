"""Moves: old claims and the claims that replace them. The new nodes are ready before the old ones drain.

The whole state of a move is on the objects. A replacement names the claim that it replaces, and its move with
the number of claims in it. The old claim has the condition DisruptionReason, and its Node the taint of
disruption, while a replacement is under way. So each step follows from the objects, and the process may be
killed between any two.

Invariant: an old claim is ended only after every replacement of its move is initialized. If a replacement is
lost, late or incomplete before that, all of them are deleted, the old nodes get pods again, and none of the
claims is disrupted again for a while. A replacement with pods of its own stays, as a node like any other.
Once one claim of a move has ended, the move is only completed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from pydantic import ValidationError

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import ConditionUpdate, condition, is_true, since
from broker.apis.policy import PodDisruptionBudget
from broker.controllers.claim_caches import ClaimCaches, replacements
from broker.controllers.claim_status import write
from broker.controllers.disruption.candidates import obstacle
from broker.controllers.disruption.conditions import FAILED
from broker.controllers.disruption.confirmation import Confirmation
from broker.controllers.disruption.move_model import Move, MoveLabel, moves_of
from broker.controllers.disruption.repair_history import bound_drain, record_repair, stopped_repair
from broker.controllers.disruption.report import Cause, DisruptionReporter
from broker.controllers.disruption.rollouts import in_slots
from broker.controllers.disruption.snapshot import DisruptionSnapshot, ManagedNode
from broker.controllers.lifecycle.evictions import close, reopen
from broker.controllers.newest import pods_on
from broker.kube.context import ControllerContext
from broker.kube.errors import AlreadyExists, Forbidden, Invalid, NotFound, WebhookFailed
from broker.kube.refusals import ask_first
from broker.kube.removal import remove
from broker.placement.claims import taken_over
from broker.placement.disruption_pods import reschedulable

# From the start of a move (Karpenter: minRetryDuration in pkg/controllers/disruption/queue.go).
TIMEOUT: Final = timedelta(minutes=10)
# A slot that is not had by then was taken by another claim.
SLOT_TIMEOUT: Final = timedelta(minutes=2)
# The causes of replacements that may be given up.
_OF_A_MOVE: Final = (names.MOVE, names.REPLACES, names.REPLACES_ALSO, names.JOINS_SLOT)


class MoveController:
    """Starts moves, and takes each one step further. Raises ApiError."""

    def __init__(
        self,
        context: ControllerContext,
        caches: ClaimCaches,
        reporter: DisruptionReporter,
        confirmation: Confirmation,
    ) -> None:
        self._client, self._clock = context.client, context.clock
        self._claims, self._nodes, self._pods = caches.claims, caches.nodes, caches.pods
        self._pools = caches.pools
        self._reporter, self._confirmation = reporter, confirmation

    def start(
        self,
        bodies: Sequence[tuple[Sequence[ManagedNode], Mapping[str, Any]]],
        label: MoveLabel,
        message: str,
    ) -> bool:
        """Creates the replacements of a move, and keeps new pods off the old nodes.

        False if one of them exists already, from an attempt that is being undone, or cannot be created, or
        if an old node has changed meanwhile. Raises ApiError if the cluster refuses the end of an old node.
        """
        olds = [node for nodes, _ in bodies for node in nodes]
        if not all(self._confirmation.may_begin(node, label.cause) for node in olds):
            return False
        for node in olds:  # a replacement of a node that may not end would be paid for in vain
            ask_first(partial(remove, self._client, node.claim, dry_run=True))
        for nodes, body in bodies:
            try:
                created = self._claims.written(self._client.create(NodeClaim.KIND, body))
            except AlreadyExists:
                return False
            except (Invalid, Forbidden, WebhookFailed) as error:
                for old_node in olds:
                    self._fail(old_node, label.cause, f"its replacement cannot be created: {error}")
                return False
            for node in nodes:
                self._reporter.launching(node.claim, created, label.cause, message)
                if label.cause == "ReturnToReservation":
                    self._reporter.returning(node.claim, created, message)
        for node in olds:
            self._mark(node, label.cause, message)
        return True

    def advance(self, snapshot: DisruptionSnapshot) -> list[datetime]:
        """Takes every move one step further. Returns when moves run out of time."""
        moves = moves_of(snapshot, replacements(self._claims))
        wakes: list[datetime] = []
        for move in moves:
            for node in move.olds[:1]:
                with self._reporter.isolated(node):
                    if wake := self._step(move, snapshot):
                        wakes.append(wake)
        for node in snapshot.nodes:
            if node.replacement is None and not node.claim.deleting:
                with self._reporter.isolated(node):
                    self._undo_orphan(node)
        return wakes

    def _step(self, move: Move, snapshot: DisruptionSnapshot) -> datetime | None:
        if not move.olds:
            return None
        if move.committed and move.label.size > 1:
            return self._complete(move, snapshot)
        move = replace(move, pairs=in_slots(self._client, self._claims, move.pairs))
        if failure := self._failure(move, snapshot.now):
            self._undo(move, failure, snapshot)
            return None
        for replacement, node in move.pairs:
            if node is not None and since(node.claim, names.DISRUPTION_REASON) is None:
                cause = move.label.cause
                self._mark(node, cause, f"{cause}: NodeClaim {replacement.name} replaces it")
            elif node is not None:
                close(self._client, self._nodes, node.node, names.DISRUPTED_TAINT)
            if not _may_follow(replacement):
                self._reporter.waiting(replacement)
        if all(_may_follow(replacement) for replacement, _ in move.pairs) and self._may_end(move, snapshot):
            for node in move.olds:
                self._end(node, move.label.cause)
            return None
        begun = [at for node in move.olds if (at := since(node.claim, names.DISRUPTION_REASON))]
        return min(begun, default=snapshot.now) + TIMEOUT

    def _complete(self, move: Move, snapshot: DisruptionSnapshot) -> datetime | None:
        """Ends the other old claims of a committed move. One that is held up or late stays.

        A budget of its pods only delays its drain.
        """
        wakes: list[datetime] = []
        for replacement, node in move.pairs:
            if node is None or node.claim.deleting:
                continue
            cause = move.label.cause
            free = _may_follow(replacement) and not self._blocked(node, cause, (), snapshot.now)
            if free and self._confirmation.may_end(node, cause, budgets=False):
                self._end(node, cause)
                continue
            began = since(node.claim, names.DISRUPTION_REASON)
            if began is not None and snapshot.now - began < TIMEOUT:
                wakes.append(began + TIMEOUT)
            elif began is not None or since(node.claim, names.DISRUPTION_REASON, "False") is not None:
                pair = replace(move, pairs=((replacement, node),))
                self._undo(pair, _late(pair), snapshot)
        return min(wakes, default=None)

    def _may_end(self, move: Move, snapshot: DisruptionSnapshot) -> bool:
        """Whether nothing holds up the old nodes by now; else the move waits, until it is late."""
        blocked = [
            self._blocked(node, move.label.cause, snapshot.budgets, snapshot.now) for node in move.olds
        ]
        return not any(blocked) and all(
            self._confirmation.may_end(node, move.label.cause) for node in move.olds
        )

    def _blocked(
        self, node: ManagedNode, cause: Cause, budgets: Iterable[PodDisruptionBudget], now: datetime
    ) -> bool:
        """Whether something holds the old node up now; reports it."""
        if cause == "Unhealthy":
            return False  # its drain has a bound
        reason = obstacle(node, budgets, self._pods.find, now, eventual=cause == "Drifted")
        if reason:
            self._reporter.blocked(node, reason)
        return bool(reason)

    def _failure(self, move: Move, now: datetime) -> str:
        """Why the move is undone; empty if it goes on."""
        if len(move.pairs) < move.label.size:
            return f"{len(move.pairs)} of {move.label.size} replacements exist"
        for replacement, node in move.pairs:
            if node is None:
                continue
            failed = since(node.claim, names.DISRUPTION_REASON, "False")
            began = since(node.claim, names.DISRUPTION_REASON)
            if failed is not None:
                return "the replacement is being undone"
            if move.label.cause == "Unhealthy" and (why := stopped_repair(node)):
                return why
            if node.unreadable or began is None:
                continue
            if now - began >= TIMEOUT:
                return _late(move)
            launched = is_true(replacement, names.LAUNCHED)
            returns = move.label.cause == "ReturnToReservation"
            if returns and not launched and now - began >= SLOT_TIMEOUT:
                reason = condition(replacement.status.conditions, names.LAUNCHED)
                detail = f": {reason.message}" if reason is not None and reason.message else ""
                return f"replacement {replacement.name} got no slot within {SLOT_TIMEOUT}{detail}"
        return ""

    def _undo(self, move: Move, reason: str, snapshot: DisruptionSnapshot) -> None:
        """Gives the move up. The condition comes first: it makes a new process go on undoing."""
        for node in move.olds:
            self._fail(node, move.label.cause, reason)
        for replacement in {replacement.uid: replacement for replacement, _ in move.pairs}.values():
            if self._in_use(replacement, snapshot):
                self._keep(replacement)
            else:
                remove(self._client, replacement, self._claims)
        for node in move.olds:
            reopen(self._client, self._nodes, node.node, names.DISRUPTED_TAINT)

    def _in_use(self, replacement: NodeClaim, snapshot: DisruptionSnapshot) -> bool:
        """Whether pods came to its node. The cache may lack them: the API server confirms that none did."""
        used, node = snapshot.by_uid(replacement.uid), replacement.status.node_name
        if used is not None and used.moving:
            return True
        try:
            return bool(node) and any(map(reschedulable, pods_on(self._client, node)))
        except ValidationError:
            return True  # by a pod that cannot be read

    def _keep(self, replacement: NodeClaim) -> None:
        """Makes it a claim of its own: pods came to its node already."""
        meta = {"uid": replacement.uid, "annotations": dict.fromkeys(_OF_A_MOVE)}
        try:
            self._claims.observe(self._client.patch(NodeClaim.KIND, replacement.name, {"metadata": meta}))
        except NotFound:
            return

    def _undo_orphan(self, node: ManagedNode) -> None:
        """Returns a marked claim to service: its replacement is gone."""
        disruption = condition(node.claim.status.conditions, names.DISRUPTION_REASON)
        if disruption is None:
            return
        if disruption.reason == "Empty":
            self._release(node)  # a stop came between the taint and the deletion
            return
        if disruption.status == "True":
            self._fail(node, _cause(disruption.reason), "the replacement is gone")
        reopen(self._client, self._nodes, node.node, names.DISRUPTED_TAINT)

    def _fail(self, node: ManagedNode, cause: Cause, message: str) -> None:
        if since(node.claim, names.DISRUPTION_REASON, "False") is not None:
            return
        self._set(node.claim, "False", FAILED, message)
        self._reporter.failed(node.claim, cause, f"NodeClaim {node.claim.name} stays: {message}")

    def _mark(self, node: ManagedNode, cause: Cause, message: str) -> None:
        self._set(node.claim, "True", _reason(cause), message)
        close(self._client, self._nodes, node.node, names.DISRUPTED_TAINT)

    def _set(self, claim: NodeClaim, status: Any, reason: str, message: str) -> None:
        change = ConditionUpdate(type=names.DISRUPTION_REASON, status=status, reason=reason, message=message)
        write(self._client, self._claims, claim, change, now=self._clock.now())

    def end_empty(self, node: ManagedNode, empty: Callable[[], bool]) -> bool:
        """Ends a node without pods. New pods are kept off it first, then `empty` looks once more."""
        self._mark(node, "Empty", "no pod on it needs another node")
        is_empty = False
        try:
            is_empty = self._confirmation.may_begin(node, "Empty") and empty()
        finally:
            if not is_empty:
                self._release(node)
        if is_empty:
            self._end(node, "Empty")
        return is_empty

    def _release(self, node: ManagedNode) -> None:
        """Gives a node back to pods: it is disrupted no more, and nothing failed."""
        write(
            self._client,
            self._claims,
            node.claim,
            now=self._clock.now(),
            clear={names.DISRUPTION_REASON},
        )
        reopen(self._client, self._nodes, node.node, names.DISRUPTED_TAINT)

    def end(self, nodes: Sequence[ManagedNode], cause: Cause) -> bool:
        """Ends claims that need no replacement; none of them if one has changed meanwhile."""
        if not all(self._confirmation.may_begin(node, cause) for node in nodes):
            return False
        for node in nodes:
            self._end(node, cause)
        return True

    def _end(self, node: ManagedNode, cause: Cause) -> None:
        if cause == "Unhealthy":
            bound_drain(self._client, self._claims, node, self._clock.now())
            record_repair(self._client, self._pools, node, self._clock.now())
        if remove(self._client, node.claim, self._claims):
            self._reporter.terminating(node.claim, node.node, cause)


def _may_follow(replacement: NodeClaim) -> bool:
    """Whether the old node may end: its successor is ready, or is launched into its slot."""
    return bool(taken_over(replacement)[0]) or is_true(replacement, names.INITIALIZED_CONDITION)


def _late(move: Move) -> str:
    """Why the move took too long."""
    ready = names.INITIALIZED_CONDITION
    late = next((replacement.name for replacement, _ in move.pairs if not is_true(replacement, ready)), "")
    return f"replacement {late} was not ready within {TIMEOUT}" if late else f"it was held up for {TIMEOUT}"


def _reason(cause: Cause) -> str:
    """The reason in the condition, which budgets name."""
    return "Underutilized" if cause == "ReturnToReservation" else cause


def _cause(reason: str) -> Cause:
    causes: dict[str, Cause] = {"Underutilized": "ReturnToReservation", "Unhealthy": "Unhealthy"}
    return causes.get(reason, "Drifted")
