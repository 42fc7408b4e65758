"""The statements of the history do the same in SQLite and in PostgreSQL."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError, OperationalError

from broker.apis import names
from broker.capacity.attempts import Outcome
from broker.capacity.forecast import PoolOutcomes
from broker.history.entries import LONGEST_TEXT, microseconds
from broker.history.recorder import batch_of
from broker.history.store import HistoryStore, TableMissing, database_url
from broker.history.tables import Batch, EntryFilter
from broker.kube.events import Reference
from broker.oncall.journal import attempt_id
from providers.errors import ErrorClass
from tests.unit.history.facts import AT, GROUP, OTHER, POOL, empty, event, fill, launch, refusal


def test_an_attempt_is_found_by_any_of_its_facts(store: HistoryStore) -> None:
    fill(store, refusal(1), launch(2), event())
    for selected in (
        EntryFilter(name="train-1"),
        EntryFilter(request_id="req-1"),
        EntryFilter(id=attempt_id(refusal(1))),
        EntryFilter(code="InsufficientInstanceCapacity"),
        EntryFilter(error_class="capacity"),
        EntryFilter(topic="shortage"),
        EntryFilter(outcome="Refused"),
        EntryFilter(warning=True),
        EntryFilter(names=("train-1", "gpus")),
        EntryFilter(kind="NodeClaim", zone="us-east-1a", request_id="req-1"),
    ):
        assert [entry.name for entry in store.find(selected)] == ["train-1"], selected
    (entry_,) = store.find(EntryFilter(name="train-1"))
    assert (entry_.time, entry_.pool, entry_.next_step) == (
        refusal(1).at,
        "reserved:p5.48xlarge:us-east-1a:cr-1",
        "the next option is taken",
    )
    assert store.count(EntryFilter(), by="topic") == [("launch", 1), ("reclaim", 1), ("shortage", 1)]
    assert store.find(EntryFilter(request_id="%")) == []


def test_an_attempt_is_found_by_any_reservation_that_it_could_use(store: HistoryStore) -> None:
    group = replace(POOL, reservation=GROUP)
    fill(
        store,
        refusal(1, pool=group, odcr_ids=("cr-1", "cr-2")),
        launch(2, pool=group, odcr_ids=("cr-2",)),
        launch(3, pool=replace(POOL, reservation=""), odcr_ids=("cr-1",)),
        refusal(4, pool=OTHER, also=(POOL,)),
        refusal(5, pool=OTHER),
    )

    def found(id_: str) -> list[str]:
        return [entry.name for entry in store.find(EntryFilter(reservation=id_))]

    assert found("cr-1") == ["train-4", "train-3", "train-1"]
    assert found("cr-2") == ["train-2", "train-1"]
    assert found(GROUP) == ["train-2", "train-1"]
    assert [e.reservation for e in store.find(EntryFilter())] == ["", "", "cr-1", "cr-2", GROUP]


def test_a_spilled_instance_runs_in_no_reservation(store: HistoryStore) -> None:
    spilled = refusal(1, pool=replace(POOL, reservation=""), outcome=Outcome.SPILLED, odcr_ids=("cr-1",))
    fill(store, spilled)
    (entry,) = store.find(EntryFilter(reservation="cr-1"))
    assert entry.reservation == ""


def test_entries_of_ended_claims_are_found_by_their_pool(store: HistoryStore) -> None:
    about = Reference(api_version="karpenter.sh/v1", kind="NodeClaim", name="train-1")
    fill(store, refusal(1, node_pool="gpu"), refusal(2, node_pool="cpu"), refusal(3))
    fill(store, event("Drifted", about=about), event("Unplaced", about=replace(about, name="train-4")))
    fill(store, event("Unplaced", about=replace(about, name="train-5"), labels={names.NODEPOOL: "gpu"}))
    entries = store.find(EntryFilter(node_pool="gpu"))
    assert sorted((e.name, e.outcome) for e in entries) == [
        ("train-1", "Drifted"),
        ("train-1", "Refused"),
        ("train-5", "Unplaced"),
    ]
    assert store.prune(before=microseconds(AT + timedelta(days=1)), rows=100) == 6
    fill(store, event("Drifted", about=about))
    assert store.find(EntryFilter(node_pool="gpu")) == []


def test_a_person_sees_the_entries_of_their_namespaces(store: HistoryStore) -> None:
    fill(store, refusal(1), event())

    def seen(*namespaces: str, cluster: bool) -> set[str]:
        selected = EntryFilter(namespaces=namespaces, cluster=cluster)
        assert store.count(selected, by="name") == sorted((e.name, 1) for e in store.find(selected))
        return {entry.name for entry in store.find(selected)}

    assert seen("other", cluster=True) == {"train-1"} and seen("other", cluster=False) == set()
    assert seen("team", cluster=True) == {"train-1", "gpus"} and seen("team", cluster=False) == {"gpus"}
    assert [e.name for e in store.find(EntryFilter(cluster=False))] == ["gpus"]
    assert sorted(store.namespaces()) == ["", "team"]


def test_pages_cover_every_entry_once_even_at_equal_times(store: HistoryStore) -> None:
    fill(store, *(refusal(n, at=AT) for n in range(25)))
    shown: list[str] = []
    before: tuple[int, str] | None = None
    while page := store.find(EntryFilter(), before=before, limit=10):
        shown += [entry.name for entry in page]
        before = (page[-1].at, page[-1].id)
    assert len(shown) == 25 and len(set(shown)) == 25


def test_a_repeated_fact_is_one_row(store: HistoryStore) -> None:
    fill(store, refusal(1))
    fill(store, refusal(1), refusal(1))
    assert len(store.find(EntryFilter())) == 1


def test_refusals_are_counted_by_pool_and_time(store: HistoryStore) -> None:
    later = AT + timedelta(minutes=7)
    fill(store, refusal(1, also=(OTHER,)), refusal(2))
    fill(store, refusal(3), refusal(4, at=later), refusal(5, class_=ErrorClass.THROTTLING), launch(6))
    slot = int(AT.timestamp())
    pool, other = str(POOL), str(OTHER)
    assert store.refusals(since=0) == [(slot, other, 1), (slot, pool, 3), (slot + 300, pool, 1)]
    assert store.refusals(since=0, width=600) == [(slot, other, 1), (slot, pool, 4)]
    assert store.refusals(since=slot + 300) == [(slot + 300, pool, 1)]


def test_every_refusal_that_is_remembered_is_a_shortage_of_the_record(store: HistoryStore) -> None:
    fill(store, *(refusal(n, class_=class_) for n, class_ in enumerate(sorted(ErrorClass))))
    ((_, _, count),) = store.refusals(since=0)
    assert count == sum(class_.policy.elsewhere for class_ in ErrorClass)
    assert dict(store.count(EntryFilter(), by="topic"))["shortage"] == count


def test_launches_and_refusals_of_a_pool_are_counted_by_time(store: HistoryStore) -> None:
    later = AT + timedelta(minutes=7)
    fill(store, refusal(1, also=(OTHER,)), refusal(2, class_=ErrorClass.THROTTLING), launch(3))
    fill(store, launch(4), launch(5, at=later, pool=OTHER), launch(6, outcome=Outcome.ADOPTED))
    slot = int(AT.timestamp())
    first = [PoolOutcomes(str(OTHER), slot, 0, 1), PoolOutcomes(str(POOL), slot, 2, 1)]
    last = PoolOutcomes(str(OTHER), slot + 300, 1, 0)
    assert sorted(store.outcomes(since=0)) == sorted([*first, last])
    assert store.outcomes(since=slot + 300) == [last]
    store.prune(before=microseconds(AT + timedelta(days=1)), rows=100)
    assert store.outcomes(since=0) == []


def test_the_last_use_of_a_time_slot_is_kept(store: HistoryStore) -> None:
    store.write(Batch(uses={(300, "cr-1"): (8, 3), (300, "cr-2"): (1, 1)}))
    store.write(Batch(uses={(300, "cr-1"): (8, 5), (600, "cr-1"): (9, 5)}))
    assert store.uses(["cr-1"], since=0) == {"cr-1": [(300, 8, 5), (600, 9, 5)]}
    assert store.uses(["cr-1", "cr-3"], since=600) == {"cr-1": [(600, 9, 5)]}


def test_age_and_size_are_limited(store: HistoryStore) -> None:
    old = AT - timedelta(days=40)
    fill(store, refusal(0, at=old), *(refusal(n) for n in range(1, 11)))
    gone = store.prune(before=microseconds(AT - timedelta(days=30)), rows=100)
    assert (gone, len(store.find(EntryFilter()))) == (1, 10)
    assert store.refusals(since=0)[0][0] == int(AT.timestamp())
    assert store.prune(before=0, rows=4) == 6
    assert [e.name for e in store.find(EntryFilter())] == ["train-10", "train-9", "train-8", "train-7"]


def test_any_text_is_stored(store: HistoryStore) -> None:
    fill(store, refusal(1, message="nul \0, half \ud800, <b>" + "x" * 5000, outcome=Outcome.REFUSED))
    (entry,) = store.find(EntryFilter())
    assert entry.message.startswith("nul , half ?, <b>xxx") and len(entry.message) == LONGEST_TEXT


@pytest.mark.parametrize("location", ["file", "postgres"], indirect=True)
def test_history_survives_a_restart(location: str) -> None:
    first = HistoryStore(location)
    first.open()
    empty(first)
    first.write(batch_of([refusal(1)]))
    first.close()
    second = HistoryStore(location)
    second.open()
    assert [entry.name for entry in second.find(EntryFilter())] == ["train-1"]
    second.close()


@pytest.mark.parametrize("location", ["file", "postgres"], indirect=True)
def test_read_only_store_reads_beside_a_writer_and_writes_nothing(location: str) -> None:
    writer, reader = HistoryStore(location), HistoryStore(location, read_only=True)
    writer.open()
    empty(writer)
    writer.write(batch_of([refusal(1)]))
    reader.open()
    writer.write(batch_of([refusal(2)]))
    assert [entry.name for entry in reader.find(EntryFilter())] == ["train-2", "train-1"]
    with pytest.raises(DBAPIError, match=r"read-?only"):
        reader.write(batch_of([refusal(3)]))
    writer.close()
    reader.close()


def test_read_only_store_leaves_no_file_beside_a_closed_database(tmp_path: Path) -> None:
    path = tmp_path / "100% #1?.db"
    writer, reader = HistoryStore(str(path)), HistoryStore(str(path), read_only=True)
    writer.open()
    writer.write(batch_of([refusal(1)]))
    writer.close()
    before = path.read_bytes()
    reader.open()
    assert len(reader.find(EntryFilter())) == 1
    reader.close()
    assert list(tmp_path.iterdir()) == [path] and path.read_bytes() == before


def test_read_only_store_creates_no_table_in_postgresql(server: str) -> None:
    owner = create_engine(database_url(server), isolation_level="AUTOCOMMIT")
    with owner.connect() as connection:
        connection.exec_driver_sql("CREATE DATABASE empty")
    owner.dispose()
    location = server.replace("/postgres?", "/empty?")
    for _ in range(2):
        store = HistoryStore(location, read_only=True)
        with pytest.raises(TableMissing, match="it has no table history_"):
            store.open()
        store.close()


def test_an_unavailable_database_raises(tmp_path: object) -> None:
    with pytest.raises(OperationalError):
        HistoryStore("postgresql://broker@127.0.0.1:1/history").open()


@pytest.mark.parametrize("location", ["mysql://a@b/c", "sqlite:///x", "://"])
def test_another_kind_of_database_is_rejected(location: str) -> None:
    with pytest.raises(ValueError, match="database"):
        HistoryStore(location)


@pytest.mark.parametrize("where", ["memory", "file"])
def test_the_size_limit_holds_and_the_newest_entries_stay(where: str, tmp_path: Path) -> None:
    file = tmp_path / "history.db"
    limit = 4 << 20
    store = HistoryStore(str(file) if where == "file" else "memory", mebibytes=4)
    store.open()
    groups = tuple(f"cr-{n}" for n in range(20))
    for burst in range(20):
        numbers = range(burst * 100, burst * 100 + 100)
        fill(store, *(refusal(n, message="m" * 800, odcr_ids=groups) for n in numbers))
        store.prune(before=0, rows=1_000_000)
        assert store.size() <= limit
    assert not file.exists() or file.stat().st_size <= limit
    kept = store.find(EntryFilter(), limit=10_000)
    assert [e.name for e in kept[:250]] == [f"train-{n}" for n in range(1_999, 1_749, -1)]
    assert len(kept) < 2_000
    assert len(store.find(EntryFilter(reservation="cr-7"), limit=10_000)) == len(kept)
    store.close()


def test_a_size_of_uses_alone_is_limited(tmp_path: Path) -> None:
    store = HistoryStore(str(tmp_path / "history.db"), mebibytes=8)
    store.open()
    for slot in range(60):
        store.write(Batch(uses={(slot * 300, f"cr-{n:017}"): (8, n % 8) for n in range(1_000)}))
        if slot % 5 == 0:
            store.prune(before=0, rows=10)
    assert store.size() <= 8 << 20 and store.uses(["cr-00000000000000007"], since=0)
    store.close()


def test_postgresql_ends_a_slow_statement(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.history.store.STATEMENT_SECONDS", 1)
    store = HistoryStore(server)
    store.open()
    with pytest.raises(OperationalError, match="statement timeout"), store._begin() as connection:
        connection.exec_driver_sql("SELECT pg_sleep(60)")
    assert store.find(EntryFilter(), limit=1) is not None
    store.close()
