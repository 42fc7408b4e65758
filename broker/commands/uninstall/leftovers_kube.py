"""The broker's traces in Kubernetes: finalizers, terms, annotations, conditions and objects of its own.

Invariant: fields of users and of other controllers stay. Karpenter's finalizer `karpenter.sh/termination`
goes only from NodeClaims of the broker's group and from their Nodes, since Karpenter ignores those.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from broker.admission.registration import NAME, SECRET
from broker.apis import names
from broker.apis.admission import Secret, ValidatingWebhookConfiguration
from broker.apis.capacity_broker import OnDemandCapacityReservation
from broker.apis.coordination import Lease
from broker.apis.core import ConfigMap, Node, Pod
from broker.apis.crds import KIND as CRD
from broker.apis.godel import FINALIZER as GODEL_FINALIZER
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.kueue import VERSIONS, AdmissionCheck, ClusterQueue, LocalQueue, Workload
from broker.apis.meta import Kind
from broker.apis.ome import CapacityReservation, ClusterCapacityReservation
from broker.apis.ome_clusters import DedicatedAICluster
from broker.apis.static_pools import REPLICAS_MET
from broker.app import LEASE
from broker.commands.crds.install import MARK as DEFINITION_MARK
from broker.commands.uninstall.leftovers import RemainingResource, Removal, RemovalPlan
from broker.controllers.advisor.controller import LIST
from broker.controllers.advisor.terms import Record, load, split
from broker.controllers.disruption.rollouts import NODES_REPLACED
from broker.controllers.launch.calls import RECORDS
from broker.controllers.launch.published import NAME as SHORTAGES
from broker.controllers.lifecycle.registration import MARK
from broker.controllers.lifecycle.termination import NO_BALANCERS
from broker.controllers.provisioning.pool_status import DRAWING, WITHIN_LIMITS
from broker.controllers.provisioning.published import REPORTS, TYPES
from broker.controllers.provisioning.unused import NODES_USED
from broker.kube import identity
from broker.kube.client import Client
from broker.kube.errors import NotFound
from broker.notifications.record import NAME as NOTIFICATIONS
from broker.placement.pool_choice import OFFERING, SERVED
from broker.reservations.purchases import LEDGER
from broker.scheduler import SCHEDULER_LEASE
from providers.names import MANAGED_BY

Json = dict[str, Any]
Strip = Callable[[Json], tuple[Json, list[str]]]  # the merge patch, and the parts that it removes

CONDITIONS: Final = frozenset(
    (
        names.CAPACITY_RESERVATION,
        names.RESERVATION_SPEC_VALID,
        names.RESERVATIONS_RESOLVED,
        names.LAUNCHABLE,
        names.RESERVATIONS_DESCRIBED,
        names.RESERVATIONS_ADVISED,
        names.RESERVED_ALLOWED,
        names.SPEC_SERVED,
    )
)
# On NodePools of all groups; on those of its own group the broker writes all conditions.
POOL_CONDITIONS: Final = frozenset(
    (
        names.CAPACITY_RESERVATION,
        names.REPAIR_ALLOWED,
        names.RECENT_REPAIRS,
        NODES_REPLACED,
        NODES_USED,
        OFFERING,
        DRAWING,
        REPLICAS_MET,
        SERVED,
        WITHIN_LIMITS,
    )
)
# On nodes that drain or reboot.
CLOSING_TAINTS: Final = (names.DISRUPTED_TAINT, names.REBOOTING_TAINT)
# The broker's objects, dependents first: a queue names the check, and a workload the queue.
OBJECTS: Final = (Workload.KIND, LocalQueue.KIND, ClusterQueue.KIND, AdmissionCheck.KIND)
STATE: Final = (*RECORDS, LEDGER, SHORTAGES, TYPES, REPORTS, NOTIFICATIONS)
LEASES: Final = (LEASE, SCHEDULER_LEASE)


def find(client: Client, plan: RemovalPlan, *, keep_terms: bool) -> None:
    """Adds everything but the broker's own state, which `state` removes at the end."""
    add = plan.collect
    add("ValidatingWebhookConfiguration", lambda: _webhook(client))
    for kind in OBJECTS:
        add(kind.kind, partial(_queued, client, kind))
    add("OnDemandCapacityReservation", lambda: _objects(client, OnDemandCapacityReservation.KIND))
    add("EC2NodeClass", lambda: _stripped(client, EC2NodeClass.KIND, partial(_class, keep_terms=keep_terms)))
    add("EC2NodeClass/status", lambda: _class_status(client))
    add("NodePool", lambda: _stripped(client, NodePool.KIND, _pool_conditions, subresource="status"))
    add("Node, NodeClaim", lambda: _machines(client))
    for model in (CapacityReservation, ClusterCapacityReservation, DedicatedAICluster):
        add(
            model.KIND.kind,
            partial(_stripped, client, model.KIND, partial(_finalizer, names.RESERVED_FINALIZER)),
        )
    add("Pod", lambda: _stripped(client, Pod.KIND, partial(_finalizer, GODEL_FINALIZER)))
    add("CustomResourceDefinition", lambda: _definitions(client))


