from __future__ import annotations

from broker.apis.core import Node
from broker.kube.cache import Cache
from broker.kube.derived import Derived


def test_a_value_is_read_anew_after_each_change_and_only_then() -> None:
    cache, other, reads = Cache(Node), Cache(Node), 0

    def names() -> list[str]:
        nonlocal reads
        reads += 1
        return sorted(node.name for node in (*cache.list(), *other.list()))

    derived = Derived(names, cache, other)
    assert (derived(), derived(), reads) == ([], [], 1)
    cache.observe({"metadata": {"name": "a", "uid": "a", "resourceVersion": "1"}})
    assert (derived(), derived(), reads) == (["a"], ["a"], 2)
    other.observe({"metadata": {"name": "b", "uid": "b", "resourceVersion": "2"}})
    assert (derived(), reads) == (["a", "b"], 3)


def test_a_change_during_the_read_is_not_missed() -> None:
    cache = Cache(Node)

    def read() -> list[str]:
        names = [node.name for node in cache.list()]
        if not names:
            cache.observe({"metadata": {"name": "late", "uid": "late", "resourceVersion": "3"}})
        return names

    derived = Derived(read, cache)
    assert (derived(), derived()) == ([], ["late"])
