"""A NodeClaim for the planner, its owner, and the permitted content of its status."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from broker.apis import names
from broker.apis.coordination import Lease
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import ConditionUpdate, Object
from broker.capacity.attempts import Attempt, Outcome
from broker.capacity.model import Pool, Skipped
from broker.controllers import claim_status
from broker.controllers.launch.report import (
    Reporter,
    limit,
    reservations_full,
    would_take,
)
from broker.controllers.lifecycle.takeover import TakeOver
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.context import ControllerContext
from broker.kube.lease_holders import DURATION
from broker.placement.claims import BadClaim, kept_slots, planned, priority_of
from broker.placement.node_settings import template_key
from broker.placement.pool_room import TypeRoom
from broker.text import format_time
from local.in_process import InProcessTransport
from providers.errors import ErrorClass
from providers.model import Image
from tests.support.caches import claim_caches
from tests.support.clock import FakeClock
from tests.support.definitions import defined
from tests.unit.capacity.builders import TYPES, node_class

NOW = datetime(2026, 11, 21, 3, 0, tzinfo=UTC)
LATER = NOW + timedelta(minutes=5)
ROOM = TypeRoom(lambda: TYPES)


def claim(**more: Any) -> NodeClaim:
    """A claim of the broker's; `spec`, `metadata` and `status` are merged over the defaults."""
    base: dict[str, Any] = {
        "metadata": {"name": "train-0", "uid": "u-1", "generation": 3, **more.get("metadata", {})},
        "spec": {
            "nodeClassRef": {"group": "capacity-broker.io", "kind": "EC2NodeClass", "name": "by-id"},
            "requirements": [],
            **more.get("spec", {}),
        },
        "status": more.get("status", {}),
    }
    return NodeClaim.decode(base)


