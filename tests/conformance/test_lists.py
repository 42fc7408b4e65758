"""Lists: selectors, pages, versions, tables."""

import pytest

from tests.conformance.calls import (
    CONFIGMAPS,
    NAMESPACES,
    NODES,
    PODS,
    WIDGETS,
    cached,
    configmap,
    create,
    names,
    patch,
    pod,
    refused,
    table,
    version,
    widget,
)
from tests.controlplane.client import Api


def test_a_list_has_its_kind_and_version(api: Api) -> None:
    created = create(api, WIDGETS, widget())
    listed = api.request("GET", WIDGETS).body
    assert (listed["kind"], listed["apiVersion"]) == ("WidgetList", "conformance.capacity-broker.io/v1")
    assert listed["items"] == [created]
    assert int(version(listed)) >= int(created["metadata"]["resourceVersion"])


def test_items_of_builtin_lists_have_no_kind(api: Api) -> None:
    create(api, CONFIGMAPS, configmap())
    item = api.request("GET", CONFIGMAPS).body["items"][0]
    assert "kind" not in item and "apiVersion" not in item


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        ("app=x", "ac"),
        ("app==x", "ac"),
        ("app!=x", "bd"),
        ("app in (x,y)", "abc"),
        ("app notin (x)", "bd"),
        ("app", "abc"),
        ("!app", "d"),
        ("app=x,tier=front", "a"),
        ("app=x, tier!=front", "c"),
        ("", "abcd"),
    ],
)
def test_label_selectors(api: Api, selector: str, selected: str) -> None:
    for name, labels in (
        ("a", {"app": "x", "tier": "front"}),
        ("b", {"app": "y"}),
        ("c", {"app": "x"}),
        ("d", {}),
    ):
        create(api, WIDGETS, widget(name, labels=labels))
    assert names(api.request("GET", WIDGETS, {"labelSelector": selector}).body) == list(selected)


@pytest.mark.parametrize("selector", ["app in x", "=", "a b", "app=x=y", "app in (x"])
def test_a_bad_label_selector_is_refused(api: Api, selector: str) -> None:
    refused(api.request("GET", WIDGETS, {"labelSelector": selector}), 400, "BadRequest")
    refused(api.request("GET", PODS, {"labelSelector": selector}), 400, "BadRequest")


def test_field_selectors(api: Api) -> None:
    for name, color in (("a", "red"), ("b", "green")):
        create(api, WIDGETS, widget(name, color=color))
    for selector, selected in (
        ("metadata.name=a", ["a"]),
        ("metadata.name!=a", ["b"]),
        ("spec.color=green", ["b"]),
        ("metadata.namespace=default,spec.color!=green", ["a"]),
    ):
        assert names(api.request("GET", WIDGETS, {"fieldSelector": selector}).body) == selected
    body = refused(api.request("GET", WIDGETS, {"fieldSelector": "spec.size=1"}), 400, "BadRequest")
    assert "field label not supported: spec.size" in body["message"]


def test_pods_are_found_by_node_and_phase(api: Api) -> None:
    create(api, PODS, pod("a", nodeName="n1"))
    create(api, PODS, pod("b"))
    patch(api, f"{PODS}/a/status", {"status": {"phase": "Running"}})
    for selector, selected in (
        ("spec.nodeName=n1", ["a"]),
        ("spec.nodeName=", ["b"]),
        ("status.phase!=Pending", ["a"]),
        ("spec.nodeName=n1,status.phase=Failed", []),
    ):
        assert names(api.request("GET", PODS, {"fieldSelector": selector}).body) == selected


def test_nodes_are_found_by_unschedulable(api: Api) -> None:
    create(api, NODES, {"metadata": {"name": "a"}, "spec": {"unschedulable": True}})
    create(api, NODES, {"metadata": {"name": "b"}})
    assert names(api.request("GET", NODES, {"fieldSelector": "spec.unschedulable=true"}).body) == ["a"]


def test_pages(api: Api) -> None:
    for name in "abcde":
        create(api, WIDGETS, widget(name))
    first = api.request("GET", WIDGETS, {"limit": 2}).body
    assert (names(first), first["metadata"]["remainingItemCount"]) == (["a", "b"], 3)
    create(api, WIDGETS, widget("bb"))  # later objects are on no page
    second = api.request("GET", WIDGETS, {"limit": 2, "continue": first["metadata"]["continue"]}).body
    assert (names(second), version(second)) == (["c", "d"], version(first))
    last = api.request("GET", WIDGETS, {"limit": 2, "continue": second["metadata"]["continue"]}).body
    assert names(last) == ["e"]
    assert "continue" not in last["metadata"] or not last["metadata"]["continue"]


def test_a_page_with_a_selector_does_not_count_the_rest(api: Api) -> None:
    for name in "abc":
        create(api, WIDGETS, widget(name, labels={"app": "x"}))
    page = api.request("GET", WIDGETS, {"limit": 1, "labelSelector": "app=x"}).body
    assert names(page) == ["a"] and "remainingItemCount" not in page["metadata"]


