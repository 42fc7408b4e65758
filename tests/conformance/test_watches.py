"""Watches: replayed and live events, selectors, bookmarks, and expired versions."""

from tests.conformance.calls import (
    PODS,
    WIDGETS,
    create,
    get,
    patch,
    pod,
    refused,
    table,
    version,
    widget,
)
from tests.conformance.steps import TABLE
from tests.controlplane.client import Api, Json, Query


def types_and_names(events: list[Json]) -> list[tuple[str, str]]:
    return [(event["type"], event["object"]["metadata"].get("name", "")) for event in events]


def start(api: Api, collection: str = WIDGETS) -> str:
    return version(api.request("GET", collection).body)


def test_watch_reports_every_change_in_order(api: Api) -> None:
    since = start(api)
    with api.watch(WIDGETS, {"resourceVersion": since}) as live:
        created = create(api, WIDGETS, widget())
        changed = patch(api, f"{WIDGETS}/a", {"spec": {"size": 2}}).body
        api.request("DELETE", f"{WIDGETS}/a")
        events = live.take(3)
    assert types_and_names(events) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
    assert [events[0]["object"], events[1]["object"]] == [created, changed]
    last = events[2]["object"]
    assert last["spec"] == changed["spec"] and int(version(last)) > int(version(changed))
    with api.watch(WIDGETS, {"resourceVersion": since}) as replayed:
        assert replayed.take(3) == events


def test_watch_without_a_version_begins_with_the_existing_objects(api: Api) -> None:
    for name in "ba":
        create(api, WIDGETS, widget(name))
    for query in ({}, {"resourceVersion": "0"}):
        with api.watch(WIDGETS, query) as watch:
            assert sorted(types_and_names(watch.take(2))) == [("ADDED", "a"), ("ADDED", "b")]


def test_a_selector_sees_objects_come_and_go(api: Api) -> None:
    since = start(api)
    with api.watch(WIDGETS, {"resourceVersion": since, "labelSelector": "app=x"}) as live:
        create(api, WIDGETS, widget())
        patch(api, f"{WIDGETS}/a", {"metadata": {"labels": {"app": "x"}}})
        patch(api, f"{WIDGETS}/a", {"spec": {"size": 2}})
        patch(api, f"{WIDGETS}/a", {"metadata": {"labels": {"app": "y"}}})
        api.request("DELETE", f"{WIDGETS}/a")
        create(api, WIDGETS, widget("b", labels={"app": "x"}))
        events = live.take(4)
    assert types_and_names(events) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a"), ("ADDED", "b")]
    assert events[2]["object"]["metadata"]["labels"] == {"app": "x"}  # as the selector last saw it
    assert int(version(events[2]["object"])) > int(version(events[1]["object"]))


def test_a_field_selector_follows_a_binding(api: Api) -> None:
    since = start(api, PODS)
    create(api, PODS, pod())
    binding = {"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n1"}}
    create(api, f"{PODS}/a/binding", binding)
    with api.watch(PODS, {"resourceVersion": since, "fieldSelector": "spec.nodeName="}) as pending:
        assert types_and_names(pending.take(2)) == [("ADDED", "a"), ("DELETED", "a")]
    with api.watch(PODS, {"resourceVersion": since, "fieldSelector": "spec.nodeName=n1"}) as bound:
        assert types_and_names(bound.take(1)) == [("ADDED", "a")]


def test_the_steps_of_a_deletion(api: Api) -> None:
    since = start(api)
    body = widget()
    body["metadata"]["finalizers"] = ["test.io/hold"]
    create(api, WIDGETS, body)
    api.request("DELETE", f"{WIDGETS}/a")
    patch(api, f"{WIDGETS}/a", {"metadata": {"finalizers": None}})
    with api.watch(WIDGETS, {"resourceVersion": since}) as watch:
        events = watch.take(3)
    assert types_and_names(events) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
    assert events[1]["object"]["metadata"]["deletionTimestamp"]


def test_one_object_is_watched_by_name(api: Api) -> None:
    since = start(api)
    create(api, WIDGETS, widget("a"))
    create(api, WIDGETS, widget("b"))
    with api.watch(WIDGETS, {"resourceVersion": since, "fieldSelector": "metadata.name=b"}) as watch:
        assert types_and_names(watch.take(1)) == [("ADDED", "b")]


def test_a_watch_ends_at_its_timeout(api: Api) -> None:
    with api.watch(WIDGETS, {"timeoutSeconds": 1}) as watch:
        assert watch.status == 200 and watch.rest() == []


def test_initial_events_end_with_a_bookmark(api: Api) -> None:
    for name in "ab":
        create(api, WIDGETS, widget(name))
    query: Query = {
        "sendInitialEvents": True,
        "allowWatchBookmarks": True,
        "resourceVersionMatch": "NotOlderThan",
        "resourceVersion": "",
    }
    with api.watch(WIDGETS, query) as watch:
        events = watch.take(3)
        create(api, WIDGETS, widget("c"))
        assert types_and_names(watch.take(1)) == [("ADDED", "c")]
    assert types_and_names(events) == [("ADDED", "a"), ("ADDED", "b"), ("BOOKMARK", "")]
    mark = events[2]["object"]
    assert (mark["kind"], mark["apiVersion"]) == ("Widget", "conformance.capacity-broker.io/v1")
    assert mark["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert int(version(mark)) >= int(version(events[1]["object"]))


def test_initial_events_need_their_options(api: Api) -> None:
    query: Query = {"watch": "true", "sendInitialEvents": True}
    refused(api.request("GET", WIDGETS, query), 422, "Invalid")


def test_watch_from_a_version_that_is_gone_returns_410(api: Api) -> None:
    create(api, WIDGETS, widget())
    api.compact()
    with api.watch(WIDGETS, {"resourceVersion": "1"}) as watch:
        assert watch.status == 200
        events = watch.rest()
    assert [event["type"] for event in events] == ["ERROR"]
    status = events[0]["object"]
    assert (status["kind"], status["code"], status["reason"]) == ("Status", 410, "Expired")
    assert status["message"].startswith("too old resource version: 1 (")


def test_a_watch_from_a_version_that_is_no_number_is_refused(api: Api) -> None:
    reply = api.request("GET", WIDGETS, {"watch": "true", "resourceVersion": "abc"})
    assert reply.status == 500 and 'resourceVersion: Invalid value: "abc"' in reply.body["message"]


def test_a_watch_as_a_table_has_its_columns_once(api: Api) -> None:
    since = version(table(api, WIDGETS))
    create(api, WIDGETS, widget("a"))
    create(api, WIDGETS, widget("b"))
    with api.watch(WIDGETS, {"resourceVersion": since}, {"Accept": TABLE}) as watch:
        first, second = watch.take(2)
    assert first["object"]["kind"] == "Table" and len(first["object"]["columnDefinitions"]) == 6
    assert not second["object"].get("columnDefinitions")
    assert second["object"]["rows"][0]["cells"][0] == "b"


def test_events_carry_kind_and_version_of_the_request(api: Api) -> None:
    since = start(api)
    create(api, WIDGETS, widget())
    beta = WIDGETS.replace("/v1/", "/v1beta1/")
    with api.watch(beta, {"resourceVersion": since}) as watch:
        assert watch.take(1)[0]["object"]["apiVersion"] == "conformance.capacity-broker.io/v1beta1"
    assert get(api, beta)["apiVersion"] == "conformance.capacity-broker.io/v1beta1"
