"""Every alert has a runbook, and its commands print the shown output in a cluster with these troubles."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from broker.apis.capacity_broker import OnDemandCapacityReservation
from broker.apiserver import ApiServer, Cluster
from broker.kube.transports import InProcessTransport
from broker.oncall import rules
from tests.cluster.account import A
from tests.cluster.objects import ON_DEMAND
from tests.cluster.ome.bought import create_reservation, flavored
from tests.cluster.ome.reserved import flavors_alone, until_state
from tests.cluster.stack import Stack
from tests.cluster.test_prometheus import led
from tests.docs.blocks import DOCS, Step, steps
from tests.support.direct import local_aws_here
from tests.support.service_models import models_read_once

__all__ = ["models_read_once"]
RUNBOOKS = DOCS / "runbooks"
PAGES = sorted(RUNBOOKS.glob("capacity-*.md"))
VARYING = (
    (re.compile(r"cr-[0-9a-f]{17}"), "cr-0123456789abcdef0"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d)?(\.\d+)?(Z|\+00:00)"), "2026-11-23T03:00:00Z"),
    (re.compile(r"(replica-0_)[0-9a-f]+"), r"\g<1>1a2b3c4d"),
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "0a1b2c3d-0000-4000-8000-0123456789ab"),
    (re.compile(r" +$", re.MULTILINE), ""),
)


def normal(text: str) -> str:
    for pattern, constant in VARYING:
        text = pattern.sub(constant, text)
    return text.rstrip()


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A full reservation, a pool without capacity, an ending block and a quota without nodes."""
    cluster = Cluster()
    with pytest.MonkeyPatch.context() as patch, local_aws_here() as aws, ApiServer(cluster) as api:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")
        aws.reset()
        stack = Stack(aws, InProcessTransport(cluster))
        try:
            full = stack.aws.odcr("m5.large", A, 1)
            stack.aws.rival(full)
            stack.aws.capacity_block(ends=timedelta(minutes=90))
            stack.control.pool(instance_type="m5.large", zone=A, size=0)
            stack.node_class("training", id_=full)
            flavors_alone(stack)
            flavored(stack)
            create_reservation(stack, 3)
            stack.start(kubelets=False, reservation_creating_seconds=1.0, buy_dollars=1.0)
            until_state(stack, "Failed", step=1.0)
            stack.claim("train-0", node_class="training", zones=(A,))
            stack.claim("spare-0", node_class="training", zones=(A,), capacity=(ON_DEMAND,))
            stack.until_waiting("train-0")
            stack.until_waiting("spare-0", "InsufficientCapacity")
            stack.until(lambda: len(stack.all(OnDemandCapacityReservation)) == 2, "both are mirrored")
            file = tmp_path_factory.mktemp("runbooks") / "kubeconfig"
            file.write_text(api.kubeconfig())
            with led(stack):
                yield file
        finally:
            stack.close()


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
    for alert in rules.ALERTS:
        text = (RUNBOOKS / alert.page).read_text()
        assert text.startswith(f"# {alert.name}\n") and steps(RUNBOOKS / alert.page)


@pytest.mark.covers("CAP-15")
@pytest.mark.kubectl
@pytest.mark.skipif(not shutil.which("kubectl"), reason="no kubectl on PATH")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_of_a_runbook_print_the_shown_output(page: Path, kubeconfig: Path) -> None:
    for step in steps(page):
        assert printed(step, environment(kubeconfig)) == normal(step.output), step.command
