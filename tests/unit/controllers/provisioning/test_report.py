"""Each state of a pod is recorded once, however many pods wait."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from broker.apis.core import Pod
from broker.controllers.provisioning.report import PodReporter
from broker.quota.resolve import UnresolvedName


def test_states_that_last_are_recorded_once_each_and_again_when_they_change() -> None:
    recorded: list[tuple[str, str]] = []

    def event(pod: Pod, type_: str, reason: str, message: str, **more: Any) -> None:
        recorded.append((more["topic"], message))

    reporter = PodReporter(SimpleNamespace(recorder=SimpleNamespace(event=event)))  # type: ignore[arg-type]
    pod = Pod.decode({"metadata": {"name": "p", "namespace": "team", "uid": "u"}})
    refusal = UnresolvedName("ReservationNotAllowed", "not served")
    for _ in range(3):
        reporter.failed(pod, "no pool")
        reporter.kept_off({"team/p": pod}, {"team/p": "a taint"})
        reporter.refused({"team/p": pod}, {"team/p": refusal})
    topics = ["provisioning", "kept-off", "drawing"]
    assert [topic for topic, _ in recorded] == topics
    reporter.kept_off({"team/p": pod}, {"team/p": "another taint"})
    assert recorded[3:] == [("kept-off", "Failed to schedule pod, another taint")]
    reporter.keep([])
    reporter.refused({"team/p": pod}, {"team/p": refusal})
    assert len(recorded) == 5
