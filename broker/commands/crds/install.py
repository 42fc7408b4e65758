"""`capacity-broker crds print|install|patch`: the definitions of the kinds that the broker reads.

Karpenter's own definitions are never replaced: if a cluster has them, they stay, and `install` reports it.
`patch` adds the one property that the broker's field needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from broker.apis import names
from broker.apis.crds import KIND as CRD
from broker.apis.crds import load
from broker.apis.karpenter_aws_definition import NAME, PROPERTY, definition
from broker.apis.karpenter_aws_definition import patch as changes
from broker.commands.crds.skew import VERSION
from broker.kube.client import Client
from broker.kube.errors import Invalid, NotFound
from broker.version import version

COLUMNS = {"name": "NAME", "did": "DID", "why": "WHY"}
PROPERTY_COLUMNS = {"version": "VERSION", "property": PROPERTY}
MARK = f"{names.BROKER}/managed"
TRIES = 5


def text() -> str:
    return yaml.safe_dump_all(load(), sort_keys=False)


def install(client: Client) -> list[dict[str, Any]]:
    """Creates missing definitions and updates the broker's own. Raises ApiError."""
    rows = []
    for crd in load():
        name = crd["metadata"]["name"]
        crd["metadata"].setdefault("annotations", {}).update({MARK: "true", VERSION: version()})
        try:
            installed = client.get(CRD, name)
        except NotFound:
            client.apply(CRD, crd)
            rows.append({"name": name, "did": "created", "why": ""})
            continue
        if installed["metadata"].get("annotations", {}).get(MARK) == "true":
            same = revision(client.apply(CRD, crd)) == revision(installed)
            rows.append({"name": name, "did": "unchanged" if same else "updated", "why": ""})
        else:
            why = "made by others (Karpenter's chart, kubectl): left as it is"
            if name == NAME and definition(installed).missing:
                why += f"; capacity-broker crds patch adds {PROPERTY}"
            rows.append({"name": name, "did": "kept", "why": why})
    return rows


def revision(crd: Mapping[str, Any]) -> str:
    return str(crd["metadata"]["resourceVersion"])


def patch(client: Client, *, check: bool = False, tries: int = TRIES) -> list[dict[str, Any]]:
    """Adds the property to every version of EC2NodeClass that lacks it, or has another one; `check` only
    looks. Raises ApiError, and ValueError where there is no such kind."""
    try:
        installed = client.get(CRD, NAME)
    except NotFound as error:
        raise ValueError(
            f"this cluster has no {NAME}: install Karpenter, or run capacity-broker crds install"
        ) from error
    definition_ = definition(installed)
    lacking = {
        **dict.fromkeys(definition_.missing, "missing"),
        **dict.fromkeys(definition_.outdated, "outdated"),
    }
    if lacking and not check:
        try:
            client.patch(CRD, NAME, changes(installed), type="json")
        except Invalid:
            if tries <= 1:
                raise
            return patch(client, tries=tries - 1)  # changed since it was read
    return [
        {"version": version, "property": _did(lacking.get(version, ""), check=check)}
        for version in definition_.versions
    ]


def complete(rows: list[dict[str, Any]]) -> bool:
    """Whether the field is kept now in every version that an object may be written in."""
    return all(row["property"] not in ("missing", "outdated") for row in rows)


def _did(lacking: str, *, check: bool) -> str:
    if not lacking:
        return "there"
    return lacking if check else {"missing": "added", "outdated": "updated"}[lacking]
