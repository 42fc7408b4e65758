"""Random requests about objects: each function makes one, for a kind and a name."""

from collections.abc import Iterator
from random import Random
from typing import Any

from tests.conformance.builtin_kinds import PODS
from tests.conformance.kinds import WIDGETS, Kind, Object
from tests.conformance.steps import (
    APPLY,
    JSON,
    JSON_PATCH,
    MERGE,
    STRATEGIC,
    TABLE,
    Live,
    Step,
    Token,
    Uid,
    Version,
    merged,
)

MANAGERS = ("m1", "m2")
LABEL_SELECTORS = (
    "app=x",
    "app!=y",
    "app in (x,z)",
    "app",
    "!gone",
    "app=x,tier!=a",
    "tier notin (a)",
    "app==x",
)
BAD_SELECTORS = ("app in x", "=", "app=x=y", "a b")


def place(random: Random, kind: Kind) -> tuple[str, str]:
    """A version of the kind: its apiVersion and collection."""
    return random.choice([(kind.api_version, kind.collection)] * 4 + list(kind.also.items()))


def manager(random: Random) -> Object:
    return {"fieldManager": random.choice(MANAGERS)} if random.random() < 0.5 else {}


def write_options(random: Random) -> Object:
    query = manager(random)
    if random.random() < 0.1:
        query["dryRun"] = random.choice(("All", "All", "All", "Some"))
    if random.random() < 0.2:
        query["fieldValidation"] = random.choice(("Strict", "Warn", "Ignore"))
    return query


def plain(random: Random, kind: Kind, name: str) -> Step:
    """An object to work on: a new one that is valid, or nearly always."""
    return Step(method="POST", path=kind.collection, query=manager(random), body=kind.object(random, name))


def create(random: Random, kind: Kind, name: str) -> Step:
    version, collection = place(random, kind)
    body = kind.object(random, name) | {"apiVersion": version}
    if random.random() < 0.2:
        body = merged(body, random.choice(kind.changes))
    match random.random():
        case roll if roll < 0.06:
            del body["metadata"]["name"]
            body["metadata"]["generateName"] = "gen-"
        case roll if roll < 0.10:
            body["metadata"]["name"] = random.choice(("UPPER", "under_score", "-dash", "x" * 300, ""))
        case roll if roll < 0.13:
            body["metadata"]["namespace"] = random.choice(("default", "elsewhere"))
        case roll if roll < 0.16:
            body |= random.choice(
                ({"kind": "Wrong"}, {"apiVersion": "wrong/v1"}, {"kind": ""}, {"apiVersion": ""})
            )
        case roll if roll < 0.18:
            body["metadata"]["resourceVersion"] = "5"
        case _:
            pass
    return Step(method="POST", path=collection, query=write_options(random), body=body)


def get(random: Random, kind: Kind, name: str) -> Step:
    _, collection = place(random, kind)
    return Step(method="GET", path=f"{collection}/{name}", accept=random.choice((JSON, JSON, TABLE)))


def list_some(random: Random, kind: Kind, name: str) -> Step:
    _, collection = place(random, kind)
    query: Object = {}
    if random.random() < 0.4:
        query["labelSelector"] = random.choice(LABEL_SELECTORS * 3 + BAD_SELECTORS)
    if random.random() < 0.3:
        query["fieldSelector"] = random.choice(
            kind.field_selectors * 3
            + ("metadata.name=a", "metadata.name=a,metadata.name!=b", "spec.nope=1", "=")
        )
    if random.random() < 0.3:
        query["limit"] = random.choice((1, 2, 0))
    if random.random() < 0.2:
        query["limit"], query["continue"] = 1, Token()
    if random.random() < 0.15:
        query["resourceVersion"] = random.choice(("0", "abc", Version(f"{kind.collection}/{name}")))
    if random.random() < 0.1:
        query["resourceVersionMatch"] = random.choice(("NotOlderThan", "NotOlderThan", "Sometimes"))
    if random.random() < 0.1 and kind in (
        WIDGETS,
        PODS,
    ):  # of the others the server has some in other namespaces
        collection = collection.replace("/namespaces/default", random.choice(("", "/namespaces/none")))
    return Step(method="GET", path=collection, query=query, accept=random.choice((JSON, JSON, TABLE)))


def put(random: Random, kind: Kind, name: str) -> Step:
    _, collection = place(random, kind)
    target = f"{kind.collection}/{name}"
    return Step(
        method="PUT",
        path=f"{collection}/{name}",
        query=write_options(random),
        body=edited(random, kind, target),
    )


def edited(random: Random, kind: Kind, target: str, changes: tuple[Object, ...] = ()) -> Any:
    change = random.choice((changes or kind.changes) + ({},))
    match random.random():
        case roll if roll < 0.25:
            change = merged(change, {"metadata": {"resourceVersion": None}})
            # A None stands for "remove" in a change; merging dropped it.
            change = {**change, "metadata": {**change.get("metadata", {}), "resourceVersion": None}}
        case roll if roll < 0.30:
            change = {**change, "metadata": {**(change.get("metadata") or {}), "uid": None}}
        case roll if roll < 0.34:
            change = {**change, "metadata": {**(change.get("metadata") or {}), "managedFields": []}}
        case _:
            pass
    return Live(target, change, random.choice((0, 0, 0, 0, 1, 2)))


