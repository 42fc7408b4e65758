"""Each state of a pod is recorded once, however many pods wait."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from broker.apis.core import Pod
from broker.controllers.provisioning.report import PodReporter
from broker.oncall.pod_reports import PodReport
from broker.quota.resolve import UnresolvedName

POD = Pod.decode({"metadata": {"name": "p", "namespace": "team", "uid": "u"}})


def test_states_that_last_are_recorded_once_each_and_again_when_they_change() -> None:
    recorded: list[tuple[str, str]] = []

    def event(pod: Pod, type_: str, reason: str, message: str, **more: Any) -> bool:
        recorded.append((more["topic"], message))
        return True

    reporter = PodReporter(SimpleNamespace(recorder=SimpleNamespace(event=event)))  # type: ignore[arg-type]
    refusal = UnresolvedName("ReservationNotAllowed", "not served")
    for _ in range(3):
        reporter.failed(POD, "no pool")
        reporter.kept_off({"team/p": POD}, {"team/p": "a taint"})
        reporter.refused({"team/p": POD}, {"team/p": refusal})
    topics = ["provisioning", "kept-off", "drawing"]
    assert [topic for topic, _ in recorded] == topics
    reporter.kept_off({"team/p": POD}, {"team/p": "another taint"})
    assert recorded[3:] == [("kept-off", "Failed to schedule pod, another taint")]
    reporter.begin()
    reporter.keep([])
    reporter.refused({"team/p": POD}, {"team/p": refusal})
    assert len(recorded) == 5


def test_event_that_the_recorder_drops_is_recorded_again_in_the_next_run() -> None:
    tries: list[str] = []

    def event(pod: Pod, type_: str, reason: str, message: str, **_: Any) -> bool:
        tries.append(message)
        return len(tries) > 1

    reporter = PodReporter(SimpleNamespace(recorder=SimpleNamespace(event=event)))  # type: ignore[arg-type]
    for _ in range(3):
        reporter.failed(POD, "no pool")
    assert tries == ["Failed to schedule pod, no pool"] * 2


@pytest.mark.covers("ONC-02")
def test_reports_are_those_of_the_last_run_that_looked_at_all_pods() -> None:
    reporter = PodReporter(SimpleNamespace(recorder=SimpleNamespace(event=lambda *_, **__: True)))  # type: ignore[arg-type]
    reporter.begin()
    reporter.failed(POD, "no pool")
    reporter.keep([])
    reporter.finish()
    assert reporter.reports == {"u": PodReport("no pool")}
    reporter.begin()
    assert reporter.reports == {"u": PodReport("no pool")}, "a run that ends early leaves them"
    reporter.keep(["u"])
    reporter.finish()
    assert reporter.reports == {}, "another launcher serves the pod, or a node has room for it"
