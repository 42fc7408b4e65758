"""Two brokers on one cluster: one acts; if it stops or is cut off, the other continues its work."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from broker import run
from broker.apis.coordination import Lease
from broker.apis.karpenter import NodeClaim
from broker.app import LEASE, Broker
from broker.kube.client import Client
from broker.kube.identity import NAMESPACE
from tests.cluster.stack import Stack
from tests.cluster.taps import Tap


class Member:
    """One replica, as `capacity-broker run` runs it, without its process."""

    def __init__(self, stack: Stack, name: str, *, tap: Tap | None = None, **more: Any) -> None:
        self.name = name
        self.tap = tap or Tap(stack.tap.inner)
        self.leads: list[Broker | None] = [None]
        self.stop = threading.Event()
        provider = stack.provider()
        provider.instance_types()
        settings = replace(stack.settings, **{"leader_election": True, "identity": name, **more})
        self.thread = threading.Thread(
            target=run.lead,
            args=(Client(self.tap), provider, settings),
            kwargs={"clock": stack.clock, "stop": self.stop, "running": self.record_leading},
            daemon=True,
        )
        self.thread.start()

    def record_leading(self, broker: Broker | None) -> None:
        self.leads.append(broker)

    @property
    def leading(self) -> bool:
        return self.leads[-1] is not None

    def end(self) -> None:
        self.stop.set()
        self.thread.join(120)


@contextmanager
def two(stack: Stack) -> Iterator[tuple[Member, Member]]:
    """The leader, then its standby."""
    members = [Member(stack, "a"), Member(stack, "b")]
    stack.kubelets_again()
    try:
        stack.until(lambda: any(member.leading for member in members), "a leader")
        first = next(member for member in members if member.leading)
        yield first, next(member for member in members if member is not first)
    finally:
        for member in members:
            member.tap.heal()
            member.end()


def one_each(stack: Stack, *claims: str) -> bool:
    held = sorted(stack.get(NodeClaim, name).instance_id for name in claims)
    return held == sorted(i["InstanceId"] for i in stack.aws.instances()) and "" not in held


@pytest.mark.covers("KRP-25")
def test_only_the_leader_acts_and_its_successor_goes_on(stack: Stack) -> None:
    stack.node_class(id_=stack.aws.odcr(count=3))
    with two(stack) as (first, second):
        stack.claim("c-0")
        stack.until_ready("c-0")
        assert not second.leading
        assert {path for _, path in second.tap.writes() if "/leases" not in path} == set()
        first.end()
        stack.until(lambda: second.leading, "the other leads")
        stack.claim("c-1")
        stack.until_ready("c-1")
        assert one_each(stack, "c-0", "c-1")
        assert stack.calls("CreateFleet") == 2


@pytest.mark.covers("KRP-25")
@pytest.mark.both_servers
def test_a_leader_that_is_cut_off_stops_before_the_other_starts(stack: Stack) -> None:
    """The leader is cut off after EC2 launched for it: the standby binds the instance to its claim."""
    stack.node_class(id_=stack.aws.odcr(count=3))
    with two(stack) as (first, second):
        stack.claim("c-0")
        stack.until_ready("c-0")
        first.tap.lose(lambda request: request.path.endswith("/status") or "/leases" in request.path)
        stack.claim("c-1")
        stack.until(lambda: len(stack.aws.instances()) == 2, "the launch")
        stack.until(lambda: second.leading, "the other leads", step=0.5)
        first.tap.forget()
        stack.until(lambda: not first.leading, "the first has stopped")
        stack.until_ready("c-1")
        assert one_each(stack, "c-0", "c-1")
        first.tap.heal()
        stack.claim("c-2")
        stack.until_ready("c-2")
        assert one_each(stack, "c-0", "c-1", "c-2")
        assert not [path for _, path in first.tap.writes() if "/leases" not in path]
        holder = stack.get(Lease, LEASE, namespace=NAMESPACE).spec.holder_identity
        assert holder.startswith(second.name)
