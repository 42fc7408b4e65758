"""One object that provisioning fails on stops no other: it is left out and says so, and pods get machines."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis.core import Event
from broker.apis.karpenter import NodePool
from broker.apis.limits import LimitRange
from broker.apis.meta import Object
from broker.apis.storage import PersistentVolumeClaim
from broker.apis.workloads import DaemonSet
from broker.controllers.provisioning import provisioner, reads
from broker.kube.manager import REASON
from broker.placement import storage
from tests.cluster.everything import bodies, put
from tests.cluster.stack import Stack
from tests.cluster.test_provisioning import bound, pods, pool, start

POISON = "poison"


@pytest.mark.covers("SAF-50")
@pytest.mark.parametrize(
    ("where", "name", "model"),
    [
        (provisioner, "served", NodePool),
        (reads, "pod_info", DaemonSet),
        (reads, "default_requests", LimitRange),
        (storage, "_claim", PersistentVolumeClaim),
    ],
)
def test_an_object_that_fails_in_provisioning_is_left_out_and_pods_get_machines(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, where: Any, name: str, model: type[Object]
) -> None:
    translate = getattr(where, name)

    def translated(*args: Any) -> Any:
        objects = args[0] if isinstance(args[0], list) else args
        if any(isinstance(item, Object) and item.name == POISON for item in objects):
            raise RuntimeError(POISON)
        return translate(*args)

    monkeypatch.setattr(where, name, translated)
    stack.node_class(id_=stack.aws.odcr())
    pool(stack)
    put(stack, model, bodies(stack)[model], POISON)
    waiting = pods(stack, 1)
    start(stack)
    stack.until(lambda: bound(stack, waiting), "the pod is bound", step=0.2)
    stack.until(
        lambda: any(
            event.reason == REASON and event.involved_object.name == POISON for event in stack.all(Event)
        ),
        "the object is reported",
    )
