"""The webhook between user and API server: refusals, warnings, and writes without the webhook."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import pytest

from broker.admission.webhook import Webhook, WebhookService
from broker.apis.core import ResourceQuota
from broker.apis.meta import Kind
from broker.apis.ome import CapacityReservation, ClusterCapacityReservation
from broker.apis.ome_clusters import DedicatedAICluster, DedicatedAIClusterProfile
from broker.kube.client import Client, Reply, Request
from broker.kube.clock import SystemClock
from broker.kube.errors import ApiError, Forbidden, Invalid
from tests.cluster.ome.reserved import (
    flavor,
    flavors_alone,
    machine,
    raw_condition,
    reservation_status,
    reserve,
    until_state,
)
from tests.cluster.stack import Stack
from tests.unit.admission.reviews import GPU, Json, cluster, group, reservation

WRONG = (group(), group())
LIMITS = {"ome.io/capacity-reservations": "5", GPU: "128", "requests.memory": "32Ti", "requests.cpu": "2048"}


@contextmanager
def serving(stack: Stack, **more: Any) -> Iterator[Webhook]:
    """Returns when the API server uses the webhook."""
    settings = {"default_cohort": "shared", "strict": False, **more}
    webhook = Webhook(
        Client(stack.tap),
        WebhookService(namespace="default", service="unused", host="127.0.0.1", port=0, url=True),
        clock=SystemClock(),
        **settings,
    )
    webhook.start()
    try:
        stack.until(lambda: _refuses(stack), "the API server calls the webhook")
        yield webhook
    finally:
        webhook.close()


def _refuses(stack: Stack) -> bool:
    reply = post(stack, reservation("canary", *WRONG), dryRun="All")
    return reply.status == 422 and b"denied the request" in reply.body


def post(stack: Stack, body: Json, **query: str) -> Reply:
    """A user's create request; returns the response's headers too."""
    kinds: dict[str, Kind] = {
        model.KIND.kind: model.KIND
        for model in (CapacityReservation, ClusterCapacityReservation, DedicatedAICluster)
    }
    kind = kinds[body["kind"]]
    meta = {**body["metadata"]}
    if kind.namespaced:
        meta["namespace"] = "default"
    else:
        meta.pop("namespace", None)
    return stack.client.transport.request(
        Request(
            method="POST",
            path=kind.path(namespace=meta.get("namespace")),
            query=query,
            headers={"Content-Type": "application/json"},
            body=orjson.dumps({**body, "metadata": meta}),
        ),
        timeout=30,
    )


def annotated(stack: Stack, name: str, key: str) -> Reply:
    """A user's `kubectl annotate`; returns the response's headers too."""
    return stack.client.transport.request(
        Request(
            method="PATCH",
            path=CapacityReservation.KIND.path(namespace="default", name=name),
            headers={"Content-Type": "application/merge-patch+json"},
            body=orjson.dumps({"metadata": {"annotations": {key: "x"}}}),
        ),
        timeout=30,
    )


def create(stack: Stack, name: str, *groups: Json, **spec: Any) -> Json:
    body = reservation(name, *groups, namespace="default", **spec)
    return stack.client.create(CapacityReservation.KIND, body)


@pytest.mark.covers("OME-011", "OME-013", "OME-015", "OME-016", "OME-077")
@pytest.mark.both_servers
def test_webhook_refuses_errors_beyond_cel_and_reports_corrections(stack: Stack) -> None:
    # Created before the webhook existed.
    old = create(stack, "old", *WRONG)
    with serving(stack):
        with pytest.raises(Invalid) as refused:
            create(stack, "new", *WRONG)
        causes = [(cause["field"], cause["message"]) for cause in refused.value.details["causes"]]
        assert (
            "spec.resourceGroups",
            "flavor h100 is in more than one place; keep it in one group",
        ) in causes
        with pytest.raises(Invalid, match="lendingLimit 9 is more than nominalQuota 8; lower it"):
            create(stack, "new", group(8, lendingLimit=9), cohort="c")
        with pytest.raises(ApiError, match="the cluster's size is not set"):
            stack.client.create(DedicatedAICluster.KIND, cluster())

        # An unchanged object is always admitted, and so is an object that shrinks.
        labelled = {**old, "metadata": {**old["metadata"], "labels": {"team": "a"}}}
        assert stack.client.update(CapacityReservation.KIND, labelled)["metadata"]["labels"] == {"team": "a"}
        create(stack, "large", group(64))
        usage = [{"name": "h100", "resources": [{"name": GPU, "total": 32}]}]
        status = {"status": {"associationUsages": [{"name": "train", "usage": usage}]}}
        stack.client.patch(
            CapacityReservation.KIND, "large", status, subresource="status", namespace="default"
        )
        spec = {"spec": {"resourceGroups": [group(16)]}}
        stack.client.patch(CapacityReservation.KIND, "large", spec, namespace="default")

        reply = post(stack, reservation("lenient", allowBorrowing=True))
        assert reply.status == 201
        assert "it borrows in cohort shared" in reply.headers["Warning"]
        reply = annotated(stack, "lenient", "capacity-broker.io/reservation-polcy")
        assert "write capacity-broker.io/reservation-policy if that is meant" in reply.headers["Warning"]
        reply = annotated(stack, "lenient", "example.com/mine")
        assert (reply.status, "Warning" in reply.headers) == (200, False)
        reply = post(stack, cluster(profile="large") | {"metadata": {"name": "early"}})
        assert reply.status == 201
        assert "there is no DedicatedAIClusterProfile large yet" in reply.headers["Warning"]
        stack.client.create(
            DedicatedAIClusterProfile.KIND,
            {"metadata": {"name": "large"}, "spec": {"resources": {"requests": {GPU: "8"}}}},
        )
        reply = post(stack, cluster(profile="large") | {"metadata": {"name": "late"}})
        assert (reply.status, "Warning" in reply.headers) == (201, False)
        stack.client.delete(CapacityReservation.KIND, "old", namespace="default")
    # Without the webhook the API server accepts the object; the controllers judge it.
    create(stack, "unseen", *WRONG)


@pytest.mark.covers("OME-088", "OME-089")
def test_a_namespace_s_quota_bounds_its_reservations(stack: Stack) -> None:
    with serving(stack, strict=True):
        quota = {"metadata": {"name": "reservation-quota", "namespace": "default"}, "spec": {"hard": LIMITS}}
        stack.client.create(ResourceQuota.KIND, quota)
        create(stack, "r0", group(100))
        with pytest.raises(Forbidden, match=r"has no room for 29 of nvidia.com/gpu: reserve less"):
            create(stack, "r1", group(29))
        for n in range(1, 5):
            create(stack, f"r{n}", group(7))
        with pytest.raises(Forbidden, match=r"has no room for 1 of ome.io/capacity-reservations"):
            create(stack, "r5", group(0))
        spec = {"spec": {"resourceGroups": [group(101)]}}
        with pytest.raises(Forbidden, match=r"has no room for 101 of nvidia.com/gpu"):
            stack.client.patch(CapacityReservation.KIND, "r0", spec, namespace="default")
        stack.client.delete(CapacityReservation.KIND, "r1", namespace="default")
        stack.client.patch(CapacityReservation.KIND, "r0", spec, namespace="default")
        # A strict webhook refuses a value that would be corrected.
        whole = {"metadata": {"name": "whole"}, "spec": reservation(allowBorrowing=True)["spec"]}
        with pytest.raises(Invalid, match="it borrows in cohort shared"):
            stack.client.create(ClusterCapacityReservation.KIND, whole)


@pytest.mark.covers("OME-088", "OME-089")
def test_without_the_webhook_the_younger_of_two_reports_the_missing_room(stack: Stack) -> None:
    """As after two concurrent creates, neither of which saw the other."""
    flavors_alone(stack)
    flavor(stack, "h100")
    for number in range(2):
        machine(stack, f"n-{number}", "h100", has={GPU: "8"})
    quota = {"metadata": {"name": "quota", "namespace": "default"}, "spec": {"hard": {GPU: "8"}}}
    stack.client.create(ResourceQuota.KIND, quota)
    for name in ("a", "b"):  # of equal age, the name decides
        reserve(stack, name, quotas={GPU: "8"})
    stack.start(kubelets=False)
    until_state(stack, "Active", "a")

    def refused() -> Json:
        ready = raw_condition(reservation_status(stack, "b"), "Ready")
        return ready if ready.get("reason") == "QuotaExceeded" else {}

    why = stack.until(refused, "b has the condition")
    assert why["status"] == "False"
    words = "ResourceQuota quota allows nvidia.com/gpu 8, of which 0 is free and 8 is requested: reserve less"
    assert words in why["message"]
    stack.client.patch(ResourceQuota.KIND, "quota", {"spec": {"hard": {GPU: "16"}}}, namespace="default")
    until_state(stack, "Active", "b")