def merge_patch(
    random: Random, kind: Kind, name: str, changes: tuple[Object, ...] = (), sub: str = ""
) -> Step:
    _, collection = place(random, kind)
    change = random.choice(changes or kind.changes)
    if random.random() < 0.15:
        guard: Object = {"resourceVersion": Version(f"{kind.collection}/{name}", random.choice((0, 1)))}
        if random.random() < 0.3:
            guard = {"uid": Uid(f"{kind.collection}/{name}")}
        change = {**change, "metadata": {**(change.get("metadata") or {}), **guard}}
    content = random.choice((MERGE, STRATEGIC) if kind.strategic or random.random() < 0.05 else (MERGE,))
    return Step(
        method="PATCH",
        path=f"{collection}/{name}{sub}",
        query=write_options(random),
        body=change,
        content=content,
    )


def json_patch(
    random: Random, kind: Kind, name: str, changes: tuple[Object, ...] = (), sub: str = ""
) -> Step:
    change = random.choice(changes or kind.changes)
    operations = list(_operations(random, change))
    if random.random() < 0.2:
        operations.insert(
            0,
            random.choice(
                (
                    {"op": "test", "path": "/metadata/name", "value": name},
                    {"op": "test", "path": "/metadata/name", "value": "not it"},
                    {
                        "op": "test",
                        "path": "/metadata/resourceVersion",
                        "value": Version(f"{kind.collection}/{name}"),
                    },
                    {"op": "remove", "path": "/metadata/nothing"},
                    {"op": "move", "from": "/metadata/labels/app", "path": "/metadata/labels/moved"},
                    {"op": "copy", "from": "/metadata/name", "path": "/metadata/labels/copied"},
                    {"op": "bogus", "path": "/metadata/name"},
                )
            ),
        )
    return Step(
        method="PATCH",
        path=f"{kind.collection}/{name}{sub}",
        query=write_options(random),
        body=operations,
        content=JSON_PATCH,
    )


def _operations(random: Random, change: Any, at: str = "") -> Iterator[Object]:
    for key, value in change.items():
        path = f"{at}/{key.replace('~', '~0').replace('/', '~1')}"
        if value is None:
            yield {"op": "remove", "path": path}
        elif isinstance(value, dict) and value and random.random() < 0.8:
            yield from _operations(random, value, path)
        else:
            yield {"op": random.choice(("add", "add", "replace")), "path": path, "value": value}


def apply(random: Random, kind: Kind, name: str, changes: tuple[Object, ...] = (), sub: str = "") -> Step:
    version, collection = place(random, kind)
    body: Object = {"apiVersion": version, "kind": kind.kind, "metadata": {"name": name}}
    if kind.last.get("spec") and not sub and random.random() < 0.7:
        body = kind.object(random, name) | {"apiVersion": version}
    for change in random.sample(changes or kind.changes, random.choice((1, 1, 2))):
        body = merged(body, change)
    query = write_options(random)
    if random.random() < 0.95:
        query["fieldManager"] = random.choice(MANAGERS)
    if random.random() < 0.3:
        query["force"] = "true"
    return Step(method="PATCH", path=f"{collection}/{name}{sub}", query=query, body=body, content=APPLY)


def delete(random: Random, kind: Kind, name: str) -> Step:
    _, collection = place(random, kind)
    target = f"{kind.collection}/{name}"
    query: Object = {}
    body: Object | None = None
    match random.randint(0, 9):
        case 0:
            query["gracePeriodSeconds"] = random.choice((0, 0, 5, -1, "x"))
        case 1:
            query["propagationPolicy"] = random.choice(("Background", "Foreground", "Orphan", "Sideways"))
        case 2:
            query["dryRun"] = "All"
        case 3:
            body = {"preconditions": {"uid": Uid(target)}}
        case 4:
            body = {"preconditions": {"resourceVersion": Version(target, random.choice((0, 1)))}}
        case 5:
            body = {"preconditions": {"uid": "11111111-1111-1111-1111-111111111111"}}
        case 6:
            body = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": random.choice((0, 3))}
        case _:
            pass
    return Step(method="DELETE", path=f"{collection}/{name}", query=query, body=body)


def delete_collection(random: Random, kind: Kind, name: str) -> Step:
    query = {"labelSelector": random.choice(LABEL_SELECTORS)}
    if random.random() < 0.2:
        query = {"fieldSelector": f"metadata.name={name}"}
    if random.random() < 0.2:
        query["dryRun"] = "All"
    return Step(method="DELETE", path=kind.collection, query=query)


def odd(random: Random, kind: Kind, name: str) -> Step:
    """Requests that no client should send."""
    item = f"{kind.collection}/{name}"
    return random.choice(
        (
            Step(method="POST", path=item, body=kind.object(random, name)),
            Step(method="PUT", path=kind.collection, body=kind.object(random, name)),
            Step(method="PATCH", path=kind.collection, body={}, content=MERGE),
            Step(method="PATCH", path=item, body={"metadata": {}}, content="text/plain"),
            Step(method="PATCH", path=item, body="{not json", content=MERGE),
            Step(method="PATCH", path=item, body='"text"', content=MERGE),
            Step(method="PATCH", path=item, body='{"op": "add"}', content=JSON_PATCH),
            Step(method="POST", path=kind.collection, body="{not json"),
            Step(method="POST", path=kind.collection, body="[]"),
            Step(method="GET", path=f"{item}/nothing"),
            Step(method="GET", path=kind.collection + "x"),
            Step(method="GET", path=item.replace("/v1/", "/v7/")),
            Step(method="DELETE", path=item, body="{not json"),
        )
    )
