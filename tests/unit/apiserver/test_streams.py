"""Watches in the process: closed from elsewhere, dropped, too slow; and faults that a test scripts."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local.kube import ApiRequest, Cluster, StatusError

from .objects import CONFIGMAPS, NODES, PODS, Clock, configmap, events, names, pod, send, waiting

Obj = dict[str, Any]
LONG = 20.0


def watch(cluster: Cluster, path: str, **query: str) -> Any:
    return send(cluster, "GET", path, query={"watch": "true", "resourceVersion": "0", **query})


def types_and_names(stream_events: list[Obj]) -> list[tuple[str, str]]:
    return [(event["type"], event["object"]["metadata"]["name"]) for event in stream_events]


def test_a_reader_blocks_until_something_happens(cluster: Cluster) -> None:
    stream, seen = events(watch(cluster, PODS)), list[Obj]()
    reader = threading.Thread(target=lambda: seen.append(next(stream)))
    reader.start()
    cluster.create(PODS, pod("a"))
    reader.join(LONG)
    assert types_and_names(seen) == [("ADDED", "a")]


def test_closing_from_another_thread_ends_the_reader(cluster: Cluster) -> None:
    response, seen = watch(cluster, PODS), list[Obj]()
    reader = threading.Thread(target=lambda: seen.extend(events(response)))
    reader.start()
    response.stream.close()
    reader.join(LONG)
    assert not reader.is_alive()
    assert seen == []
    response.stream.close()  # a second time does nothing


def test_dropping_ends_every_watch_and_a_new_one_begins_where_it_ended(cluster: Cluster) -> None:
    first, second = watch(cluster, PODS), watch(cluster, CONFIGMAPS)
    created = cluster.create(PODS, pod("a"))
    cluster.faults.drop_watches()
    assert list(events(first)) == list(events(second)) == []
    cluster.create(PODS, pod("b"))
    again = watch(cluster, PODS, resourceVersion=created["metadata"]["resourceVersion"])
    assert types_and_names(waiting(again)) == [("ADDED", "b")]


def test_slow_reader_gets_an_error_and_ends(clock: Clock) -> None:
    cluster = Cluster(clock=clock, log_bytes=4000)
    response = watch(cluster, CONFIGMAPS)
    for i in range(200):
        cluster.create(CONFIGMAPS, configmap(f"c{i}"))
    (only,) = events(response)
    assert only["type"] == "ERROR"
    assert (only["object"]["code"], only["object"]["reason"]) == (410, "Expired")


def test_an_object_that_leaves_the_selection_is_deleted_with_its_last_selected_state(
    cluster: Cluster,
) -> None:
    response = watch(cluster, PODS, labelSelector="app=x")
    cluster.create(PODS, pod("a", labels={"app": "x"}))
    gone = cluster.patch(f"{PODS}/a", {"metadata": {"labels": {"app": "y"}}})
    cluster.patch(f"{PODS}/a", {"metadata": {"labels": {"other": "z"}}})
    cluster.patch(f"{PODS}/a", {"metadata": {"labels": {"app": "x"}}})
    received = waiting(response)
    assert types_and_names(received) == [("ADDED", "a"), ("DELETED", "a"), ("ADDED", "a")]
    assert received[1]["object"]["metadata"]["labels"] == {"app": "x"}
    assert received[1]["object"]["metadata"]["resourceVersion"] == gone["metadata"]["resourceVersion"]


steps = st.lists(
    st.tuples(st.sampled_from(["put", "delete"]), st.sampled_from("abc"), st.sampled_from(["x", "y", "z"])),
    max_size=12,
)


@given(before=steps, after=steps, selector=st.sampled_from(["", "l=x", "l!=x"]))
def test_list_with_later_events_equals_the_present_list(before: Any, after: Any, selector: str) -> None:
    cluster = Cluster(clock=Clock())

    def do(step: tuple[str, str, str]) -> None:
        how, name, label = step
        exists = name in names(cluster.get(CONFIGMAPS))
        if how == "delete" and exists:
            cluster.delete(f"{CONFIGMAPS}/{name}")
        elif exists:
            cluster.patch(f"{CONFIGMAPS}/{name}", {"metadata": {"labels": {"l": label}}})
        elif how == "put":
            cluster.create(CONFIGMAPS, configmap(name, labels={"l": label}))

    for step in before:
        do(step)
    listed = cluster.get(CONFIGMAPS, labelSelector=selector)
    held = {obj["metadata"]["name"]: obj["metadata"]["resourceVersion"] for obj in listed["items"]}
    version = listed["metadata"]["resourceVersion"]
    response = watch(cluster, CONFIGMAPS, labelSelector=selector, resourceVersion=version)
    for step in after:
        do(step)
    for event in waiting(response):
        meta = event["object"]["metadata"]
        if event["type"] == "DELETED":
            del held[meta["name"]]
        else:
            assert (event["type"] == "ADDED") is (meta["name"] not in held)
            held[meta["name"]] = meta["resourceVersion"]
    now = cluster.get(CONFIGMAPS, labelSelector=selector)["items"]
    assert held == {obj["metadata"]["name"]: obj["metadata"]["resourceVersion"] for obj in now}
    response.stream.close()


@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=6), total=st.integers(0, 9))
def test_pages_of_any_size_make_up_the_list(sizes: list[int], total: int) -> None:
    cluster = Cluster(clock=Clock())
    for i in range(total):
        cluster.create(CONFIGMAPS, configmap(f"c{i}"))
    whole, listed, token = names(cluster.get(CONFIGMAPS)), list[str](), ""
    for size in [*sizes, 100]:
        page = cluster.get(CONFIGMAPS, limit=str(size), **({"continue": token} if token else {}))
        listed += names(page)
        # Writes between two pages are not seen.
        cluster.create(CONFIGMAPS, {"metadata": {"generateName": "a"}})
        if not (token := page["metadata"].get("continue", "")):
            break
        assert page["metadata"]["remainingItemCount"] == total - len(listed)
    assert listed == whole


def test_a_page_of_a_compacted_revision_is_gone(cluster: Cluster) -> None:
    for name in "abc":
        cluster.create(CONFIGMAPS, configmap(name))
    token = cluster.get(CONFIGMAPS, limit="1")["metadata"]["continue"]
    cluster.compact()
    cluster.create(CONFIGMAPS, configmap("d"))
    cluster.compact()
    with pytest.raises(StatusError) as gone:
        cluster.get(CONFIGMAPS, **{"limit": "1", "continue": token})
    assert (gone.value.code, gone.value.reason) == (410, "Expired")
    rest = gone.value.status()["metadata"]["continue"]
    assert names(cluster.get(CONFIGMAPS, **{"limit": "9", "continue": rest})) == ["b", "c", "d"]


def test_scripted_failures_match_their_requests_the_given_number_of_times(cluster: Cluster) -> None:
    cluster.faults.fail(verb="create", resource="pods", code=503, reason="ServiceUnavailable", times=2)
    cluster.create(CONFIGMAPS, configmap())
    for _ in range(2):
        with pytest.raises(StatusError) as failed:
            cluster.create(PODS, pod())
        assert (failed.value.code, failed.value.reason) == (503, "ServiceUnavailable")
    assert cluster.create(PODS, pod())["metadata"]["name"] == "p"


def test_a_failure_may_be_of_one_object_or_of_a_subresource(cluster: Cluster) -> None:
    cluster.create(PODS, pod("a"))
    cluster.create(PODS, pod("b"))
    cluster.faults.fail(verb="get", resource="pods", name="a", code=500)
    assert cluster.get(f"{PODS}/b")
    with pytest.raises(StatusError):
        cluster.get(f"{PODS}/a")
    cluster.faults.fail(resource="pods/status", code=409, reason="Conflict")
    cluster.patch(f"{PODS}/a", {"metadata": {"labels": {"x": "y"}}})
    with pytest.raises(StatusError):
        cluster.patch(f"{PODS}/a/status", {"status": {"phase": "Running"}})


def test_too_many_requests_has_a_retry_after(cluster: Cluster) -> None:
    cluster.faults.fail(code=429, reason="TooManyRequests")
    answer = send(cluster, "GET", NODES)
    assert answer.status == 429
    assert answer.headers["Retry-After"] == "1"


def test_failures_go_on_until_they_are_cleared(cluster: Cluster) -> None:
    cluster.faults.fail(verb="list", times=-1)
    for _ in range(5):
        with pytest.raises(StatusError):
            cluster.get(PODS)
    cluster.faults.clear()
    cluster.get(PODS)


def test_a_failed_write_changed_nothing(cluster: Cluster) -> None:
    cluster.faults.fail(verb="create")
    with pytest.raises(StatusError):
        cluster.create(PODS, pod())
    assert names(cluster.get(PODS)) == []


def test_threads_that_write_the_same_object_lose_no_update(cluster: Cluster) -> None:
    cluster.create(CONFIGMAPS, configmap("c", n="0"))

    def add() -> None:
        for _ in range(20):
            while True:
                have = cluster.get(f"{CONFIGMAPS}/c")
                have["data"]["n"] = str(int(have["data"]["n"]) + 1)
                answer = send(cluster, "PUT", f"{CONFIGMAPS}/c", have)
                if answer.status == 200:
                    break
                assert answer.status == 409

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert cluster.get(f"{CONFIGMAPS}/c")["data"]["n"] == "80"


def test_a_closed_watch_is_forgotten(cluster: Cluster) -> None:
    response = cluster.handle(ApiRequest("GET", PODS, {"watch": "true"}))
    assert response.stream is not None
    response.stream.close()
    assert cluster.state.store.collection("pods.").listeners == {}
