"""Tries each class's launch before the first claim does, and reports a missing permission on the class.

Invariant: a trial launches nothing and no launch waits for one. A class is tried some seconds after it was
resolved, one class at a time and at a bounded rate. It is tried again after an hour, or sooner after a
refusal. A successful launch proves more than a trial, and replaces one.

A class is marked only if a policy denies every launch that was tried: a policy may deny one type or subnet,
and a fleet launches from the others. Refused credentials, throttling and AWS's own faults change nothing,
since they are not about the class. Any other answer clears an earlier mark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog

from broker.apis import names
from broker.apis.karpenter import NodeClaim, NodePool
from broker.capacity.launches import LaunchGroup, group
from broker.capacity.model import NodeClass, Selection
from broker.capacity.plan import plan
from broker.capacity.shortages import Shortages
from broker.capacity.supply import LaunchSupply
from broker.controllers.inventory import InventoryCache
from broker.controllers.launch.template import NodeBootstrap, instance_tags, template
from broker.controllers.nodeclass.controller import NodeClassController
from broker.controllers.nodeclass.resolve import LaunchClass
from broker.doubling import doubled
from broker.kube.cache import Cache
from broker.kube.clock import Clock
from broker.kube.controller import Result
from broker.placement.claims import BadClaim, planned
from providers.base import LaunchCalls
from providers.errors import ProviderError
from providers.launch import Override
from providers.model import InstanceType

FIRST_TRIAL_DELAY: Final = 5.0  # seconds after a class was resolved: claims that wait for it go first
APART: Final = 2.0  # seconds between two trials; each is four calls, or up to 16 if launches are denied
REFRESH: Final = 3600.0
AGAIN: Final = (30.0, 300.0)  # after a refusal: first, longest
MOST_OVERRIDES: Final = 4  # overrides tried of a class, over all its pools
MOST_OF_ONE: Final = 3  # overrides tried of one fleet
NAME: Final = "trial"

_log = structlog.get_logger("trial")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The last trial or launch of a class as it was then; `due` is the time of the next trial."""

    seen: object
    due: float
    refusals: int = 0


