"""The chart as Helm renders it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.strict import Json, documents

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "chart" / "capacity-broker"
RELEASE = NAMESPACE = "capacity-broker"
BUILT = ROOT / ".cache" / "bin" / "helm"
GIVEN: Json = yaml.safe_load((CHART / "ci" / "values.yaml").read_text())


class Refused(Exception):
    """Helm refused to render; the text is its output."""


@cache
def program() -> str:
    """Helm 3; without it the test is skipped, or fails if CI requires Helm."""
    path = shutil.which("helm") or (str(BUILT) if os.access(BUILT, os.X_OK) else "")
    if path:
        return path
    reason = "no helm on PATH or in .cache/bin: `sh deploy/helm.sh --find` builds it"
    if os.environ.get("CI_REQUIRE_PEERS") == "1":
        pytest.fail(f"CI_REQUIRE_PEERS=1, but {reason}")
    pytest.skip(reason)


def run(*arguments: str, given: str = "", env: Mapping[str, str] | None = None) -> str:
    """The output of Helm. Raises Refused."""
    done = subprocess.run(
        [program(), *arguments],
        input=given,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Refused(done.stderr)
    return done.stdout


def render(
    values: Mapping[str, Any] = GIVEN, *, namespace: str = NAMESPACE, release: str = RELEASE
) -> list[Json]:
    """Every manifest that these values give, over the chart's own."""
    text = run(
        *("template", release, str(CHART), "--namespace", namespace, "--kube-version", "1.36.0"),
        *("--values", "-"),
        given=yaml.safe_dump(dict(values)),
    )
    return documents(text)


def only(manifests: list[Json], kind: str) -> Json:
    (manifest,) = [manifest_ for manifest_ in manifests if manifest_["kind"] == kind]
    return manifest
