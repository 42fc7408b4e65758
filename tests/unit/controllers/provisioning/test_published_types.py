"""EC2's types in a ConfigMap: written if they change, read back without prices, and never a crash."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.apis.core import ConfigMap
from broker.controllers.provisioning.published_types import KEY, NAME, PublishedTypes, read_types
from broker.kube.client import Client
from broker.kube.identity import NAMESPACE
from local.in_process import InProcessTransport
from local.kube import Cluster
from providers.model import Gpu, InstanceType

H100 = Gpu(name="H100", manufacturer="NVIDIA", count=8, memory_mib=81920)
P5 = InstanceType(
    name="p5.48xlarge", vcpus=192, memory_mib=2097152, gpus=(H100,), zones=frozenset({"a", "b"})
)


def version(client: Client) -> str:
    return str(client.get(ConfigMap.KIND, NAME, namespace=NAMESPACE)["metadata"]["resourceVersion"])


@pytest.mark.covers("ONC-02")
def test_types_are_read_back_and_written_only_if_they_change() -> None:
    client = Client(InProcessTransport(Cluster()))
    assert read_types(client) == {}
    PublishedTypes(client).publish({P5.name: replace(P5, on_demand_price=98.3)})
    assert read_types(client) == {P5.name: P5}
    before, next_leader = version(client), PublishedTypes(client)
    next_leader.publish({P5.name: replace(P5, on_demand_price=55.0)})
    assert version(client) == before
    next_leader.publish({P5.name: replace(P5, vcpus=96)})
    assert read_types(client)[P5.name].vcpus == 96


@pytest.mark.covers("ONC-02")
@pytest.mark.parametrize("text", ["", "?", "aGVsbG8=", "H4sIAAAAAAAA/4uOBQApu0wNAgAAAA=", "H4sIAAAAAAACAw=="])
def test_text_that_the_broker_cannot_have_written_counts_as_none(text: str) -> None:
    client = Client(InProcessTransport(Cluster()))
    client.create(ConfigMap.KIND, {"metadata": {"name": NAME, "namespace": NAMESPACE}, "data": {KEY: text}})
    assert read_types(client) == {}