def state(client: Client) -> list[Removal]:
    """The Leases and the records of calls and purchases: removed last, since they guard the rest."""
    kept = [(ConfigMap.KIND, name) for name in STATE] + [(Lease.KIND, name) for name in LEASES]
    kept.append((ConfigMap.KIND, identity.NAME))
    removal_plan = RemovalPlan()
    for kind, name in kept:
        removal_plan.collect(kind.kind, partial(_named, client, kind, name, identity.NAMESPACE))
    return removal_plan.removals


def _named(client: Client, kind: Kind, name: str, namespace: str | None = None) -> Iterator[Removal]:
    client.get(kind, name, namespace=namespace)
    shown = f"{namespace}/{name}" if namespace else name
    yield Removal(
        kind=kind.kind, name=shown, action="delete", remove=partial(_delete, client, kind, name, namespace)
    )


def _delete(client: Client, kind: Kind, name: str, namespace: str | None) -> None:
    client.delete(kind, name, namespace=namespace)


def _webhook(client: Client) -> Iterator[Removal]:
    configuration = client.get(ValidatingWebhookConfiguration.KIND, NAME)
    services = [hook["clientConfig"].get("service") for hook in configuration.get("webhooks", ())]
    yield from _named(client, ValidatingWebhookConfiguration.KIND, NAME)
    for namespace in sorted({service["namespace"] for service in services if service}):
        yield from _named(client, Secret.KIND, SECRET, namespace)


def _objects(client: Client, kind: Kind, *, label: str = "") -> Iterator[Removal]:
    for raw in client.list(kind, label_selector=label)[0]:
        name, namespace = _key(raw)
        yield Removal(
            kind=kind.kind,
            name=_shown(raw),
            action="delete",
            remove=partial(_delete, client, kind, name, namespace),
        )


def _queued(client: Client, kind: Kind) -> Iterator[Removal]:
    """Lists the objects of Kueue in the version that the cluster serves."""
    for version in VERSIONS:
        with suppress(NotFound):
            yield from _objects(client, replace(kind, version=version), label=f"{MANAGED_BY}={NAME}")
            return


def _key(raw: Mapping[str, Any]) -> tuple[str, str | None]:
    return raw["metadata"]["name"], raw["metadata"].get("namespace")


def _shown(raw: Mapping[str, Any]) -> str:
    name, namespace = _key(raw)
    return f"{namespace}/{name}" if namespace else name


def _stripped(
    client: Client,
    kind: Kind,
    strip: Strip,
    raws: list[Json] | None = None,
    *,
    subresource: str | None = None,
) -> Iterator[Removal]:
    for raw in client.list(kind)[0] if raws is None else raws:
        _, removed = strip(raw)
        if removed:
            yield Removal(
                kind=kind.kind,
                name=_shown(raw),
                action="remove " + ", ".join(removed),
                remove=partial(_strip, client, kind, _key(raw), strip, subresource),
            )


def _strip(
    client: Client, kind: Kind, key: tuple[str, str | None], strip: Strip, subresource: str | None
) -> None:
    name, namespace = key
    raw = client.get(kind, name, namespace=namespace)
    body, removed = strip(raw)
    if removed:
        body.setdefault("metadata", {})["resourceVersion"] = raw["metadata"]["resourceVersion"]
        client.patch(kind, name, body, namespace=namespace, subresource=subresource)


def _finalizer(finalizer: str, raw: Json) -> tuple[Json, list[str]]:
    finalizers = raw["metadata"].get("finalizers", [])
    if finalizer not in finalizers:
        return {}, []
    left = [name for name in finalizers if name != finalizer]
    return {"metadata": {"finalizers": left or None}}, [f"finalizer {finalizer}"]


def _annotations(raw: Json, body: Json, keys: tuple[str, ...]) -> list[str]:
    """Adds the removal of annotations to a patch."""
    present = [key for key in keys if key in raw["metadata"].get("annotations", {})]
    if present:
        body.setdefault("metadata", {})["annotations"] = dict.fromkeys(present)
    return [f"annotation {key}" for key in present]


def _class(raw: Json, *, keep_terms: bool) -> tuple[Json, list[str]]:
    body, removed = _finalizer(names.CLASS_FINALIZER, raw)
    present = list(raw["spec"].get(LIST, ()))
    record = load(raw["metadata"].get("annotations", {}).get(names.ADVISED)) or Record()
    user_terms, _ = split(present, record)
    if len(user_terms) != len(present) and not keep_terms:
        body["spec"] = {LIST: user_terms or None}
        removed.append(f"{len(present) - len(user_terms)} of {LIST}")
    return body, removed + _annotations(raw, body, (names.ADVISED, names.ACCEPTED_SPEC))


