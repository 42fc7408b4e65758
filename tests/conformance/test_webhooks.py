"""Validating webhooks: which are called, with which review, and the effect of their responses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.calls import NAMESPACES, WIDGETS, cached, causes, create, get, patch, refused, widget
from tests.conformance.definitions import GROUP
from tests.conformance.hook import CONFIGURATIONS, Hook, allow, deny, registered, served
from tests.conformance.steps import JSON_PATCH
from tests.controlplane.client import Api, Json


@pytest.fixture
def hook() -> Iterator[Hook]:
    with served() as hook_:
        yield hook_


def review_of(api: Api, hook: Hook, method: str, path: str, body: Any = None, **query: Any) -> Json:
    """The one review that the webhook received for this request."""
    if method != "POST":
        cached(api, path)
    hook.seen.clear()
    reply = api.request(method, path, query, body)
    assert reply.status < 300, reply.body
    (seen,) = hook.seen
    return seen


def test_webhook_gets_the_written_object(api: Api, hook: Hook) -> None:
    with registered(api, hook, hook.rule()):
        review = review_of(api, hook, "POST", WIDGETS, widget())
        kind = {"group": GROUP, "version": "v1", "kind": "Widget"}
        resource = {"group": GROUP, "version": "v1", "resource": "widgets"}
        assert {name: review[name] for name in review.keys() - {"uid", "userInfo", "object", "options"}} == {
            "kind": kind,
            "resource": resource,
            "requestKind": kind,
            "requestResource": resource,
            "name": "a",
            "namespace": "default",
            "operation": "CREATE",
            "oldObject": None,
            "dryRun": False,
        }
        assert review["options"]["kind"] == "CreateOptions"
        assert review["userInfo"]["username"] == "admin"
        assert review["object"]["metadata"]["uid"] == get(api, WIDGETS)["metadata"]["uid"]
        assert review["object"]["spec"]["size"] == 1

        changed = get(api, WIDGETS)
        changed["spec"]["size"] = 2
        update = review_of(api, hook, "PUT", f"{WIDGETS}/a", changed)
        assert (update["operation"], update["options"]["kind"]) == ("UPDATE", "UpdateOptions")
        assert [update[field]["spec"]["size"] for field in ("oldObject", "object")] == [1, 2]
        assert update["object"]["metadata"]["generation"] == 2

        gone = review_of(api, hook, "DELETE", f"{WIDGETS}/a")
        assert (gone["operation"], gone["object"], gone["name"]) == ("DELETE", None, "a")
        assert gone["oldObject"]["spec"]["size"] == 2


def test_a_refusal_is_the_webhook_s_own_and_nothing_is_written(api: Api, hook: Hook) -> None:
    details = {"name": "a", "causes": [{"field": "spec.size", "message": "too large"}]}
    with registered(api, hook, hook.rule()):
        hook.answer = lambda review: deny(
            review, code=422, reason="Invalid", message="spec.size: too large", details=details
        )
        answer = api.send("POST", WIDGETS, body=widget())
        assert (answer.status, answer.body) == (
            422,
            {
                "kind": "Status",
                "apiVersion": "v1",
                "metadata": {},
                "status": "Failure",
                "message": 'admission webhook "asked.conformance.capacity-broker.io" denied the request: '
                "spec.size: too large",
                "reason": "Invalid",
                "details": details,
                "code": 422,
            },
        )
        assert api.request("GET", f"{WIDGETS}/a").status == 404
        hook.answer = allow
        create(api, WIDGETS, widget())
        hook.answer = deny
        for method, body in (("PUT", get(api, WIDGETS)), ("DELETE", None)):
            reply = api.request(method, f"{WIDGETS}/a", body=body)
            assert reply.status == 400
            assert reply.body["message"].endswith("denied the request without explanation")
        reply = api.request("DELETE", WIDGETS)
        assert reply.status == 400
        assert get(api, WIDGETS)["spec"]["size"] == 1


@pytest.mark.parametrize(
    ("status", "code", "ending"),
    [
        ({}, 400, "denied the request without explanation"),
        ({"code": 200, "reason": "NoRoom"}, 400, "denied the request: NoRoom"),
        ({"code": 403, "message": "no"}, 403, "denied the request: no"),
    ],
    ids=str,
)
def test_fields_that_a_refusal_leaves_out(api: Api, hook: Hook, status: Json, code: int, ending: str) -> None:
    with registered(api, hook, hook.rule()):
        hook.answer = lambda review: deny(review, **status)
        reply = api.request("POST", WIDGETS, body=widget())
        assert (reply.status, reply.body["code"]) == (code, code)
        assert reply.body["message"].endswith(ending)


@pytest.mark.parametrize("allowed", [True, False])
def test_warnings_reach_the_client(api: Api, hook: Hook, allowed: bool) -> None:
    with registered(api, hook, hook.rule()):
        warnings = ["size is small", 'and "quoted"', "size is small"]
        hook.answer = lambda review: allow(review, allowed=allowed, warnings=warnings)
        answer = api.send("POST", WIDGETS, body=widget())
        assert (answer.status == 201) is allowed
        header = ", ".join(answer.warnings)
        assert header == '299 - "size is small", 299 - "and \\"quoted\\""'


def test_webhook_is_called_only_for_requests_of_its_rules(api: Api, hook: Hook) -> None:
    with registered(api, hook, hook.rule(operations=["UPDATE"], resources=["widgets/status"])):
        created = create(api, WIDGETS, widget())
        api.request("PUT", f"{WIDGETS}/a", body=created)
        assert hook.seen == []
        cached(api, f"{WIDGETS}/a")
        reply = patch(api, f"{WIDGETS}/a/status", {"status": {"phase": "Ready"}})
        assert reply.status == 200, reply.body
        (seen,) = hook.seen
        assert (seen["subResource"], seen["operation"]) == ("status", "UPDATE")
        assert seen["object"]["status"] == {"phase": "Ready"}


@pytest.mark.parametrize(
    "resources",
    [["*"], ["*/*"], ["widgets/*"], ["gadgets", "widgets"]],
    ids=lambda resources: ",".join(resources),
)
def test_stars_in_rules(api: Api, hook: Hook, resources: list[str]) -> None:
    rule = hook.rule(operations=["*"])
    rule["rules"][0] |= {
        "resources": resources,
        "apiVersions": ["*"],
        "apiGroups": ["*"],
        "scope": "Namespaced",
    }
    rule["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": "default"}}
    with registered(api, hook, rule):
        review_of(api, hook, "POST", WIDGETS, widget())


def test_selectors_choose_by_namespace_and_object(api: Api, hook: Hook) -> None:
    create(api, NAMESPACES, {"metadata": {"name": "quiet", "labels": {"ask": "no"}}})
    rule = hook.rule(
        namespaceSelector={"matchExpressions": [{"key": "ask", "operator": "NotIn", "values": ["no"]}]},
        objectSelector={"matchLabels": {"ask": "yes"}},
    )
    quiet = WIDGETS.replace("default", "quiet")
    with registered(api, hook, rule):
        for path, labels, count in (
            (WIDGETS, {"ask": "yes"}, 1),
            (WIDGETS, {"ask": "no"}, 0),
            (quiet, {"ask": "yes"}, 0),
        ):
            hook.seen.clear()
            create(api, path, widget(f"w{count}", labels=labels), dryRun="All")
            assert len(hook.seen) == count
        # On an update either of the two objects will do.
        create(api, WIDGETS, widget(labels={"ask": "yes"}))
        hook.seen.clear()
        for label in ("no", "never"):
            cached(api, f"{WIDGETS}/a")
            patch(api, f"{WIDGETS}/a", {"metadata": {"labels": {"ask": label}}})
            assert len(hook.seen) == 1


CHANGES = {"name": "changes", "expression": "oldObject == null || object.spec != oldObject.spec"}
BY_NAME = {"name": "name", "expression": "request.name != 'b'"}
FAILS = {"name": "fails", "expression": "object.spec.nothing == 1"}


def test_match_conditions(api: Api, hook: Hook) -> None:
    with registered(
        api, hook, hook.rule(operations=["CREATE", "UPDATE"], matchConditions=[CHANGES, BY_NAME])
    ):
        create(api, WIDGETS, widget())
        create(api, WIDGETS, widget("b"))
        cached(api, f"{WIDGETS}/a")
        patch(api, f"{WIDGETS}/a", {"metadata": {"labels": {"l": "1"}}})
        assert [seen["operation"] for seen in hook.seen] == ["CREATE"]
        cached(api, f"{WIDGETS}/a")
        patch(api, f"{WIDGETS}/a", {"spec": {"size": 2}})
        assert [seen["operation"] for seen in hook.seen] == ["CREATE", "UPDATE"]


@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
def test_a_match_condition_that_fails(api: Api, hook: Hook, policy: str) -> None:
    rule = hook.rule(failurePolicy=policy, matchConditions=[FAILS, BY_NAME])
    with registered(api, hook, rule):
        reply = api.request("POST", WIDGETS, body=widget())
        assert reply.status == (403 if policy == "Fail" else 201), reply.body
        # One that is false counts more.
        create(api, WIDGETS, widget("b"))
        assert hook.seen == []


def test_webhook_is_called_last(api: Api, hook: Hook) -> None:
    with registered(api, hook, hook.rule()):
        refused(api.request("POST", WIDGETS, body=widget(size="large")), 422, "Invalid")
        created = create(api, WIDGETS, widget(), dryRun="All")
        (seen,) = hook.seen
        assert seen["dryRun"] is True
        assert api.request("GET", f"{WIDGETS}/{created['metadata']['name']}").status == 404
        create(api, WIDGETS, widget())
        cached(api, f"{WIDGETS}/a")
        # A write without a change is reviewed, too.
        hook.seen.clear()
        patch(api, f"{WIDGETS}/a", {"spec": {"size": 1}})
        assert len(hook.seen) == 1
        # A name that is taken is not known before.
        refused(api.request("POST", WIDGETS, body=widget()), 409, "AlreadyExists")
        assert len(hook.seen) == 2


BAD: dict[str, Any] = {
    "another's uid": lambda review: allow({"request": {"uid": "other"}}),
    "no response": lambda review: {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"},
    "no review": lambda review: {"apiVersion": "v1", "kind": "Status"},
    "no json": lambda review: b"yes",
    "an error": lambda review: 503,
}


@pytest.mark.parametrize("bad", BAD)
def test_an_answer_that_is_none_is_a_failure(api: Api, hook: Hook, bad: str) -> None:
    hook.answer = BAD[bad]
    with registered(api, hook, hook.rule()):
        reply = api.request("POST", WIDGETS, body=widget())
        assert (reply.status, reply.body["reason"]) == (500, "InternalError")
        message = 'Internal error occurred: failed calling webhook "asked.conformance.capacity-broker.io": '
        assert reply.body["message"].startswith(message)


@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
@pytest.mark.parametrize("broken", ["no listener", "another's certificate"])
def test_failure_policy(api: Api, hook: Hook, policy: str, broken: str) -> None:
    rule = hook.rule(failurePolicy=policy)
    if broken == "no listener":
        rule["clientConfig"]["url"] = "https://127.0.0.1:1/hook"
    else:
        with served() as other:
            rule["clientConfig"]["caBundle"] = other.rule()["clientConfig"]["caBundle"]
    with registered(api, hook, rule):
        reply = api.request("POST", WIDGETS, body=widget())
        assert reply.status == (201 if policy == "Ignore" else 500), reply.body
        if policy == "Fail":
            url = rule["clientConfig"]["url"]
            assert f'failed to call webhook: Post "{url}?timeout=10s": ' in reply.body["message"]
    assert hook.seen == []


def test_webhook_with_effects_is_not_called_on_a_dry_run(api: Api, hook: Hook) -> None:
    """Only old configurations can declare them: the server accepts no other values any more."""
    body = {"metadata": {"name": "x"}, "webhooks": [hook.rule(sideEffects="Some")]}
    reply = api.request("POST", CONFIGURATIONS, body=body)
    assert causes(reply)["webhooks[0].sideEffects"].startswith(
        'Unsupported value: "Some": supported values: '
    )


def test_webhook_may_read_and_write_during_its_call(api: Api, hook: Hook) -> None:
    create(api, WIDGETS, widget())

    def busy(review: Json) -> Json:
        if len(hook.seen) == 1:
            assert get(api, WIDGETS)["spec"]["size"] == 1
            reply = patch(api, f"{WIDGETS}/a", {"metadata": {"labels": {"by": "webhook"}}})
            assert reply.status == 200, reply.body
        return allow(review)

    with registered(api, hook, hook.rule()):
        hook.answer = busy
        cached(api, f"{WIDGETS}/a")
        changed = patch(api, f"{WIDGETS}/a", {"spec": {"size": 2}})
        assert changed.status == 200, changed.body
        # The write of the webhook itself is reviewed, and the overtaken request once more.
        assert len(hook.seen) == 3
    assert get(api, WIDGETS)["spec"]["size"] == 2
    assert get(api, WIDGETS)["metadata"]["labels"] == {"by": "webhook"}


def test_object_changed_during_the_review_of_a_replacement_is_a_conflict(api: Api, hook: Hook) -> None:
    created = create(api, WIDGETS, widget())

    def busy(review: Json) -> Json:
        if len(hook.seen) == 1:
            patch(api, f"{WIDGETS}/a", [{"op": "replace", "path": "/spec/size", "value": 3}], JSON_PATCH)
        return allow(review)

    with registered(api, hook, hook.rule()):
        hook.answer = busy
        created["spec"]["size"] = 2
        refused(api.request("PUT", f"{WIDGETS}/a", body=created), 409, "Conflict")
    assert get(api, WIDGETS)["spec"]["size"] == 3


def test_the_defaults_of_a_configuration(api: Api, hook: Hook) -> None:
    given = hook.rule()
    del given["timeoutSeconds"]
    given["clientConfig"] = {"service": {"name": "s", "namespace": "default"}}
    reply = api.request(
        "POST", CONFIGURATIONS, {"dryRun": "All"}, {"metadata": {"name": "x"}, "webhooks": [given]}
    )
    (webhook,) = reply.body["webhooks"]
    assert {name: webhook[name] for name in webhook.keys() - given.keys()} == {
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "timeoutSeconds": 10,
        "namespaceSelector": {},
        "objectSelector": {},
    }
    assert (webhook["rules"][0]["scope"], webhook["clientConfig"]["service"]["port"]) == ("*", 443)
    assert reply.body["metadata"]["generation"] == 1


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"name": "short"}, "webhooks[0].name", "should be a domain with at least three segments"),
        ({"failurePolicy": "Maybe"}, "webhooks[0].failurePolicy", "Unsupported value"),
        ({"timeoutSeconds": 31}, "webhooks[0].timeoutSeconds", "must be between 1 and 30 seconds"),
        ({"clientConfig": {}}, "webhooks[0].clientConfig", "exactly one of url or service is required"),
        (
            {"clientConfig": {"url": "http://a/b"}},
            "webhooks[0].clientConfig.url",
            "'https' is the only allowed URL scheme",
        ),
    ],
    ids=lambda change: str(change)[:30],
)
def test_a_configuration_that_cannot_be(api: Api, hook: Hook, change: Json, field: str, words: str) -> None:
    body = {"metadata": {"name": "x"}, "webhooks": [{**hook.rule(), **change}]}
    assert words in causes(api.request("POST", CONFIGURATIONS, body=body))[field]
