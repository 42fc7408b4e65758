"""Every alert has a runbook, and its commands print the shown output in a cluster with that trouble."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path

import pytest

from local.aws import LocalAws
from local.generators import rules
from local.in_process import InProcessTransport
from local.kube import ApiServer, Cluster
from tests.cluster.stack import Stack
from tests.cluster.test_prometheus import led
from tests.docs.blocks import DOCS, Step, steps
from tests.docs.troubles import TROUBLES, Trouble
from tests.support.direct import local_aws_here
from tests.support.service_models import models_read_once

__all__ = ["models_read_once"]
RUNBOOKS = DOCS / "runbooks"
PAGES = sorted(RUNBOOKS.glob("capacity-*.md"))
VARYING = (
    (re.compile(r"\b(cr|i)-[0-9a-f]{17}"), r"\g<1>-0123456789abcdef0"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d)?(\.\d+)?(Z|\+00:00)"), "2026-11-23T03:00:00Z"),
    (re.compile(r"(replica-0_)[0-9a-f]+"), r"\g<1>1a2b3c4d"),
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "0a1b2c3d-0000-4000-8000-0123456789ab"),
    (re.compile(r"(\bteam-)[0-9a-f]{8}\b"), r"\g<1>1a2b3c4d"),
    (re.compile(r"(\bweb-)[0-9a-f]{5}\b"), r"\g<1>1a2b3"),
    (re.compile(r" +$", re.MULTILINE), ""),
)


def normal(text: str) -> str:
    for pattern, constant in VARYING:
        text = pattern.sub(constant, text)
    return text.rstrip()


@pytest.fixture(scope="module")
def aws() -> Iterator[LocalAws]:
    with pytest.MonkeyPatch.context() as patch, local_aws_here() as server:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")
        yield server


@pytest.fixture
def kubeconfig(page: Path, aws: LocalAws, tmp_path: Path) -> Iterator[Path]:
    """Of a cluster with the trouble of the page's alert."""
    cluster = Cluster()
    trouble = trouble_of(page)
    aws.reset()
    with ApiServer(cluster) as api:
        stack = Stack(aws, InProcessTransport(cluster))
        file = tmp_path / "kubeconfig"
        file.write_text(api.kubeconfig())
        try:
            with led(stack) if trouble.leads else nullcontext():
                trouble.make(stack)
                yield file
        finally:
            stack.close()


def trouble_of(page: Path) -> Trouble:
    (name,) = [alert.name for alert in rules.ALERTS if alert.page == page.name]
    return TROUBLES[name]


def printed(step: Step, env: Mapping[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-c", step.command], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return normal(done.stdout)


def environment(kubeconfig: Path) -> Mapping[str, str]:
    return {"PATH": os.environ["PATH"], "KUBECONFIG": str(kubeconfig), "HOME": str(kubeconfig.parent)}


@pytest.mark.covers("CAP-15")
def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    assert {page.name for page in PAGES} == {alert.page for alert in rules.ALERTS}
    assert TROUBLES.keys() == {alert.name for alert in rules.ALERTS}
    for alert in rules.ALERTS:
        text = (RUNBOOKS / alert.page).read_text()
        assert text.startswith(f"# {alert.name}\n") and steps(RUNBOOKS / alert.page)


@pytest.mark.covers("CAP-15")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_output_of_a_runbook_shows_the_trouble_of_its_alert(page: Path) -> None:
    shown = "\n".join(normal(step.output) for step in steps(page))
    trouble = trouble_of(page)
    assert [word for word in trouble.words if word not in shown] == []
    assert trouble.log in page.read_text()


@pytest.mark.covers("CAP-15")
@pytest.mark.kubectl
@pytest.mark.skipif(not shutil.which("kubectl"), reason="no kubectl on PATH")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_of_a_runbook_print_the_shown_output(page: Path, kubeconfig: Path) -> None:
    for step in steps(page):
        assert printed(step, environment(kubeconfig)) == normal(step.output), step.command
