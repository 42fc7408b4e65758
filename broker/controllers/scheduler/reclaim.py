"""The evictions that give a namespace the minimum that its elastic quota guarantees.

Evictions go through the Eviction API. A pod whose eviction was refused is tried last for a minute.

Invariant: no eviction is needless. Victims are chosen by the trial that precedes a bind, on the state after
their end: room that returns to a hold, or that stays closed to the pod, frees nothing. Pods that end already
count as gone, so that no other pod is evicted in their place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from typing import Final

from broker.apis.core import Pod
from broker.apis.policy import PodDisruptionBudget
from broker.controllers.elasticquota.use import ElasticUse
from broker.controllers.nodereservation.godel_reading import GodelAnnotations
from broker.controllers.scheduler.state import SchedulerState
from broker.controllers.scheduler.trial import FoundPlace, QueuedPod, TrialRules, sized, try_places
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.errors import Conflict, EvictionRefused, NotFound
from broker.kube.refusals import ask_first
from broker.placement.disruption_pods import over_budget, owned_by, static
from broker.placement.holds import Hold
from broker.placement.holds_decide import ENOUGH
from broker.placement.quantities import PODS
from broker.quota.elastic import Amounts, ElasticTotals, added
from broker.quota.elastic_labels import ElasticPod
from broker.quota.elastic_reclaim import victims

PROTECTED: Final = 60.0
NO_USE: Final = ElasticUse()
# A pod whose grace period ended longer ago may never end: its node may be lost.
OVERDUE: Final = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Reclaim:
    """The places that pods will have, and the pods to evict for them: none if the room comes free anyway."""

    places: tuple[FoundPlace, ...]
    victims: tuple[Pod, ...] = ()


@dataclass(frozen=True, slots=True)
class BlockedEvictions:
    """Pods that cannot be evicted now, and why."""

    pods: tuple[Pod, ...]
    why: str


class ElasticReclaim:
    """Chooses victims and evicts them. Used by one thread, that of the scheduler."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        *,
        godel: GodelAnnotations,
        keeps_room: Callable[[], bool],
        rules: TrialRules,
    ) -> None:
        """`keeps_room`: whether Gödel's reservations keep the room of deleted pods."""
        self._client, self._clock, self._godel = client, clock, godel
        self._keeps_room, self._rules = keeps_room, rules
        self._protected: dict[str, float] = {}
        self._evicted: dict[str, float] = {}  # by uid, when, also by others

    def choose(
        self,
        pods: Sequence[QueuedPod],
        state: SchedulerState,
        use: ElasticUse,
        bound: Mapping[str, Pod],
        schedulers: Collection[str],
    ) -> Reclaim | None:
        """The victims after which all these pods have a place; None if no evictions help.

        `pods`: of one namespace. `bound`: all pods that take room, by uid. `schedulers`: the names that the
        broker serves.
        """
        now, past = self._clock.now(), self._clock.monotonic() - PROTECTED
        self._evicted = {uid: at for uid, at in self._evicted.items() if at > past}
        self._protected = {uid: until for uid, until in self._protected.items() if until > past + PROTECTED}
        ending = [pod for pod in bound.values() if self._ends(pod, now)]
        base = self.after(state, ending, use)
        trial = try_places(pods, base, self._rules)
        if not trial.rejected:
            return Reclaim(trial.placed)
        ends = {pod.uid for pod in ending}
        candidates = [
            pod
            for uid, pod in bound.items()
            # The eviction of a pod that is overdue would free nothing either.
            if not (uid in ends or pod.deleting) and uid in use.marked and not _comes_back(pod, schedulers)
        ]
        for variant, nodes in _variants(pods, base, self._rules):
            reclaim = _VictimSearch(self, variant, base, use, candidates, nodes).best()
            if reclaim is None:
                continue
            after = self.after(base, reclaim.victims, use)
            trial = try_places(pods, after, self._rules)  # the question of the bind
            if not trial.rejected:
                return replace(reclaim, places=trial.placed)
        return None

    def protected(self, uid: str) -> bool:
        """Whether the pod could not be evicted a moment ago."""
        return self._protected.get(uid, float("-inf")) > self._clock.monotonic()

    def placed(
        self, pods: Sequence[QueuedPod], state: SchedulerState, only: Collection[str] | None = None
    ) -> tuple[FoundPlace, ...] | None:
        """The places of all pods; None if one of them has none."""
        trial = try_places(pods, state, self._rules._replace(only=only))
        return None if trial.rejected else trial.placed

    def blocked(self, pods: Sequence[Pod]) -> BlockedEvictions | None:
        """Those of the pods that cannot be evicted, by a dry run: no other is evicted then. Raises ApiError.

        Several pods are counted against their budgets together.
        """
        return (len(pods) > 1 and self._over_budget(pods)) or self.evict(pods, dry_run=True)

    def assume_ending(self, uids: Iterable[str]) -> None:
        """These pods leave their room, and the caches may not show it yet."""
        self._evicted |= dict.fromkeys(uids, self._clock.monotonic())

    def _ends(self, pod: Pod, now: datetime) -> bool:
        """Whether the pod is about to leave its room: it ended, it is being deleted, or it was evicted."""
        ends = pod.metadata.deletion_timestamp
        if ends is not None:
            self._evicted.pop(pod.uid, None)
            return now <= ends + OVERDUE
        evicted = self._evicted.get(pod.uid)
        return pod.ended or (evicted is not None and self._clock.monotonic() < evicted + PROTECTED)

    def after(self, state: SchedulerState, gone: Iterable[Pod], use: ElasticUse = NO_USE) -> SchedulerState:
        """The state without these pods. Holds take back their room, and Gödel's rules keep it."""
        pods = [*gone]
        kept: list[Hold] = []
        if self._keeps_room():
            kept = [self._godel.left_hold(pod) for pod in pods if self._godel.may_leave_room(pod)]
        counted = (use.marked[pod.uid] for pod in pods if pod.uid in use.marked)
        return state.without({pod.uid: pod.spec.node_name for pod in pods}, kept, counted)

    def _over_budget(self, pods: Sequence[Pod]) -> BlockedEvictions | None:
        """The API server judges each eviction by itself: two pods may share the last one of a budget."""
        budgets = [
            PodDisruptionBudget.decode(body)
            for namespace in sorted({pod.namespace for pod in pods})
            for body in self._client.list(PodDisruptionBudget.KIND, namespace=namespace)[0]
        ]
        return self._blocked(over_budget(pods, budgets), "PodDisruptionBudgets allow not all of them at once")

    def _blocked(self, pods: Sequence[Pod], why: str) -> BlockedEvictions | None:
        for pod in pods:
            self._protected[pod.uid] = self._clock.monotonic() + PROTECTED
        return BlockedEvictions(tuple(pods), why) if pods else None

    def evict(self, pods: Sequence[Pod], *, dry_run: bool = False) -> BlockedEvictions | None:
        """Evicts the pods up to one that cannot be evicted, which it returns. Raises ApiError."""
        for pod in pods:
            evict = partial(self._client.evict, pod.name, pod.namespace, uid=pod.uid, dry_run=dry_run)
            try:
                if dry_run:
                    ask_first(evict)
                else:
                    evict()
            except (Conflict, NotFound):
                continue
            except EvictionRefused as error:
                return self._blocked([pod], error.message)
            if not dry_run:
                self.assume_ending([pod.uid])
        return None


