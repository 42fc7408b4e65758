"""The invariants of full reservations at rest, read from the API server's and EC2's memory alone.

What EC2 counts is on claims and Nodes, no node runs beside an idle slot that it may use, no rollout is left
half done, and no owner waits beside a loan.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from broker.apis import names
from broker.apis.karpenter_aws import EC2NodeClass
from broker.capacity.successors import AWAITS_REPLACED
from tests.simulation.claim_facts import draws_of, ends, node_of, registered, until_of
from tests.simulation.missing import conditions_text, instance_of
from tests.simulation.pools import CPUS, ON_DEMAND, RESERVED, app_of, pod_cpu, pods_of, pools_of
from tests.simulation.pools_watch import PoolsWatch
from tests.simulation.setting import BORROWER, OWNER
from tests.simulation.violation import Violation
from tests.simulation.world import World, condition

Json = dict[str, Any]
SLACK = timedelta(seconds=60)


class FullRest:
    """Looks at one world once faults have stopped."""

    def __init__(self, world: World, pools: PoolsWatch) -> None:
        self._world, self._pools = world, pools

    def check(self) -> None:
        claims = [c for c in self._world.claims() if c["metadata"]["name"] != "karpenters"]
        for claim in claims:
            self._hold_over(claim)
            self._followed(claim)
        for text in self._beside(claims):
            raise Violation("idle slot", text)
        self._owner_waits(claims)
        for claim in claims:
            self._follows(claim)
            self._rolled_out(claim, claims)

    def _follows(self, claim: Json) -> None:
        """A following pool has no claim without a slot."""
        pool = claim["metadata"].get("labels", {}).get(names.NODEPOOL, "")
        shape = self._world.pool_facts.shapes.get(pool)
        refused = "not tried again before" in conditions_text(claim)
        if shape is not None and shape.follows and not instance_of(claim) and not refused:
            raise Violation("static slots", f"{claim['metadata']['name']} waits: {conditions_text(claim)}")

    def _rolled_out(self, claim: Json, claims: list[Json]) -> None:
        """A node that drifted in a full reservation is replaced there, unless something holds it up."""
        world, meta = self._world, claim["metadata"]
        pool = pools_of(world).get(meta.get("labels", {}).get(names.NODEPOOL, ""))
        if (
            pool is None
            or condition(claim, "Drifted").get("status") != "True"
            or not self._free_to_go(claim, pool)
        ):
            return
        instance = next(i for i in world.instances() if i.id == instance_of(claim))
        odcr = next((o for o in world.odcrs() if o.id == instance.capacity_reservation_id), None)
        if (
            odcr is None
            or self._owned(odcr)
            or not self._may_use(claim, odcr)
            or odcr.slots.used > odcr.total
        ):
            return
        outside = [
            i
            for i in world.all_instances()
            if i.instance_type == odcr.instance_type
            and not i.capacity_reservation_id
            and i.state == "running"
        ]
        if any(i.id not in world.facts.foreign for i in outside) or any(not instance_of(c) for c in claims):
            return  # EC2 may give them the slot
        raise Violation("rolled out", f"{meta['name']} stays in {odcr.id}: {conditions_text(claim)}")

    def _free_to_go(self, claim: Json, pool: Json) -> bool:
        """Whether neither the pool's settings nor the pods of the node keep it."""
        noted = pool["metadata"].get("annotations") or {}
        if noted.get(names.REPLACE) == "launch-first" or pool["spec"].get("limits") or ends(claim):
            return False
        if pool["spec"]["disruption"]["budgets"] == [{"nodes": "0"}] or pool["metadata"].get(
            "deletionTimestamp"
        ):
            return False
        pods = [
            p for p in pods_of(self._world) if p["spec"].get("nodeName") == claim["status"].get("nodeName")
        ]
        waiting = any(not p["spec"].get("nodeName") for p in pods_of(self._world))
        gang = any((owner := app_of(self._world, pod)) is None or owner.gang for pod in pods)
        failed = condition(claim, names.DISRUPTION_REASON).get("status") == "False"
        return not (waiting or gang or failed or any(self._pools.blocked(pod) for pod in pods))

    def _hold_over(self, claim: Json) -> None:
        until, waits = until_of(claim), condition(claim, names.LAUNCHED).get("reason") == AWAITS_REPLACED
        if until is not None and not instance_of(claim) and waits and until + SLACK < self._world.time.now():
            raise Violation("bounded hold", f"{claim['metadata']['name']} waits: {conditions_text(claim)}")

    def _followed(self, claim: Json) -> None:
        """Claim and Node show the reservation in which EC2 counts the instance."""
        instance = next((i for i in self._world.instances() if i.id == instance_of(claim)), None)
        if instance is None or ends(claim):
            return
        counted = instance.capacity_reservation_id or ""
        expected = (RESERVED if counted else ON_DEMAND, counted)
        node = node_of(self._world, claim)
        for obj in (claim, node) if node and registered(node) else (claim,):
            labels = obj["metadata"].get("labels", {})
            shown = (labels.get(names.CAPACITY_TYPE), labels.get(names.RESERVATION_ID, ""))
            if shown != expected:
                text = f"{obj['metadata']['name']} shows {shown}, and EC2 counts {instance.id} in {counted!r}"
                raise Violation("followed", text)

    def _beside(self, claims: list[Json]) -> Iterator[str]:
        """Nodes outside reservations beside an idle slot that they may use."""
        world = self._world
        waiting = [c for c in claims if not instance_of(c)]
        if waiting or any(not pod["spec"].get("nodeName") for pod in pods_of(world)):
            return  # they may need it
        idle = [o for o in world.odcrs() if o.state == "active" and o.available > 0 and not self._owned(o)]
        for instance in world.instances():
            claim = next((c for c in claims if instance_of(c) == instance.id), None)
            if claim is None or instance.capacity_reservation_id or not self._returns(claim):
                continue
            for odcr in idle:
                if self._may_use(claim, odcr):
                    text = f"{claim['metadata']['name']} runs outside beside {odcr.available} of {odcr.id}"
                    yield f"{text}: {conditions_text(claim)}"

    def _owned(self, odcr: Any) -> bool:
        return (
            bool(self._world.tags(odcr.id).get(names.TAG_RESERVATION)) or odcr.id in self._world.facts.foreign
        )

    def _returns(self, claim: Json) -> bool:
        """Whether the broker moves the node into idle slots: its pool allows it, and nothing holds it up."""
        world, meta = self._world, claim["metadata"]
        name = meta.get("labels", {}).get(names.NODEPOOL, "")
        pool = pools_of(world).get(name)
        if pool is None or ends(claim) or world.pool_facts.shapes[name].static:
            return False
        text = (pool["metadata"].get("annotations") or {}).get(names.RETURN_TO_RESERVATIONS)
        outside = condition(claim, names.CAPACITY_RESERVATION).get("reason") == "LimitExceeded"
        disruption = pool["spec"]["disruption"]
        if text == "false" or (text is None and not outside) or pool["spec"].get("limits"):
            return False
        if disruption.get("consolidateAfter") == "Never" or disruption["budgets"] == [{"nodes": "0"}]:
            return False
        pods = [p for p in pods_of(world) if p["spec"]["nodeName"] == claim["status"].get("nodeName")]
        gang = any((owner := app_of(world, pod)) is None or owner.gang for pod in pods)
        failed = condition(claim, names.DISRUPTION_REASON).get("status") == "False"
        blocked = failed or gang or any(self._pools.blocked(pod) for pod in pods)
        return bool(pods) and not blocked and condition(claim, names.CONSOLIDATABLE).get("status") == "True"

    def _may_use(self, claim: Json, odcr: Any) -> bool:
        """Whether the pool of the claim, as it is now, could launch for its pods into the reservation."""
        world = self._world
        shape = world.pool_facts.shapes[claim["metadata"]["labels"][names.NODEPOOL]]
        node_class = world.objects(EC2NodeClass.KIND).get(("", shape.node_class))
        if node_class is None or condition(node_class, "Ready").get("status") != "True":
            return False
        if RESERVED not in shape.capacity or odcr.instance_type not in shape.types:
            return False
        if odcr.zone not in zones_of(node_class) or not selects(world, node_class, odcr):
            return False
        node = claim["status"].get("nodeName")
        return (
            sum(pod_cpu(p) for p in pods_of(world) if p["spec"]["nodeName"] == node)
            <= 1000 * CPUS[odcr.instance_type]
        )

    def _owner_waits(self, claims: list[Json]) -> None:
        """No claim of an owner waits for a slot of its own that a borrower has."""
        world, alive = self._world, {i.id for i in self._world.instances()}
        lent = [o for o in world.odcrs() if world.tags(o.id).get(names.TAG_RESERVATION) == OWNER and o.usable]
        loans = {
            c["metadata"]["name"]
            for c in claims
            if draws_of(c) == BORROWER and any(instance_of(c) in {*o.slots.occupants} & alive for o in lent)
        }
        for claim in claims:
            if draws_of(claim) != OWNER or instance_of(claim) or ends(claim) or not loans:
                continue
            if world.facts.shrunk & {o.id for o in lent} or "not tried again before" in conditions_text(
                claim
            ):
                continue
            gang = claim["metadata"]["annotations"].get(names.GANG)
            together = [c for c in claims if gang and c["metadata"]["annotations"].get(names.GANG) == gang]
            if len(together) > sum(o.total for o in lent):
                continue  # a gang that cannot be whole takes no loan back
            name = claim["metadata"]["name"]
            raise Violation("owner first", f"{name} waits beside {sorted(loans)}: {conditions_text(claim)}")


def zones_of(node_class: Json) -> set[str]:
    subnets = node_class.get("status", {}).get("subnets") or ()
    return {subnet["zone"] for subnet in subnets}


def selects(world: World, node_class: Json, odcr: Any) -> bool:
    """Whether a class launches into the reservation."""
    spec = node_class["spec"].get("capacityReservationSpec") or {}
    target = spec.get("capacityReservationTarget") or {}
    if id_ := target.get("capacityReservationId"):
        return bool(odcr.id == id_)
    if group := target.get("capacityReservationResourceGroupArn"):
        listed = world.aws.groups.list_group_resources(Group=group)["Resources"]
        return odcr.id in {item["Identifier"]["ResourceArn"].rpartition("/")[2] for item in listed}
    return spec.get("capacityReservationPreference") == "open" and odcr.match_criteria == "open"
