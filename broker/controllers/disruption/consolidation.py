"""Consolidation: bought nodes end whose pods fit on other nodes, or on one cheaper machine.

Invariant: a step is taken only if two passes find it, VALIDATED_AFTER apart, each from the caches of its
time. What is remembered between them only delays. A node that may move into an idle slot does that instead
(see `returning`).

Source: Karpenter, pkg/controllers/disruption (multinodeconsolidation.go, singlenodeconsolidation.go,
validation.go).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from itertools import islice
from typing import Final

from broker.apis import names
from broker.apis.meta import is_true, since
from broker.capacity.options import capacity_types
from broker.capacity.requirements import InvalidRequirement
from broker.controllers.disruption.assumed import moving_pods
from broker.controllers.disruption.choosing import Fitting, combinable
from broker.controllers.disruption.gangs import running_gangs
from broker.controllers.disruption.machines import MachineFinder
from broker.controllers.disruption.moves import MoveController
from broker.controllers.disruption.permission import Permission
from broker.controllers.disruption.replacements import Demand, Pair, demand, planned
from broker.controllers.disruption.replacing import Replacer
from broker.controllers.disruption.report import DisruptionReporter
from broker.controllers.disruption.returning import consolidates, returns
from broker.controllers.disruption.snapshot import ManagedNode
from broker.controllers.provisioning.claims import meets_minimums
from broker.lists import lists_by_key
from broker.placement.consolidation import Leaving, MachineOffer, cheaper, plan_deletions, ranked
from broker.placement.disruption_budgets import BudgetLedger, Reason
from broker.placement.filters import place_on_others
from broker.placement.packing_model import MachineOption
from broker.placement.preferences import as_placed
from broker.placement.snapshot import PlacementSnapshot
from broker.reservations.claims import occupied_odcr
from providers.errors import ProviderError

# Karpenter: commandValidationDelay in consolidation.go.
VALIDATED_AFTER: Final = timedelta(seconds=15)
# A cluster in which nothing was found, and that did not change, is looked at again after this time.
REVIEWED_AFTER: Final = timedelta(minutes=5)
MOST_TOGETHER: Final = 100  # nodes that end for one machine
TRYING: Final = 5.0  # seconds of a pass
_REASON: Final[Reason] = "Underutilized"
May = Callable[[ManagedNode], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Nodes that end, for a replacement if `pair` is given. `message`: how, with the saving."""

    nodes: tuple[ManagedNode, ...]
    message: str
    pair: Pair | None = None

    @property
    def key(self) -> tuple[object, ...]:
        return self.pair is not None, *sorted(node.claim.uid for node in self.nodes)


