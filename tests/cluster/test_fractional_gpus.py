"""Instances with a part of a GPU: EC2 counts no GPU in them, and the device plugin shows one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker.apis import names
from broker.apis.core import Node
from tests.cluster import cases, stack
from tests.cluster.stack import Provider, Stack
from tests.cluster.test_provisioning import bound, claims, start


@pytest.fixture(autouse=True)
def fractional(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Region that offers them."""
    monkeypatch.setattr(stack, "OFFERED", ("m5.large", "g6f.large", "gr6f.4xlarge"))
    monkeypatch.setattr(Provider, "known", {})
    yield


@pytest.mark.covers("FLT-32")
def test_pod_that_requests_a_gpu_gets_the_part_of_one(stack: Stack) -> None:
    cases.apply(stack, "ec2-03-fractional-gpu")
    start(stack)
    stack.until(lambda: bound(stack, ["p"]), "pod bound", step=0.2)
    (claim,) = claims(stack)
    assert claim.status.capacity["nvidia.com/gpu"] == "1"
    (node,) = stack.all(Node)
    assert node.labels[names.INSTANCE_GPU_COUNT] == "1"
    assert node.labels[names.INSTANCE_GPU_NAME] == "l4"
