"""The Secret and the registration, kept by several replicas."""

from __future__ import annotations

from base64 import b64decode
from datetime import timedelta
from typing import Any

import pytest

from broker.admission import registration
from broker.admission.certificates import CA_LIFE, SERVING_LIFE, read, write
from broker.admission.registration import NAME, SECRET, Foreign, WebhookRegistration
from broker.apis.admission import Secret, ValidatingWebhookConfiguration
from broker.apis.meta import Kind
from broker.kube.client import Client, Request
from local.in_process import InProcessTransport
from local.kube import Cluster
from tests.cluster.taps import Tap, writes_of
from tests.support.clock import FakeClock

SPACE = "kube-system"
KINDS = {"secrets": Secret.KIND, "validatingwebhookconfigurations": ValidatingWebhookConfiguration.KIND}


class World:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.tap = Tap(InProcessTransport(Cluster()))
        self.client = Client(self.tap)

    def replica(self) -> WebhookRegistration:
        address, dns = registration.service("capacity-broker", SPACE)
        return WebhookRegistration(
            client=self.client, namespace=SPACE, dns=dns, address=address, clock=self.clock
        )

    def secret(self) -> dict[str, Any]:
        return self.client.get(Secret.KIND, SECRET, namespace=SPACE)

    def registered(self) -> dict[str, Any]:
        (webhook,) = self.client.get(ValidatingWebhookConfiguration.KIND, NAME)["webhooks"]
        return dict(webhook)

    def bundle(self) -> bytes:
        return b64decode(self.registered()["clientConfig"]["caBundle"])


@pytest.fixture
def world() -> World:
    return World()


def test_the_first_replica_creates_both_objects_and_the_next_serves_the_same(world: World) -> None:
    first, second = world.replica().keep(), world.replica().keep()
    assert write(second) == world.secret()["data"]
    assert second.bundle == first.bundle == world.bundle()
    webhook = world.registered()
    assert webhook["clientConfig"]["service"] == {
        "name": "capacity-broker",
        "namespace": SPACE,
        "path": "/validate",
        "port": 443,
    }
    assert (webhook["failurePolicy"], webhook["sideEffects"], webhook["timeoutSeconds"]) == (
        "Ignore",
        "None",
        5,
    )


def test_an_unchanged_replica_writes_nothing(world: World) -> None:
    world.replica().keep()
    world.tap.forget()
    for _ in range(3):
        world.clock.jump(60)
        world.replica().keep()
    assert world.tap.writes() == []


def test_several_replicas_renew_once(world: World) -> None:
    world.replica().keep()
    for days, authorities in (
        (SERVING_LIFE.days, 1),
        (CA_LIFE.days * 3 // 4, 2),
        (1, 2),
        (CA_LIFE.days // 3, 1),
    ):
        world.clock.jump(timedelta(days=days).total_seconds())
        kept = [world.replica().keep() for _ in range(3)]
        assert len({certificates.bundle for certificates in kept}) == 1
        assert len(kept[0].authorities) == authorities
        assert world.bundle() == kept[0].bundle


@pytest.mark.parametrize("resource", KINDS)
@pytest.mark.parametrize("first", [True, False], ids=["at the start", "later"])
def test_a_replica_that_loses_a_write_race_uses_the_winners_certificates(
    world: World, resource: str, first: bool
) -> None:
    """Between this replica's read and its write another replica has written."""
    if not first:
        world.replica().keep()
        world.clock.jump((CA_LIFE * 3 / 4).total_seconds())
    other: list[bytes] = []

    def faster(_: Request) -> None:
        world.tap.heal()
        other.append(world.replica().keep().bundle)

    name = "" if first and resource == "secrets" else NAME if resource != "secrets" else SECRET
    chosen = writes_of(resource, name) if name else (lambda r: r.method == "POST" and resource in r.path)
    world.tap.on(chosen, faster)
    kept = world.replica().keep()
    assert other == [kept.bundle]
    assert world.bundle() == kept.bundle == read(world.secret()["data"]).bundle


def test_manual_edits_are_reverted_and_a_broken_secret_is_recreated(world: World) -> None:
    before = world.replica().keep()
    kind = ValidatingWebhookConfiguration.KIND
    edit = [{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Fail"}]
    world.client.patch(kind, NAME, edit, type="json")
    assert write(world.replica().keep()) == world.secret()["data"]
    assert world.registered()["failurePolicy"] == "Ignore"
    assert world.bundle() == before.bundle

    world.client.patch(Secret.KIND, SECRET, {"data": {"tls.key": "bm8="}}, namespace=SPACE)
    after = world.replica().keep()
    assert after.bundle != before.bundle
    assert world.bundle() == after.bundle

    world.client.delete(Secret.KIND, SECRET, namespace=SPACE)
    world.client.delete(kind, NAME)
    world.replica().keep()
    assert world.bundle() == read(world.secret()["data"]).bundle


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_objects_of_other_owners_are_left_unchanged(world: World, kind: Kind) -> None:
    where = {"namespace": SPACE} if kind.namespaced else {}
    name = SECRET if kind.namespaced else NAME
    foreign = world.client.create(kind, {"metadata": {"name": name, **where}})
    with pytest.raises(Foreign, match=f"{kind.kind} {name} is not the broker's"):
        world.replica().keep()
    assert world.client.get(kind, name, namespace=where.get("namespace")) == foreign
