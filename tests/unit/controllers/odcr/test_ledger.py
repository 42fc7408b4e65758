"""The broker's own record of purchases: a successor reads it, and no user can write it."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from broker.apis.core import ConfigMap
from broker.controllers.odcr.ledger import PurchaseLedger, attempt_id
from broker.kube.client import Client
from broker.kube.identity import NAMESPACE
from broker.quota.usage import ReservationKey
from broker.reservations.moves import MovedCapacity, MoveSnapshot, SizeRecord
from broker.reservations.purchases import LEDGER, HeldRecord, PurchaseIntent
from local.in_process import InProcessTransport
from local.kube import Cluster
from tests.unit.capacity.builders import NOW, minutes

TEAM = ReservationKey("ml", "training")
INTENT = PurchaseIntent(
    attempt_id="a" * 64,
    at=NOW,
    reserved=TEAM,
    flavor="h100",
    instance_type="p5.48xlarge",
    zone="us-east-1a",
    count=2,
    platform="Windows",
    end=datetime(2027, 1, 31, tzinfo=UTC),
    tags={"team": "blue"},
)
HELD = HeldRecord(
    id="cr-1",
    reserved=ReservationKey("", "shared"),
    flavor="h100",
    instance_type="p5.48xlarge",
    zone="us-east-1a",
    total=2,
    bought=True,
)

MOVED = MovedCapacity(reserved=TEAM, flavor="h100", source="cr-1", total=4, count=2, targets=("cr-2", "cr-3"))
SIZE = SizeRecord(total=2, before=2)
GROWN = SizeRecord(total=3, before=1, grown=NOW)


@pytest.fixture
def client() -> Client:
    return Client(InProcessTransport(Cluster()), field_manager="test")


def loaded(client: Client) -> PurchaseLedger:
    ledger = PurchaseLedger(client)
    ledger.load()
    return ledger


def stored(client: Client) -> ConfigMap:
    return ConfigMap.decode(client.get(ConfigMap.KIND, LEDGER, namespace=NAMESPACE))


@pytest.mark.covers("SAF-53")
def test_successor_reads_what_was_recorded(client: Client) -> None:
    first = loaded(client)
    grown = replace(INTENT, attempt_id="b" * 64, odcr_id="cr-1", total=4)
    moves = MoveSnapshot(moves={MOVED.key: MOVED}, sizes={"cr-1": SIZE, "cr-2": GROWN})
    first.keep([INTENT, grown], {HELD.id: HELD}, {}, moves)
    first.release("u-1", 3, {"h100": 1})
    first.flush()
    second = loaded(client)
    assert (second.intents, second.held, second.moves) == (first.intents, first.held, moves)
    assert second.released("u-1", 3) == {"h100": 1}
    assert second.released("u-1", 4) == second.released("u-2", 3) == {}


def test_nothing_is_written_while_nothing_changes(client: Client) -> None:
    first = loaded(client)
    first.keep([INTENT], {HELD.id: HELD}, {}, MoveSnapshot())
    first.flush()
    version = stored(client).metadata.resource_version
    for ledger in (first, loaded(client)):
        ledger.keep([INTENT], {HELD.id: HELD}, {}, MoveSnapshot())
        ledger.flush()
    assert stored(client).metadata.resource_version == version
    first.keep([], {}, {}, MoveSnapshot())
    first.flush()
    assert stored(client).data == {}


def test_released_slots_are_forgotten_with_the_object_or_its_generation(client: Client) -> None:
    ledger = loaded(client)
    for uid in ("u-1", "u-2", "u-3"):
        ledger.release(uid, 3, {"h100": 1})
    ledger.keep([], {}, {"u-1": 3, "u-2": 4}, MoveSnapshot())
    assert [ledger.released(uid, 3) for uid in ("u-1", "u-2", "u-3")] == [{"h100": 1}, {}, {}]


def test_released_slots_of_an_object_that_is_left_out_are_kept(client: Client) -> None:
    ledger = loaded(client)
    ledger.release("u-1", 3, {"h100": 1})
    ledger.keep([], {}, {"u-1": None}, MoveSnapshot())
    assert ledger.released("u-1", 3) == {"h100": 1}


@pytest.mark.covers("SAF-07")
def test_an_operator_releases_a_lost_reservation_by_removing_its_key(client: Client) -> None:
    ledger = loaded(client)
    ledger.keep([INTENT], {HELD.id: HELD, "cr-2": replace(HELD, id="cr-2")}, {}, MoveSnapshot())
    ledger.flush()
    client.patch(ConfigMap.KIND, LEDGER, {"data": {"cr-1": None}}, namespace=NAMESPACE)
    ledger.load()
    assert ledger.held.keys() == {"cr-1", "cr-2"}, "it is read once"
    ledger.load(refresh=True)
    assert ([*ledger.held], len(ledger.intents)) == (["cr-2"], 1)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("cr-1", "["),
        ("cr-1", '{"id": "cr-1"}'),
        ("cr-1", "[" * 2000),
        ("purchase-1", '{"reserved": 3}'),
        ("purchase-1", '{"reserved": "a/b", "at": "yesterday"}'),
        ("released-u-1", '{"generation": 3}'),
        ("released-u-1", '{"generation": 3, "flavors": {"h100": "x"}}'),
    ],
)
def test_an_unreadable_entry_stops_buying_and_is_named(client: Client, key: str, text: str) -> None:
    client.create(ConfigMap.KIND, {"metadata": {"name": LEDGER, "namespace": NAMESPACE}, "data": {key: text}})
    ledger = PurchaseLedger(client)
    for _ in range(2):
        ledger.load()
        problem = ledger.problem()
        assert problem is not None and f"entry '{key}' of ConfigMap kube-system/{LEDGER}" in str(problem)
    ledger.keep([INTENT], {}, {}, MoveSnapshot())
    ledger.flush()
    assert stored(client).data[key] == text, "it is kept for a person"
    client.patch(ConfigMap.KIND, LEDGER, {"data": {key: None}}, namespace=NAMESPACE)
    ledger.load()
    assert ledger.problem() is None


def test_a_record_of_a_newer_version_is_read_without_its_new_field(client: Client) -> None:
    first = loaded(client)
    first.keep([INTENT], {}, {}, MoveSnapshot())
    first.flush()
    ((key, text),) = stored(client).data.items()
    newer = json.dumps({**json.loads(text), "colour": "blue"})
    client.patch(ConfigMap.KIND, LEDGER, {"data": {key: newer}}, namespace=NAMESPACE)
    second = loaded(client)
    assert second.problem() is None
    assert second.intents == {INTENT.attempt_id: INTENT}


def test_an_attempt_id_is_unique_for_object_generation_time_and_call() -> None:
    call = {"count": 2, "tags": {"a": "1", "b": "2"}}
    first = attempt_id("u-1", 3, NOW, call)
    assert first == attempt_id("u-1", 3, NOW, {"tags": {"b": "2", "a": "1"}, "count": 2})
    others = {
        attempt_id("u-2", 3, NOW, call),
        attempt_id("u-1", 4, NOW, call),
        attempt_id("u-1", 3, NOW + minutes(1), call),
        attempt_id("u-1", 3, NOW, call | {"count": 1}),
    }
    assert len({first, *others}) == 5
    assert len(first) <= 64
