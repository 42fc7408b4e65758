"""Missing capacity: amounts that the broker could have and does not; never read from the broker."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from broker.apis import names
from broker.apis.core import ConfigMap
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.ome import CapacityReservation
from broker.reservations.purchases import LEDGER
from broker.text import decode_duration
from providers.names import MANAGED_BY
from tests.simulation.setting import BOUGHT, PER
from tests.simulation.world import World, condition

Json = dict[str, Any]
PAYING = ("active", "pending", "scheduled", "assessing", "delayed")


def purchase_unclear(world: World, reservation: Json) -> bool:
    """Whether a reservation is deleted while the result of a purchase for it is unknown."""
    if not reservation["metadata"].get("deletionTimestamp"):
        return False
    ledger = world.objects(ConfigMap.KIND).get(("kube-system", LEDGER), {})
    name = f"{reservation['metadata']['namespace']}/{reservation['metadata']['name']}"
    return any(
        key.startswith("purchase-") and name in text for key, text in (ledger.get("data") or {}).items()
    )


def missed(world: World) -> str:
    """Missing capacity that could be had: an instance of a waiting claim, a requested reservation.

    The broker may wait for a shortage to be over before it tries again; that is for the caller to allow.
    """
    odcrs = {o.id: o for o in world.odcrs()}
    classes = world.objects(EC2NodeClass.KIND)
    for claim in world.claims():
        meta, spec = claim["metadata"], claim["spec"]
        if instance_of(claim) or meta.get("deletionTimestamp") or not meta["name"].startswith("c-"):
            continue
        node_class = classes.get(("", spec["nodeClassRef"]["name"]))
        if node_class is None or node_class["metadata"].get("deletionTimestamp"):
            continue
        requirements = {r["key"]: r["values"] for r in spec["requirements"]}
        if "on-demand" in requirements[names.CAPACITY_TYPE]:
            return f"{meta['name']} waits, and may launch on demand: {conditions_text(claim)}"
        if spec["nodeClassRef"]["name"] != "by-id":
            continue
        target = node_class["spec"].get("capacityReservationSpec", {}).get("capacityReservationTarget", {})
        odcr = odcrs.get(target.get("capacityReservationId", ""))
        if odcr is not None and odcr.usable and odcr.available > 0:
            return f"{meta['name']} waits, and {odcr.id} has {odcr.available} free: {conditions_text(claim)}"
    return misbought(world)


def misbought(world: World) -> str:
    """If only one reservation requests capacity of EC2, that amount is bought, or the amount in use."""
    bought = [o for o in world.odcrs() if MANAGED_BY in world.tags(o.id) and o.state in PAYING]
    bought = [o for o in bought if o.id not in world.facts.foreign]
    requesting = {
        name: obj
        for (_, name), obj in world.objects(CapacityReservation.KIND).items()
        if obj["metadata"].get("annotations", {}).get(names.RESERVATION_POLICY)
    }
    of = {world.tags(o.id).get(names.TAG_RESERVATION) for o in bought} - {"default/bought"}
    if [*requesting] != ["bought"] or of or world.facts.shrunk & {o.id for o in bought}:
        return ""
    obj = requesting["bought"]
    noted = obj["metadata"]["annotations"]
    if noted[names.RESERVATION_POLICY] != "Manage" or obj["metadata"].get("deletionTimestamp"):
        return ""
    quota = obj["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"]
    expected = min(int(quota) // PER[BOUGHT], world.settings.buy_instances_each)
    has = sum(o.total for o in bought)
    if has == expected or (not expected and noted.get(names.DELETION_POLICY) != "Cancel"):
        return ""  # capacity that is no longer requested is retained, unless it is to be cancelled
    return f"{has} are bought for default/bought, which requests {expected}: {conditions_text(obj)}"


def in_progress(claim: Json) -> bool:
    """It is deleted, its node is not ready yet, or EC2's answer is unknown or a refusal that is not over.

    Nor does it rest while its replacement failed: another is tried minutes later.
    """
    if condition(claim, names.DISRUPTION_REASON).get("status") == "False":
        return True
    launched = condition(claim, names.LAUNCHED)
    if claim["metadata"].get("deletionTimestamp") or launched.get("reason") == "LaunchNotConfirmed":
        return True
    if claim["metadata"]["name"] == "karpenters":
        return False
    if instance_of(claim):
        return bool(condition(claim, names.READY).get("status") != "True")
    return "not tried again before" in launched.get("message", "")


def drain_ends(claim: Json) -> datetime | None:
    """Until when the drain of a claim that is deleted may take; None without a bound."""
    period, deleted = claim["spec"].get("terminationGracePeriod"), claim["metadata"].get("deletionTimestamp")
    ends: list[datetime] = []
    if period and deleted:
        ends.append(datetime.fromisoformat(deleted) + decode_duration(period))
    if until := claim["metadata"].get("annotations", {}).get(names.TERMINATION_DEADLINE):
        ends.append(datetime.fromisoformat(until))
    return min(ends, default=None)


def instance_of(claim: Json) -> str:
    return str(claim.get("status", {}).get("providerID", "")).rpartition("/")[2]


def conditions_text(obj: Json) -> str:
    conditions = obj.get("status", {}).get("conditions") or ()
    return "; ".join(
        f"{c['type']}={c['status']} {c.get('reason')}: {c.get('message', '')[:120]}" for c in conditions
    )


def ids_in(value: Any) -> set[str]:
    """Every text anywhere in a call's parameters."""
    if isinstance(value, str):
        return {value}
    if isinstance(value, Mapping):
        return {text for item in value.values() for text in ids_in(item)}
    if isinstance(value, list | tuple):
        return {text for item in value for text in ids_in(item)}
    return set()