class _VictimSearch:
    """The search for the fewest and least important victims, over all nodes and then node by node."""

    def __init__(
        self,
        reclaim: ElasticReclaim,
        pods: Sequence[QueuedPod],
        base: SchedulerState,
        use: ElasticUse,
        candidates: Sequence[Pod],
        nodes: Collection[str] | None,
    ) -> None:
        """`nodes`: on which alone the pods may be placed."""
        self._only = nodes
        self._reclaim, self._pods, self._totals = reclaim, pods, base.totals
        self._free = replace(base, totals=ElasticTotals())  # `victims` judges quotas
        self._preemptor = _together(pods)
        self._bound = {pod.uid: pod for pod in candidates}
        self._candidates = [replace(use.marked[uid], protected=reclaim.protected(uid)) for uid in self._bound]

    def best(self) -> Reclaim | None:
        anywhere = self._victims()
        if anywhere is None:
            return None
        choices = [(anywhere, self._places(anywhere))]
        if len(self._pods) == 1 and not self._places(()):
            for node in self._nodes():
                if local := self._victims(node):
                    choices.append((local, self._places(local, node)))
        chosen, places = min(choices, key=lambda choice: (_cost(choice[0]), choice[1] and choice[1][0].node))
        return None if places is None else Reclaim(places, tuple(self._bound[pod.uid] for pod in chosen))

    def _nodes(self) -> list[str]:
        """The nodes on which the pod would have room without all candidates."""
        nodes = {pod.spec.node_name for pod in self._bound.values()}
        nodes = nodes if self._only is None else nodes & {*self._only}
        without = self._reclaim.after(self._free, self._bound.values())
        fitting = (node for node in sorted(nodes) if self._reclaim.placed(self._pods, without, (node,)))
        return [*islice(fitting, ENOUGH)]

    def _victims(self, node: str | None = None) -> tuple[ElasticPod, ...] | None:
        near = {uid for uid, pod in self._bound.items() if pod.spec.node_name == node}
        return victims(
            self._totals,
            self._preemptor,
            self._candidates,
            lambda removed: self._places(removed, node) is not None,
            near=near,
            lacks=self._lacks(node),
        )

    def _places(
        self, removed: Iterable[ElasticPod], node: str | None = None
    ) -> tuple[FoundPlace, ...] | None:
        without = self._reclaim.after(self._free, [self._bound[pod.uid] for pod in removed])
        return self._reclaim.placed(self._pods, without, self._only if node is None else (node,))

    def _lacks(self, node: str | None) -> Amounts:
        state = None if node is None else self._free.snapshot.states.get(node)
        if state is None:
            return {}
        room = state.node.allocatable
        needs = added(state.requested, self._preemptor.requests)
        over = {name: amount - room.get(name, 0) for name, amount in needs.items() if name != PODS}
        return {name: amount for name, amount in over.items() if amount > 0}


