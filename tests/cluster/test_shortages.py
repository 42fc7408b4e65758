"""Current shortages are published: a reader of Kubernetes sees them while no broker runs."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import NoReturn

import pytest

from broker.apis import names
from broker.apis.core import ConfigMap
from broker.apis.karpenter import NodeClaim
from broker.capacity.shortages import FIRST
from broker.commands.explain import claims, reading
from broker.commands.explain.options import ClaimForecast
from broker.controllers.launch import published
from broker.kube.errors import NotFound
from broker.kube.identity import NAMESPACE
from broker.notifications.alerts import firing_alerts
from broker.oncall.idle_matches import idle_matches
from broker.oncall.journal import recorded
from broker.oncall.metrics import REGISTRY
from broker.text import format_time
from broker.webpage.live import live_state
from local.demo.scheduling import schedule
from providers.errors import ErrorClass, ProviderError
from tests.cluster.account import A
from tests.cluster.objects import ON_DEMAND
from tests.cluster.stack import Stack

CODE = "InsufficientInstanceCapacity"
POOL = f"on-demand:m5.large:{A}"


def unreachable() -> NoReturn:
    raise ProviderError("NoCredentials", "no credentials", class_=ErrorClass.PERMISSION)


def explained(stack: Stack, *, with_ec2: bool = True) -> ClaimForecast:
    claim = stack.get(NodeClaim, "c-0")
    provider = (lambda: stack.current) if with_ec2 else unreachable
    forecaster = claims.Forecaster(client=stack.client, provider=provider, now=stack.clock.now())  # type: ignore[arg-type]
    forecast = forecaster.of(claim)
    assert forecast is not None
    return forecast


@pytest.mark.covers("CAP-17")
def test_explain_names_the_short_pool_since_when_and_until_when(stack: Stack) -> None:
    stack.node_class()
    stack.start()
    stack.control.fault(action="CreateFleet", stage="launch", code=CODE, message="none left", times=-1)
    before = stack.clock.now()
    stack.claim(types=("m5.large",), zones=(A,), capacity=(ON_DEMAND,))
    stack.until_waiting("c-0", "InsufficientCapacity")

    def rows() -> list[dict[str, object]]:
        return claims.shortages(explained(stack))

    (row,) = stack.until(rows, "the shortage is published")
    assert (row["scope"], row["pool"], row["code"]) == ("pool", POOL, CODE)
    (shortage,) = explained(stack).shortages
    assert before - timedelta(seconds=1) <= shortage.since <= stack.clock.now()
    assert row["until"] == format_time(shortage.since + FIRST)
    writes = count(stack)
    stack.passes()
    assert count(stack) == writes == 1

    stack.stop()
    assert claims.shortages(explained(stack, with_ec2=False)) == [row]
    stack.advance(FIRST.total_seconds() + 1)
    assert claims.shortages(explained(stack, with_ec2=False)) == []


@pytest.mark.covers("FLT-50")
def test_every_reader_names_the_first_refusal_also_after_a_restart(stack: Stack) -> None:
    stack.node_class()
    stack.start()
    stack.control.fault(action="CreateFleet", stage="launch", code=CODE, message="none left", times=-1)
    stack.claim(types=("m5.large",), zones=(A,), capacity=(ON_DEMAND,))
    (row,) = stack.until(lambda: claims.shortages(explained(stack)), "the shortage is published")
    (first,) = explained(stack).shortages
    for repeat in range(1, 4):
        (before,) = explained(stack).shortages
        if repeat == 2:  # between the end of the shortage and the next refusal
            stack.stop()
            stack.advance((before.next_try - stack.clock.now()).total_seconds() + 1)
            stack.start()
        else:
            stack.advance((before.next_try - stack.clock.now()).total_seconds() + 1)
        (now,) = stack.until(
            lambda b=before: [s for s in explained(stack).shortages if s.last > b.last],  # type: ignore[misc]
            "it refused again",
        )
        assert now.since == first.since
    assert claims.shortages(explained(stack))[0]["since"] == row["since"]
    assert stack.broker is not None and stack.current is not None
    live = live_state(stack.broker)
    (shown,) = live.shortages
    (alert,) = (a for a in firing_alerts(live, cluster="blue") if "Shortage" in a.labels["alertname"])
    labels = {"kind": "pool", "scope": POOL, "class": "capacity", "code": CODE}
    measured = REGISTRY.get_sample_value("capacity_broker_shortage_since_timestamp_seconds", labels)
    refused = [
        attempt.at
        for attempt in recorded(stack.get(NodeClaim, "c-0"))
        if attempt.code == CODE and attempt.outcome == "Refused"
    ]
    begun = {format_time(at) for at in (shown.since, alert.since, min(refused))}
    assert begun == {row["since"]} and measured is not None
    assert int(measured) == int(first.since.timestamp())
    assert f"short since {row['since'][:10]}" in alert.description


@pytest.mark.covers("FLT-54")
def test_page_and_explain_show_the_same_idle_slots_for_what_waits(stack: Stack) -> None:
    odcr = stack.aws.odcr("m5.large", A, count=2)
    stack.node_class(id_=odcr)
    broker = stack.start()
    stack.pod("train", nodeSelector={names.ZONE: "us-east-1b"})
    schedule(stack.client)

    def on_page() -> list[str]:
        assert stack.current is not None
        live = live_state(broker)
        return [match.text for match in idle_matches(live.waiters, live.idle_slots)]

    def in_explain() -> list[str]:
        return [match.text for match in reading.read(stack.client, stack.clock.now()).matches]

    def matched() -> bool:
        """True once the broker has seen both the pod and what the EC2NodeClass targets."""
        return any("default/train" in text and "of no EC2NodeClass" not in text for text in on_page())

    stack.until(matched, "the page matches the pod")
    (text,) = on_page()
    assert "its zone may be us-east-1b, not us-east-1a" in text and odcr in text
    assert in_explain() == [text]


@pytest.mark.covers("CAP-17")
def test_restart_forgets_no_shortage_and_tries_no_pool_before_its_time(stack: Stack) -> None:
    stack.node_class()
    stack.start()
    stack.control.fault(action="CreateFleet", stage="launch", code=CODE, message="none left", times=-1)
    stack.claim(types=("m5.large",), zones=(A,), capacity=(ON_DEMAND,))
    stack.until_waiting("c-0", "InsufficientCapacity")
    (row,) = stack.until(lambda: claims.shortages(explained(stack)), "the shortage is published")
    calls, writes = stack.calls("CreateFleet"), count(stack)

    stack.stop()
    stack.start()
    stack.polls(2)
    stack.passes()
    assert claims.shortages(explained(stack)) == [row]
    assert (stack.calls("CreateFleet"), count(stack)) == (calls, writes)

    stack.control.clear_faults()
    stack.advance(FIRST.total_seconds())
    stack.until_launched("c-0")


@pytest.mark.covers("CAP-17")
@pytest.mark.parametrize(
    "entry",
    [
        {"class": "capacity", "since": "2026-01-01T00:00:00Z", "until": "2099-01-01T00:00:00Z"},
        {"class": "capacity", "since": "2098-01-01T00:00:00Z", "until": "2098-01-01T00:03:00Z"},
        {"class": "throttling", "since": "2026-01-01T00:00:00Z", "until": "2026-01-01T00:03:00Z"},
        {"class": "capacity", "since": "2026-01-01T00:00:00Z", "until": "2026-01-01T00:03:00Z", "step": "x"},
        ["capacity"],
    ],
)
@pytest.mark.both_servers
def test_a_shortage_that_no_broker_can_have_written_stops_no_launch(stack: Stack, entry: object) -> None:
    body = {
        "metadata": {"name": published.NAME, "namespace": NAMESPACE},
        "data": {published.KEY: json.dumps({f"pool:{POOL}": entry})},
    }
    stack.client.apply(ConfigMap.KIND, body)
    stack.node_class()
    stack.claim(types=("m5.large",), zones=(A,), capacity=(ON_DEMAND,))
    stack.start()
    stack.until_launched("c-0")


def test_cluster_without_a_shortage_has_no_configmap(stack: Stack) -> None:
    stack.node_class()
    stack.start()
    stack.claim(types=("m5.large",), zones=(A,), capacity=(ON_DEMAND,))
    stack.until_launched("c-0")
    stack.passes()
    assert count(stack) == 0
    with pytest.raises(NotFound):
        stack.client.get(ConfigMap.KIND, published.NAME, namespace=NAMESPACE)


def count(stack: Stack) -> int:
    """The writes of the broker to the ConfigMap."""
    path = f"/configmaps/{published.NAME}"
    return sum(method != "GET" and where.endswith(path) for method, where in stack.tap.log)