def requirement(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


@pytest.mark.parametrize(
    ("more", "reason", "words"),
    [
        (
            {"spec": {"nodeClassRef": {"group": "capacity-broker.io", "kind": "EC2NodeClass"}}},
            "NodeClassNotNamed",
            ("spec.nodeClassRef.name", "empty"),
        ),
        (
            {"spec": {"nodeClassRef": {"group": "capacity-broker.io", "kind": "Other", "name": "x"}}},
            "NodeClassKindUnknown",
            ("spec.nodeClassRef.kind", "'Other'"),
        ),
        (
            {"spec": {"requirements": [requirement("cpu", "Gt", "many")]}},
            "InvalidRequirements",
            ("spec.requirements", "many"),
        ),
        (
            {"spec": {"requirements": [requirement("9" * 64, "In", "x")]}},
            "InvalidRequirements",
            ("spec.requirements", "9999", "at most 63 characters"),
        ),
        (
            {"spec": {"requirements": [requirement("a", "In", "9" * 64)]}},
            "InvalidRequirements",
            ("spec.requirements", "requirement a In", "at most 63 letters"),
        ),
        (
            {"spec": {"requirements": [requirement("a", "In", "x"), requirement("a", "In", "y")]}},
            "InvalidRequirements",
            ("spec.requirements", "never"),
        ),
        (
            {"spec": {"resources": {"requests": {"cpu": "lots"}}}},
            "InvalidRequests",
            ("spec.resources.requests", "lots"),
        ),
        (
            {"metadata": {"annotations": {names.PRIORITY: "high"}}},
            "InvalidPriority",
            (names.PRIORITY, "'high'", "100"),
        ),
        (
            {"metadata": {"annotations": {names.GANG: "g", names.GANG_SIZE: "0"}}},
            "InvalidGangSize",
            (names.GANG_SIZE, "'0'", "such as 8"),
        ),
        (
            {"metadata": {"annotations": {names.GANG: "g", names.GANG_SIZE: "9" * 5000}}},
            "InvalidGangSize",
            (names.GANG_SIZE, "such as 8"),
        ),
        (
            {"metadata": {"annotations": {names.GANG_SIZE: "4"}}},
            "InvalidGangSize",
            (names.GANG_SIZE, "'4'", "name it"),
        ),
        (
            {"metadata": {"annotations": {names.GANG: "g", names.GANG_DOMAIN: "zone"}}},
            "InvalidGangDomain",
            (names.GANG_DOMAIN, "'zone'", names.ZONE, names.RESERVATION_ID),
        ),
        (
            {"metadata": {"annotations": {names.GANG_DOMAIN: names.ZONE}}},
            "InvalidGangDomain",
            (names.GANG_DOMAIN, names.ZONE, "name it"),
        ),
    ],
)
def test_an_invalid_claim_names_field_value_and_remedy(
    more: dict[str, Any], reason: str, words: tuple[str, ...]
) -> None:
    with pytest.raises(BadClaim) as refused:
        planned(claim(**more))
    assert refused.value.reason == reason
    for word in words:
        assert word in refused.value.message


@pytest.mark.parametrize(
    ("text", "priority"),
    [("7", 7), (" -7 ", -7), ("+7", 7)]
    + [(text, None) for text in ("", "--7", "-", "7.0", "1_000", "\u00b3", "\u0667", "9" * 5000)],
)
def test_a_priority_is_a_whole_number(text: str, priority: int | None) -> None:
    """If it is not a number, an existing claim counts with 0: it may have been written after the launch."""
    claim_ = claim(metadata={"annotations": {names.PRIORITY: text}})
    assert priority_of(claim_) == (priority or 0)
    if priority is None:
        with pytest.raises(BadClaim, match="write a whole number"):
            planned(claim_)
    else:
        assert planned(claim_).priority == priority


def test_a_claim_is_planned_in_base_units() -> None:
    planned_ = planned(
        claim(
            metadata={"annotations": {names.PRIORITY: "-7", names.GANG: "g", names.GANG_SIZE: "4"}},
            spec={"resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}},
        ),
    )
    assert dict(planned_.requests) == {"cpu": 0.5, "memory": 2**30}
    assert (planned_.priority, planned_.gang, planned_.template, planned_.node_class) == (
        -7,
        "g",
        template_key(claim()),
        "by-id",
    )
    assert planned_.gang_size == 4


def test_claims_with_equal_node_settings_share_a_template() -> None:
    plain = template_key(claim())
    assert template_key(claim(metadata={"name": "other", "annotations": {"a": "b"}})) == plain
    assert template_key(claim(metadata={"labels": {"team": "a"}})) != plain
    assert template_key(claim(spec={"taints": [{"key": "gpu", "effect": "NoSchedule"}]})) != plain
    # The kubelet may not set these labels, so the node's start is the same.
    assert template_key(claim(metadata={"labels": {"kubernetes.io/role": "a"}})) == plain


@pytest.mark.covers("KRP-26")
@pytest.mark.parametrize(
    ("take_over", "alive", "taken_over"),
    [(False, False, False), (False, True, False), (True, True, False), (True, False, True)],
)
def test_karpenters_claims_are_taken_over_only_on_request_and_after_its_end(
    take_over: bool, alive: bool, taken_over: bool
) -> None:
    client, clock = Client(InProcessTransport(defined())), FakeClock()
    ownership = TakeOver(client, Cache(Lease), enabled=take_over, clock=clock)
    ownership.refresh()
    clock.advance(DURATION)
    if alive:
        lease = {"name": "karpenter-leader-election", "namespace": "kube-system"}
        client.create(Lease.KIND, {"metadata": lease, "spec": {"holderIdentity": "karpenter-0"}})
    ownership.refresh()
    assert ownership.owns(claim())
    ref = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "x"}
    assert ownership.owns(claim(spec={"nodeClassRef": ref})) is taken_over
    stranger = {"group": "else.example", "kind": "EC2NodeClass", "name": "x"}
    assert not ownership.owns(claim(spec={"nodeClassRef": stranger}))


LAUNCHED = ConditionUpdate(type=names.LAUNCHED, status="True", reason="Launched")


def applied(before: NodeClaim, body: dict[str, Any]) -> NodeClaim:
    """The claim after the API server applied the body: only the broker's conditions are replaced."""
    foreign = [c.wire() for c in before.status.conditions if c.type not in claim_status.BROKER_CONDITIONS]
    written = body["status"]
    return NodeClaim.decode(
        {**before.wire(), "status": {**written, "conditions": [*foreign, *written["conditions"]]}}
    )


RESERVED_POOL = Pool(
    capacity_type="reserved", instance_type="p5.48xlarge", zone="us-east-1a", reservation="cr-1"
)
PLAIN_POOL = Pool(capacity_type="on-demand", instance_type="p5.48xlarge", zone="us-east-1a")


@pytest.mark.covers("KRP-24")
@pytest.mark.parametrize(
    ("pool", "outcome", "code", "class_", "expected"),
    [
        (RESERVED_POOL, Outcome.LAUNCHED, "", None, ("True", "Available")),
        (RESERVED_POOL, Outcome.ADOPTED, "", None, ("True", "Available")),
        (PLAIN_POOL, Outcome.LAUNCHED, "", None, None),
        (RESERVED_POOL, Outcome.SPILLED, "", None, ("False", "LimitExceeded")),
        (RESERVED_POOL, Outcome.REFUSED, "Code", ErrorClass.RESERVATION_FULL, ("False", "LimitExceeded")),
        (RESERVED_POOL, Outcome.REFUSED, "Code", ErrorClass.RESERVATION_GONE, ("False", "LimitExceeded")),
        (RESERVED_POOL, Outcome.REFUSED, "Code", ErrorClass.CAPACITY, ("False", "LimitExceeded")),
        (RESERVED_POOL, Outcome.REFUSED, "Code", ErrorClass.QUOTA, None),
        (RESERVED_POOL, Outcome.REFUSED, "Code", ErrorClass.SUBNET, None),
        (RESERVED_POOL, Outcome.REFUSED, "Code", ErrorClass.THROTTLING, None),
        (PLAIN_POOL, Outcome.REFUSED, "Code", ErrorClass.CAPACITY, None),
        (RESERVED_POOL, Outcome.SKIPPED, "ReservationFull", None, ("False", "LimitExceeded")),
        (RESERVED_POOL, Outcome.SKIPPED, "OutbidInPlan", None, ("False", "LimitExceeded")),
        (
            RESERVED_POOL,
            Outcome.SKIPPED,
            "BackingOff",
            ErrorClass.CAPACITY,
            ("False", "LimitExceeded"),
        ),
        (RESERVED_POOL, Outcome.SKIPPED, "BackingOff", ErrorClass.QUOTA, None),
        (RESERVED_POOL, Outcome.SKIPPED, "InstanceTypeMismatch", None, None),
        (PLAIN_POOL, Outcome.SKIPPED, "BackingOff", ErrorClass.CAPACITY, None),
    ],
)
def test_only_attempts_in_reservations_change_their_condition(
    pool: Pool, outcome: Outcome, code: str, class_: ErrorClass | None, expected: tuple[str, str] | None
) -> None:
    attempt = Attempt(claim="c", node_class="n", pool=pool, outcome=outcome, at=NOW, code=code, class_=class_)
    update = limit(attempt)
    assert (update and (update.type, update.status, update.reason)) == (
        expected and (names.CAPACITY_RESERVATION, *expected)
    )
    passed = Skipped(pool=pool, reason=code, message="", class_=class_)
    if outcome is Outcome.SKIPPED:
        assert reservations_full([passed]) is (expected is not None)


def test_a_status_body_has_all_conditions_of_the_broker_and_no_others() -> None:
    foreign = {"type": "ConsistentStateFound", "status": "True", "reason": "x", "message": ""}
    claim_ = claim(status={"providerID": "aws:///a/i-1", "conditions": [foreign]})
    body = claim_status.body(claim_, LAUNCHED, now=NOW)
    assert body is not None
    assert body["metadata"] == {"name": "train-0", "uid": "u-1"}
    assert body["status"]["providerID"] == "aws:///a/i-1"
    assert {c["type"] for c in body["status"]["conditions"]} == {names.LAUNCHED, names.READY}


def test_an_equal_status_is_not_written_and_keeps_its_time() -> None:
    claim_ = claim()
    first = claim_status.body(claim_, LAUNCHED, now=NOW)
    assert first is not None
    claim_ = applied(claim_, first)
    assert claim_status.body(claim_, LAUNCHED, now=LATER) is None
    reworded = ConditionUpdate(type=names.LAUNCHED, status="True", reason="Launched", message="again")
    second = claim_status.body(claim_, reworded, now=LATER)
    assert second is not None
    times = {c["type"]: c["lastTransitionTime"] for c in second["status"]["conditions"]}
    assert times[names.LAUNCHED] == "2026-11-21T03:00:00Z"


def test_a_claim_is_ready_after_all_three_steps() -> None:
    claim_ = claim()
    for step, expected in (
        (names.LAUNCHED, ("Unknown", "NotRegistered")),
        (names.REGISTERED_CONDITION, ("Unknown", "NotInitialized")),
        (names.INITIALIZED_CONDITION, ("True", "Ready")),
    ):
        body = claim_status.body(claim_, ConditionUpdate(type=step, status="True", reason=step), now=NOW)
        assert body is not None
        ready = next(c for c in body["status"]["conditions"] if c["type"] == names.READY)
        assert (ready["status"], ready["reason"]) == expected
        claim_ = applied(claim_, body)


def pod(**spec: Any) -> Pod:
    reason = spec.pop("reason", "Unschedulable")
    return Pod.decode(
        {
            "metadata": {"name": "p", "namespace": "default"},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}], **spec},
            "status": {
                "conditions": [{"type": "PodScheduled", "status": "False", "reason": reason}],
            },
        }
    )


