"""One refusal in every view: the same ids in Event, log, record, page and `explain`."""

from __future__ import annotations

from dataclasses import replace

import pytest
import urllib3
from structlog.testing import capture_logs

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.commands.explain import claims
from broker.commands.explain.live import LIVE
from broker.history.tables import EntryFilter
from broker.kube.clock import SystemClock
from broker.webpage.assembly import OnCallViews
from tests.cluster.account import A
from tests.cluster.stack import SETTINGS, Stack


@pytest.mark.covers("CAP-18")
@pytest.mark.both_servers
def test_a_request_id_of_aws_is_in_event_log_record_page_and_explain(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.node_class(id_=odcr, zones=(A,))
    pod = stack.pod("train")
    broker = stack.start()
    assert stack.current is not None
    settings = replace(SETTINGS, web=True, web_port=0)
    views = OnCallViews(settings, stack.client, clock=SystemClock(), explainer=LIVE)
    views.follow(broker)
    views.start()
    try:
        code = "InsufficientInstanceCapacity"
        stack.control.fault(action="CreateFleet", stage="launch", code=code, message="says EC2", times=-1)
        with capture_logs() as logs:
            stack.claim(annotations={names.PODS: pod.key})
            stack.until_waiting("c-0", "InsufficientCapacity")
            event = stack.until_event("c-0", "InsufficientCapacity", text="AWS request")
            on_pod = stack.until_event("train", "InsufficientCapacity", kind="Pod")
        request = event.annotations[names.AWS_REQUESTS]
        attempt = event.annotations[names.ATTEMPT_IDS].split(",")[0]
        assert request and request in event.message
        assert on_pod.annotations == event.annotations
        written = [line for line in logs if line.get("aws_request_id") == request]
        assert attempt in [line["id"] for line in written]
        entry_filter = EntryFilter(request_id=request)
        entries = stack.until(
            lambda: views.history.version and views.history.store.find(entry_filter), "a record"
        )
        assert entries and attempt in [entry.id for entry in entries]
        row = next(r for r in claims.attempts(stack.get(NodeClaim, "c-0")) if r["id"] == attempt)
        assert (row["request_id"], row["code"]) == (request, code)
        for path in (f"/record?request_id={request}", f"/record?id={attempt}", "/claims/c-0"):
            shown = urllib3.request("GET", views.url + path, timeout=30).data.decode()
            assert all(part in shown for part in (attempt, request, code, "c-0", "Next:")), path
    finally:
        views.close()
