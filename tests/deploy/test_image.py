"""The image: its files, the removed ones, and that the broker starts without those."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.deploy import helm

ROOT = helm.ROOT
LINES = (ROOT / "deploy" / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
IGNORED = (ROOT / "deploy" / "Dockerfile.dockerignore").read_text().split()
RUNTIME = runpy.run_path(str(ROOT / "deploy" / "runtime.py"))

# Run first in a process: imports of packages that the image lacks fail as they would in it.
WITHOUT = """
import sys
from importlib.abc import MetaPathFinder
from importlib import metadata
from importlib.metadata import packages_distributions
gone = set(sys.argv.pop(1).split(",")) | {"capacity-broker-local"}
installed = metadata.distributions
metadata.distributions = lambda: (d for d in installed() if normalized(d.metadata["Name"]) not in gone)
names = {m for m, dists in packages_distributions().items() if {normalized(d) for d in dists} <= gone}
class Image(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in names - {"broker", "providers"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Image())
"""


def instructions(name: str) -> list[str]:
    return [line.removeprefix(name).strip() for line in LINES if line.startswith(name + " ")]


def in_image(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -m broker.cli ...` with only the files that stay in the image."""
    code = (
        "import re\ndef normalized(n): return re.sub(r'[-_.]+', '-', n).lower()\n"
        + WITHOUT
        + "import runpy\nrunpy.run_module('broker.cli', run_name='__main__', alter_sys=True)\n"
    )
    unneeded = ",".join(RUNTIME["unneeded"](ROOT / "pyproject.toml"))
    return subprocess.run(
        [sys.executable, "-c", code, unneeded, *arguments],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_image_keeps_runtime_packages_and_drops_those_of_laptops_and_tests() -> None:
    unneeded = set(RUNTIME["unneeded"](ROOT / "pyproject.toml"))
    assert {"moto", "pytest", "mypy", "ruff", "hypothesis", "common-expression-language"} <= unneeded
    assert not {"boto3", "pydantic-core", "kubernetes", "aiohttp", "yarl", "pyyaml", "typer"} & unneeded


def test_missing_requirement_is_named() -> None:
    with pytest.raises(LookupError, match="no-such-thing>=2 is required"):
        RUNTIME["needed"](["boto3", "no-such-thing>=2"])


def test_command_line_works_with_the_remaining_packages() -> None:
    crds = in_image("crds", "print")
    assert crds.returncode == 0, crds.stderr
    assert "ec2nodeclasses.karpenter.k8s.aws" in crds.stdout
    # It gets as far as the missing cluster: everything that `run` needs was imported.
    nodes = ("--cluster-name", "blue", "--cluster-endpoint", "https://blue.example", "--cluster-ca", "LS0t")
    ran = in_image("run", "--region", "us-east-1", *nodes)
    assert (ran.returncode, "none is configured" in ran.stderr) == (2, True), ran.stderr


def test_image_has_nothing_of_the_demo() -> None:
    assert "local" not in copied()
    demo = in_image("demo", "--once")
    assert demo.returncode == 2
    assert "No such command 'demo'" in demo.stderr


def copied() -> list[str]:
    return [
        source
        for line in instructions("COPY")
        if not line.startswith("--from")
        for source in line.split()[:-1]
    ]


def test_everything_that_is_copied_is_there_and_reaches_the_build() -> None:
    sources = copied()
    assert {"broker", "providers", "crds", "docs", "requirements.lock"} <= set(sources)
    for source in sources:
        assert (ROOT / source).exists(), source
        allowed = [pattern.removeprefix("!") for pattern in IGNORED if pattern.startswith("!")]
        assert any(fnmatch(source, pattern) for pattern in allowed), source


def test_it_runs_as_the_user_that_the_chart_names_on_one_base() -> None:
    pod = helm.CHART / "templates" / "deployment.yaml"
    (user,) = set(re.findall(r"runAs(?:User|Group): (\d+)", pod.read_text()))
    assert instructions("USER") == [f"{user}:{user}"]
    assert {line.split()[0] for line in instructions("FROM")} == {"${BASE}"}


@pytest.mark.covers("USR-33")
def test_base_is_pinned_by_digest() -> None:
    (base,) = instructions("ARG")
    assert re.fullmatch(r"BASE=python:3\.11-slim@sha256:[0-9a-f]{64}", base)
    assert LINES.index(f"ARG {base}") < next(n for n, line in enumerate(LINES) if line.startswith("FROM"))


def test_everything_is_installed_by_hash() -> None:
    (installed,) = [line for line in instructions("RUN") if "pip install" in line]
    assert "--require-hashes --requirement requirements.lock" in installed
    lock = Path(ROOT / "requirements.lock").read_text()
    pins = re.findall(r"^[a-z0-9][^\s]*==", lock, re.MULTILINE)
    assert len(pins) > 50
    assert len(re.findall(r"^[a-z0-9][^\n]*\\\n    --hash=sha256:", lock, re.MULTILINE)) == len(pins)
