"""`capacity-broker crds print|install`: the definitions of the kinds that the broker reads.

Karpenter's own definitions are never replaced: where a cluster has them, they stay, and the command says so.
"""

from __future__ import annotations

from typing import Any

import yaml

from broker.apis import names
from broker.apis.crds import load
from broker.commands.manifests import CRD
from broker.kube.client import Client
from broker.kube.errors import NotFound

COLUMNS = {"name": "NAME", "did": "DID", "why": "WHY"}
MARK = f"{names.BROKER}/managed"


def text() -> str:
    return yaml.safe_dump_all(load(), sort_keys=False)


def install(client: Client) -> list[dict[str, Any]]:
    """Creates what is missing, updates what is ours. Raises ApiError."""
    rows = []
    for crd in load():
        name = crd["metadata"]["name"]
        crd["metadata"].setdefault("annotations", {})[MARK] = "true"
        try:
            there = client.get(CRD, name)
        except NotFound:
            client.apply(CRD, crd)
            rows.append({"name": name, "did": "created", "why": ""})
            continue
        if there["metadata"].get("annotations", {}).get(MARK) == "true":
            client.apply(CRD, crd)
            rows.append({"name": name, "did": "updated", "why": ""})
        else:
            why = "made by others (Karpenter's chart, kubectl): left as it is"
            rows.append({"name": name, "did": "kept", "why": why})
    return rows