def _class_status(client: Client) -> Iterator[Removal]:
    yield from _stripped(client, EC2NodeClass.KIND, _class_conditions, subresource="status")


def _class_conditions(raw: Json) -> tuple[Json, list[str]]:
    return _conditions(raw, CONDITIONS)


def _pool_conditions(raw: Json) -> tuple[Json, list[str]]:
    """Without its broker no controller serves a pool of its group, so none is Ready."""
    present = {condition["type"] for condition in raw.get("status", {}).get("conditions", [])}
    return _conditions(raw, present if _of_broker(raw["spec"]["template"]) else POOL_CONDITIONS)


def _conditions(raw: Json, types: Collection[str]) -> tuple[Json, list[str]]:
    present = raw.get("status", {}).get("conditions", [])
    left = [condition for condition in present if condition["type"] not in types]
    if len(left) == len(present):
        return {}, []
    gone = sorted(condition["type"] for condition in present if condition["type"] in types)
    return {"status": {"conditions": left}}, [f"condition {type_}" for type_ in gone]


def _of_broker(raw: Json) -> bool:
    """Whether a claim, or a template of claims, is of the broker's group."""
    return bool(raw["spec"]["nodeClassRef"].get("group") == names.BROKER)


def _machines(client: Client) -> Iterator[Removal | RemainingResource]:
    """Nodes before claims: a deleting claim without its finalizer takes the Node that it owns along.

    If one of both lists fails, both kinds stay: without the claims, Karpenter's Nodes look like the broker's.
    """
    claims: list[Json] = []
    with suppress(NotFound):  # Nodes may outlive the definition
        claims = client.list(NodeClaim.KIND)[0]
    karpenters = {raw.get("status", {}).get("providerID", "") for raw in claims if not _of_broker(raw)}
    yield from _stripped(client, Node.KIND, partial(_node, karpenters=karpenters - {""}))
    yield from _stripped(client, NodeClaim.KIND, _claim, claims)
    for raw in claims:
        if _of_broker(raw) and not raw["metadata"].get("deletionTimestamp"):
            name = raw["metadata"]["name"]
            why = (
                "its instance runs on" if raw.get("status", {}).get("providerID") else "waits for an instance"
            )
            yield RemainingResource(
                kind="NodeClaim", name=name, why=why, command=f"kubectl delete nodeclaim {name}"
            )


def _claim(raw: Json) -> tuple[Json, list[str]]:
    body, removed = _finalizer(names.TERMINATION_FINALIZER, raw) if _of_broker(raw) else ({}, [])
    return body, removed + _annotations(raw, body, names.WRITTEN_BY_BROKER[NodeClaim.KIND.kind])


def _node(raw: Json, *, karpenters: Collection[str]) -> tuple[Json, list[str]]:
    """A Node of a claim of the broker's group. Without its owner it outlives the claim, with its pods.

    A drain that had begun goes no further.
    `karpenters`: the providerIDs of Karpenter's claims.
    """
    metadata = raw["metadata"]
    if MARK not in metadata.get("annotations", {}):
        return {}, []
    body: Json = {}
    removed: list[str] = []
    if raw["spec"].get("providerID", "") not in karpenters:
        body, removed = _finalizer(names.TERMINATION_FINALIZER, raw)
        owners = metadata.get("ownerReferences", [])
        left = [owner for owner in owners if owner["kind"] != NodeClaim.KIND.kind]
        if len(left) != len(owners):
            body.setdefault("metadata", {})["ownerReferences"] = left or None
            removed.append("the owner NodeClaim")
        removed += _reopened(raw, body)
    return body, removed + _annotations(raw, body, (MARK,))


def _reopened(raw: Json, body: Json) -> list[str]:
    """Adds to a patch that the Node takes pods, and load balancers use it, as before a drain or reboot."""
    removed: list[str] = []
    taints = raw["spec"].get("taints", [])
    left = [taint for taint in taints if taint["key"] not in CLOSING_TAINTS]
    if len(left) != len(taints):
        body["spec"] = {"taints": left or None}
        removed += [f"taint {taint['key']}" for taint in taints if taint not in left]
    if raw["metadata"].get("labels", {}).get(names.NODE_NO_BALANCERS) == NO_BALANCERS:
        body.setdefault("metadata", {})["labels"] = {names.NODE_NO_BALANCERS: None}
        removed.append(f"label {names.NODE_NO_BALANCERS}")
    return removed


def _definitions(client: Client) -> Iterator[RemainingResource]:
    for raw in client.list(CRD)[0]:
        if raw["metadata"].get("annotations", {}).get(DEFINITION_MARK) == "true":
            name = raw["metadata"]["name"]
            why = "deleted with all of its objects"
            yield RemainingResource(
                kind="CustomResourceDefinition", name=name, why=why, command=f"kubectl delete crd {name}"
            )
