"""The sizes of GPU that elastic quotas leave to waiting pods."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim
from broker.apis.nos import ElasticQuota
from broker.controllers.provisioning.elastic_sizes import ElasticRules, with_quota
from broker.controllers.provisioning.pending import pending_pod
from broker.kube.cache import Cache
from broker.placement.gangs import unknown_sizes
from broker.placement.packing_model import NO_DRAWING
from broker.quota.elastic_gpu import GPU, GPU_MEMORY

NOS = "nos-scheduler"


def pod(
    name: str,
    requests: dict[str, str] | None = None,
    scheduler: str = NOS,
    node: str = "",
    gang: str = "",
    size: str = "0",
) -> Pod:
    container = {"name": "c", "resources": {"requests": requests or {GPU: "1"}}}
    annotations = {names.GANG: gang, names.GANG_SIZE: size} if gang else {}
    meta = {"name": name, "namespace": "a", "uid": name, "annotations": annotations}
    spec = {"schedulerName": scheduler, "nodeName": node, "containers": [container]}
    return Pod.decode({"metadata": meta, "spec": spec})


def bounds(
    pods: list[Pod],
    *,
    bound: tuple[Pod, ...] = (),
    claims: tuple[NodeClaim, ...] = (),
    max_: dict[str, str] | None = None,
    sizes: tuple[int, ...] = (16, 80),
) -> dict[str, int]:
    """The least GB of a GPU that each pod may not have, of those that are limited."""
    nodes = Cache(Node)
    big = {names.INSTANCE_GPU_MEMORY: "81920"}
    nodes.replace([{"metadata": {"name": "big", "labels": big}}], 1)
    amounts = max_ or {GPU_MEMORY: "100"}
    spec: dict[str, Any] = {"min": amounts, "max": amounts}
    quota = ElasticQuota.decode({"metadata": {"name": "q", "namespace": "a"}, "spec": spec})
    rules = ElasticRules(
        nodes=nodes,
        quotas=[quota],
        served={NOS},
        gpu_gb=32,
        absent_is_zero=False,
        group_size=unknown_sizes,
    )
    pending = [pending_pod(item, lambda *_: NO_DRAWING, unknown_sizes) for item in pods]
    within, reasons = rules.within(pending, {item.key: item for item in pods}, bound, claims, sizes)
    limited = {
        item.info.name: test.bound // 1024
        for item in within
        for test in item.info.node_selector
        if test.key == names.INSTANCE_GPU_MEMORY
    }
    assert {key.partition("/")[2] for key in reasons} == limited.keys()
    return limited


@pytest.mark.covers("FLT-68")
def test_a_pod_may_have_what_bound_pods_of_its_quota_leave() -> None:
    assert bounds([pod("p")]) == {}
    assert bounds([pod("p")], bound=(pod("runs", node="big"),)) == {"p": 21}
    assert bounds([pod("p", {GPU: "4"})]) == {"p": 26}
    assert bounds([pod("p")], sizes=(16,)) == {}
    assert bounds([pod("p")], max_={"cpu": "0"}) == {}
    assert bounds([pod("p", {"cpu": "1"})], max_={"cpu": "0"}) == {}


@pytest.mark.covers("FLT-68")
def test_pods_are_counted_one_after_another() -> None:
    assert bounds([pod("p"), pod("q")]) == {"q": 21}
    assert bounds([pod("p"), pod("q")], max_={GPU_MEMORY: "160"}) == {}
    # The second gets a small GPU; the third gets none, and leaves the rest to the last.
    pods = [pod("p"), pod("q"), pod("r"), pod("s", {GPU: "1", "nvidia.com/mig-1g.5gb": "1"})]
    assert bounds(pods, max_={GPU_MEMORY: "101"}) == {"q": 22, "r": 6, "s": 1}


@pytest.mark.covers("FLT-68", "FLT-42")
def test_a_gang_is_limited_so_that_all_its_pods_get_a_gpu() -> None:
    gang = [pod(name, gang="g") for name in ("p", "q")]
    assert bounds(gang) == {"q": 21}
    assert bounds(gang, max_={GPU_MEMORY: "95"}) == {"p": 48, "q": 48}
    assert bounds(gang, max_={GPU_MEMORY: "31"}) == {"p": 16, "q": 16}
    assert bounds([*gang, pod("z")], max_={GPU_MEMORY: "31"}) == {"p": 16, "q": 16, "z": 32}


@pytest.mark.covers("FLT-68", "FLT-42")
def test_a_gang_needs_gpus_for_its_size_alone() -> None:
    gang = [pod(name, gang="g", size="2") for name in ("p", "q", "r")]
    assert bounds(gang, max_={GPU_MEMORY: "32"}) == {"p": 33, "q": 17, "r": 1}
    assert bounds(gang, max_={GPU_MEMORY: "90"}, sizes=(40, 80)) == {"p": 46, "q": 46, "r": 11}
    assert bounds(gang, max_={GPU_MEMORY: "31"}) == {"p": 16, "q": 16, "r": 16}
    runs = pod("s", gang="g", size="2", node="big")
    assert bounds(gang, bound=(runs,)) == {"p": 21, "q": 5, "r": 5}


@pytest.mark.covers("FLT-68")
def test_a_pod_with_a_machine_counts_by_its_size_and_keeps_it() -> None:
    meta = {"name": "m", "annotations": {names.PODS: "a/q"}, "labels": {names.INSTANCE_GPU_MEMORY: "16384"}}
    claim = NodeClaim.decode({"metadata": meta})
    assert bounds([pod("p"), pod("q")], claims=(claim,)) == {}
    assert bounds([pod("p"), pod("q")], claims=(claim,), max_={GPU_MEMORY: "95"}) == {"p": 80}


@pytest.mark.covers("FLT-68")
def test_a_quota_limits_only_pods_whose_scheduler_applies_it() -> None:
    assert bounds([pod("p")], max_={GPU_MEMORY: "20"}) == {"p": 21}
    assert bounds([pod("p", scheduler="default-scheduler")], max_={GPU_MEMORY: "20"}) == {}


@pytest.mark.covers("FLT-68")
def test_the_quota_stands_before_the_reasons_of_the_machines() -> None:
    assert with_quota({"a/p": "no machine", "a/q": "none"}, {"a/p": "too large"}) == {
        "a/p": "too large; no machine",
        "a/q": "none",
    }
