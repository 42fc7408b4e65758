"""`make release` in a clone of this checkout: versions, changelog, files, commit and tag."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.deploy import helm
from tests.docs.blocks import DOCS, blocks

ROOT = helm.ROOT
VERSION = "7.8.9"


def git(clone: Path, *arguments: str) -> str:
    command = ("git", "-c", "user.name=Releaser", "-c", "user.email=releaser@example.com", *arguments)
    return subprocess.run(command, cwd=clone, capture_output=True, text=True, check=True).stdout.strip()


def release(clone: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(clone, sys.executable, "deploy/release.py", *arguments)


def run(clone: Path, *command: str) -> subprocess.CompletedProcess[str]:
    names = {"GIT_AUTHOR_NAME": "Releaser", "GIT_AUTHOR_EMAIL": "releaser@example.com"}
    names |= {key.replace("AUTHOR", "COMMITTER"): value for key, value in names.items()}
    return subprocess.run(
        command,
        cwd=clone,
        env={
            **os.environ,
            **names,
            "PYTHONPATH": str(clone),
            "PATH": f"{Path(helm.program()).parent}:{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of this checkout as one commit, whatever is committed here."""
    folder = tmp_path_factory.mktemp("release") / "clone"
    git(ROOT, "clone", "--quiet", "--no-tags", "--depth", "1", f"file://{ROOT}", str(folder))
    listed = git(ROOT, "ls-files", "--modified", "--others", "--exclude-standard").split()
    for name in listed:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_file():
            target.write_bytes((ROOT / name).read_bytes())
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "The present files")
    # An installation that make takes for newer than the files.
    (folder / ".venv").mkdir()
    for part in Path(sys.prefix).iterdir():
        (folder / ".venv" / part.name).symlink_to(part)
    (folder / ".venv/.installed").unlink(missing_ok=True)
    (folder / ".venv/.installed").touch()
    return folder


@pytest.mark.covers("USR-33")
@pytest.mark.parametrize(
    ("version", "message"),
    [("next", "three numbers, such as 1.2.3"), ("0.1", "three numbers"), ("", "three numbers")],
)
def test_wrong_version_changes_nothing(clone: Path, version: str, message: str) -> None:
    done = release(clone, version)
    assert done.returncode == 1 and message in done.stderr
    assert git(clone, "status", "--porcelain") == ""


@pytest.mark.covers("USR-24", "USR-33")
def test_one_command_makes_the_release_and_the_wheel_runs_the_demo(clone: Path) -> None:
    before = git(clone, "rev-parse", "HEAD")
    (clone / "README.md").write_text("changed")
    refused = release(clone, VERSION)
    assert refused.returncode == 1 and "uncommitted" in refused.stderr
    git(clone, "checkout", "--quiet", "README.md")

    (shown,) = (
        line for block in blocks(DOCS / "contribute/releases.md", "sh") for line in block.splitlines()[1:]
    )
    done = run(clone, *shown.replace("1.2.3", VERSION).split())
    assert done.returncode == 0, done.stderr
    assert git(clone, "status", "--porcelain") == ""
    assert git(clone, "rev-parse", "HEAD~1") == before
    assert git(clone, "rev-list", "-n", "1", f"v{VERSION}") == git(clone, "rev-parse", "HEAD")
    assert git(clone, "log", "-1", "--format=%s") == f"Release {VERSION}"

    assert tomllib.loads((clone / "pyproject.toml").read_text())["project"]["version"] == VERSION
    dist = clone / "dist"
    for chart in ("capacity-broker", "capacity-broker-crds"):
        with tarfile.open(dist / f"{chart}-{VERSION}.tgz") as package:
            member = package.extractfile(f"{chart}/Chart.yaml")
            assert member is not None
            meta = yaml.safe_load(member.read())
        assert (meta["version"], meta["appVersion"]) == (VERSION, VERSION)
    changelog = (clone / "CHANGELOG.md").read_text()
    assert re.search(
        rf"^## Unreleased\n\n## {re.escape(VERSION)} \(\d{{4}}-\d\d-\d\d\)\n\n\S", changelog, re.MULTILINE
    )

    with zipfile.ZipFile(dist / f"capacity_broker-{VERSION}-py3-none-any.whl") as wheel:
        packed = {*wheel.namelist()}
    assert {"broker/cli.py", "broker/crds/karpenter.sh_nodeclaims.yaml"} <= packed
    assert "broker/docs/runbooks/capacity-broker-panic.md" in packed
    assert not [name for name in packed if name.startswith("local/")]
    with zipfile.ZipFile(dist / f"capacity_broker_local-{VERSION}-py3-none-any.whl") as wheel:
        assert {"local/demo/command.py", "local/aws/server.py", "local/kube/cluster.py"} <= {
            *wheel.namelist()
        }
    bill = json.loads((dist / f"capacity-broker-{VERSION}.cdx.json").read_text())
    assert (bill["bomFormat"], bill["metadata"]["component"]["version"]) == ("CycloneDX", VERSION)
    lock = (clone / "requirements.lock").read_text()
    names = {component["name"] for component in bill["components"]}
    assert {"boto3", "kubernetes", "pydantic"} <= names and not {"moto", "pytest", "hatchling"} & names
    for component in bill["components"]:
        assert f"\n{component['name']}=={component['version']} " in f"\n{lock}"
        assert component["externalReferences"][0]["hashes"][0]["content"] in lock
    for line in (dist / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split()
        assert hashlib.sha256((dist / name).read_bytes()).hexdigest() == digest
    assert (clone / "tests" / "releases" / VERSION / "state.json").is_file()
    assert f"git push origin HEAD v{VERSION}" in done.stdout and "docker build" in done.stdout

    again = release(clone, VERSION)
    assert again.returncode == 1 and f"{VERSION} is released already" in again.stderr
    none = release(clone, "8.0.0")
    assert none.returncode == 1 and "lists no changes" in none.stderr
