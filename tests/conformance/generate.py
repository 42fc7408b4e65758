"""Random sequences of requests: the same seed gives the same sequence, on every machine and server."""

from collections.abc import Callable, Iterator
from random import Random

from tests.conformance import requests, subresources
from tests.conformance.builtin_kinds import ALL, BUDGETS, PODS
from tests.conformance.kinds import WIDGETS, Kind, Object
from tests.conformance.steps import Sequence, Step, Stream

NAMES = ("a", "b", "c")
STEPS = 40
INITIAL_EVENTS = {
    "resourceVersion": "",
    "sendInitialEvents": "true",
    "resourceVersionMatch": "NotOlderThan",
    "allowWatchBookmarks": "true",
}
LAST_LABELS = {"app": "x", "tier": "b"}


def sequence(seed: int, *, steps: int = STEPS, kinds: tuple[Kind, ...] = ALL) -> Sequence:
    random = Random(seed)
    # Widgets know every rule and pods have the most verbs of their own: one of them is always in.
    chosen = {id(k): k for k in (random.choice((WIDGETS, PODS)), random.choice(kinds), random.choice(kinds))}
    chosen = {key: kind for key, kind in chosen.items() if kind in kinds} or {id(kinds[0]): kinds[0]}
    if PODS in chosen.values() and BUDGETS in kinds and random.random() < 0.5:
        chosen[id(BUDGETS)] = BUDGETS  # evictions mean most where a budget is
    pool = list(chosen.values())
    requests_ = [requests.plain(random, kind, name) for kind in pool for name in NAMES[:2]]
    requests_ += [_step(random, random.choice(pool)) for _ in range(steps - len(requests_))]
    for number, step in enumerate(requests_):
        # Each prefix once, so that random endings do not change the order of a list.
        if isinstance(step.body, dict) and "generateName" in (step.body.get("metadata") or {}):
            step.body["metadata"]["generateName"] = f"gen{number}-"
    return Sequence(seed=seed, steps=tuple(requests_), streams=tuple(_streams(random, pool)))


def _step(random: Random, kind: Kind) -> Step:
    operations = OPERATIONS + tuple(
        (weight, make) for name, weight, make in OF_SUBRESOURCES if name in kind.subresources
    )
    weights, makers = zip(*operations, strict=True)
    make: Callable[[Random, Kind, str], Step] = random.choices(makers, weights)[0]
    return make(random, kind, random.choice(NAMES))


OPERATIONS: tuple[tuple[int, Callable[[Random, Kind, str], Step]], ...] = (
    (12, requests.create),
    (6, requests.get),
    (8, requests.list_some),
    (12, requests.put),
    (14, requests.merge_patch),
    (8, requests.json_patch),
    (16, requests.apply),
    (8, requests.delete),
    (2, requests.delete_collection),
    (2, requests.odd),
)

OF_SUBRESOURCES: tuple[tuple[str, int, Callable[[Random, Kind, str], Step]], ...] = (
    ("status", 12, subresources.status),
    ("status", 1, subresources.get_status),
    ("scale", 6, subresources.scale),
    ("binding", 6, subresources.bind),
    ("eviction", 6, subresources.evict),
)


def _streams(random: Random, pool: list[Kind]) -> Iterator[Stream]:
    for kind in pool:
        last = {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            **kind.last,
            "metadata": {"name": "zz-last", "labels": LAST_LABELS},
        }
        for live in (True, False):
            query: Object = {}
            if random.random() < 0.5:
                query["labelSelector"] = random.choice(requests.LABEL_SELECTORS)
            elif random.random() < 0.4:
                query["fieldSelector"] = random.choice(kind.field_selectors)
            if random.random() < 0.2:
                query["allowWatchBookmarks"] = "true"
            if not live and random.random() < 0.2:
                query |= INITIAL_EVENTS
            yield Stream(path=kind.collection, query=query, last=last, live=live)