class LaunchTrials:
    """Reconciles classes by name, on one thread. `launched` may be called on another."""

    def __init__(
        self,
        provider: LaunchCalls,
        nodeclasses: NodeClassController,
        pools: Cache[NodePool],
        inventory: InventoryCache,
        *,
        clock: Clock,
        cluster: NodeBootstrap,
        types: Callable[[], Mapping[str, InstanceType]],
        owns: Callable[[NodePool], bool],
    ) -> None:
        """`owns`: the broker launches the pool's claims."""
        self._provider = provider
        self._nodeclasses = nodeclasses
        self._pools = pools
        self._inventory = inventory
        self._clock = clock
        self._cluster = cluster
        self._types = types
        self._owns = owns
        self._last: dict[str, Trial] = {}
        self._free = float("-inf")  # when the next trial may begin

    def launched(self, ready: LaunchClass) -> None:
        """Records a launch from the class, which replaces a trial."""
        due = self._clock.monotonic() + REFRESH
        self._last[ready.source.name] = Trial(seen=_seen(ready), due=due)
        self._mark(ready, "")

    def reconcile(self, name: str) -> Result | None:
        ready, now = self._nodeclasses.resolved(name), self._clock.monotonic()
        pools = [p for p in self._pools.list() if p.spec.template.spec.node_class_ref.name == name]
        if ready is None or (pools and not any(map(self._owns, pools))):
            self._last.pop(name, None)
            return None  # gone, wrong, or launched by Karpenter alone
        last = self._last.get(name)
        same = last is not None and last.seen == _seen(ready)
        if last is not None and same and now < last.due:
            return Result(requeue_after=last.due - now)
        if now < self._free:
            return Result(requeue_after=self._free - now)
        self._free = now + APART
        refusals = last.refusals if last is not None and same else 0
        wait = REFRESH
        mark: str | None  # None: the class's mark stays as it is
        try:
            denial = self._denial(ready, [*filter(self._owns, pools)] or [None])
            refusal = mark = denial or ""
            if denial is None:
                wait = AGAIN[1]
        except ProviderError as error:
            refusal = str(error)
            mark = None if error.class_.of_caller else ""
        refusals = refusals + 1 if refusal else 0
        if refusal:
            wait = doubled(*AGAIN, refusals - 1)
            _log.info("trial refused", nodeclass=name, error=refusal, again_seconds=wait)
        if self._last.get(name) is last:  # nothing was launched meanwhile
            self._last[name] = Trial(seen=_seen(ready), due=now + wait, refusals=refusals)
            if mark is not None:
                self._mark(ready, mark)
        return Result(requeue_after=wait)

    def _mark(self, ready: LaunchClass, denial: str) -> None:
        """Marks the class as not launchable; an empty denial clears the mark."""
        self._nodeclasses.forbid(ready.source, denial and f"the broker's role lacks {denial}")

    def _denial(self, ready: LaunchClass, pools: Iterable[NodePool | None]) -> str | None:
        """The first denial if a policy denies all launches that were tried; empty once one is allowed.

        None if nothing can be launched from the class now. Raises ProviderError for any other refusal. A pool
        with invalid requirements is skipped: its claims report the fault.
        """
        denial: str | None = None
        tried: set[tuple[str, str, str]] = set()
        for pool in pools:
            try:
                claim = _claim(ready, pool)
                fleets = self._fleets(ready, claim)
            except BadClaim:
                continue
            for fleet in fleets:
                untried = [override for override in fleet.overrides if _pool(fleet, override) not in tried]
                if not untried:
                    continue
                overrides = unlike(untried, min(MOST_OF_ONE, MOST_OVERRIDES - len(tried)))
                tried.update(_pool(fleet, override) for override in overrides)
                denied = self._try(ready, fleet, claim, overrides)
                if not denied:
                    return ""
                denial = denial or denied
                if len(tried) == MOST_OVERRIDES:
                    return denial
        return denial

    def _try(
        self, ready: LaunchClass, fleet: LaunchGroup, claim: NodeClaim, overrides: Sequence[Override]
    ) -> str:
        content = template(ready, fleet, claim, provider=self._provider, cluster=self._cluster)
        return self._provider.try_launch(
            replace(content, tags={**content.tags, names.TAG_TRIAL: "true"}),
            owner=ready.source.name,
            overrides=overrides,
            market=fleet.fleet_market,
            tags=instance_tags(ready, launch=NAME, cluster=self._cluster.name),
        )

    def _fleets(self, ready: LaunchClass, claim: NodeClaim) -> list[LaunchGroup]:
        """The fleets that can serve the claim; for a chosen reservation, those of the other reservations too.

        If all reservations are full, a launch outside them is tried instead.
        """
        outside = replace(ready.plan, selection=Selection(preference="none"))
        return self._planned(claim, ready.plan) or self._planned(claim, outside)

    def _planned(self, claim: NodeClaim, node_class: NodeClass) -> list[LaunchGroup]:
        types, plans, now = self._types(), {node_class.name: node_class}, self._clock.now()
        waiting = [planned(claim)]
        supply = LaunchSupply(
            classes=plans, types=types, inventory=self._inventory.snapshot(), shortages=Shortages(), now=now
        )
        assignments = plan(waiting, supply).assignments
        choices = [
            replace(assignment, option=option, rest=assignment.rest if option is assignment.option else ())
            for assignment in assignments
            for option in (assignment.option, *assignment.rest)
            if option is assignment.option
            or option.pool.capacity_type == assignment.option.pool.capacity_type == "reserved"
        ]
        return group(choices, node_classes=plans, types=types, shortages=Shortages(), now=now)


def _claim(ready: LaunchClass, pool: NodePool | None) -> NodeClaim:
    """A claim with the pool's requirements; without a pool, with none."""
    requirements = pool.spec.template.spec.wire().get("requirements", []) if pool is not None else []
    if not any(requirement["key"] == names.CAPACITY_TYPE for requirement in requirements):
        values = ["reserved", "on-demand"]
        requirements = [*requirements, {"key": names.CAPACITY_TYPE, "operator": "In", "values": values}]
    reference = {"group": names.BROKER, "kind": "EC2NodeClass", "name": ready.source.name}
    return NodeClaim.decode(
        {
            "metadata": {"name": NAME, "uid": NAME},
            "spec": {"nodeClassRef": reference, "requirements": requirements},
        }
    )


def _pool(fleet: LaunchGroup, override: Override) -> tuple[str, str, str]:
    return fleet.capacity_type, override.instance_type, override.subnet_id


def unlike(overrides: Sequence[Override], limit: int) -> tuple[Override, ...]:
    """The first override and up to `limit` - 1 others.

    Each differs as much as possible from those before it, in family, type and subnet.
    """

    def news(override: Override) -> int:
        family = override.instance_type.partition(".")[0]
        return sum(
            (
                all(other.instance_type.partition(".")[0] != family for other in chosen),
                all(other.instance_type != override.instance_type for other in chosen),
                all(other.subnet_id != override.subnet_id for other in chosen),
            )
        )

    remaining, chosen = list(overrides), list[Override]()
    while remaining and len(chosen) < limit:
        chosen.append(remaining.pop(remaining.index(max(remaining, key=news))))
    return tuple(chosen)


def _seen(ready: LaunchClass) -> object:
    """The inputs of a trial; a change of them calls for another trial."""
    around = ready.surroundings
    return (
        ready.source.uid,
        ready.source.metadata.generation,
        sorted(subnet.id for subnet in around.subnets),  # their free addresses change all the time
        [security_group.id for security_group in around.security_groups],
        [image.id for image in around.images],
        around.instance_profile,
        ready.network,
    )
