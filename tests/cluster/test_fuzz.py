"""Random and hostile objects of every kind that the broker reads, statuses included, beside an unrelated
claim. The suite runs for a few seconds. `make fuzz OBJECTS=10000` tries the promised number and `SEED`
chooses others; docs/contribute/figures.md has the results."""

from __future__ import annotations

import copy
import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from broker.apis import godel, koordinator, names
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim
from broker.apis.kueue import Namespace
from broker.apis.meta import Object
from broker.kube.errors import ApiError, NotFound
from broker.kube.panics import PANICS
from local.demo.scheduling import schedule
from tests.cluster.account import A
from tests.cluster.everything import bodies, put
from tests.cluster.ome.reserved import flavor, flavors_alone, reserve
from tests.cluster.stack import Stack

Json = dict[str, Any]
OBJECTS = int(os.environ.get("OBJECTS", "120"))
SEED = int(os.environ.get("SEED", "1"))
BATCH = 60
STALL = 60.0  # seconds of the broker's clock: a pod that waits longer for a machine is counted
TEXTS = (
    "[" * 2000,
    '{"a":' * 2000,
    '{"flavors": {"h100": 1e308}, "generation": 1}',
    "9" * 64,
    "9" * 5000,
    "1e400",
    "-1",
    "",
    " ",
    "\x00",
    "٣",
    "0001-01-01T00:00:00+14:00",
    "9999999999h",
    "default/training",
    "{}",
    "[]",
    "null",
)
VALUES: tuple[Any, ...] = (
    *TEXTS,
    8_000_000,
    2**31 - 1,
    2**63 - 1,
    -1,
    0,
    1e300,
    True,
    None,
    [],
    {},
    [{}],
    {"a": "b"},
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in items:
        yield (*path, key)
        yield from _places(child, (*path, key))


def _hostile(model: type[Object], body: Json, chance: random.Random) -> Json:
    changed = copy.deepcopy(body)
    annotations = changed["metadata"].setdefault("annotations", {})
    for key in names.ANNOTATIONS.get(model.KIND.kind, ()):
        if chance.random() < 0.3:
            annotations[key] = chance.choice(TEXTS)
    places = [path for path in _places(changed) if path[0] != "metadata"]
    for path in chance.sample(places, min(len(places), chance.randrange(3))):
        parent: Any = changed
        try:
            for key in path[:-1]:
                parent = parent[key]
            parent[path[-1]]
            parent[path[-1]] = copy.deepcopy(chance.choice(VALUES))
        except (KeyError, IndexError, TypeError):
            continue  # the object that held it has been replaced
    return changed


def _statuses(body: Json, chance: random.Random) -> Json:
    """Statuses written by another controller, which may fit no schema of the broker's."""
    conditions = [{"type": chance.choice(("Ready", "Admitted", "Launched")), "status": "True"}]
    status: Json = {"providerID": "aws:///us-east-1a/i-1", "conditions": conditions, "capacity": {"cpu": "4"}}
    status |= {"admission": {"reservation": "default/training"}, "imageID": "ami-1", "phase": "Active"}
    for key in chance.sample([*status], chance.randrange(1, 4)):
        status[key] = copy.deepcopy(chance.choice(VALUES))
    return {**body, "status": status}


def _bugs() -> Counter[str]:
    return Counter(
        {
            sample.labels["where"]: int(sample.value)
            for metric in PANICS.collect()
            for sample in metric.samples
            if sample.name.endswith("_total")
        }
    )


@pytest.mark.covers("SAF-52")
@pytest.mark.usefixtures("kueue")
@pytest.mark.both_servers
def test_hostile_objects_stop_no_other_claim_and_meet_no_bug(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=2 * OBJECTS // BATCH + 8)  # some of the hostile claims launch
    stack.node_class("good", id_=odcr)
    broker = stack.start(kubelets=False)
    stack.start_scheduler()
    before, chance, tried, refused = _bugs(), random.Random(SEED), 0, 0
    kinds = [*bodies(stack).items()]
    while tried < OBJECTS:
        for _ in range(BATCH):
            model, body = kinds[tried % len(kinds)]
            tried += 1
            hostile = _hostile(model, body, chance)
            if chance.random() < 0.3:
                hostile = _statuses(hostile, chance)
            try:
                put(stack, model, hostile, f"fuzz-{tried}")
            except ApiError as error:
                assert error.status < 500, f"seed {SEED}, {model.__name__} {tried}: {error}"
                refused += 1
        stack.claim(f"bystander-{tried}", node_class="good")
        stack.until_launched(f"bystander-{tried}")
        assert _bugs() - before == Counter(), f"seed {SEED}, {tried} objects"
        assert all(broker.ready().values())
    stack.stop()
    fresh = stack.start(kubelets=False)
    stack.start_scheduler()
    stack.claim("bystander", node_class="good")
    stack.until_launched("bystander")
    assert all(fresh.ready().values()) and _bugs() - before == Counter()
    left_out = sum(len(informer.cache.broken) for informer in fresh.informers)
    print(f"{tried} objects, {refused} refused by the API server, {left_out} left out")


# Annotations and labels with a meaning for the broker, kube-scheduler or another scheduler.
TENANT, OWNER = "tenant", "default/training"
MEANT = (
    *(names.DRAWS_FROM, names.GANG, names.GANG_SIZE, names.PRIORITY, names.PODS, names.EXPECT),
    *(names.DO_NOT_DISRUPT, names.REPLACES, names.NODEPOOL, godel.RESERVATION, godel.INDEX, godel.TTL),
    *(koordinator.ALLOCATED, koordinator.PREALLOCATABLE),
)
NAMED = (
    OWNER,
    "training",
    f"{TENANT}/training",
    "true",
    "web",
    "2",
    "99999999",
    "9223372036854775807",
    "1ns",
)


def _hostile_pod(number: int, chance: random.Random) -> Json:
    """A pod of a tenant who may write nothing else."""
    noted = {key: chance.choice((*TEXTS, *NAMED, *NAMED)) for key in MEANT if chance.random() < 0.25}
    labels = {key: chance.choice(NAMED[2:6]).replace("/", ".") for key in MEANT if chance.random() < 0.1}
    room: Json = {"cpu": chance.choice(("100m", "1", "1500m", "9999", "1e3")), "memory": "1Gi"}
    spec: Json = {
        "containers": [{"name": "main", "image": "x", "resources": {"requests": room}}],
        "schedulerName": chance.choice(
            ("default-scheduler", "capacity-broker", "koord-scheduler", "godel-scheduler")
        ),
        "terminationGracePeriodSeconds": chance.choice((0, 30, 2**31)),
    }
    if chance.random() < 0.4:
        spec["nodeSelector"] = {
            chance.choice((names.NODEPOOL, names.RESERVATION_ID)): chance.choice(("gpu", "web"))
        }
    if chance.random() < 0.3:
        spec["tolerations"] = [{"operator": "Exists"}]
    if chance.random() < 0.2:
        spec["priorityClassName"] = "high"
    if chance.random() < 0.2:
        spec["schedulingGates"] = [{"name": "example.com/wait"}]
    meta: Json = {"name": f"evil-{number}", "namespace": TENANT, "annotations": noted, "labels": labels}
    if chance.random() < 0.3:
        meta["finalizers"] = [
            chance.choice(("example.com/never", names.TERMINATION_FINALIZER, godel.FINALIZER))
        ]
    return {"metadata": meta, "spec": spec}


def _taken(stack: Stack, odcr: str) -> list[str]:
    """Claims for the tenant's pods in the owner's reservation."""
    inside = {i["InstanceId"] for i in stack.aws.instances() if i.get("CapacityReservationId") == odcr}
    return [
        claim.name
        for claim in stack.all(NodeClaim)
        if claim.status.provider_id.rpartition("/")[2] in inside
        and any(key.startswith(f"{TENANT}/") for key in claim.annotations.get(names.PODS, "").split(","))
    ]


@pytest.mark.covers("FLT-71", "SAF-52")
def test_hostile_pods_take_no_capacity_of_others_and_stop_no_other_pod(stack: Stack) -> None:
    """A tenant who may only write pods, beside a reservation of an owner and a pool that everyone may use."""
    tags = [
        {"ResourceType": "capacity-reservation", "Tags": [{"Key": names.TAG_RESERVATION, "Value": OWNER}]}
    ]
    odcr = stack.aws.odcr(count=3, TagSpecifications=tags)
    reserve(stack, "training", flavor="xlarge", quotas={"cpu": "12"})
    flavors_alone(stack)
    flavor(stack, "xlarge", {names.INSTANCE_TYPE: "m5.xlarge", names.ZONE: A})
    stack.node_class("gpu", id_=odcr)
    stack.node_class("web", preference="none")
    for name in ("gpu", "web"):
        stack.node_pool(name, node_class=name)
    stack.client.create(Namespace.KIND, {"metadata": {"name": TENANT}})
    stack.priority_class("high", 1000)
    stack.start(pod_batch_idle_seconds=0.2, pod_batch_max_seconds=1.0)
    stack.start_scheduler()
    before, chance, tried, refused, taken = _bugs(), random.Random(SEED), 0, 0, set[str]()
    waits: list[float] = []  # of the other tenant's pods, by the broker's clock
    while tried < OBJECTS:
        for _ in range(min(BATCH, OBJECTS) // 2):
            tried += 1
            try:
                stack.client.create(Pod.KIND, _hostile_pod(tried, chance))
                if chance.random() < 0.2:
                    stack.client.delete(Pod.KIND, f"evil-{tried}", namespace=TENANT)
            except ApiError as error:
                assert error.status < 500, f"seed {SEED}, pod {tried}: {error}"
                refused += 1
        stack.pod(f"bystander-{tried}", nodeSelector={names.NODEPOOL: "web"})

        def bound(name: str = f"bystander-{tried}") -> bool:
            schedule(stack.client)
            taken.update(_taken(stack, odcr))
            return bool(stack.get(Pod, name, namespace="default").spec.node_name)

        began = stack.clock.monotonic()
        stack.until(bound, f"another tenant's pod runs, seed {SEED}", step=0.5)
        waits.append(stack.clock.monotonic() - began)
        for item in stack.all(Pod):  # the tenant's pods that are left do not fill the API server
            if item.namespace == TENANT and not item.metadata.finalizers:
                with suppress(NotFound):  # its node ended in between
                    stack.delete(Pod, item.name, namespace=TENANT)
    stalls = sum(waited > STALL for waited in waits)
    print(
        f"{tried} hostile pods, {refused} refused, capacity of others taken: {len(taken)}, "
        f"stalls: {stalls} of {len(waits)} pods, longest wait {max(waits):.0f} s"
    )
    assert not taken and _bugs() - before == Counter(), f"seed {SEED}"
