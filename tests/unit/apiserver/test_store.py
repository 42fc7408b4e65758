"""The store against a model: revisions, keys in order, a log that can be replayed from above its end."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from local.kube.store import Compacted, Key, Store, encode

Obj = dict[str, Any]
keys = st.tuples(st.sampled_from(["", "ns1", "ns2"]), st.sampled_from("abc"))
resources = st.sampled_from(["pods.", "nodes."])


def shown(store: Store, resource: str) -> dict[Key, str]:
    return {key: item.obj["data"] for key, item in store.collection(resource).items.items()}


class StoreMachine(RuleBasedStateMachine):
    """Every state is kept by its revision, and can be read until it is dropped."""

    @initialize(limit=st.sampled_from([400, 100_000]))
    def begin(self, limit: int) -> None:
        self.store = Store(log_bytes=limit)
        self.model: dict[str, dict[Key, str]] = {"pods.": {}, "nodes.": {}}
        self.past: dict[int, dict[str, dict[Key, str]]] = {}
        self.revisions: list[tuple[str, int]] = []
        self.store.on_change(lambda resource, event: self.revisions.append((resource, event.revision)))
        self.remember()

    def remember(self) -> None:
        self.past[self.store.revision] = {name: dict(items) for name, items in self.model.items()}

    @rule(resource=resources, key=keys, data=st.text("xy", max_size=3))
    def put(self, resource: str, key: Key, data: str) -> None:
        before = self.store.revision
        obj = {"kind": "K", "metadata": {"name": key[1], "namespace": key[0]}, "data": data}
        item = self.store.put(resource, key, obj, bare=True)
        assert item.revision == before + 1
        assert item.obj["metadata"]["resourceVersion"] == str(item.revision)
        self.model[resource][key] = data
        self.remember()
        assert self.revisions[-1] == (resource, item.revision)

    @precondition(lambda self: any(self.model.values()))
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        resource = data.draw(st.sampled_from([name for name, items in self.model.items() if items]))
        key = data.draw(st.sampled_from(sorted(self.model[resource])))
        gone = self.store.delete(resource, key, bare=True)
        assert gone.obj["data"] == self.model[resource].pop(key)
        assert gone.obj["metadata"]["resourceVersion"] == str(self.store.revision)
        self.remember()

    @rule()
    def compact(self) -> None:
        self.store.compact()

    @rule(resource=resources, data=st.data())
    def read_past_revision(self, resource: str, data: st.DataObject) -> None:
        revision = data.draw(st.sampled_from(sorted(self.past)))
        collection = self.store.collection(resource)
        if revision < collection.compacted:
            with pytest.raises(Compacted):
                self.store.snapshot(resource, revision)
            return
        then = self.store.snapshot(resource, revision)
        assert {key: item.obj["data"] for key, item in then.items()} == self.past[revision][resource]

    @rule(resource=resources, data=st.data())
    def replay(self, resource: str, data: st.DataObject) -> None:
        """An earlier state with the later events equals the present state."""
        revision = data.draw(st.sampled_from(sorted(self.past)))
        collection = self.store.collection(resource)
        if revision < collection.compacted:
            return
        state = dict(self.past[revision][resource])
        position, last = collection.position_after(revision), revision
        while events := collection.read(position, 2):
            position += len(events)
            for event in events:
                assert event.revision > last
                last = event.revision
                assert (event.before is None) == (event.key not in state)
                assert event.type == ("ADDED" if event.before is None else event.type)
                if event.type == "DELETED":
                    del state[event.key]
                else:
                    state[event.key] = event.item.obj["data"]
        assert state == self.model[resource]

    @invariant()
    def store_equals_the_model(self) -> None:
        for resource, items in self.model.items():
            assert shown(self.store, resource) == items
            assert self.store.collection(resource).keys == sorted(items)
        assert {(name, key) for name, key, _ in self.store.everything()} == {
            (name, key) for name, items in self.model.items() for key in items
        }


TestStore = StoreMachine.TestCase


def write(store: Store, name: str, size: int = 100) -> None:
    store.put("pods.", ("", name), {"metadata": {"name": name}, "data": "x" * size}, bare=True)


def test_the_log_keeps_within_its_bytes_and_drops_the_oldest() -> None:
    store = Store(log_bytes=2000)
    for i in range(500):
        write(store, f"p{i}")
    collection = store.collection("pods.")
    kept = collection.log[collection.dropped :]
    assert sum(len(event.item.wire) for event in kept) <= 2000
    assert kept[-1].revision == store.revision
    with pytest.raises(Compacted):
        collection.position_after(2)


def test_an_event_larger_than_the_log_is_kept() -> None:
    store = Store(log_bytes=10)
    write(store, "a", 1000)
    assert len(store.collection("pods.").read(store.collection("pods.").position_after(1), 5)) == 1


def test_reader_behind_the_log_gets_an_error() -> None:
    store = Store(log_bytes=2000)
    write(store, "first")
    position = store.collection("pods.").position_after(1)
    for i in range(300):
        write(store, f"p{i}")
    with pytest.raises(Compacted):
        store.collection("pods.").read(position, 10)


def test_metadata_is_written_in_the_order_of_go_and_kinds_left_out_when_bare() -> None:
    obj = {"kind": "K", "metadata": {"uid": "u", "labels": {}, "name": "n"}, "b": 1, "a": 2}
    assert json.loads(encode(obj, bare=True)) == {key: obj[key] for key in ("metadata", "a", "b")}
    assert encode(obj, bare=True).startswith(b'{"metadata":{"name":"n","uid":"u","labels":{}}')
    assert encode(obj, bare=False).startswith(b'{"a":2,"b":1,"kind":"K"')