def affinity(key: str, operator: str, *values: str) -> dict[str, Any]:
    term = {"matchExpressions": [requirement(key, operator, *values)]}
    required = {"nodeSelectorTerms": [term]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


@pytest.mark.covers("KRP-24")
@pytest.mark.parametrize(
    ("waiting", "takes"),
    [
        (pod(), True),
        (pod(reason="SchedulingGated"), False),
        (pod(nodeName="n"), False),
        (pod(nodeSelector={"team": "a"}), True),
        (pod(nodeSelector={"team": "b"}), False),
        (pod(nodeSelector={"zone": "z1"}), True),
        (pod(nodeSelector={"zone": "z9"}), False),
        (pod(affinity=affinity("zone", "In", "z2", "z9")), True),
        (pod(affinity=affinity("zone", "In", "z9")), False),
        (pod(affinity=affinity("team", "NotIn", "a")), False),
        (pod(affinity=affinity("other", "Exists")), False),
        (pod(containers=[{"name": "c", "resources": {"requests": {"cpu": "9"}}}]), False),
    ],
)
def test_a_pod_is_matched_to_a_claim_that_would_take_it(waiting: Pod, takes: bool) -> None:
    claim_ = claim(
        metadata={"labels": {"team": "a"}},
        spec={
            "requirements": [requirement("zone", "In", "z1", "z2")],
            "resources": {"requests": {"cpu": "4"}},
        },
    )
    assert would_take(claim_, waiting, ROOM, None) is takes


@pytest.mark.covers("KRP-24")
@pytest.mark.parametrize(
    ("waiting", "takes"),
    [
        (pod(), True),
        (pod(nodeSelector={names.ZONE: "us-east-1a"}), True),
        (pod(nodeSelector={names.ZONE: "us-east-1b"}), False),  # the class has no subnet there
        (pod(nodeSelector={names.ARCH: "arm64"}), False),  # nor an image
        (pod(nodeSelector={names.INSTANCE_TYPE: "m5.large"}), False),  # the claim takes no such type
        (pod(containers=[{"name": "c", "resources": {"requests": {"cpu": "900"}}}]), False),
        (pod(containers=[{"name": "c", "resources": {"requests": {"cpu": "100"}}}]), True),
    ],
)
@pytest.mark.parametrize("ready", [True, False])
def test_a_claim_takes_only_pods_that_its_types_zones_and_images_can_have(
    waiting: Pod, *, takes: bool, ready: bool
) -> None:
    """Also while the class is not ready, as far as the types of EC2 show it."""
    known = node_class(zones=["us-east-1a"], images=(Image(id="ami-1"),))
    claim_ = claim(spec={"requirements": [requirement(names.INSTANCE_TYPE, "In", "p5.48xlarge")]})
    elsewhere = waiting.spec.node_selector.get(names.ZONE) == "us-east-1b"
    assert would_take(claim_, waiting, ROOM, known if ready else None) is (takes or (elsewhere and not ready))


@pytest.mark.parametrize(
    "metadata",
    [
        {"deletionTimestamp": "2026-11-21T12:00:00Z"},
        {"ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d"}]},
    ],
)
def test_a_claim_is_for_no_pod_that_gets_no_machine(metadata: dict[str, Any]) -> None:
    """It is deleted, or its DaemonSet made it for a node: an event on it would be about a claim of others."""
    gone = Pod.decode({**pod().wire(), "metadata": {"name": "p", "namespace": "default", **metadata}})
    assert would_take(claim(), pod(), ROOM, None)
    assert not would_take(claim(), gone, ROOM, None)


