"""A cluster as it would be with unapplied manifests; or those manifests alone.

Invariant: nothing is written, and only lists are answered. An object's identity is its kind, namespace and
name. An object of the manifests replaces the cluster's as `kubectl apply` would, in its written version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import orjson

from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.kueue import Cohort, Namespace, PriorityClass, ResourceFlavor
from broker.apis.meta import Kind
from broker.apis.ome import CapacityReservation, ClusterCapacityReservation
from broker.apis.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from broker.apis.workloads import DaemonSet, SchedulingPodGroup
from broker.kube.client import Client, Reply, Request, Stream, Transport
from broker.kube.errors import ApiError, NotFound
from broker.kube.transports import NoClusterNamed

# Kinds that a plan reads.
KINDS: Sequence[Kind] = tuple(
    model.KIND
    for model in (
        NodeClaim,
        EC2NodeClass,
        CapacityReservation,
        ClusterCapacityReservation,
        ResourceFlavor,
        Cohort,
        NodePool,
        Namespace,
        PriorityClass,
        DaemonSet,
        SchedulingPodGroup,
        PersistentVolumeClaim,
        PersistentVolume,
        StorageClass,
    )
)
Raw = Mapping[str, Any]
WITHOUT = (403, 404)  # the cluster has none, or shows none; after other answers it may have some


class ExampleAccount(NoClusterNamed):
    """Raised in place of a connection to a cluster if the files are the examples, which need none."""

    def __init__(self) -> None:
        super().__init__(
            "planned from the files alone, in a copy of the demo's account on this machine; "
            "no cluster was read"
        )


def drafted(documents: Iterable[Raw], cluster: Callable[[], Client]) -> tuple[Client, str]:
    """A client that sees the cluster with the documents in it; or the documents alone, and a line with the
    reason, if no cluster can be read.

    Raises ConfigurationError for a kubeconfig that is named and cannot be used.
    """
    given = list(documents)
    try:
        connected = cluster()
        connected.list(CapacityReservation.KIND)
    except NotFound:
        pass  # the cluster answers, and has no such kind
    except ExampleAccount as error:
        return Client(Drafts(given, None)), str(error)
    except (ApiError, NoClusterNamed) as error:
        return Client(Drafts(given, None)), f"planned from the files alone; no cluster was read: {error}"
    return Client(Drafts(given, connected.transport)), ""


class Drafts:
    """A transport for lists. `cluster` is the transport to the cluster, if there is one."""

    def __init__(self, documents: Iterable[Raw], cluster: Transport | None) -> None:
        self._cluster = cluster
        self._given: dict[str, dict[tuple[str, str], Raw]] = {}
        self._unlisted: dict[str, dict[tuple[str, str], Raw]] = {}  # of a list that is not complete yet
        for document in documents:
            for kind in KINDS:
                group, _, version = str(document.get("apiVersion", "")).rpartition("/")
                if (group, document["kind"]) == (kind.group, kind.kind):
                    path = (
                        f"/apis/{group}/{version}/{kind.plural}" if group else f"/api/{version}/{kind.plural}"
                    )
                    placed = _placed(document, kind)
                    self._given.setdefault(path, {})[_key(placed)] = placed

    def request(self, request: Request, *, timeout: float) -> Reply:
        given = self._given.get(request.path, {})
        if request.method != "GET" or (self._cluster is None and not given):
            return Reply(status=404, body=b"no cluster is read")
        page: dict[str, Any] = {"metadata": {}, "items": []}
        if self._cluster is not None:
            answer = self._cluster.request(request, timeout=timeout)
            if answer.status != 200 and not (given and answer.status in WITHOUT):
                return answer
            if answer.status == 200:
                page = orjson.loads(answer.body)
        if "continue" not in request.query:
            self._unlisted[request.path] = dict(given)
        unlisted = self._unlisted.setdefault(request.path, {})
        items = [_applied(item, unlisted.pop(_key(item), None)) for item in page.get("items") or ()]
        if not page["metadata"].get("continue"):
            items += self._unlisted.pop(request.path).values()
        return Reply(status=200, body=orjson.dumps(page | {"items": items}))

    def stream(self, request: Request, *, timeout: float) -> Stream:
        raise NotImplementedError(f"drafts cannot be watched: {request.path}, {timeout}")


def _applied(item: Raw, draft: Raw | None) -> Raw:
    """The cluster's object after `kubectl apply`: its identity and status stay."""
    if draft is None:
        return item
    metadata = dict(item["metadata"])
    for field in ("labels", "annotations"):
        metadata[field] = (metadata.get(field) or {}) | (draft["metadata"].get(field) or {})
    return {**item, **draft, "metadata": metadata, "status": item.get("status") or {}}


def _placed(document: Raw, kind: Kind) -> Raw:
    """Places it as `kubectl apply` would: an object without a namespace is in `default`, and has a UID."""
    namespace = {"namespace": "default"} if kind.namespaced else {}
    metadata = {**namespace, **document["metadata"]}
    uid = "/".join((kind.kind, metadata.get("namespace", ""), metadata["name"]))
    return {**document, "metadata": {"uid": uid, **metadata}}


def _key(raw: Raw) -> tuple[str, str]:
    meta = raw["metadata"]
    return meta.get("namespace", ""), meta["name"]
