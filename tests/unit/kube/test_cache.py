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
    made: Cache[Thing] = Cache(Thing, indexes=INDEXES, **options)
    heard: list[tuple[int | None, int | None]] = []
    made.on_change(lambda old, new: heard.append((old.size if old else None, new.size if new else None)))
    return made, heard


def test_a_list_is_told_as_its_differences() -> None:
    c, heard = cache()
    c.replace([versioned(1, size=1), versioned(2, "b", size=2)], 2)
    c.replace([versioned(3, size=3), versioned(4, "c", size=4)], 4)
    assert heard == [(None, 1), (None, 2), (2, None), (1, 3), (None, 4)]
    assert {obj.name: obj.size for obj in c.list()} == {"a": 3, "c": 4}
    c.replace([versioned(3, size=3), versioned(4, "c", size=4)], 9)
    assert len(heard) == 5


def test_found_by_name_by_key_and_by_index() -> None:
    c, _ = cache()
    c.replace([versioned(1, colors=["red", "blue"]), versioned(2, "b", colors=["red"])], 2)
    assert c.get("a", "default") is c.find("default/a") is not None
    assert c.get("a") is None
    assert sorted(obj.name for obj in c.by("color", "red")) == ["a", "b"]
    c.apply("MODIFIED", versioned(3, colors=["blue"]))
    c.apply("DELETED", versioned(4, "b"))
    assert (c.by("color", "red"), [obj.name for obj in c.by("color", "blue")]) == ([], ["a"])


def test_our_own_write_is_seen_at_once_and_an_older_event_does_not_undo_it() -> None:
    c, _ = cache()
    c.replace([versioned(10, size=1)], 10)
    c.observe(versioned(12, size=3))
    c.apply("MODIFIED", versioned(11, size=2))
    assert c.find("default/a").size == 3  # type: ignore[union-attr]
    c.replace([versioned(11, size=2)], 11)  # a list that was read before our write
    assert c.find("default/a").size == 3  # type: ignore[union-attr]


def test_an_object_of_ours_outlives_a_list_that_was_read_before_it() -> None:
    c, _ = cache()
    c.replace([], 10)
    c.observe(versioned(12))
    c.replace([], 11)
    assert len(c) == 1
    c.replace([], 13)
    assert len(c) == 0


def test_an_object_that_is_shown_otherwise_at_the_same_version_is_taken_when_reread() -> None:
    c, heard = cache()
    c.replace([versioned(11, size=1), versioned(12, "b")], 12)
    heard.clear()
    c.reread([versioned(11, size=2), versioned(12, "b"), versioned(13, "c")])
    assert heard == [(1, 2)]
    c.reread([versioned(10, size=3)])
    assert c.find("default/a").size == 2  # type: ignore[union-attr]
    assert c.find("default/c") is None


def test_a_late_answer_does_not_bring_a_deleted_object_back() -> None:
    c, _ = cache()
    c.replace([versioned(10)], 10)
    c.apply("DELETED", versioned(12))
    c.observe(versioned(11))
    assert len(c) == 0