@pytest.mark.parametrize(
    ("toleration", "takes"),
    [
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}, True),
        ({"key": "gpu", "operator": "Equal", "value": "no"}, False),
        ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
    ],
)
def test_taints_of_the_claim_keep_pods_off(toleration: dict[str, str], takes: bool) -> None:
    claim_ = claim(spec={"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]})
    preferred = claim(spec={"taints": [{"key": "old", "effect": "PreferNoSchedule"}]})
    assert not would_take(claim_, pod(), ROOM, None)
    assert would_take(claim_, pod(tolerations=[toleration]), ROOM, None) is takes
    assert would_take(preferred, pod(), ROOM, None)


class EventList:
    """A recorder."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str, str]] = []
        self.requests: list[str] = []

    def event(self, about: Object, kind: str, reason: str, message: str, **more: Any) -> None:
        self.events.append((about.name, kind, reason, message))
        self.requests.append((more.get("annotations") or {}).get(names.AWS_REQUESTS, ""))


@pytest.mark.covers("KRP-24")
def test_events_of_a_refusal_are_on_the_claim_and_its_pods_with_the_request_id() -> None:
    pods, recorded = Cache(Pod), EventList()
    large = pod(containers=[{"name": "c", "resources": {"requests": {"cpu": "900"}}}])
    waiting = {"p": pod(), "q": pod(), "too-large": large}
    pods.replace(
        [{**p.wire(), "metadata": {"name": n, "namespace": "default"}} for n, p in waiting.items()], 1
    )
    recorder: Any = recorded
    unused: Any = None
    context = ControllerContext(client=unused, recorder=recorder, clock=FakeClock())
    nodeclasses: Any = SimpleNamespace(plan=lambda _: None)
    reporter = Reporter(context, claim_caches(pods=pods), nodeclasses, lambda: TYPES)
    refused = Attempt(
        claim="train-0",
        node_class="n",
        pool=RESERVED_POOL,
        outcome=Outcome.REFUSED,
        at=NOW,
        request_id="1-2",
    )
    named = claim(metadata={"annotations": {names.PODS: "default/q, default/gone,"}})
    reporter.record_event(named, "Warning", "Full", "no slot", [refused])
    assert recorded.events == [
        ("train-0", "Warning", "Full", "no slot (AWS request 1-2)"),
        ("q", "Warning", "Full", "NodeClaim train-0: no slot"),
    ]
    assert recorded.requests == ["1-2", "1-2"]
    recorded.events.clear()
    reporter.record_event(claim(), "Warning", "Full", "no slot")
    assert [name for name, *_ in recorded.events] == ["train-0", "p", "q"]
    recorded.events.clear()
    reporter.record_event(claim(), "Normal", "Launched", "instance i-1")
    assert recorded.events == [("train-0", "Normal", "Launched", "instance i-1")]


@pytest.mark.covers("FUL-04")
def test_slots_are_kept_for_all_of_a_gang_until_the_last_hold_ends() -> None:
    now = datetime(2026, 11, 27, tzinfo=UTC)

    def successor(name: str, gang: str, until: timedelta) -> NodeClaim:
        annotations = {
            names.REPLACES: "old/uid",
            names.TAKES_SLOT: f"cr-1/{format_time(now + until)}",
            **({names.GANG: gang} if gang else {}),
        }
        body = {"metadata": {"name": name, "uid": f"uid-{name}", "annotations": annotations}}
        return NodeClaim.decode({**body, "spec": {"nodeClassRef": {"group": names.BROKER, "name": "c"}}})

    over, later = timedelta(minutes=-1), timedelta(minutes=1)
    claims = [successor("a", "g", over), successor("b", "g", later), successor("c", "", over)]
    assert kept_slots(claims, now) == {"uid-a": "cr-1", "uid-b": "cr-1"}
    assert not kept_slots(claims, now + 2 * later)