def _variants(
    pods: Sequence[QueuedPod], base: SchedulerState, rules: TrialRules
) -> Iterator[tuple[list[QueuedPod], Collection[str] | None]]:
    """The pods as they count on nodes of one size of GPU, and the nodes that they may then have.

    A gang is first tried on all nodes, counted by the smallest.
    """
    options = [sized(item, base.snapshot, rules) for item in pods]
    if len(pods) == 1:
        yield from (([queued], nodes) for queued, nodes, _ in options[0])
        return
    yield [variants[0].queued for variants in options], None
    every = {*base.snapshot.states} if rules.only is None else {*rules.only}
    of_gpus = {node for variants in options for variant in variants for node in variant.nodes or ()}
    for size in sorted({variant.gigabytes for variants in options for variant in variants} - {0}):
        chosen = [
            next((variant for variant in variants if variant.gigabytes == size), variants[0])
            for variants in options
        ]
        own = {node for variant in chosen for node in variant.nodes or ()}
        yield [variant.queued for variant in chosen], every - (of_gpus - own)


def _comes_back(pod: Pod, schedulers: Collection[str]) -> bool:
    """Whether the pod would be there again at once: its kubelet or another scheduler puts it back."""
    return static(pod) or (owned_by(pod, "DaemonSet") and pod.spec.scheduler_name not in schedulers)


def _together(pods: Sequence[QueuedPod]) -> ElasticPod:
    """The pods as one preemptor, with the lowest of their priorities."""
    requests: Amounts = {}
    for item in pods:
        requests = added(requests, item.elastic.requests)
    lowest = min(item.elastic.priority for item in pods)
    return replace(pods[0].elastic, requests=requests, priority=lowest)


def _cost(evicted: Sequence[ElasticPod]) -> tuple[int, int, int, int]:
    """Protected pods, the highest priority, and the number of victims; then what they free in all."""
    highest = max((pod.priority for pod in evicted), default=0)
    size = sum(sum(pod.requests.values()) for pod in evicted)
    return (sum(pod.protected for pod in evicted), highest, len(evicted), size)
