"""Random and hostile objects of every kind that the broker reads, statuses included, beside an unrelated
claim. The suite runs for a few seconds. `make fuzz OBJECTS=10000` tries the promised number and `SEED`
chooses others; docs/contribute/figures.md has the results."""

from __future__ import annotations

import copy
import os
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from broker.apis import names
from broker.apis.meta import Object
from broker.kube.errors import ApiError
from broker.kube.panics import PANICS
from tests.cluster.everything import bodies, put
from tests.cluster.stack import Stack

Json = dict[str, Any]
OBJECTS = int(os.environ.get("OBJECTS", "120"))
SEED = int(os.environ.get("SEED", "1"))
BATCH = 60
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