class Consolidator:
    """`run` takes the steps of one pass. Raises ApiError."""

    def __init__(
        self,
        moves: MoveController,
        replacer: Replacer,
        permission: Permission,
        reporter: DisruptionReporter,
        timer: Callable[[], float],
    ) -> None:
        self._moves, self._replacer = moves, replacer
        self._permission, self._reporter = permission, reporter
        self._timer = timer
        self._found: dict[tuple[object, ...], datetime] = {}  # steps by key: since when each pass finds them
        self._tried: dict[str, float] = {}  # claims by uid: when a replacement was looked for last
        self._settled: tuple[Sequence[ManagedNode], datetime] | None = None  # nodes of which none can end

    def run(
        self,
        finder: MachineFinder,
        placement: PlacementSnapshot,
        free: Iterable[ManagedNode],
        usable: Callable[[], Sequence[str]],
        ledger: BudgetLedger,
        *,
        promised: Collection[str],
    ) -> set[str]:
        """Returns the uids of the claims that end or are replaced.

        `free`: the nodes that are in no disruption. `usable`: the nodes that may get pods, reserved ones in
        front. `promised`: claims (by uid) of which the room is for pods that are not made anew yet.
        """
        now, cached = finder.snapshot.now, finder.snapshot.cached
        if self._settled and self._settled[0] is cached and now - self._settled[1] < REVIEWED_AFTER:
            return set()
        steps: list[Step] = []
        whole = True
        if not self._permission.pods_wait(now):
            search = StepFinder(finder, placement, usable(), promised)
            candidates = self._candidates(search, free, ledger)
            budgets = {n.pool.name: ledger.remaining(n.pool.name, _REASON) for n in candidates}
            may = self._permitted(finder)
            steps = [*search.deletions(candidates, budgets, may)]
            if not steps:
                steps, whole = self._replacements(search, candidates, budgets, may)
        self._settled = (cached, now) if not steps and whole else None
        self._found = {step.key: self._found.get(step.key, now) for step in steps}
        taken: set[str] = set()
        for step in steps:
            if now - self._found[step.key] >= VALIDATED_AFTER and self._take(step, finder, ledger):
                taken |= {node.claim.uid for node in step.nodes}
        return taken

    def _candidates(
        self, search: StepFinder, free: Iterable[ManagedNode], ledger: BudgetLedger
    ) -> list[ManagedNode]:
        """The bought nodes that budgets let end, those in front that save the most for the least disruption.

        A gang stays together where it is. Drifted nodes are replaced in any case.
        """
        finder, values = search.finder, search.values
        gangs = running_gangs(finder.snapshot, finder.owned)
        by_uid = {
            node.claim.uid: node
            for node in free
            if consolidates(node.pool)
            and node.moving
            and is_true(node.claim, names.CONSOLIDATABLE)
            and since(node.claim, names.DRIFTED) is None
            and values.by_uid[node.claim.uid].bought
            and len(gangs.unit(node.claim.uid)) == 1
            and self._permission.allowed(node, ledger, _REASON)
        }
        return [by_uid[value.uid] for value in ranked(values.by_uid[uid] for uid in by_uid)]

    def _permitted(self, finder: MachineFinder) -> May:
        """Whether nothing on a node keeps it, looked at once in a pass."""
        known: dict[str, bool] = {}

        def may(node: ManagedNode) -> bool:
            if node.claim.uid not in known:
                known[node.claim.uid] = self._permission.may(node, finder.snapshot)
            return known[node.claim.uid]

        return may

    def _replacements(
        self, search: StepFinder, candidates: Sequence[ManagedNode], budgets: Mapping[str, int], may: May
    ) -> tuple[list[Step], bool]:
        """The first possible replacement: of as many nodes as one machine holds, otherwise of one node.

        Also whether all were tried. Those that no pass has tried yet come first.
        """
        began = self._timer()
        for group in search.alike(candidates):
            most = min(MOST_TOGETHER, budgets[group[0].pool.name])
            if step := self._together(search, [*islice(filter(may, group), most)]):
                return [step], True
        uids = {node.claim.uid for node in candidates}
        self._tried = {uid: at for uid, at in self._tried.items() if uid in uids}
        before = {uid for key in self._found for uid in key[1:]}
        waiting = sorted(
            candidates,
            key=lambda node: (node.claim.uid not in before, self._tried.get(node.claim.uid, 0.0)),
        )
        for node in waiting:
            if self._timer() - began > TRYING:
                return [], False
            self._tried[node.claim.uid] = self._timer()
            if may(node) and (step := search.replacement([node])):
                return [step], True
        return [], True

    def _together(self, search: StepFinder, nodes: Sequence[ManagedNode]) -> Step | None:
        """The replacement of all these nodes, otherwise of the first ones, by Karpenter's binary search."""
        largest = search.replacement(nodes) if len(nodes) > 1 else None
        least, most = 2, 0 if largest else len(nodes) - 1
        while least <= most:
            count = (least + most) // 2
            if step := search.replacement(nodes[:count]):
                largest, least = step, count + 1
            else:
                most = count - 1
        return largest

    def _take(self, step: Step, finder: MachineFinder, ledger: BudgetLedger) -> bool:
        """Whether it began."""
        counts = Counter(node.pool.name for node in step.nodes)
        if any(ledger.remaining(pool, _REASON) < count for pool, count in counts.items()):
            return False
        first = step.nodes[0]
        with self._reporter.isolated(first):
            if step.pair is None and not self._moves.end([first], _REASON):
                return False
            if step.pair is not None and not self._replacer.begin([step.pair], _REASON, step.message, finder):
                return False
            self._reporter.consolidating([node.claim for node in step.nodes], step.message)
        for pool, count in counts.items():
            ledger.take(pool, _REASON, count)
        return True


