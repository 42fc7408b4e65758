"""The pages of nodes, claims and pods beside the commands, on one cluster."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Event, Node, Pod
from broker.apis.karpenter import NodeClaim
from broker.app import Broker
from broker.commands.dry_run import DryRun
from broker.commands.explain import claims
from broker.commands.explain.live import LIVE
from broker.commands.explain.pod import PodExplainer, find
from broker.commands.explain.reading import read
from broker.kube.client import Request
from broker.kube.errors import Forbidden
from broker.text import format_time
from broker.webpage.details import Details, live_details
from broker.webpage.nodes import PodAmounts
from tests.cluster.account import A
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.stack import Stack

EC2_CALLS = ("DescribeCapacityReservations", "DescribeSubnets", "DescribeInstances", "DescribeImages")


def details(broker: Broker) -> Details:
    return live_details(broker, LIVE, PodAmounts())


def forecaster(stack: Stack, now: datetime) -> claims.Forecaster:
    return claims.Forecaster(
        client=stack.client,
        provider=stack.provider,
        now=now,
        entitle=lambda _: dry_run(stack).entitlements,
    )


def dry_run(stack: Stack) -> DryRun:
    return DryRun(stack.client, stack.provider(), stack.settings, stack.clock)


def lists_events(request: Request) -> bool:
    return request.method == "GET" and request.path.endswith("/events")


def by_command(stack: Stack, key: str, now: datetime) -> dict[str, Any]:
    """The document of `explain pod`. Of the events, those of the pod: the claim has a page of its own."""
    situation = read(stack.client, now)
    explainer = PodExplainer(situation=situation, forecaster=forecaster(stack, now))
    document = explainer.page(find(situation, *key.split("/"))).document()
    return {**document, "events": [row for row in document["events"] if row["about"] == f"Pod {key}"]}


@pytest.mark.covers("ONC-05")
def test_pages_have_the_values_of_explain_claim_and_explain_pod(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    odcr = stack.aws.odcr("m5.large", A, 1)
    stack.node_class(id_=odcr)
    stack.node_pool()
    broker = stack.start()
    resources = {"requests": {"cpu": "500m", "memory": "1Gi"}}
    stack.claim("c-0", capacity=(RESERVED, ON_DEMAND))
    stack.until_ready("c-0")
    node = stack.get(NodeClaim, "c-0").status.node_name
    stack.pod("runs", node=node, containers=[{"name": "main", "image": "pause", "resources": resources}])
    stack.claim("c-1", annotations={names.PODS: "default/runs"})
    stack.until_waiting("c-1")

    def seen() -> bool:
        page = details(broker)
        launched = page.claim("c-0")
        placed = launched is not None and launched["capacity_type"] == "reserved"
        pod = page.pod("default/runs")
        return placed and pod is not None and bool(pod["events"]) and page.nodes()[0].pods == 1

    stack.until(seen, "the caches have the pod, its event and its slot", step=0.5)
    stack.stop()  # its caches stay as they are, and no poll calls EC2
    stack.kubelets.stop()
    calls, now = [stack.calls(action) for action in EC2_CALLS], stack.clock.now()
    monkeypatch.setattr(stack.clock, "now", lambda: now)  # both say since when
    page = details(broker)
    runs, waits, pod = page.claim("c-0"), page.claim("c-1"), page.pod("default/runs")
    (row,) = page.nodes()
    (team_pod,) = page.pods("default", "")
    assert [stack.calls(action) for action in EC2_CALLS] == calls
    assert runs is not None and waits is not None and pod is not None

    for document in (runs, waits):
        claim = stack.get(NodeClaim, document["claim"])
        shown = claims.document(
            claim,
            forecaster(stack, now).of(claim),
            pods=claims.pods_on(stack.client, claim),
            usd_hour=claims.price(stack.client, claim),
        )
        assert dict(document) | {"events": []} == shown
    assert (runs["reservation"], runs["capacity_type"]) == (odcr, "reserved")
    assert waits["pods"] == ["default/runs"] and waits["claim"] == "c-1"
    assert [option["reservation"] for option in waits["options"]] == [odcr]
    assert pod == by_command(stack, "default/runs", now)
    assert pod["placed"][0]["reservation"] == odcr
    assert (row.name, row.claim, row.reservation, row.pods) == (node, "c-0", odcr, 1)
    cpu = row.fills[0]
    assert (cpu.name, cpu.requested) == ("CPU", 500) and cpu.allocatable > 1000
    assert row.usd_hour is not None and team_pod.usd_hour is not None
    assert 0 < team_pod.usd_hour < row.usd_hour and team_pod.reservation == odcr
    assert page.claim("none") is None and page.pod("default/none") is None


@pytest.mark.covers("ONC-01", "ONC-05")
def test_page_of_a_pod_has_the_events_of_the_schedulers_and_of_the_broker(stack: Stack) -> None:
    broker = stack.start()
    for name in ("waits", "other"):
        stack.pod(name, nodeSelector={names.NODEPOOL: "none"})
    reported = [
        ("default-scheduler", "0/4 nodes are available"),
        ("capacity-broker", "no NodePool accepts it"),
    ]
    for name in ("waits", "other"):
        about = {
            "kind": "Pod",
            "name": name,
            "namespace": "default",
            "uid": stack.get(Pod, name, namespace="default").uid,
        }
        for number, (writer, message) in enumerate(reported):
            event = {
                "metadata": {"name": f"{name}.{number}", "namespace": "default"},
                "involvedObject": about,
                "type": "Warning",
                "reason": "FailedScheduling",
                "message": f"{message}: {name}",
                "reportingComponent": writer,
                "lastTimestamp": format_time(stack.clock.now()),
                "count": 3,
            }
            stack.client.create(Event.KIND, event)
    stack.until(lambda: broker.read.pods.cache.find("default/waits"), "the caches have the pod")
    now = stack.clock.now()
    document = details(broker).pod("default/waits")
    assert document is not None and document["unread"] == []
    shown = {row["message"]: (row["count"], row["about"]) for row in document["events"]}
    assert shown.items() >= {f"{text}: waits": (3, "Pod default/waits") for _, text in reported}.items()
    assert not [message for message in shown if message.endswith(": other")]
    assert document["events"] == by_command(stack, "default/waits", now)["events"]
    reads: list[Request] = []
    stack.tap.on(lists_events, reads.append, times=100)
    for _ in range(10):
        page = details(broker).pod("default/waits")
        assert page is not None and page["events"]
        stack.clock.advance(2)
    assert len(reads) in (1, 2), "a page that is read every two seconds lists the namespace's events seldom"


@pytest.mark.covers("ONC-05")
def test_page_of_a_pod_says_so_if_events_cannot_be_read(stack: Stack) -> None:
    """As under a role from before this page had events."""
    broker = stack.start()
    stack.pod("waits")
    stack.until(lambda: broker.read.pods.cache.find("default/waits"), "the caches have the pod")

    def refuse(_: Request) -> None:
        raise Forbidden(403, "Forbidden", "events is forbidden")

    stack.tap.on(lists_events, refuse)
    document = details(broker).pod("default/waits")
    assert document is not None and document["events"] == []
    assert document["unread"] == ["events are left out: events is forbidden (403 Forbidden)"]
    assert document["why"]


@pytest.mark.covers("ONC-05")
def test_node_of_another_platform_tenancy_or_region_has_no_price_of_linux(stack: Stack) -> None:
    broker = stack.start()
    others = {
        "linux": {},
        "windows": {names.OS: "windows"},
        "dedicated": {names.INSTANCE_TENANCY: "dedicated"},
        "elsewhere": {names.ZONE: "eu-west-1a"},
        "spot": {names.CAPACITY_TYPE: "spot"},
    }
    plain = {
        names.CAPACITY_TYPE: "on-demand",
        names.INSTANCE_TYPE: "m5.large",
        names.ZONE: A,
        names.OS: "linux",
    }
    for name, labels in others.items():
        metadata = {"name": name, "labels": plain | labels}
        stack.client.create(Node.KIND, {"metadata": metadata, "spec": {"providerID": f"aws:///{A}/i-{name}"}})
    stack.until(
        lambda: len(details(broker).nodes()) == len(others),
        "the caches have the nodes",
        step=0.5,
    )

    def prices() -> dict[str, float | None]:
        return {row.name: row.usd_hour for row in details(broker).nodes()}

    stack.until(lambda: prices()["linux"], "the types are known", step=0.5)
    known = prices()
    assert known.pop("linux") == 0.096
    assert known == dict.fromkeys(["windows", "dedicated", "elsewhere", "spot"])