def test_a_broken_token_is_refused(api: Api) -> None:
    body = refused(api.request("GET", WIDGETS, {"limit": 1, "continue": "nonsense"}), 400, "BadRequest")
    assert "continue key is not valid" in body["message"]


def test_a_list_at_an_exact_version(api: Api) -> None:
    create(api, CONFIGMAPS, configmap("a"))
    then = version(api.request("GET", CONFIGMAPS).body)
    create(api, CONFIGMAPS, configmap("b"))
    exact = {"resourceVersion": then, "resourceVersionMatch": "Exact"}
    assert names(api.request("GET", CONFIGMAPS, exact).body) == ["a"]
    newer = {"resourceVersion": then, "resourceVersionMatch": "NotOlderThan"}
    cached(api, f"{CONFIGMAPS}/b")
    assert names(api.request("GET", CONFIGMAPS, newer).body) == ["a", "b"]


def test_version_options_are_checked(api: Api) -> None:
    for query in (
        {"resourceVersionMatch": "Exact"},
        {"resourceVersion": "0", "resourceVersionMatch": "Exact"},
        {"resourceVersion": "1", "resourceVersionMatch": "Sometimes"},
    ):
        refused(api.request("GET", CONFIGMAPS, query), 422, "Invalid")
    assert api.request("GET", CONFIGMAPS, {"resourceVersion": "abc"}).status == 400


def test_all_namespaces_are_listed_by_namespace_and_name(api: Api) -> None:
    create(api, NAMESPACES, {"metadata": {"name": "aaa"}})
    create(api, WIDGETS, widget("a"))
    create(api, WIDGETS.replace("/default/", "/aaa/"), widget("b"))
    listed = api.request("GET", WIDGETS.replace("/namespaces/default", "")).body
    assert [(i["metadata"]["namespace"], i["metadata"]["name"]) for i in listed["items"]] == [
        ("aaa", "b"),
        ("default", "a"),
    ]
    assert names(api.request("GET", WIDGETS.replace("/default/", "/none/")).body) == []


def test_a_table_has_the_printer_columns(api: Api) -> None:
    create(api, WIDGETS, widget(parts=[{"name": "p"}, {"name": "q"}]))
    patch(api, f"{WIDGETS}/a/status", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    shown = table(api, WIDGETS)
    assert (shown["kind"], shown["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    assert [(c["name"], c["type"], c["priority"]) for c in shown["columnDefinitions"]] == [
        ("Name", "string", 0),
        ("Size", "integer", 0),
        ("Color", "string", 0),
        ("Ready", "string", 0),
        ("Parts", "string", 1),
        ("Age", "date", 0),
    ]
    assert shown["columnDefinitions"][1]["description"] == "how big"
    row = shown["rows"][0]
    assert row["cells"][:4] == ["a", 1, "red", "True"]
    assert (row["object"]["kind"], row["object"]["metadata"]["name"]) == ("PartialObjectMetadata", "a")
    assert "spec" not in row["object"]


def test_a_table_without_columns_has_name_and_age(api: Api) -> None:
    path = "/apis/conformance.capacity-broker.io/v1/gizmos"
    create(
        api,
        path,
        {"apiVersion": "conformance.capacity-broker.io/v1", "kind": "Gizmo", "metadata": {"name": "a"}},
    )
    assert [c["name"] for c in table(api, path)["columnDefinitions"]] == ["Name", "Age"]


def test_a_table_with_whole_objects_or_none(api: Api) -> None:
    create(api, WIDGETS, widget())
    assert table(api, f"{WIDGETS}/a", includeObject="Object")["rows"][0]["object"]["spec"]["size"] == 1
    assert table(api, WIDGETS, includeObject="None")["rows"][0].get("object") is None


def test_the_tables_of_nodes_and_pods(api: Api) -> None:
    create(api, NODES, {"metadata": {"name": "a"}})
    create(api, PODS, pod())
    nodes, pods = table(api, NODES), table(api, PODS)
    assert [c["name"] for c in nodes["columnDefinitions"] if not c["priority"]] == [
        "Name",
        "Status",
        "Roles",
        "Age",
        "Version",
    ]
    assert nodes["rows"][0]["cells"][:3] == ["a", "Unknown", "<none>"]
    assert [c["name"] for c in pods["columnDefinitions"] if not c["priority"]] == [
        "Name",
        "Ready",
        "Status",
        "Restarts",
        "Age",
    ]
    assert pods["rows"][0]["cells"][:4] == ["a", "0/1", "Pending", "0"]


def test_only_metadata(api: Api) -> None:
    create(api, WIDGETS, widget())
    accept = {"Accept": "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"}
    listed = api.request("GET", WIDGETS, headers=accept).body
    assert listed["kind"] == "PartialObjectMetadataList"
    assert names(listed) == ["a"] and "spec" not in listed["items"][0]
