"""Pods that wait, with and without a claim: the page, the command, the metric and the alerts agree."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import ConfigMap, Event, Node, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.meta import condition
from broker.apis.ome import CapacityReservation
from broker.commands.dry_run import DryRun
from broker.commands.explain.claims import Forecaster
from broker.commands.explain.pod import UNFIT, PodExplainer, find
from broker.commands.explain.reading import read
from broker.controllers.provisioning.published import REPORTS, read_reports
from broker.kube.identity import NAMESPACE
from broker.notifications.alerts import firing_alerts
from broker.oncall.metrics import REGISTRY
from broker.oncall.pod_reports import FAILED, PodReport
from broker.oncall.waiting_pods import WaitingPod, grouped
from broker.webpage.live import LiveState, live_state
from tests.cluster.account import A
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.ome.bought import P5
from tests.cluster.ome.pods import claim_for, gpu_pod, gpu_pool
from tests.cluster.ome.reserved import GPU, reserve
from tests.cluster.ome.test_borrowing import BORROWER, OWNER, claim, guarded, lending, owned
from tests.cluster.stack import Stack
from tests.cluster.test_other_pools import state
from tests.cluster.test_provisioning import bound, capacity, pods, pool, start

SHORT = "InsufficientInstanceCapacity"


def live(stack: Stack) -> LiveState:
    assert stack.broker is not None and stack.current is not None
    return live_state(stack.broker)


def by_command(stack: Stack) -> list[WaitingPod]:
    return read(stack.client, stack.clock.now()).waiting_pods


def measured(pool_name: str, reason: str, name: str = "pods_waiting") -> float | None:
    return REGISTRY.get_sample_value(f"capacity_broker_{name}", {"nodepool": pool_name, "reason": reason})


def full_team(stack: Stack) -> str:
    """A NodePool of reserved capacity alone, and its reservation is full."""
    odcr = stack.aws.odcr("m5.large", A, 1)
    stack.aws.rival(odcr)
    stack.node_class(id_=odcr)
    pool(stack, template={"requirements": [capacity(RESERVED)]})
    return odcr


@pytest.mark.covers("ONC-02")
def test_pods_without_a_claim_are_on_the_page_in_the_command_the_metric_and_an_alert(stack: Stack) -> None:
    odcr = full_team(stack)
    start(stack)
    pods(stack, 2)
    stack.until(
        lambda: [pod for pod in by_command(stack) if f"{odcr} 0 of 1" in pod.message], "the reason", step=1.0
    )
    shown = live(stack).waiting_pods
    assert [pod.key for pod in shown] == ["default/p-0", "default/p-1"]
    assert {(pod.node_pool, pod.reason, pod.claim) for pod in shown} == {("team", "NoMachineOffered", "")}
    stack.until(lambda: live(stack).waiting_pods == by_command(stack), "the command shows the same", step=1.0)
    assert measured("team", "NoMachineOffered") == 2
    created = min(pod.since for pod in shown if pod.since)
    oldest = measured("team", "NoMachineOffered", "pods_waiting_since_timestamp_seconds")
    assert oldest == created.timestamp()
    assert not [a for a in alerts(stack) if a.startswith("CapacityBrokerPodsWaiting")]
    stack.advance(timedelta(minutes=16).total_seconds())
    (alert,) = [text for text in alerts(stack) if text.startswith("CapacityBrokerPodsWaiting")]
    assert "2 pods wait for NodePool team" in alert and f"{odcr} 0 of 1" in alert
    assert "capacity-broker explain pod -n default p-0" in alert


def alerts(stack: Stack) -> list[str]:
    firing = firing_alerts(live(stack), cluster="blue")
    return [f"{alert.labels['alertname']}: {alert.description}" for alert in firing]


@pytest.mark.covers("ONC-02")
def test_pod_with_a_claim_that_waits_has_the_reason_of_the_claim(stack: Stack) -> None:
    stack.node_class(preference="none")
    pool(stack, template={"requirements": [capacity(ON_DEMAND)]})
    stack.control.fault(action="CreateFleet", stage="launch", code=SHORT, message="none left", times=-1)
    start(stack)
    waiting = pods(stack, 1)
    claim = stack.until(lambda: next(iter(stack.all(NodeClaim)), None), "a claim", step=0.2)
    assert claim is not None
    stack.until_waiting(claim.name, "InsufficientCapacity")

    def shown() -> bool:
        rows = live(stack).waiting_pods
        return [row.reason for row in rows] == ["InsufficientCapacity"] and rows == by_command(stack)

    stack.until(shown, "the pod has the reason of its claim", step=1.0)
    (row,) = live(stack).waiting_pods
    (running,) = [item for item in stack.all(NodeClaim) if item.waits]
    assert (row.claim, row.node_pool) == (running.name, "team") and "none left" in row.message
    assert measured("team", "InsufficientCapacity") == 1
    stack.control.clear_faults()
    stack.advance(200)
    stack.until(lambda: bound(stack, waiting), "bound", step=1.0)
    stack.until(lambda: not live(stack).waiting_pods, "no pod waits", step=0.5)
    assert measured("team", "InsufficientCapacity") is None


@pytest.mark.covers("ONC-02", "FLT-54")
def test_pod_that_joins_the_claim_of_another_has_the_reason_of_that_claim(stack: Stack) -> None:
    """Also once its event is gone: the claim names its own pods alone."""
    stack.node_class(preference="none")
    pool(stack, template={"requirements": [capacity(ON_DEMAND)]})
    stack.start(kubelets=False, pod_batch_idle_seconds=0.2, pod_batch_max_seconds=1.0)
    waiting = pods(stack, 1, cpu="100m")
    claim = stack.until(lambda: next(iter(stack.all(NodeClaim)), None), "a claim", step=0.2)
    assert claim is not None
    stack.until_launched(claim.name)
    waiting += pods(stack, 1, "late", cpu="100m")

    def rooms() -> list[PodReport]:
        return [item for item in read_reports(stack.client).values() if item.room == claim.name]

    stack.until(rooms, "the room is published", step=1.0)
    for event in stack.all(Event):
        stack.client.delete(Event.KIND, event.name, namespace=event.namespace)
    for rows in (by_command(stack), live(stack).waiting_pods):
        shown = {(row.key, row.claim, row.reason) for row in rows}
        assert shown == {(f"default/{name}", claim.name, "NodeNotReady") for name in waiting}
    for waiters in (read(stack.client, stack.clock.now()).waiters, live(stack).waiters):
        assert {waiter.claim for waiter in waiters} == {claim.name}, "no free slot helps them"
    stack.kubelets_again()
    stack.until(lambda: bound(stack, waiting), "bound", step=1.0)


@pytest.mark.covers("ONC-01")
def test_pod_with_room_on_a_node_of_no_claim_is_not_said_to_lack_a_machine(stack: Stack) -> None:
    """Its last report names the room, and is no reason to wait."""
    stack.node_class(preference="none")
    pool(stack, template={"requirements": [capacity(ON_DEMAND)]})
    pods(stack, 1, cpu="100m")
    room = {"cpu": "4", "memory": "8Gi", "pods": "110"}
    ready = [{"type": "Ready", "status": "True"}]
    status = {"capacity": room, "allocatable": room, "conditions": ready}
    stack.client.create(Node.KIND, {"metadata": {"name": "own"}, "status": status})
    start(stack)

    def rooms() -> list[str]:
        return [item.room for item in read_reports(stack.client).values()]

    stack.until(lambda: rooms() == ["own"], "the room is published", step=1.0)
    text = "node own has room for it; kube-scheduler has not bound it yet"
    stack.until(
        lambda: [why for why in explained(stack, "p-0")["why"] if why["message"].endswith(text)],
        "the room is why it waits",
        step=1.0,
    )
    page = explained(stack, "p-0")
    assert page["next"] == ["kube-scheduler binds the pod to the node that has room for it"]
    assert not page["options"]
    assert all(waiter.held for waiter in live(stack).waiters), "no free slot helps it"
    assert not [row for row in page["nodepools"] if "it has no machine for the pod" in row["message"]]
    assert not stack.all(NodeClaim)


@pytest.mark.covers("ONC-01")
def test_pod_whose_every_option_ec2_refuses_has_the_way_out(stack: Stack) -> None:
    stack.node_class(preference="none")
    only = {"key": names.INSTANCE_TYPE, "operator": "In", "values": ["m5.large"]}
    pool(stack, template={"requirements": [capacity(ON_DEMAND), only]})
    stack.control.fault(action="CreateFleet", stage="launch", code=SHORT, message="none left", times=-1)
    start(stack)
    pods(stack, 1)

    def helped() -> list[str]:
        return [row["why"] for row in explained(stack, "p-0")["do"] if "edit nodepool team" in row["command"]]

    (why,) = stack.until(helped, "the advice", step=1.0)
    assert "EC2 refuses each option now: more instance types or zones" in why


@pytest.mark.covers("ONC-02")
def test_equal_pods_of_one_owner_are_one_row(stack: Stack) -> None:
    full_team(stack)
    start(stack)
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5d", "uid": "u", "controller": True}
    for name in pods(stack, 3, labels={"pod-template-hash": "5d"}):
        body = {"metadata": {"ownerReferences": [owner]}}
        stack.client.patch(Pod.KIND, name, body, namespace="default")
    pods(stack, 1, "alone")
    expected = [("Deployment default/web", 3), ("pod default/alone-0", 1)]

    def shown() -> list[tuple[str, int]]:
        return sorted((group.named, len(group.pods)) for group in live(stack).pod_groups)

    stack.until(lambda: shown() == expected, "two rows", step=1.0)
    assert grouped(by_command(stack))


@pytest.mark.covers("ONC-02")
def test_pod_larger_than_each_type_has_one_reason_on_the_page_and_in_the_commands(stack: Stack) -> None:
    full_team(stack)
    types = {"key": names.INSTANCE_TYPE, "operator": "In", "values": ["m5.large"]}
    pool(stack, "small", template={"requirements": [types]})
    start(stack)
    pods(stack, 1, cpu="64", spec={"nodeSelector": {names.NODEPOOL: "small"}})
    larger = "NodePool small: the largest type that it allows has 2 CPU, the pod requests 64 CPU"

    def same() -> bool:
        rows = live(stack).waiting_pods
        shown = [row.reason == "NoNodePool" and larger in row.message for row in rows]
        return shown == [True] and rows == by_command(stack)

    stack.until(same, "the page and `explain cluster` say the same", step=1.0)
    why = explained(stack, "p-0")["why"][0]
    assert why["reason"] == "NoNodePool" and larger in why["message"]


@pytest.mark.covers("ONC-03")
def test_pod_of_karpenters_pool_is_shown_against_the_reservations_that_the_broker_advises_on(
    stack: Stack,
) -> None:
    odcr = stack.aws.odcr("m5.large", A, 1)
    stack.aws.rival(odcr)
    stack.node_class(id_=odcr)
    pool(stack, "karpenters", group=names.KARPENTER_AWS, template={"requirements": [capacity(RESERVED)]})
    stack.edit(NodePool, "karpenters", {"status": {"conditions": [state("True")]}}, subresource="status")
    start(stack)
    stack.until_class(names.RESERVATIONS_ADVISED, "True")
    pods(stack, 1)

    def full() -> WaitingPod | None:
        rows = live(stack).waiting_pods
        return next((row for row in rows if row.reason == "ReservationsFull"), None)

    row = stack.until(full, "the pod is seen", step=1.0)
    assert row is not None and row.node_pool == "karpenters"
    assert f"{odcr} (m5.large, {A}): full (1 of 1)" in row.message
    assert "held by 1 instance of no claim of this cluster" in row.message
    assert by_command(stack)[0].message == row.message


@pytest.mark.covers("ONC-02")
def test_pod_whose_node_another_took_has_the_reason_why_it_gets_no_other(stack: Stack) -> None:
    stack.node_class(preference="none")
    only = {"key": names.INSTANCE_TYPE, "operator": "In", "values": ["m5.large"]}
    pool(stack, template={"requirements": [capacity(ON_DEMAND), only]}, limits={"cpu": "2"})
    pods(stack, 1, cpu="1500m")
    start(stack)
    claim = stack.until(lambda: next(iter(stack.all(NodeClaim)), None), "a claim", step=0.2)
    assert claim is not None
    stack.until_ready(claim.name)

    def unbound() -> list[WaitingPod]:
        return [row for row in live(stack).waiting_pods if "kube-scheduler has not bound" in row.message]

    (row,) = stack.until(unbound, "the broker has seen the node")
    assert row.claim == claim.name
    node = stack.get(NodeClaim, claim.name).status.node_name
    pods(stack, 1, "other", cpu="1500m", spec={"nodeName": node})

    def shown() -> bool:
        rows = live(stack).waiting_pods
        limited = [row.claim == "" and "its limit of cpu is 2" in row.message for row in rows]
        return limited == [True] and rows == by_command(stack)

    stack.until(shown, "the pod has the reason of its NodePool", step=1.0)
    page = explained(stack, "p-0")
    assert "its limit of cpu is 2" in page["why"][0]["message"]
    assert not [step for step in page["next"] if claim.name in step]
    (help_,) = page["do"]
    assert help_["command"] == f"kubectl edit nodepool {claim.labels[names.NODEPOOL]}"
    assert help_["why"] == "its limit of cpu is reached: raise it in spec.limits"


def explained(stack: Stack, name: str) -> dict[str, Any]:
    """The page of a pod in `default`."""
    now = stack.clock.now()
    forecaster = Forecaster(
        client=stack.client,
        provider=stack.provider,
        now=now,
        entitle=lambda provider: DryRun(stack.client, provider, stack.settings, stack.clock).entitlements,
    )
    situation = read(stack.client, now)
    explainer = PodExplainer(situation=situation, forecaster=forecaster)
    return explainer.page(find(situation, "default", name)).document()


@pytest.mark.covers("ONC-01")
def test_page_of_a_pod_shows_the_lent_slot_that_it_waits_for_and_its_borrower(stack: Stack) -> None:
    odcr = lending(stack, 1)
    claim(stack, "borrower", BORROWER)
    stack.until_ready("borrower")
    stack.until_shown("borrower")
    guarded(stack, "borrower")
    taken = {"key": names.INSTANCE_TYPE, "operator": "In", "values": [P5]}
    pool(stack, template={"requirements": [capacity(RESERVED), taken]})
    of_pool = {
        "nodeSelector": {names.NODEPOOL: "team"}
    }  # kube-scheduler finds no room on the borrower's node
    pods(stack, 1, annotations={names.DRAWS_FROM: OWNER}, spec=of_pool)
    stack.until(
        lambda: any(
            item.annotations.get(names.PODS) == "default/p-0" for item in stack.all(NodeClaim) if item.waits
        ),
        "the pod's claim",
        step=1.0,
    )
    stack.until(
        lambda: [
            row for row in explained(stack, "p-0")["slots"] if row["role"] == "waits for" and row["why_until"]
        ],
        "it waits for the slot, and the borrower ends",
        step=1.0,
    )
    page = explained(stack, "p-0")
    (row,) = page["slots"]
    assert (row["slot"], row["claim"], row["pods"]) == (odcr, "borrower", ["default/on-borrower"])
    assert (row["owner"], row["draws_from"]) == (OWNER, BORROWER) and row["since"]
    stack.until(
        lambda: "disruption budget" in explained(stack, "p-0")["slots"][0]["why_until"],
        "it gives the slot back once its pod may go",
        step=1.0,
    )
    (row,) = explained(stack, "p-0")["slots"]
    assert row["why_until"].startswith("its claim ends: 1 pod left on node ")
    assert "default/on-borrower first: " in row["why_until"]
    (reserved,) = [option for option in page["options"] if option["odcrs"] == [odcr]]
    assert reserved["lent"] == 1
    assert "is entitled to a slot" in page["next"][0]


@pytest.mark.covers("FLT-35", "OME-032")
def test_pods_beyond_quota_of_one_batch_get_no_claim_and_the_quota_as_the_reason(stack: Stack) -> None:
    odcr = owned(stack, 3)
    reserve(stack, "training", flavor=P5, quotas={GPU: "8"})
    stack.node_class(id_=odcr)
    taken = {"key": names.INSTANCE_TYPE, "operator": "In", "values": [P5]}
    pool(stack, template={"requirements": [capacity(RESERVED), taken]})
    start(stack)

    def known() -> bool:
        return bool(stack.get(CapacityReservation, "training", namespace="default").status.cloud_reservations)

    stack.until(known, "the owner is known")
    waiting = pods(stack, 3, cpu="100", annotations={names.DRAWS_FROM: OWNER})
    stack.until(lambda: any(bound(stack, [name]) for name in waiting), "one runs", step=1.0)
    stack.polls(2)
    stack.passes()
    assert len([claim for claim in stack.all(NodeClaim) if names.PODS in claim.annotations]) == 1
    events = [event for name in waiting for event in stack.events(name, kind="Pod") if event.reason == FAILED]
    (message,) = {event.message for event in events}
    assert f"no free slot: {odcr} ({P5}, {A}): {OWNER} has no quota left for slots of flavor {P5}" in message
    claim(stack, "single", OWNER)  # made by a person
    stack.until_waiting("single", "AllReservationsFull")
    matches = [match for match in read(stack.client, stack.clock.now()).matches if match.slots.id == odcr]
    assert len(matches) == 2 and all("has no quota left" in match.why for match in matches)
    left = next(name for name in waiting if not bound(stack, [name]))
    (help_,) = explained(stack, left)["do"]
    assert help_["command"] == "kubectl edit capacityreservation -n default training"
    assert "raise its nominalQuota" in help_["why"]


@pytest.mark.covers("FLT-35", "ONC-01")
def test_pod_beyond_the_slots_of_its_reservation_is_not_told_of_quota_that_it_has(stack: Stack) -> None:
    odcr = owned(stack, 1)
    reserve(stack, "training", flavor=P5, quotas={GPU: "32"})
    stack.node_class(id_=odcr)
    pool(stack, template={"requirements": [capacity(RESERVED)]})
    start(stack)
    waiting = pods(stack, 2, cpu="100", annotations={names.DRAWS_FROM: OWNER})
    stack.until(lambda: any(bound(stack, [name]) for name in waiting), "one runs", step=1.0)
    (left,) = [name for name in waiting if not bound(stack, [name])]

    def messages() -> list[str]:
        return [item.message for item in stack.events(left, kind="Pod") if item.reason == FAILED]

    stack.until(lambda: [text for text in messages() if f"{odcr} 0 of 1" in text], "the reason", step=1.0)
    assert not any("no quota left" in text for text in messages())
    page = explained(stack, left)
    assert f"{odcr} 0 of 1" in page["next"][0]
    assert [row["slot"] for row in page["slots"]] == [odcr]


@pytest.mark.covers("FLT-54")
def test_slots_without_an_owner_need_no_quota_as_the_status_says(stack: Stack) -> None:
    reserve(stack, "training", flavor=P5, quotas={GPU: "8"})
    stack.node_class(id_=stack.aws.odcr(P5, A, 2))
    pool(stack, template={"requirements": [capacity(RESERVED)]})
    start(stack)
    waiting = pods(stack, 2, cpu="100", annotations={names.DRAWS_FROM: OWNER})
    stack.until(lambda: bound(stack, waiting), "both run", step=1.0)

    def exceeded() -> str:
        status = stack.get(CapacityReservation, "training", namespace="default").status
        sufficient = condition(status.conditions, "ResourcesSufficient")
        return sufficient.message if sufficient and sufficient.reason == "QuotaExceeded" else ""

    message = stack.until(exceeded, "more is used", step=1.0)
    assert "nothing more is admitted until it fits, except into slots without an owner" in message


@pytest.mark.covers("ONC-01")
@pytest.mark.parametrize(
    ("starts", "verdict", "command"),
    [
        (timedelta(hours=5), "later", "kubectl edit nodepool team"),
        (timedelta(minutes=3), "soon", "capacity-broker watch"),
    ],
)
def test_page_of_a_pod_shows_when_a_block_begins(
    stack: Stack, starts: timedelta, verdict: str, command: str
) -> None:
    block = stack.aws.capacity_block(state="scheduled", starts=starts)
    stack.node_class(id_=block)
    taken = {"key": names.INSTANCE_TYPE, "operator": "In", "values": [P5]}
    pool(stack, template={"requirements": [capacity(RESERVED), taken]})
    start(stack)
    pods(stack, 1)
    stack.until(lambda: stack.condition(NodePool, "team", names.READY), "the pool is served", step=1.0)
    page = explained(stack, "p-0")
    (row,) = [option for option in page["options"] if option["reservation"] == block]
    assert row["verdict"] == verdict and "is scheduled, starts at 20" in row["message"]
    assert [item["command"] for item in page["do"]] == [command]


@pytest.mark.covers("ONC-01")
def test_page_of_a_pod_has_the_options_of_each_of_its_affinity_terms(stack: Stack) -> None:
    full = stack.aws.odcr("m5.large", A, 1)
    stack.aws.rival(full)
    stack.node_class(id_=full)
    pool(stack)
    start(stack)
    stack.until(lambda: stack.condition(NodePool, "team", names.READY), "the pool is served", step=1.0)
    stack.stop()
    wanted = ({names.CAPACITY_TYPE: RESERVED}, {names.INSTANCE_TYPE: "m5.xlarge"}, {names.ZONE: "none"})
    terms = [
        {
            "matchExpressions": [
                {"key": key, "operator": "In", "values": [value]} for key, value in term.items()
            ]
        }
        for term in wanted
    ]
    selects = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    pods(stack, 1, spec={"affinity": {"nodeAffinity": selects}})
    options = {option["pool"]: option["verdict"] for option in explained(stack, "p-0")["options"]}
    assert {pool.split(":")[1] for pool in options if "on-demand" in pool} == {"m5.xlarge"}
    assert options[f"on-demand:m5.xlarge:{A}"] == "next"
    assert options[f"reserved:m5.large:{A}:{full}"] == "skipped"


@pytest.mark.covers("ONC-02", "FLT-54")
def test_reason_outlives_its_event_and_a_pod_without_its_volume_is_not_offered_an_idle_slot(
    stack: Stack,
) -> None:
    """Also beside a class whose target is another reservation: no class is to be edited for it."""
    stack.aws.odcr("m5.large", A, 1)  # idle
    stack.node_class(preference="none")
    pool(stack, template={"requirements": [capacity(RESERVED)]})
    start(stack)
    missing = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}
    pods(stack, 1, spec=missing)
    text = 'persistentvolumeclaim "data" not found'

    def named() -> bool:
        return all(text in row.message and text in row.held for row in by_command(stack))

    stack.until(lambda: read_reports(stack.client) and named(), "the reason", step=1.0)
    for event in stack.all(Event):
        stack.client.delete(Event.KIND, event.name, namespace=event.namespace)
    assert not stack.all(Event)
    assert by_command(stack) and named()
    stack.until(lambda: live(stack).waiting_pods == by_command(stack), "the page shows the same", step=1.0)
    matches = read(stack.client, stack.clock.now()).matches
    assert [match.command for match in matches] == ["capacity-broker explain pod -n default p-0"]
    assert text in matches[0].why
    written = stack.get(ConfigMap, REPORTS, namespace=NAMESPACE).metadata.resource_version
    stack.stop()
    start(stack)
    stack.until(lambda: live(stack).waiting_pods == by_command(stack), "the next leader knows it", step=1.0)
    assert stack.get(ConfigMap, REPORTS, namespace=NAMESPACE).metadata.resource_version == written


@pytest.mark.covers("ONC-01")
def test_pod_over_the_limits_of_several_pools_is_advised_to_raise_that_of_its_own(stack: Stack) -> None:
    stack.node_class(id_=stack.aws.odcr(count=3))
    stack.node_class("outside", preference="none")
    types = {"key": names.INSTANCE_TYPE, "operator": "In", "values": ["m5.large"]}
    pool(
        stack,
        "bought",
        node_class="outside",
        weight=10,
        limits={"cpu": "2"},
        template={"requirements": [types]},
    )
    pool(stack, "reserved", weight=50, limits={"cpu": "2"}, template={"requirements": [types]})
    start(stack)
    waiting = pods(stack, 3, cpu="1500m")
    stack.until(lambda: sum(bound(stack, [name]) for name in waiting) == 2, "two run", step=0.5)
    (left,) = [name for name in waiting if not bound(stack, [name])]
    stack.until_event(left, FAILED, kind="Pod", text="its limit of cpu is 2")
    page = explained(stack, left)
    assert page["why"][0]["nodepool"] == "reserved"
    assert page["do"][0]["command"] == "kubectl edit nodepool reserved"


@pytest.mark.covers("ONC-01")
def test_pod_beside_pods_of_less_priority_in_its_reservation_is_promised_no_claim(stack: Stack) -> None:
    """kube-scheduler preempts them: the broker makes no claim for it, and explain has the same reason."""
    stack.node_class(id_=owned(stack, 1))
    reserve(stack, "training", flavor=P5, quotas={GPU: "8"})
    gpu_pool(stack)
    stack.priority_class("high", 100)
    stack.start(pod_batch_idle_seconds=0.2, pod_batch_max_seconds=1.0)
    gpu_pod(stack, "low", annotations={names.DRAWS_FROM: OWNER})
    used = claim_for(stack, "default/low").name
    stack.until_ready(used)
    stack.until_shown(used)
    stack.until(lambda: bound(stack, ["low"]), "it runs", step=0.5)
    gpu_pod(stack, "high", annotations={names.DRAWS_FROM: OWNER}, priorityClassName="high")
    event = stack.until_event("high", FAILED, kind="Pod", text="has no quota left for slots of flavor")
    page = explained(stack, "high")
    assert page["why"][0]["message"] in event.message
    assert page["next"] == [UNFIT]
    assert [row["role"] for row in page["slots"]] == ["could take"]
