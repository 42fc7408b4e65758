from __future__ import annotations

import pytest

from broker.apis.karpenter import NodeClaim
from broker.controllers.claim_caches import BY_INSTANCE, by_instance
from broker.kube.cache import Cache
from tests.support.caches import claim_caches

AGES = {"old": "2026-01-01T00:00:00Z", "young": "2026-01-02T00:00:00Z"}


@pytest.mark.parametrize("order", [("old", "young"), ("young", "old")])
def test_an_instance_is_its_oldest_claim_s_in_every_answer(order: tuple[str, str]) -> None:
    cache = Cache(NodeClaim, indexes={BY_INSTANCE: by_instance})
    for version, name in enumerate(order, 1):
        meta = {"name": name, "uid": name, "resourceVersion": str(version), "creationTimestamp": AGES[name]}
        cache.apply("ADDED", {"metadata": meta, "status": {"providerID": "aws:///us-east-1a/i-1"}})
    caches = claim_caches(cache)
    assert {id_: claim.name for id_, claim in caches.launched().items()} == {"i-1": "old"}
    assert {caches.first_of(claim).name for claim in caches.owned()} == {"old"}
