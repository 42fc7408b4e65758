"""A broker leads only in the pinned cluster, account and Region, and only one leads in a cluster."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from broker import run
from broker.apis.coordination import Lease
from broker.apis.core import ConfigMap, Node
from broker.app import LEASE, Broker
from broker.kube.client import Client
from broker.kube.identity import NAME, NAMESPACE, IdentityDiffers, cluster_uid
from tests.cluster.account import ACCOUNT, CLUSTER, REGION
from tests.cluster.objects import ON_DEMAND
from tests.cluster.stack import Provider, Stack
from tests.cluster.taps import Tap
from tests.cluster.test_leadership import Member

OTHER_ACCOUNT = "222222222222"


@contextmanager
def members(stack: Stack, *settings: dict[str, Any]) -> Iterator[list[Member]]:
    """Brokers that are started one after another; the first leads."""
    started: list[Member] = []
    try:
        for number, more in enumerate(settings):
            started.append(Member(stack, f"broker-{number}", **more))
            stack.until(lambda: started[0].leading, "the first leads")
        yield started
    finally:
        for member in started:
            member.end()


def led_once(stack: Stack) -> None:
    with members(stack, {}):
        pass


def elsewhere(stack: Stack, provider: Provider) -> Provider:
    """From now on the broker's credentials belong to another account."""
    role = stack.aws.client("sts").assume_role(
        RoleArn=f"arn:aws:iam::{OTHER_ACCOUNT}:role/x", RoleSessionName="test"
    )
    keys: Any = provider._aws._session.get_credentials()
    keys.access_key = role["Credentials"]["AccessKeyId"]
    keys.secret_key = role["Credentials"]["SecretAccessKey"]
    keys.token = role["Credentials"]["SessionToken"]
    return provider


def refused(stack: Stack, provider: Provider, **settings: Any) -> str:
    """The error that ends a broker started with these settings."""
    led: list[Broker | None] = []
    with pytest.raises(IdentityDiffers) as caught:
        run.lead(
            Client(stack.tap),
            provider,
            replace(stack.settings, leader_election=True, identity="other", **settings),
            clock=stack.clock,
            stop=threading.Event(),
            running=led.append,
        )
    assert led == []
    return str(caught.value)


@pytest.mark.covers("SAF-02")
def test_first_leader_pins_cluster_account_and_region(stack: Stack) -> None:
    led_once(stack)
    stored = stack.client.get(ConfigMap.KIND, NAME, namespace=NAMESPACE)
    assert stored["data"] == {
        "clusterUID": cluster_uid(stack.client),
        "clusterName": CLUSTER,
        "accountID": ACCOUNT,
        "region": REGION,
    }
    led_once(stack)
    assert stack.client.get(ConfigMap.KIND, NAME, namespace=NAMESPACE) == stored


@pytest.mark.covers("SAF-02")
def test_first_start_refuses_a_region_in_which_no_node_is(stack: Stack) -> None:
    labels = {"topology.kubernetes.io/region": REGION}
    spec = {"providerID": "aws:///us-east-1a/i-0123456789abcdef0"}
    stack.client.create(Node.KIND, {"metadata": {"name": "here", "labels": labels}, "spec": spec})
    elsewhere = {"topology.kubernetes.io/region": "eu-west-1"}
    stack.client.create(Node.KIND, {"metadata": {"name": "on-premises", "labels": elsewhere}, "spec": {}})
    message = refused(stack, stack.provider(), region="eu-west-1")
    assert "'eu-west-1'" in message and f"are in {REGION} " in message
    led_once(stack)
    stored = stack.get(ConfigMap, NAME, namespace=NAMESPACE).data
    assert stored["region"] == REGION


