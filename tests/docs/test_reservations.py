"""The pages about reservations and their webhook: corrections of OME's own manifests, and shown outputs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from broker.apis.ome import ReservationSpec
from broker.apis.ome_rules import judge
from broker.controllers.capacityreservation.metrics import TABLES
from local.in_process import InProcessTransport
from local.kube import ApiServer
from tests.cluster.ome.bought import create_reservation, flavored
from tests.cluster.ome.reserved import flavors_alone, until_state
from tests.cluster.ome.test_webhook import serving
from tests.cluster.stack import Stack
from tests.docs.blocks import DOCS, steps
from tests.support.definitions import defined
from tests.support.direct import local_aws_here
from tests.support.reservation_reasons import REASONS
from tests.support.service_models import models_read_once
from tests.unit.admission.reviews import group, reservation
from tests.unit.apis.test_ome import MANIFESTS, objects

__all__ = ["models_read_once"]
KUBECTL = pytest.mark.skipif(not shutil.which("kubectl"), reason="no kubectl on PATH")
PAGE = (DOCS / "use/reservations.md").read_text()


def rows(heading: str) -> dict[str, str]:
    body = PAGE[PAGE.index(f"| {heading} |") :].split("\n\n")[0].splitlines()[2:]
    cells = [re.split(r"(?<!\\)\|", line) for line in body]
    return {cell[1].strip().strip("`"): " ".join(cell[2:]) for cell in cells}


@pytest.mark.covers("OME-100")
def test_every_manifest_that_is_put_right_is_on_the_page_and_no_other() -> None:
    documented = rows("manifest")
    changed = set()
    for manifest in MANIFESTS:
        for obj in objects(manifest):
            if obj["kind"] == "DedicatedAICluster" or "apiVersion" not in obj:
                continue
            spec = ReservationSpec.model_validate(obj["spec"])
            notes = judge(spec, default_cohort="shared").notes
            name = obj["metadata"]["name"]
            if not notes or name not in manifest["text"]:
                continue  # a fragment
            changed.add(name)
            for word in ("memory", "cpu", "borrowingLimit", "LowerPriority", "cohort"):
                if any(f" {word}" in note or f"{word} " in note for note in notes):
                    assert word in documented[name], (name, word)
    assert set(documented) == changed
    assert "sets a `borrowingLimit` without `allowBorrowing`" in " ".join(PAGE.split())


def test_every_reason_and_every_series_is_on_the_page() -> None:
    conditions = rows("condition")
    assert set(conditions) == set(REASONS)
    for condition, reasons in REASONS.items():
        if condition in ("Ready", "DACAssociationsHealthy", "WorkloadsHealthy", "SpecNormalized"):
            missing = [
                reason
                for reason in reasons
                if f"`{reason}`" not in conditions[condition] and reason != "Creating"
            ]
            assert missing == [], condition
    assert [metric.name for metric in TABLES if f"`{metric.name}`" not in PAGE] == []


@contextmanager
def terminal(folder: Path) -> Iterator[tuple[Stack, Callable[[str], str]]]:
    """A cluster, and a function that returns the output of a reader's command."""
    with local_aws_here() as aws, ApiServer(defined()) as api:
        aws.reset()
        (folder / "kubeconfig").write_text(api.kubeconfig())
        environment = {"PATH": os.environ["PATH"], "KUBECONFIG": "kubeconfig", "HOME": str(folder)}

        def run(command: str) -> str:
            return subprocess.run(
                ["bash", "-c", command],
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            ).stdout

        stack = Stack(aws, InProcessTransport(api.cluster))
        try:
            yield stack, run
        finally:
            stack.close()


@pytest.mark.covers("USR-24")
@pytest.mark.kubectl
@KUBECTL
def test_detail_of_a_failed_reservation_is_as_shown(tmp_path: Path) -> None:
    (step,) = steps(DOCS / "use/reservations.md")
    with terminal(tmp_path) as (stack, run):
        flavors_alone(stack)
        flavored(stack)
        create_reservation(stack, 1)
        stack.start(kubelets=False, reservation_creating_seconds=1.0)
        until_state(stack, "Failed", step=1.0)
        assert run(step.command).split() == step.output.split()


@pytest.mark.covers("USR-24")
@pytest.mark.kubectl
@KUBECTL
def test_answers_of_the_webhook_are_as_shown(tmp_path: Path) -> None:
    rule = {"reclaimWithinCohort": "Any", "borrowWithinCohort": {"policy": "Any"}}
    bodies = {
        "two-groups-of-one-flavor.yaml": reservation("training", group(), group(), namespace="default"),
        "borrow-any.yaml": reservation(
            "training", group(), namespace="default", cohort="ml", allowBorrowing=True, preemptionRule=rule
        ),
    }
    for name, body in bodies.items():
        (tmp_path / name).write_text(yaml.safe_dump(body))
    shown = [s for s in steps(DOCS / "operate/webhook.md") if s.command.startswith("kubectl apply ")]
    assert [step.command.split()[-1] for step in shown] == [*bodies]
    with terminal(tmp_path) as (stack, run), serving(stack):
        for step in shown:
            assert run(step.command).split() == step.output.split()
