"""The content of a cache after any order of lists, events and responses to our own writes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.kube.cache import Cache
from broker.kube.panics import PANICS
from tests.support.kube_server import Json, Server, Thing, thing

INDEXES = {"color": lambda obj: obj.colors}


def versioned(version: int, name: str = "a", **more: Any) -> Json:
    obj = thing(name, **more)
    obj["metadata"]["resourceVersion"] = str(version)
    return obj


def cache(**options: Any) -> tuple[Cache[Thing], list[tuple[int | None, int | None]]]:
    """A cache and the sizes (old, new) that its handler received."""
    things: Cache[Thing] = Cache(Thing, indexes=INDEXES, **options)
    changes: list[tuple[int | None, int | None]] = []
    things.on_change(lambda old, new: changes.append((old.size if old else None, new.size if new else None)))
    return things, changes


def test_a_list_gives_only_its_differences() -> None:
    c, changes = cache()
    c.replace([versioned(1, size=1), versioned(2, "b", size=2)], 2)
    c.replace([versioned(3, size=3), versioned(4, "c", size=4)], 4)
    assert changes == [(None, 1), (None, 2), (2, None), (1, 3), (None, 4)]
    assert {obj.name: obj.size for obj in c.list()} == {"a": 3, "c": 4}
    c.replace([versioned(3, size=3), versioned(4, "c", size=4)], 9)
    assert len(changes) == 5


def test_objects_are_found_by_name_key_and_index() -> None:
    c, _ = cache()
    c.replace([versioned(1, colors=["red", "blue"]), versioned(2, "b", colors=["red"])], 2)
    assert c.get("a", "default") is c.find("default/a") is not None
    assert c.get("a") is None
    assert sorted(obj.name for obj in c.by("color", "red")) == ["a", "b"]
    c.apply("MODIFIED", versioned(3, colors=["blue"]))
    c.apply("DELETED", versioned(4, "b"))
    assert (c.by("color", "red"), [obj.name for obj in c.by("color", "blue")]) == ([], ["a"])


def test_an_own_write_is_visible_at_once_and_an_older_event_is_ignored() -> None:
    c, _ = cache()
    c.replace([versioned(10, size=1)], 10)
    c.observe(versioned(12, size=3))
    c.apply("MODIFIED", versioned(11, size=2))
    assert c.find("default/a").size == 3  # type: ignore[union-attr]
    c.replace([versioned(11, size=2)], 11)  # a list that was read before our write
    assert c.find("default/a").size == 3  # type: ignore[union-attr]


def test_an_own_object_survives_an_older_list() -> None:
    c, _ = cache()
    c.replace([], 10)
    c.observe(versioned(12))
    c.replace([], 11)
    assert len(c) == 1
    c.replace([], 13)
    assert len(c) == 0


def test_a_reread_replaces_a_different_object_of_the_same_version() -> None:
    c, changes = cache()
    c.replace([versioned(11, size=1), versioned(12, "b")], 12)
    changes.clear()
    c.reread([versioned(11, size=2), versioned(12, "b"), versioned(13, "c")])
    assert changes == [(1, 2)]
    c.reread([versioned(10, size=3)])
    assert c.find("default/a").size == 2  # type: ignore[union-attr]
    assert c.find("default/c") is None


def test_a_late_response_does_not_restore_a_deleted_object() -> None:
    c, _ = cache()
    c.replace([versioned(10)], 10)
    c.apply("DELETED", versioned(12))
    c.observe(versioned(11))
    assert len(c) == 0


def test_removing_the_last_finalizer_removes_the_object() -> None:
    c, changes = cache()
    c.replace([versioned(10, size=1)], 10)
    gone = versioned(12, size=1)
    gone["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    c.observe(gone)
    c.apply("MODIFIED", versioned(11, size=2))  # older than our write
    assert changes == [(None, 1), (1, None)]
    c.apply("DELETED", gone)
    c.apply("ADDED", versioned(13, size=3))  # the same name again
    assert changes[2:] == [(None, 3)]


def test_an_object_that_the_watch_still_shows_returns() -> None:
    """Such as a Namespace, which waits for finalizers that are not in its metadata."""
    c, _ = cache()
    c.replace([versioned(10)], 10)
    ending = versioned(12, size=1)
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    c.observe(ending)
    assert not c.has_version(12), "the watch would pass over it"
    c.apply("MODIFIED", ending)
    assert len(c) == 1


def test_an_own_write_outside_of_the_selection_is_not_cached() -> None:
    c, _ = cache(narrowed=True)
    c.replace([versioned(10)], 10)
    c.observe(versioned(12, "b"))
    c.observe(versioned(13, size=5))
    assert [(obj.name, obj.size) for obj in c.list()] == [("a", 5)]


def test_only_an_undecodable_object_is_left_out_and_reported() -> None:
    c, changes = cache()
    c.replace([versioned(1, size="huge"), versioned(2, "b", size=2)], 2)
    assert changes == [(None, 2)]
    assert list(c.broken) == ["default/a"]
    assert "size" in c.broken["default/a"]
    assert "'huge'" in c.broken["default/a"]
    c.apply("MODIFIED", versioned(3, size=3))
    assert (dict(c.broken), changes[1:]) == ({}, [(None, 3)])
    c.apply("MODIFIED", versioned(4, size="huge"))
    assert (list(c.broken), changes[2:]) == (["default/a"], [(3, None)])
    c.apply("DELETED", versioned(5, size="huge"))
    assert (dict(c.broken), len(changes)) == ({}, 3)


def test_an_undecodable_object_is_logged_once_for_each_version(capsys: pytest.CaptureFixture[str]) -> None:
    c, _ = cache()
    for _ in range(3):
        c.replace([versioned(1, size="huge")], 1)
    assert capsys.readouterr().out.count("cannot be decoded") == 1
    c.replace([versioned(2, size="huge")], 2)
    assert capsys.readouterr().out.count("cannot be decoded") == 1


def test_a_panic_of_a_handler_is_counted_and_other_handlers_run() -> None:
    c, _ = cache()
    before = PANICS.labels("handler")._value.get()
    c.on_change(lambda old, new: [][0])
    changes: list[str] = []
    c.on_change(lambda old, new: changes.append("second"))
    c.apply("ADDED", versioned(1))
    assert changes == ["second"]
    assert PANICS.labels("handler")._value.get() == before + 1


def test_an_object_that_breaks_an_index_is_left_out() -> None:
    c: Cache[Thing] = Cache(Thing, indexes={"first": lambda obj: [obj.colors[0]]})
    c.replace([versioned(1), versioned(2, "b", colors=["red"])], 2)
    assert [obj.name for obj in c.list()] == ["b"]
    assert list(c.broken) == ["default/a"]


def test_a_late_handler_gets_the_existing_objects() -> None:
    c, _ = cache()
    c.replace([versioned(1, size=1)], 1)
    changes: list[object] = []
    c.on_change(lambda old, new: changes.append((old, new and new.size)))
    assert changes == [(None, 1)]


def test_a_list_with_older_versions_replaces_the_cache() -> None:
    """etcd restored from a backup: revisions are smaller than those seen before."""
    c, _ = cache()
    c.replace([versioned(50, size=5), versioned(51, "b")], 60)
    c.replace([versioned(20, size=2)], 30)
    assert [(obj.name, obj.size) for obj in c.list()] == [("a", 2)]
    c.apply("MODIFIED", versioned(31, size=3))
    assert c.find("default/a").size == 3  # type: ignore[union-attr]


class CacheModel(RuleBasedStateMachine):
    """A server with late events and old lists, and responses to our own writes, in any order."""

    names = st.sampled_from(["a", "b", "c"])
    sizes = st.one_of(st.integers(0, 3), st.just("huge"))
    colors = st.lists(st.sampled_from(["red", "blue"]), max_size=2)

    def __init__(self) -> None:
        super().__init__()
        self.server = Server()
        self.cache, _ = cache()
        self.mirror: dict[str, Thing] = {}
        self.cache.on_change(self.record)
        self.answers: list[Json] = []
        self.seen = 0  # in the server's log
        self.states: list[tuple[int, list[Json]]] = [(self.server.revision, [])]
        self.versions: dict[str, int] = {}
        self.relist()

    def record(self, old: Thing | None, new: Thing | None) -> None:
        key = (old or new).key  # type: ignore[union-attr]
        assert self.mirror.get(key) is old
        if new is None:
            del self.mirror[key]
        else:
            self.mirror[key] = new

    def remember(self) -> None:
        self.states.append((self.server.revision, [*self.server.objects.values()]))

    @rule(name=names, size=sizes, colors=colors, own=st.booleans())
    def write(self, name: str, size: int | str, colors: list[str], own: bool) -> None:
        answer = self.server.put(thing(name, size=size, colors=colors))
        self.remember()
        if own:
            self.answers.append(answer)

    @precondition(lambda self: self.server.objects)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(sorted(self.server.objects)))
        self.server.remove(path.rpartition("/")[2])
        self.remember()

    @precondition(lambda self: self.answers)
    @rule(data=st.data())
    def observe(self, data: st.DataObject) -> None:
        self.cache.observe(self.answers.pop(data.draw(st.integers(0, len(self.answers) - 1))))

    @precondition(lambda self: self.seen < len(self.server.log))
    @rule()
    def event(self) -> None:
        version, event, _, obj = self.server.log[self.seen]
        self.seen += 1
        if event == "MODIFIED" and self.cache.has_version(version):
            self.cache.progress(version)  # a watch passes over objects that need no decoding
        else:
            self.cache.apply(event, obj)

    @rule()
    def bookmark(self) -> None:
        """A bookmark is always true: every event up to the last one has been shown."""
        if self.seen:
            self.cache.progress(self.server.log[self.seen - 1][0])

    @rule(back=st.integers(0, 3))
    def relist(self, back: int = 0) -> None:
        """A list of a state not older than the watch's last event; the watch continues from that list."""
        shown = self.server.log[self.seen - 1][0] if self.seen else 0
        revision, objects = next(s for s in self.states[-1 - back :] if s[0] >= shown)
        self.cache.replace(objects, revision)
        self.seen = sum(at <= revision for at, *_ in self.server.log)

    @invariant()
    def handlers_and_indexes_agree_with_the_cache(self) -> None:
        now = {obj.key: obj for obj in self.cache.list()}
        assert now == self.mirror
        for color in ("red", "blue"):
            assert {o.key for o in self.cache.by("color", color)} == {
                key for key, obj in now.items() if color in obj.colors
            }
        assert not set(self.cache.broken) & set(now)

    @invariant()
    def nothing_goes_back(self) -> None:
        now = {obj.key: int(obj.metadata.resource_version) for obj in self.cache.list()}
        assert all(version >= self.versions.get(key, 0) for key, version in now.items())
        self.versions.update(now)

    def teardown(self) -> None:
        """Once every event is shown, the cache equals the server for any earlier order."""
        while self.answers:
            self.cache.observe(self.answers.pop())
        while self.seen < len(self.server.log):
            self.event()
        stored = {f"default/{p.rpartition('/')[2]}": obj for p, obj in self.server.objects.items()}
        assert set(self.cache.broken) == {key for key, obj in stored.items() if obj["size"] == "huge"}
        assert {obj.key: obj.size for obj in self.cache.list()} == {
            key: obj["size"] for key, obj in stored.items() if obj["size"] != "huge"
        }