@pytest.mark.covers("SAF-02")
@pytest.mark.parametrize("fact", ["accountID", "region", "clusterUID", "clusterName"])
def test_broker_of_another_world_refuses_to_lead(stack: Stack, fact: str) -> None:
    """A restored backup of another cluster brings that cluster's ConfigMap with it."""
    provider, settings = stack.provider(), {}
    if fact == "clusterUID":
        pinned = {"clusterUID": "uid-of-another", "accountID": ACCOUNT, "region": REGION}
        meta = {"name": NAME, "namespace": NAMESPACE}
        stack.client.create(ConfigMap.KIND, {"metadata": meta, "data": pinned})
        values = cluster_uid(stack.client), "uid-of-another"
    else:
        led_once(stack)
    if fact == "accountID":
        provider, values = elsewhere(stack, provider), (OTHER_ACCOUNT, ACCOUNT)
    if fact == "region":
        settings, values = {"region": "eu-west-1"}, ("eu-west-1", REGION)
    if fact == "clusterName":
        settings, values = {"cluster_name": "green"}, ("green", CLUSTER)
    stack.node_class(preference="none")
    stack.claim(capacity=(ON_DEMAND,))
    message = refused(stack, provider, **settings)
    assert fact in message
    assert all(value in message for value in values)
    assert f"kubectl --namespace {NAMESPACE} delete configmap {NAME}" in message
    assert not stack.aws.instances()
    # A person decides to pin it anew.
    stack.client.delete(ConfigMap.KIND, NAME, namespace=NAMESPACE)
    led_once(stack)
    assert stack.get(ConfigMap, NAME, namespace=NAMESPACE).data["accountID"] == ACCOUNT


@pytest.mark.covers("SAF-02")
@pytest.mark.parametrize("leading", [False, True], ids=["standby", "leader"])
@pytest.mark.both_servers
def test_broker_with_a_changed_account_neither_begins_to_lead_nor_goes_on(
    stack: Stack, leading: bool
) -> None:
    provider = stack.provider()
    errors: list[str] = []
    led: list[Broker | None] = []

    def second() -> None:
        settings = replace(stack.settings, leader_election=True, identity="second")
        end = threading.Event()
        try:
            run.lead(Client(tap), provider, settings, clock=stack.clock, stop=end, running=led.append)
        except IdentityDiffers as error:
            errors.append(str(error))

    tap = Tap(stack.tap.inner)
    reads = ("GET", f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{LEASE}")
    with members(stack, {}) as (first,):
        thread = threading.Thread(target=second, daemon=True)
        thread.start()
        stack.until(lambda: reads in tap.log, "it stands for election")
        if leading:
            first.end()
            stack.until(lambda: led, "it leads", step=0.5)
        elsewhere(stack, provider)
        first.end()
        stack.until(lambda: errors, "it ends", step=0.5)
    thread.join(60)
    assert led[-1:] == ([None] if leading else [])
    assert OTHER_ACCOUNT in errors[0] and ACCOUNT in errors[0]
    assert not stack.get(Lease, LEASE, namespace=NAMESPACE).spec.holder_identity


@pytest.mark.covers("SAF-02")
@pytest.mark.both_servers
def test_nothing_is_done_before_the_cluster_is_known(stack: Stack) -> None:
    stack.node_class(preference="none")
    stack.claim(capacity=(ON_DEMAND,))
    tap = Tap(stack.tap.inner)
    tap.lose(lambda request: request.path == "/api/v1/namespaces")
    member = Member(stack, "only", tap=tap)
    try:
        stack.until(lambda: stack.find(Lease, LEASE, namespace=NAMESPACE), "it holds the Lease")
        stack.until(lambda: tap.lost > 3, "it tries again", step=1.0)
        assert not member.leading
        assert stack.calls("CreateFleet") == 0
        tap.heal()
        stack.until(lambda: member.leading, "it leads", step=1.0)
    finally:
        member.end()


@pytest.mark.covers("SAF-57")
@pytest.mark.parametrize(
    "second",
    [
        {},
        {"namespace": "default"},
        {"poll_seconds": 5.0, "advise": False},
        {"leader_election": False},
    ],
    ids=["the same", "namespace", "other settings", "no election"],
)
def test_second_broker_stands_by_whatever_its_settings(stack: Stack, second: dict[str, Any]) -> None:
    """The chart sets the namespace of its release; a shell sets none."""
    with members(stack, {"namespace": "capacity-broker"}, second) as (leader, other):
        stack.node_class(preference="none")
        stack.claim(capacity=(ON_DEMAND,))
        stack.kubelets_again()
        stack.until_ready("c-0")
        began = stack.clock.monotonic()  # the other would try from here on, if it stood for election
        stack.until(lambda: stack.clock.monotonic() > began + 6, "two more tries", step=0.25)
        stack.passes()
        assert leader.leading and not other.leading
        assert {path for _, path in other.tap.writes() if "/leases" not in path} == set()
        leases = stack.client.list(Lease.KIND)[0]
        namespaces = [
            lease["metadata"]["namespace"] for lease in leases if lease["metadata"]["name"] == LEASE
        ]
        assert namespaces == [NAMESPACE]
        assert stack.calls("CreateFleet") == 1
