"""Reviews as an API server sends them, about objects in the form that users write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from broker.admission.review import answer
from broker.admission.rules import Rules, Unknown
from broker.apis.core import ResourceQuota
from broker.apis.ome import CapacityReservation
from broker.apis.ome_clusters import DedicatedAIClusterProfile
from broker.controllers.elasticquota.reading import Quota

Json = dict[str, Any]
GPU, CPU = "nvidia.com/gpu", "cpu"


def group(gpu: Any = 8, *, flavor: str = "h100", covered: tuple[str, ...] = (GPU,), **more: Any) -> Json:
    quota = {"name": GPU, "nominalQuota": gpu, **more}
    return {"coveredResources": [*covered], "flavors": [{"name": flavor, "resources": [quota]}]}


def reservation(name: str = "r", *groups: Json, namespace: str = "team", **spec: Any) -> Json:
    status = {"status": spec.pop("status")} if "status" in spec else {}
    return {
        "apiVersion": "ome.io/v1beta1",
        "kind": "CapacityReservation",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"resourceGroups": [*(groups or (group(),))], **spec},
    } | status


def cluster(**spec: Any) -> Json:
    kind = {"apiVersion": "ome.io/v1beta1", "kind": "DedicatedAICluster"}
    return {**kind, "metadata": {"name": "d"}, "spec": spec}


@dataclass
class FakeReads:
    """The objects of a cluster, for rules that read them."""

    reserved: Sequence[Json] = ()
    hard: Json = field(default_factory=dict)
    profiles: Json = field(default_factory=dict)
    broken: str = ""
    elastic: Sequence[Quota] = ()

    def quotas(self, namespace: str) -> Sequence[ResourceQuota]:
        self._fail()
        meta = {"name": "quota", "namespace": namespace}
        return [ResourceQuota.decode({"metadata": meta, "spec": {"hard": self.hard}})] if self.hard else []

    def reservations(self, namespace: str) -> Sequence[CapacityReservation]:
        self._fail()
        return [CapacityReservation.decode(obj) for obj in self.reserved]

    def elastic_quotas(self) -> Sequence[Quota]:
        self._fail()
        return self.elastic

    def profile(self, name: str) -> DedicatedAIClusterProfile | None:
        self._fail()
        if name not in self.profiles:
            return None
        return DedicatedAIClusterProfile.decode({"metadata": {"name": name}, "spec": self.profiles[name]})

    def _fail(self) -> None:
        if self.broken:
            raise Unknown(self.broken)


def review(new: Json | None, old: Json | None = None, **more: Any) -> Json:
    obj = new or old or {}
    meta = obj.get("metadata", {})
    request = {
        "uid": "u-1",
        "operation": "CREATE" if old is None else "UPDATE" if new else "DELETE",
        "kind": {"group": "ome.io", "version": "v1beta1", "kind": obj.get("kind")},
        "name": meta.get("name"),
        "namespace": meta.get("namespace"),
        "object": new,
        "oldObject": old,
        **more,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def response_to(
    new: Json | None, old: Json | None = None, *, reads: FakeReads | None = None, **rules: Any
) -> Json:
    """The `response` to the review of a create, update or delete."""
    result = answer(review(new, old), Rules(reads=reads or FakeReads(), **rules))
    assert (result["apiVersion"], result["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response: Json = result["response"]
    assert response["uid"] == "u-1"
    return response