class StepFinder:
    """The steps that are possible in one pass. Each is as if no other were taken, unless it says so."""

    def __init__(
        self,
        finder: MachineFinder,
        placement: PlacementSnapshot,
        usable: Sequence[str],
        promised: Collection[str],
    ) -> None:
        self.finder, self.values = finder, finder.values
        self._placement, self._usable = placement, usable
        self._promised = promised

    def alike(self, nodes: Iterable[ManagedNode]) -> Iterator[list[ManagedNode]]:
        """The nodes of each pool that draw from the same reservation: one machine may take their place."""
        rights = self.finder.observed.rights
        yield from lists_by_key(((node.pool.name, node.drawn(rights)), node) for node in nodes).values()

    def deletions(self, nodes: Iterable[ManagedNode], budgets: Mapping[str, int], may: May) -> Iterator[Step]:
        """The nodes of which all pods fit on others, all together."""
        by_uid = {node.claim.uid: node for node in nodes}
        leaving = [
            Leaving(
                value=self.values.by_uid[uid],
                node=node.name,
                pods=tuple(self.finder.counted(moving_pods(node, node.moving))),
                hosts=self._hosts(node),
            )
            for uid, node in by_uid.items()
        ]
        totals = self.values.totals
        deletions, _ = plan_deletions(
            leaving, self._placement, budgets, totals, lambda item: may(by_uid[item.value.uid])
        )
        for deletion in deletions:
            value, node = deletion.leaving.value, by_uid[deletion.leaving.value.uid]
            message = f"{_shown([node])} ends: its pods fit on {', '.join(deletion.hosts)}"
            yield Step(nodes=(node,), message=f"{message}: saves ${value.price:.4f} an hour")

    def replacement(self, nodes: Sequence[ManagedNode]) -> Step | None:
        """One cheaper machine for the pods of these nodes that fit on no other node; None without one."""
        finder, values = self.finder, self.values.of(nodes)
        needed, placed = self._needed(nodes)
        if needed is None or finder.over_limits(nodes):
            return None
        try:
            claim = planned(needed, uid=nodes[0].claim.uid, name="replacement")
            if claim.node_class not in finder.supply.classes:
                return None
        except (InvalidRequirement, ProviderError):
            return None
        fitting, unfit = finder.fitting(needed, claim, placed)
        if any(map(returns, nodes)) and any(_idle(item) for item in fitting):
            return None
        offers = {_offer(item): item for item in fitting if item.open and not item.way.odcr_id}
        kinds = capacity_types(claim.requirements)
        chosen = cheaper(values, (o for o, item in offers.items() if not item.way.last_resort), kinds)
        machines = _machines([offers[offer] for offer in chosen], fitting, unfit)
        ((_, machines),) = finder.within_limits([(needed, machines)])
        if not meets_minimums(nodes[0].pool, machines):
            return None
        after = next((o.price for o in chosen if machines and offers[o].machine is machines[0]), None)
        if after is None or self.values.totals.rejection(values, after):
            return None
        saving = sum(value.price for value in values) - after
        new = f"{machines[0].instance_type} ({machines[0].capacity_type}, {machines[0].zone})"
        return Step(
            nodes=tuple(nodes),
            message=f"{_shown(nodes)} ends for a cheaper node, such as {new}: saves ${saving:.4f} an hour",
            pair=(replace(needed, unfit=tuple(unfit)), machines),
        )

    def _needed(self, nodes: Sequence[ManagedNode]) -> tuple[Demand | None, PlacementSnapshot]:
        """The pods that fit on no other node, and the placement with the others; None if all fit, or if their
        volumes are in several zones.
        """
        demands = [demand(node, node.moving) for node in nodes]
        zones = {item.zone for item in demands} - {""}
        names_ = {node.name for node in nodes}
        hosts = [name for name in self._hosts(nodes[0]) if name not in names_]
        pods = [
            pod
            for node, item in zip(nodes, demands, strict=True)
            for pod in as_placed(self.finder.counted(item.pods), node.name, self._placement)
        ]
        unplaced, placed = place_on_others(pods, self._placement.without_nodes(names_), hosts)
        if not unplaced or len(zones) > 1:
            return None, placed
        zone = next(iter(zones), "")
        return replace(demands[0], pods=tuple(unplaced), zone=zone, also=tuple(nodes[1:])), placed

    def _hosts(self, node: ManagedNode) -> tuple[str, ...]:
        """The nodes that may get its pods: those that stay, and draw from the same reservation."""
        drawn = node.drawn(self.finder.observed.rights)
        return tuple(name for name, drawn_ in self._staying if name != node.name and drawn_ in (drawn, ...))

    @cached_property
    def _staying(self) -> list[tuple[str, object]]:
        """The usable nodes, and the reservation that each draws from; `...` for nodes of other launchers.

        An empty bought node ends by itself, and a drifted one is replaced: pods would move again. A node that
        the broker launched for no pool, as for a dedicated cluster, is for the pods of its maker.
        """
        owned = {claim.status.node_name for claim in self.finder.owned}
        by_name = {node.name: node for node in self.finder.snapshot.nodes if node.node is not None}
        staying: list[tuple[str, object]] = []
        for name in self._usable:
            if (host := by_name.get(name)) is None:
                if name not in owned:
                    staying.append((name, ...))
                continue
            reserved = bool(occupied_odcr(host.claim))
            if (
                (reserved or host.moving)
                and host.claim.uid not in self._promised
                and since(host.claim, names.DRIFTED) is None
            ):
                staying.append((name, host.drawn(self.finder.observed.rights)))
        return staying


def _machines(
    cheap: Sequence[Fitting], fitting: Sequence[Fitting], unfit: Sequence[MachineOption]
) -> list[MachineOption]:
    """The cheap machines, and those in reservations in their place. Any combination of these is cheaper."""
    places = {(item.machine.instance_type, item.machine.zone) for item in cheap}
    slots = [
        item
        for item in fitting
        if item.way.odcr_id
        and not item.way.borrows
        and (item.machine.instance_type, item.machine.zone) in places
    ]
    chosen = {id(item.machine) for item in cheap}
    dear = [item.machine for item in fitting if not item.way.odcr_id and id(item.machine) not in chosen]
    return combinable([*cheap, *slots], [*unfit, *dear])


def _idle(item: Fitting) -> bool:
    """Whether the machine is a free slot: the node moves into it once it stays free."""
    return bool(item.way.odcr_id) and item.open and not item.way.borrows


def _offer(item: Fitting) -> MachineOffer:
    machine = item.machine
    return MachineOffer(machine.instance_type, machine.zone, machine.capacity_type, item.way.option.usd_hour)


def _shown(nodes: Sequence[ManagedNode]) -> str:
    return ", ".join(f"NodeClaim {node.claim.name} ({node.place})" for node in nodes)
