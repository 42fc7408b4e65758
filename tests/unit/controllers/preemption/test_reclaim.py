"""Victims are reported and deleted one by one: a refusal for one does not keep another from leaving."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import crds, names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim
from broker.apiserver import Cluster
from broker.controllers.ome.reads import OmeReads
from broker.controllers.preemption.entitler import EntitlementReader
from broker.controllers.preemption.reclaim import Preemptor
from broker.controllers.preemption.sight import SlotSnapshotBuilder
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.clock import FakeClock
from broker.kube.errors import Forbidden
from broker.kube.events import Recorder
from broker.kube.transports import InProcessTransport
from broker.quota.entitled import Eviction
from broker.quota.joint import JointDecision
from broker.quota.model import Reason
from broker.quota.slot_model import CLAIM
from broker.reservations.ownership import Ownership
from broker.settings import Settings


class Guarded(Client):
    """A cluster in which a policy forbids the deletion of claims with certain names."""

    def delete(self, kind: Any, name: str, **options: Any) -> dict[str, Any]:
        if name.startswith("guarded"):
            raise Forbidden(403, "Forbidden", f"{name} is not to be deleted")
        return super().delete(kind, name, **options)


def test_one_that_may_not_be_deleted_keeps_no_other_from_leaving() -> None:
    client, clock = Guarded(InProcessTransport(Cluster()), field_manager="test"), FakeClock()
    for body in crds.load():
        client.create(crds.KIND, body)
    claims: Cache[NodeClaim] = Cache(NodeClaim)
    ref = {"group": names.BROKER, "kind": "EC2NodeClass", "name": "gpu"}
    for name in ("guarded-a", "leaves-b"):
        body = {"metadata": {"name": name}, "spec": {"nodeClassRef": ref, "requirements": []}}
        claims.observe(client.create(NodeClaim.KIND, body))
    entitler = EntitlementReader(
        SlotSnapshotBuilder(
            OmeReads(client, clock=clock),
            Ownership,
            claims,
            Cache(Node),
            Cache(Pod),
            settings=Settings(),
            clock=clock,
            owns=lambda _: True,
            kueue=lambda: False,
        )
    )
    reclaimer = Preemptor(
        client,
        claims,
        entitler,
        clock=clock,
        recorder=Recorder(client, "test", clock),
        wake=lambda: None,
    )
    why = Eviction(reason=Reason.RECLAIM, preemptor="prod", preemptor_path="/ml/a", preemptee_path="/ml/b")
    decided = JointDecision(evictions={f"{CLAIM}guarded-a": why, f"{CLAIM}leaves-b": why})
    with pytest.raises(Forbidden, match="guarded-a is not to be deleted"):
        reclaimer.act(decided)
    there, _ = client.list(NodeClaim.KIND)
    assert [each["metadata"]["name"] for each in there] == ["guarded-a"]