def test_taking_the_last_finalizer_off_ends_the_object() -> None:
    c, heard = cache()
    c.replace([versioned(10, size=1)], 10)
    gone = versioned(12, size=1)
    gone["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    c.observe(gone)
    c.apply("MODIFIED", versioned(11, size=2))  # older than our write
    assert heard == [(None, 1), (1, None)]
    c.apply("DELETED", gone)
    c.apply("ADDED", versioned(13, size=3))  # the same name again
    assert heard[2:] == [(None, 3)]


def test_what_only_seemed_to_end_by_our_write_is_here_when_the_watch_shows_it() -> None:
    """Such as a Namespace, which waits for finalizers that are not in its metadata."""
    c, _ = cache()
    c.replace([versioned(10)], 10)
    ending = versioned(12, size=1)
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    c.observe(ending)
    assert not c.knows(12), "the watch would pass over it"
    c.apply("MODIFIED", ending)
    assert len(c) == 1


def test_what_a_selector_keeps_out_does_not_come_in_by_a_write() -> None:
    c, _ = cache(narrowed=True)
    c.replace([versioned(10)], 10)
    c.observe(versioned(12, "b"))
    c.observe(versioned(13, size=5))
    assert [(obj.name, obj.size) for obj in c.list()] == [("a", 5)]
    other, _ = cache(namespace="default")
    other.observe(versioned(9, namespace="elsewhere"))
    assert len(other) == 0


def test_an_object_that_cannot_be_decoded_is_kept_out_and_named_and_the_others_go_on() -> None:
    c, heard = cache()
    c.replace([versioned(1, size="huge"), versioned(2, "b", size=2)], 2)
    assert heard == [(None, 2)]
    assert list(c.broken) == ["default/a"]
    assert "size" in c.broken["default/a"]
    assert "'huge'" in c.broken["default/a"]
    c.apply("MODIFIED", versioned(3, size=3))
    assert (dict(c.broken), heard[1:]) == ({}, [(None, 3)])
    c.apply("MODIFIED", versioned(4, size="huge"))
    assert (list(c.broken), heard[2:]) == (["default/a"], [(3, None)])
    c.apply("DELETED", versioned(5, size="huge"))
    assert (dict(c.broken), len(heard)) == ({}, 3)


def test_an_undecodable_object_is_logged_once_for_each_version(capsys: pytest.CaptureFixture[str]) -> None:
    c, _ = cache()
    for _ in range(3):
        c.replace([versioned(1, size="huge")], 1)
    assert capsys.readouterr().out.count("cannot be decoded") == 1
    c.replace([versioned(2, size="huge")], 2)
    assert capsys.readouterr().out.count("cannot be decoded") == 1


def test_a_handlers_bug_is_counted_and_the_other_handlers_hear() -> None:
    c, _ = cache()
    before = PANICS.labels("handler")._value.get()
    c.on_change(lambda old, new: [][0])
    heard: list[str] = []
    c.on_change(lambda old, new: heard.append("second"))
    c.apply("ADDED", versioned(1))
    assert heard == ["second"]
    assert PANICS.labels("handler")._value.get() == before + 1


def test_an_index_that_fails_leaves_the_object_out() -> None:
    c: Cache[Thing] = Cache(Thing, indexes={"first": lambda obj: [obj.colors[0]]})
    c.replace([versioned(1), versioned(2, "b", colors=["red"])], 2)
    assert [obj.name for obj in c.list()] == ["b"]
    assert list(c.broken) == ["default/a"]


def test_a_late_handler_hears_of_what_is_there() -> None:
    c, _ = cache()
    c.replace([versioned(1, size=1)], 1)
    heard: list[object] = []
    c.on_change(lambda old, new: heard.append((old, new and new.size)))
    assert heard == [(None, 1)]


def test_a_history_that_went_back_is_taken_as_it_is() -> None:
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
        self.cache.on_change(self.hear)
        self.answers: list[Json] = []
        self.seen = 0  # in the server's log
        self.states: list[tuple[int, list[Json]]] = [(self.server.revision, [])]
        self.versions: dict[str, int] = {}
        self.relist()

    def hear(self, old: Thing | None, new: Thing | None) -> None:
        key = (old or new).key  # type: ignore[union-attr]
        assert self.mirror.get(key) is old
        if new is None:
            del self.mirror[key]
        else:
            self.mirror[key] = new

    def remember(self) -> None:
        self.states.append((self.server.revision, [*self.server.objects.values()]))

    @rule(name=names, size=sizes, colors=colors, ours=st.booleans())
    def write(self, name: str, size: int | str, colors: list[str], ours: bool) -> None:
        answer = self.server.put(thing(name, size=size, colors=colors))
        self.remember()
        if ours:
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
        if event == "MODIFIED" and self.cache.knows(version):
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
        """Once every event is shown, the cache equals the server, whatever the earlier order."""
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


def test_an_object_that_is_left_out_comes_back_changed_or_after_a_while() -> None:
    c, heard = cache()
    reported: list[str] = []
    c.on_left_out(lambda partial: reported.append(f"{partial.key}: {partial.error}"))
    c.replace([versioned(1, size=1), versioned(2, "b", size=2)], 2)
    a = c.find("default/a")
    assert a is not None and c.leave_out(a, "poison", 100.0)
    assert not c.leave_out(a, "poison", 101.0)
    assert ([one.name for one in c.list()], list(c.broken), reported, heard[2:]) == (
        ["b"],
        ["default/a"],
        [],
        [(1, None)],
    )
    c.readmit(100.0)
    assert list(c.broken) == ["default/a"]
    c.readmit(100.1)
    assert (len(c), c.broken) == (2, {})
    assert c.leave_out(a, "poison", 200.0)
    c.apply("MODIFIED", versioned(3, size=3))
    assert (len(c), c.broken, heard[-1]) == (2, {}, (None, 3))