TestCacheModel = CacheModel.TestCase


def test_an_object_that_its_guard_leaves_out_stops_no_other_and_returns_after_a_change_or_a_retry() -> None:
    c, changes = cache()
    reported: list[str] = []
    c.on_left_out(lambda partial: reported.append(f"{partial.key}: {partial.error}"))
    c.replace([versioned(1, size=1), versioned(2, "b", size=2)], 2)
    fails = {1}

    def read(obj: Thing) -> None:
        if obj.size in fails:
            raise ZeroDivisionError("poison")

    assert [obj.name for obj in c.readable(read)] == ["b"]
    assert ([obj.name for obj in c.list()], list(c.broken), reported, changes[2:]) == (
        ["b"],
        ["default/a"],
        ["default/a: the broker failed on it: poison"],
        [(1, None)],
    )
    c.retry()
    assert ([*c.broken], len(c.readable(read)), len(reported)) == ([], 1, 2)
    fails.clear()
    c.retry()
    assert (len(c.readable(read)), c.broken) == (2, {})
    a = c.find("default/a")
    assert a is not None and c.leave_out(a, "poison") and not c.leave_out(a, "poison")
    c.apply("MODIFIED", versioned(3, size=3))
    assert (len(c), c.broken, changes[-1]) == (2, {}, (None, 3))
    assert not c.leave_out(a, "an older version")
