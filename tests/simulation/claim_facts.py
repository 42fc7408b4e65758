"""What a claim shows about the move that it is part of."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from broker.apis import names
from broker.apis.core import Node
from tests.simulation.world import World, condition

Json = dict[str, Any]


def noted_of(claim: Json, key: str) -> str:
    return str((claim["metadata"].get("annotations") or {}).get(key, ""))


def replaces_of(claim: Json) -> str:
    return noted_of(claim, names.REPLACES)


def move_of(claim: Json) -> str:
    return noted_of(claim, names.MOVE).partition("/")[0]


def cause_of(claim: Json) -> str:
    return noted_of(claim, names.MOVE).rpartition("/")[2]


def slot_of(claim: Json) -> str:
    return noted_of(claim, names.TAKES_SLOT).partition("/")[0]


def draws_of(claim: Json) -> str:
    return noted_of(claim, names.DRAWS_FROM)


def until_of(claim: Json) -> datetime | None:
    text = noted_of(claim, names.TAKES_SLOT).partition("/")[2]
    return datetime.fromisoformat(text) if text else None


def ends(claim: Json) -> bool:
    return bool(claim["metadata"].get("deletionTimestamp"))


def initialized(claim: Json) -> bool:
    return bool(condition(claim, names.INITIALIZED_CONDITION).get("status") == "True")


def registered(node: Json) -> bool:
    return bool(node["metadata"].get("labels", {}).get(names.REGISTERED) == "true")


def node_of(world: World, claim: Json) -> Json | None:
    return world.objects(Node.KIND).get(("", claim.get("status", {}).get("nodeName", "")))


def created_at(claim: Json) -> datetime:
    return datetime.fromisoformat(claim["metadata"]["creationTimestamp"])


def identity(claim: Json) -> str:
    """The claim as its replacement names it."""
    return f"{claim['metadata']['name']}/{claim['metadata']['uid']}"
