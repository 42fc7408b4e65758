"""The overview's numbers and charts, and the events on the page of a pod."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from broker.history.demand import UseLevel, pulse
from broker.history.hours import HOUR, HourOfUse, hours_of_use
from broker.history.store import HistoryStore
from broker.kube.events import Reference
from broker.webpage import scope
from tests.unit.history.facts import event as recorded_event
from tests.unit.history.facts import fill
from tests.unit.webpage.rights import CLUSTER, TEAM, Reviews
from tests.unit.webpage.samples import DETAILS
from tests.unit.webpage.test_access import signed_in, two_namespaces
from tests.unit.webpage.test_advice import recorded
from tests.unit.webpage.test_details import row_of, text_of, words
from tests.unit.webpage.world import NOW, get, page, state

SECONDS = 1200  # of the hour that runs


def _hours(*_: object) -> tuple[HourOfUse, ...]:
    begin = int(NOW.timestamp()) - HOUR
    levels = []
    for at in range(begin, begin + HOUR + SECONDS, 600):
        place = ("p5.48xlarge", "us-east-1a", "Linux/UNIX")
        levels += [pulse(at), UseLevel(at, "cr-1", *place, 3, 1, 0, 2_000_000)]
        levels += [UseLevel(at, "", *place, 0, 1, 0, 2_000_000)]
    return tuple(hours_of_use(levels, now=begin + HOUR + SECONDS))


@pytest.mark.covers("ONC-04")
def test_bar_of_the_hour_that_runs_is_marked_as_a_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of an hour has a third of its dollars: without the mark it looks as if the cost fell."""
    monkeypatch.setattr(scope, "hours_of_minute", _hours)
    with page(HistoryStore(), state()) as url:
        shown = get(url).data.decode()
    slots, dollars = shown.split("<figure")[1:]
    full, running = f"{NOW.hour - 1:02}:00", f"{NOW.hour:02}:00"
    for chart in (slots, dollars):
        assert "hatched: so far" in words(chart)
        assert chart.count('<rect class="running"') == 1 and chart.count('<path class="hatch"') == 1
    assert f"{full}: 4.0 dollars of idle slots</title>" in dollars
    assert f"{running} so far: 1.3 dollars of idle slots</title>" in dollars
    assert f'<th scope="row">{running} so far</th>' in dollars
    last = re.findall(r'<rect class="outside" x="([\d.]+)"', dollars)[-1]
    assert f'<rect class="running" x="{last}"' in dollars


@pytest.mark.covers("ONC-04")
def test_chart_without_a_count_of_the_hour_that_runs_marks_no_bar() -> None:
    with page(recorded(1), state()) as url:
        shown = get(url).data.decode()
    assert shown.count("<figure") == 2 and "so far:" not in shown
    assert "hatched" not in shown and 'class="running"' not in shown


@pytest.mark.covers("ONC-06")
@pytest.mark.parametrize(("dollars", "text"), [(55.1, "55.10"), (0.0, "0.00"), (None, "")])
def test_overview_has_the_dollars_of_instances_outside_of_reservations(
    dollars: float | None, text: str
) -> None:
    with page(HistoryStore(), replace(state(), outside=dollars)) as url:
        html = get(url).data.decode()
    figures = words(html[html.index('<ul class="figures">') :].partition("</ul>")[0])
    assert (f"{text} $/h outside reservations" in figures) == bool(text)
    assert "$/h for idle slots" in figures and ("outside" in figures) == bool(text)


def event(about: str, message: str, **more: Any) -> dict[str, Any]:
    given = {"at": "2026-11-20T10:00:00Z", "type": "Warning", "reason": "FailedScheduling", "count": 1}
    return {**given, "about": about, "message": message, **more}


EVENTS = [
    event("Pod team/waits-0", "0/4 nodes are available: 4 Insufficient nvidia.com/gpu.", count=12),
    event("NodeClaim train-1", "waits behind secret-project/hush", reason="SlotsTaken"),
]


def with_events(key: str) -> dict[str, Any]:
    document = DETAILS.pod(key)
    assert document is not None
    return {**document, "events": EVENTS, "unread": ["pods are left out: forbidden"]}


DETAILS_WITH_EVENTS = replace(DETAILS, pod=with_events)


@pytest.mark.covers("ONC-05")
def test_page_of_a_pod_has_its_events_with_count_and_time() -> None:
    html = text_of("/pods/team/waits-0", DETAILS_WITH_EVENTS)
    row = row_of(html, "Insufficient")
    for part in ("2026-11-20 10:00:00", " 12 ", "FailedScheduling", "nodes are available: 4 Insufficient"):
        assert part in row, part
    assert "SlotsTaken" in row_of(html, "waits behind") and "pods are left out: forbidden" in html
    assert html.index("Insufficient") < html.index("Timeline")
    assert "Events of the schedulers" not in text_of("/pods/team/waits-0")


@pytest.mark.covers("ONC-05")
@pytest.mark.parametrize("rights", [{TEAM}, {TEAM, *CLUSTER}], ids=["namespace", "cluster"])
def test_person_of_a_namespace_sees_the_events_of_the_pod_alone(rights: set[tuple[str, str]]) -> None:
    access, headers = signed_in(Reviews({"ana": rights}))
    with page(HistoryStore(), two_namespaces(), access, DETAILS_WITH_EVENTS) as url:
        html = get(f"{url}/pods/team/waits-0", **headers).data.decode()
    assert "nodes are available: 4 Insufficient" in words(html) and "hush" not in html


@pytest.mark.covers("ONC-06")
@pytest.mark.parametrize("path", ["/", "/record"])
def test_class_and_nodepool_of_one_name_are_told_apart(path: str) -> None:
    store = HistoryStore()
    for kind in ("EC2NodeClass", "NodePool"):
        about = Reference(api_version="v1", kind=kind, name="gpu")
        fill(store, recorded_event("NotReady", about=about, type="Warning", message=f"{kind} is not ready"))
    with page(store, state()) as url:
        html = get(url + path).data.decode()
    for kind, folder in (("EC2NodeClass", "classes"), ("NodePool", "pools")):
        row = row_of(html, f"{kind} is not ready")
        assert f"{kind} gpu" in row.replace(f"{kind} is not ready", "")
        assert f'href="/{folder}/gpu"' in html
