"""The links of alerts and dashboards, as Helm renders them, on a running page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urldefrag, urljoin

import pytest

from broker.history.store import HistoryStore
from broker.notifications.notifier import runbooks_url
from broker.settings import Settings
from broker.webpage import documentation
from local.generators import dashboards, monitoring, rules
from tests.deploy import helm
from tests.deploy.strict import Json
from tests.unit.webpage.world import get, page, state

ENABLED: Mapping[str, Json] = {"prometheusRule": {"enabled": True}, "dashboards": {"enabled": True}}
# By what a dashboard has to show: the panel's query.
ASKED = {
    "waiting pods": "max by (nodepool, reason) (capacity_broker_pods_waiting)",
    "dollars outside": "max by (instance_type, zone) (capacity_broker_outside_cost_dollars_per_hour)",
    "dollars of idle slots": "sum by (instance_type, zone) (capacity_broker_idle_cost_dollars_per_hour)",
    "slots by use": 'sum by (use) (capacity_broker_slots{use!="borrowed"})',
    "borrowed slots": 'sum by (owner) (capacity_broker_slots{use="borrowed"})',
}


@pytest.fixture
def running() -> Iterator[str]:
    with page(HistoryStore(), state()) as url:
        yield url


def rendered(**values: Json) -> list[Json]:
    return helm.render({**helm.GIVEN, **ENABLED, **values})


def environment(manifests: list[Json]) -> dict[str, str]:
    (container,) = helm.only(manifests, "Deployment")["spec"]["template"]["spec"]["containers"]
    return {variable["name"]: variable.get("value", "") for variable in container["env"]}


def address(manifests: list[Json]) -> str:
    """Where `kubectl port-forward` serves the page of these manifests."""
    variables = environment(manifests)
    assert variables["BROKER_WEB"] == "true"
    return f"http://127.0.0.1:{variables['BROKER_WEB_PORT']}"


def runbooks(manifests: list[Json]) -> dict[str, str]:
    """The runbook_url of each alert; empty for none."""
    groups = helm.only(manifests, "PrometheusRule")["spec"]["groups"]
    alerting = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    return {rule["alert"]: rule["annotations"].get("runbook_url", "") for rule in alerting}


def boards(manifests: list[Json]) -> list[Any]:
    maps = [item for item in manifests if item["metadata"]["name"].endswith("-dashboard")]
    return [json.loads(text) for item in maps for text in item["data"].values()]


def links(board: Any) -> list[str]:
    return [link["url"] for part in (board, *board["panels"]) for link in part["links"]]


@pytest.mark.covers("ONC-08")
@pytest.mark.parametrize("port", [None, 9081])
def test_each_alert_links_to_its_runbook_on_the_page_as_installed(running: str, port: int | None) -> None:
    manifests = rendered(**({"web": {"port": port}} if port else {}))
    urls = runbooks(manifests)
    assert {*urls} == {alert.name for alert in rules.ALERTS}
    for alert, url in urls.items():
        assert url.startswith(address(manifests) + "/"), url
        answer = get(url.replace(address(manifests), running))
        assert answer.status == 200, url
        assert f"<h1>{alert}</h1>" in answer.data.decode()


@pytest.mark.covers("ONC-08")
def test_dashboards_link_to_pages_and_runbooks_as_installed(running: str) -> None:
    manifests = rendered()
    every = boards(manifests)
    assert len(every) == len(dashboards.DASHBOARDS)
    for board in every:
        home, folder = links(board)[:2]
        assert (home, folder) == (address(manifests), f"{address(manifests)}/docs/runbooks/")
        for url in links(board):
            assert get(url.replace(address(manifests), running)).status == 200, url
    (oncall,) = [board for board in every if board["uid"] == "capacity-broker-oncall"]
    waiting = next(p for p in oncall["panels"] if p["title"] == "Pods without a node")
    runbook = f"{address(manifests)}/docs/runbooks/capacity-broker-pods-waiting.md"
    assert [link["url"] for link in waiting["links"]] == [f"{address(manifests)}/waiting", runbook]


@pytest.mark.covers("ONC-08")
def test_dashboard_on_call_has_waiting_pods_dollars_outside_and_slots_by_use() -> None:
    (oncall,) = [board for board in boards(rendered()) if board["uid"] == "capacity-broker-oncall"]
    queries = {target["expr"] for panel in oncall["panels"] for target in panel["targets"]}
    assert {name for name, query in ASKED.items() if query not in queries} == set()
    catalog = monitoring.catalog()
    assert catalog["capacity_broker_slots"].labels == ("odcr", "instance_type", "zone", "owner", "use")


@pytest.mark.parametrize(
    ("values", "expected_page", "expected_runbooks"),
    [
        ({"web": {"url": "https://broker.example/"}}, "https://broker.example", ""),
        (
            {"prometheusRule": {"enabled": True, "runbooks": "https://wiki.example/runbooks/"}},
            "http://127.0.0.1:8081",
            "https://wiki.example/runbooks",
        ),
    ],
)
def test_links_follow_the_values(values: Json, expected_page: str, expected_runbooks: str) -> None:
    manifests = rendered(**values)
    folder = expected_runbooks or f"{expected_page}/docs/runbooks"
    assert runbooks(manifests)["CapacityBrokerPanic"] == f"{folder}/capacity-broker-panic.md"
    assert environment(manifests)["BROKER_RUNBOOKS"] == folder
    for board in boards(manifests):
        assert links(board)[:2] == [expected_page, f"{folder}/"]
        assert all(url.startswith((expected_page, folder)) for url in links(board))


def test_without_page_and_copy_there_are_no_dead_links() -> None:
    manifests = rendered(web={"enabled": False})
    assert set(runbooks(manifests).values()) == {""}
    assert [links(board) for board in boards(manifests)] == [[], [], []]
    assert environment(manifests)["BROKER_RUNBOOKS"] == ""


def test_notifications_link_to_the_same_runbooks_as_the_rules() -> None:
    panic = runbooks(rendered())["CapacityBrokerPanic"]
    assert f"{runbooks_url(Settings(web=True))}/capacity-broker-panic.md" == panic
    assert runbooks_url(Settings()) == ""
    assert runbooks_url(Settings(runbooks="https://wiki.example/")) == "https://wiki.example"


def test_all_links_inside_of_the_documentation_work_on_the_page(running: str) -> None:
    bodies = {}
    for name in documentation.documents():
        answer = get(f"{running}/docs/{name}")
        assert answer.status == 200, name
        bodies[f"{running}/docs/{name}"] = answer.data.decode(errors="replace")
    assert len(bodies) > 50
    for url, body in bodies.items():
        shown = body.partition('<div class="document">')[2].partition("</main>")[0]
        for link in re.findall(r'(?:href|src)="([^"]+)"', shown):
            target, anchor = urldefrag(urljoin(url, link))
            if not target.startswith(running) or target.endswith("/docs/"):
                continue
            text = bodies.get(target) or get(target).data.decode()
            assert text and "Not found" not in text, (url, link)
            assert not anchor or f'id="{anchor}"' in text, (url, link)


def test_a_path_outside_of_the_documentation_is_not_served(running: str) -> None:
    for path in ("x.md", "%2e%2e/pyproject.toml", "../pyproject.toml", "runbooks/x.png"):
        assert get(f"{running}/docs/{path}").status == 404, path
