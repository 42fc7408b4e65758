"""Our CRDs compared with Karpenter's own, read from its Go module if this machine has it.

Intended differences are listed with their reasons; any other difference fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from broker.apis import crds
from tests.unit.apis.cases import Json

MODULE = "github.com/aws/karpenter-provider-aws@v1.14.0"
FILES = ("karpenter.k8s.aws_ec2nodeclasses", "karpenter.sh_nodeclaims", "karpenter.sh_nodepools")
COMPARED = (
    "type",
    "format",
    "enum",
    "pattern",
    "default",
    "minimum",
    "maximum",
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
    "maxProperties",
    "required",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-map-type",
)

BROKER_FIELD = "a field of the broker"
OLDER = "v1beta1 allowed it, and both versions share a schema"
VALUES = "Karpenter puts the limit on the list, where it means nothing; here it is on each value"
DIFFERENT = {
    ".spec.capacityReservationSpec": BROKER_FIELD,
    ".status.capacityReservationMisfits": BROKER_FIELD,
    ".status.capacityReservations[].totalInstanceCount": BROKER_FIELD,
    ".status.capacityReservations[].availableInstanceCount": BROKER_FIELD,
    ".status.capacityReservations[].state enum": "pending is the broker's state",
    ".spec required": OLDER,
    ".spec.amiFamily enum": OLDER,
    ".spec.blockDeviceMappings[].ebs.volumeSize pattern": "Karpenter's allows no number before Ti and T",
    ".spec.kubelet.evictionHard{} pattern": "Karpenter's allows an empty threshold",
    ".spec.kubelet.evictionSoft{} pattern": "Karpenter's allows an empty threshold",
    ".spec.limits maxProperties": "the rule over limits needs a bound",
    ".spec.requirements[].values": VALUES,
    ".spec.template.spec.requirements[].values": VALUES,
}


def module() -> Path | None:
    go = shutil.which("go")
    if go is None:
        return None
    cache = (
        os.environ.get("GOMODCACHE")
        or subprocess.run(
            [go, "env", "GOMODCACHE"], capture_output=True, text=True, check=True
        ).stdout.strip()
    )
    folder = Path(cache) / MODULE / "pkg" / "apis" / "crds"
    return folder if folder.is_dir() else None


def facts(schema: Json, path: str = "") -> Iterator[tuple[str, Any]]:
    """Each field, and each of its constraints."""
    yield path, "field"
    for key in COMPARED:
        if key in schema:
            value = schema[key]
            yield f"{path} {key}", sorted(value) if key in ("required", "enum") else value
    for name, child in schema.get("properties", {}).items():
        yield from facts(child, f"{path}.{name}")
    if "items" in schema:
        yield from facts(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from facts(schema["additionalProperties"], f"{path}{{}}")


def meant(fact: str) -> bool:
    return any(fact == path or fact.startswith((f"{path}.", f"{path} ", f"{path}[")) for path in DIFFERENT)


@pytest.mark.peers
@pytest.mark.parametrize("file", FILES)
def test_schemas_equal_karpenters(file: str) -> None:
    folder = module()
    if folder is None:
        pytest.skip(f"no Karpenter here: run `go mod download {MODULE}`")
    karpenter = yaml.safe_load((folder / f"{file}.yaml").read_text())["spec"]
    (broker,) = (crd["spec"] for crd in crds.load() if crd["metadata"]["name"] == ".".join(_parts(karpenter)))
    for key in ("group", "names", "scope"):
        assert broker[key] == karpenter[key]
    broker_version, karpenter_version = broker["versions"][0], karpenter["versions"][0]
    assert broker_version["subresources"] == karpenter_version["subresources"]
    # The broker keeps all columns of Karpenter, some with -o wide only.
    columns = [
        {c["name"]: c["jsonPath"] for c in version["additionalPrinterColumns"]}
        for version in (broker_version, karpenter_version)
    ]
    assert columns[1].items() <= columns[0].items()
    karpenter_facts = dict(facts(karpenter_version["schema"]["openAPIV3Schema"]))
    broker_facts = dict(facts(broker_version["schema"]["openAPIV3Schema"]))
    differing = {
        fact
        for fact in karpenter_facts.keys() | broker_facts.keys()
        if karpenter_facts.get(fact) != broker_facts.get(fact)
    }
    assert sorted(fact for fact in differing if not meant(fact)) == []


def _parts(spec: Json) -> tuple[str, str]:
    return spec["names"]["plural"], spec["group"]
