"""Karpenter's own CRDs of the compared release, without descriptions and messages.

The file is written from the Go module by `python -m tests.unit.apis.karpenter_crds`, and compared with it on
machines that have the module.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.unit.apis.cases import Json

MODULE = "github.com/aws/karpenter-provider-aws@v1.15.1"
FILES = ("karpenter.k8s.aws_ec2nodeclasses", "karpenter.sh_nodeclaims", "karpenter.sh_nodepools")
STORED = Path(__file__).with_suffix(".json")
SOURCE = f"{MODULE}, pkg/apis/crds, without descriptions and messages"


def stored() -> dict[str, Json]:
    """The CustomResourceDefinitions by name, as an API server takes them."""
    content = json.loads(STORED.read_text())
    assert content["source"] == SOURCE
    return {definition["metadata"]["name"]: definition for definition in content["crds"]}


def module() -> Path | None:
    """The folder of CRDs in the cache of Go modules; None without it."""
    go = shutil.which("go")
    if go is None:
        return None
    command = [go, "env", "GOMODCACHE"]
    cache = (
        os.environ.get("GOMODCACHE")
        or subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    )
    folder = Path(cache) / MODULE / "pkg" / "apis" / "crds"
    return folder if folder.is_dir() else None


def pruned(folder: Path) -> Iterator[Json]:
    """The definitions of a release without their texts."""
    for name in FILES:
        raw = yaml.safe_load((folder / f"{name}.yaml").read_text())
        yield {
            "apiVersion": raw["apiVersion"],
            "kind": raw["kind"],
            "metadata": {"name": raw["metadata"]["name"]},
            "spec": _without_texts(raw["spec"]),
        }


def _without_texts(value: Any, *, fields: bool = False) -> Any:
    """`fields`: the keys are names of fields, not words of a schema."""
    if isinstance(value, list):
        return [_without_texts(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _without_texts(item, fields=not fields and key == "properties")
        for key, item in value.items()
        if fields or key not in ("description", "message")
    }


def write(folder: Path) -> None:
    lines = [json.dumps(definition, separators=(",", ":"), sort_keys=True) for definition in pruned(folder)]
    head = f'{{"source":{json.dumps(SOURCE)},'
    STORED.write_text("\n".join([head, '"crds":[', ",\n".join(lines), "]}", ""]))


if __name__ == "__main__":
    folder_ = module()
    if folder_ is None:
        raise SystemExit(f"no Karpenter here: run `go mod download {MODULE}`")
    write(folder_)
