"""The machines that served NodePools could open now, by the same options that launches use.

Options come from the launch loop's catalog: requirements, shortages, and the slots that the pool or its pods
may draw from. A slot that a waiting claim will take is not offered. A reserved slot costs next to nothing, so
that packing fills slots first; an unknown price is estimated from the type's size. An option that is short,
and may be tried as a last resort, comes after those of all NodePools that are not short.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Final

from broker.apis.karpenter import NodePool
from broker.apis.names import CAPACITY_TYPE
from broker.apis.units import whole
from broker.capacity.class_catalog import CandidateType, ClassCatalog
from broker.capacity.entitlement import RESERVATION_FULL, Entitlements, SlotPool
from broker.capacity.future_labels import future_labels
from broker.capacity.inventory import Inventory
from broker.capacity.mismatches import closed
from broker.capacity.model import Claim, Option
from broker.capacity.option_catalog import OptionCatalog
from broker.capacity.reasons import OutbidOptions, unplaced
from broker.capacity.supply import LaunchSupply
from broker.capacity.types import WELL_KNOWN, capacity, has_accelerator, reservation_labels
from broker.capacity.ways import Way, ways
from broker.controllers.provisioning.learned import LearnedRoom, MachineSort
from broker.controllers.provisioning.pools import ServedPool
from broker.controllers.provisioning.usage import NODES
from broker.placement.daemons import DaemonOverhead
from broker.placement.machines import topology_keys
from broker.placement.model import NodeInfo, PodInfo
from broker.placement.packing_model import NO_DRAWING, Drawing, MachineOption, PendingPod
from broker.placement.pool_choice import pool_node
from broker.placement.reading import node_taints
from broker.reservations.drawing import DrawRequest
from providers.model import InstanceType

# A slot is paid for already: its cost only makes packing prefer the smaller instance.
SLOT_SHARE: Final = 1e-3
# Dollars an hour of a type without a known price.
CPU_GUESS: Final = 0.06
ACCELERATOR_GUESS: Final = 4.0
MOST_VALUES: Final = 10  # of a label of the user's own that pods are spread over
# Subtracted from the pool's weight, which is 100 at most, for a last resort.
LAST_RESORT: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Offers:
    """Machine options, and the free slots of each EC2 reservation. `full`: machines of reservations without a
    free slot, or without launches now; `refused`: those that EC2 refused lately, and the full ones of a pool
    with limits that offers no other. Pods that fit no other machine have them as the reason.

    `smaller`: machines with less room on their nodes than estimated. `empty`: why a pool offers none, by the
    pool and by what its pods draw from.
    """

    options: tuple[MachineOption, ...]
    room: Mapping[str, int]
    full: tuple[MachineOption, ...] = ()
    refused: tuple[MachineOption, ...] = ()
    smaller: Mapping[MachineSort, SmallerMachine] = field(default_factory=dict)
    empty: Mapping[tuple[str, Drawing], str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallerMachine:
    """`expected`: the estimated room for pods; `room`: the learned one, of resources that lack some."""

    expected: Mapping[str, int]
    room: Mapping[str, int]
    node: str


def machine_uid(pool: ServedPool, drawing: Drawing) -> str:
    """The uid of the machines that the pool may open for the pods of a drawing."""
    return f"pool/{pool.pool.name}/{drawing.named}/{','.join(drawing.admitted)}"


def machine_draws(pools: Sequence[ServedPool], pods: Sequence[PendingPod]) -> dict[str, DrawRequest]:
    """The reservation that the machines of each pool and drawing, by uid, draw from.

    The last pod of a drawing stands for the others: the same reservations serve them.
    """
    examples = {pod.drawing: (pod.key.partition("/")[0],) for pod in pods}
    return {
        machine_uid(pool, drawing): DrawRequest(drawing.named or pool.pool.draws_from, namespaces)
        for pool in pools
        for drawing, namespaces in examples.items()
    }


def offers(
    pools: Sequence[ServedPool],
    pods: Sequence[PendingPod],
    daemons: Sequence[PodInfo],
    supply: LaunchSupply,
    *,
    taken: Counter[str],
    reclaimed: Mapping[SlotPool, int],
    learned: LearnedRoom,
) -> Offers:
    """The machines that could be opened now, and those in lent slots that the owner's pods get back.

    `taken`: the slots that waiting claims will take; `reclaimed`: the lent slots that they wait for.
    """
    inventory, entitlements = supply.inventory, supply.entitlements
    catalog = OptionCatalog(supply)
    smaller: dict[MachineSort, SmallerMachine] = {}
    empty: dict[tuple[str, Drawing], str] = {}
    options: list[MachineOption] = []
    full: list[MachineOption] = []
    alone: list[MachineOption] = []  # those of pools without any other
    refused: list[MachineOption] = []
    overhead = DaemonOverhead(daemons)
    room: dict[str, int] = {}
    lent: Counter[str] = Counter()
    for pool in pools:
        for drawing in sorted({pod.drawing for pod in pods}):
            claim = Claim(
                name=pool.pool.name,
                uid=machine_uid(pool, drawing),
                node_class=pool.node_class.name,
                requirements=pool.requirements,
                priority=max(pod.priority for pod in pods if pod.drawing == drawing),
            )
            candidates = catalog.every(claim)
            known = candidates.known
            every = [*ways(claim, candidates, supply, reclaimed)]
            open_ways = [way for way in every if way.out is None]
            beginning = {odcr.instance_type for odcr, _ in candidates.soon}
            explained = bool(open_ways or pool.pool.spec.limits)  # a limit may be the better reason
            taken_ways = [way for way in every if _taken(way)] if explained else []
            refusals = [(way, way.out) for way in every if way.out and not _taken(way)] if explained else []
            unusable = [*closed(claim, candidates.suitable_types, known)] if explained else []
            if not open_ways:
                waits = unplaced(claim, candidates, OutbidOptions(inventory))
                empty[pool.pool.name, drawing] = waits.message
            for way in open_ways:
                if way.odcr_id:
                    room[way.odcr_id] = max(room.get(way.odcr_id, 0), way.free - taken[way.odcr_id])
                    lent[way.odcr_id] = max(lent[way.odcr_id], way.lent)
            for labels in _variants(pool, pods):
                maker = MachineMaker(
                    pool.pool, {**pool.labels, **labels}, known, inventory, overhead, learned, drawing
                )
                for way in open_ways:
                    begins = not way.odcr_id and way.option.pool.instance_type in beginning
                    machine = maker.machine(way.option, way.odcr_id)
                    machine = replace(machine, valued=way.valued, waits=begins)
                    if way.last_resort:
                        machine = replace(machine, weight=machine.weight - LAST_RESORT)
                    if way.lent and not way.free:  # free slots come before those that a borrower gives back
                        machine = replace(machine, cost=2 * machine.cost, waits=True)
                    options.append(machine)
                unopened = full if open_ways else alone
                unopened += (maker.machine(way.option, way.odcr_id) for way in taken_ways)
                for way, skip in refusals:
                    machine = maker.machine(way.option, way.odcr_id)
                    refused.append(replace(machine, source=str(way.option.pool), closed=skip.message))
                for skip in unusable:
                    if (odcr_id := skip.pool.reservation) in inventory.odcrs:
                        machine = maker.machine(Option(pool=skip.pool), odcr_id)
                        unopened.append(replace(machine, closed=skip.message))
                smaller |= maker.smaller
    full = [machine for machine in full if machine.source not in room]
    refused += (machine for machine in alone if machine.source not in room)
    room |= {machine.source: 0 for machine in full}
    lent_pools: Counter[SlotPool] = Counter()
    for id_, count in lent.items():
        room[id_] += count
        if (slot_pool := entitlements.slot_pools.get(id_)) is not None:
            lent_pools[slot_pool] += count
    uids = {machine_uid(p, d) for p in pools for d in {q.drawing for q in pods}}
    lowered = _within_quota(room, entitlements, uids, lent_pools)
    options = [
        replace(o, closed=f"no free slot: {o.source} ({o.instance_type}, {o.zone}): {text}") if text else o
        for o in options
        for text in [lowered.get(o.source)]
    ]
    return Offers(
        options=_slots_first(options),
        full=tuple(full),
        refused=tuple(refused),
        room=room,
        smaller=smaller,
        empty=empty,
    )


def _slots_first(options: Sequence[MachineOption]) -> tuple[MachineOption, ...]:
    """The options, such that each slot costs less than any machine that is bought."""
    dearest = max((option.cost for option in options if option.source), default=0.0)
    cheapest = min((option.cost for option in options if not option.source), default=math.inf)
    if dearest < cheapest:
        return tuple(options)
    share = cheapest / dearest / 2
    return tuple(replace(o, cost=share * o.cost) if o.source else o for o in options)


def _taken(way: Way) -> bool:
    return bool(way.odcr_id) and way.out is not None and way.out.reason == RESERVATION_FULL


def _within_quota(
    room: dict[str, int], entitlements: Entitlements, uids: Iterable[str], lent: Mapping[SlotPool, int]
) -> dict[str, str]:
    """Lowers the room of owned slots to the share of the most entitled queue. Returns why, by reservation.

    `lent`: slots that come back to their owner.
    """
    queues = sorted({entitlements.draws.get(uid, "") for uid in uids})
    by_slot_pool: dict[SlotPool, list[str]] = defaultdict(list)
    for id_ in sorted(room):
        if (slot_pool := entitlements.slot_pools.get(id_)) is not None:
            by_slot_pool[slot_pool].append(id_)
    lowered: dict[str, str] = {}
    for slot_pool, ids in by_slot_pool.items():
        availability = entitlements.of(slot_pool)
        shares = {"": 0}
        for queue in queues:
            borrowed = min(
                availability.lendable, entitlements.borrow.get(SlotPool(queue, slot_pool.flavor), 0)
            )
            own = min(availability.room + lent.get(slot_pool, 0), availability.quota)
            shares[queue] = own if slot_pool.owner == queue else min(availability.room, borrowed)
        most = max(shares, key=lambda queue: shares[queue])
        share = max(0, shares[most])
        limit = entitlements.after([(most, ids[0])] * share).limit(most, slot_pool)
        for id_ in ids:
            if room[id_] > share and limit is not None:
                lowered[id_] = limit[1]
            room[id_] = min(room[id_], share)
            share -= room[id_]
    return lowered


def _variants(pool: ServedPool, pods: Iterable[PendingPod]) -> list[dict[str, str]]:
    """The label values of the user's own where the pool leaves a choice: those that pods allow, all of these
    if the pods are spread over them, and otherwise the first.
    """
    keys = [key for key in pool.requirements if key not in pool.labels and key not in WELL_KNOWN]
    node = pool_node(pool.pool)
    rules = {
        (info.node_selector, info.node_terms, info.tolerations, frozenset(topology_keys(info))): info
        for info in (pod.info for pod in pods if keys)
    }
    allowed = {(pool.requirements, frozenset[str]()): None}
    for (*_, over), info in rules.items():
        allowed |= dict.fromkeys((required, over) for required in node.selections(info))
    variants: dict[tuple[tuple[str, str], ...], None] = {}
    for required, over in allowed:
        listed = {key: values for key in keys if (values := required.choices(key))}
        some = (values[: MOST_VALUES if key in over else 1] for key, values in listed.items())
        variants |= dict.fromkeys(tuple(zip(listed, values, strict=True)) for values in product(*some))
    return [dict(values) for values in variants]


class MachineMaker:
    """Makes the machines of one pool with one set of labels: those to open, and those that replace nodes."""

    def __init__(
        self,
        pool: NodePool,
        labels: Mapping[str, str],
        known: ClassCatalog,
        inventory: Inventory,
        daemons: DaemonOverhead,
        learned: LearnedRoom,
        drawing: Drawing = NO_DRAWING,
    ) -> None:
        """`labels`: those that do not follow from the instance."""
        self._pool, self._labels, self._drawing = pool, labels, drawing
        self._inventory, self._daemons, self._learned = inventory, daemons, learned
        self._known = known
        self.smaller: dict[MachineSort, SmallerMachine] = {}
        self._taints = node_taints(pool.spec.template.spec.taints)
        self._capacity: dict[str, dict[str, int]] = {}

    def machine(self, option: Option, odcr_id: str = "") -> MachineOption:
        """The machine of an option, in a reservation or outside (empty).

        The claim of pods with rules about its reservation names that reservation.
        """
        place = option.pool
        candidate = self._known.candidates[place.instance_type]
        zone = self._known.zones.get(place.zone, {})
        labels = {**candidate.labels, **zone, CAPACITY_TYPE: place.capacity_type, **self._labels}
        if not odcr_id:
            return self._machine(option, candidate, labels, _price(option.price, candidate.type))
        labels |= reservation_labels(self._inventory.odcrs[odcr_id])
        cost = SLOT_SHARE * _price(None, candidate.type)
        return self._machine(option, candidate, labels, cost, odcr_id)

    def _machine(
        self, option: Option, candidate: CandidateType, labels: dict[str, str], cost: float, source: str = ""
    ) -> MachineOption:
        name = candidate.type.name
        node_class = self._pool.spec.template.spec.node_class_ref.name
        node = NodeInfo(name=name, labels=future_labels(labels, node_class), taints=self._taints)
        estimated = whole(candidate.allocatable)
        overhead = self._daemons.on(node)
        room = {key: estimated.get(key, 0) - overhead[key] for key in estimated.keys() | overhead.keys()}
        sort = MachineSort(self._pool.name, name)
        if less := self._learned.room(sort, estimated, overhead):
            node_name = self._learned.lessons[sort].node
            self.smaller[sort] = SmallerMachine(expected=room, room=less, node=node_name)
            room = {**room, **less}
        if name not in self._capacity:
            self._capacity[name] = whole(capacity(candidate.type, self._known.node_class)) | {NODES: 1}
        return MachineOption(
            pool=self._pool.name,
            node=replace(node, allocatable={key: max(0, amount) for key, amount in room.items()}),
            instance_type=name,
            zone=option.pool.zone,
            capacity_type=option.pool.capacity_type,
            cost=cost,
            source=source,
            drawing=self._drawing,
            weight=self._pool.spec.weight or 0,
            accelerated=has_accelerator(candidate.type),
            capacity=self._capacity[name],
            daemons=overhead,
        )


def _price(price: float | None, type_: InstanceType) -> float:
    if price is None:
        price = type_.on_demand_price
    if price is not None:
        return price
    accelerators = sum(gpu.count for gpu in type_.gpus) + type_.neurons
    return type_.vcpus * CPU_GUESS + accelerators * ACCELERATOR_GUESS
