"""Pods with rules about the reservation of their node: one machine, in a reservation that the rules allow."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.apis import names
from broker.apis.workloads import DaemonSet
from broker.oncall.pod_reports import FAILED
from tests.cluster import cases
from tests.cluster.account import A
from tests.cluster.objects import ON_DEMAND, RESERVED, Json
from tests.cluster.stack import Stack
from tests.cluster.test_provisioning import bound, claims, pods, pool, start

KEY, KIND = names.RESERVATION_ID, names.CAPACITY_TYPE


def world(stack: Stack, selection: str, *, capacity: tuple[str, ...] = (RESERVED, ON_DEMAND)) -> list[str]:
    """Two reservations of one type and zone, and a pool of the type."""
    criteria = "targeted" if selection == "group" else "open"
    ids = [stack.aws.odcr("m5.large", criteria=criteria) for _ in range(2)]
    if selection == "group":
        stack.node_class(group=stack.aws.group(*ids))
    else:
        stack.node_class(preference=selection)
    types = {"key": names.INSTANCE_TYPE, "operator": "In", "values": ["m5.large"]}
    kinds = {"key": names.CAPACITY_TYPE, "operator": "In", "values": [*capacity]}
    pool(stack, template={"requirements": [types, kinds]})
    return ids


def affinity(*terms: Json) -> Json:
    selector = {"nodeSelectorTerms": [{"matchExpressions": [term]} for term in terms]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": selector}}}


def daemon_set(stack: Stack, rules: Json) -> None:
    """A DaemonSet of pods of 1 CPU under the rules."""
    container = {"name": "main", "image": "pause", "resources": {"requests": {"cpu": "1"}}}
    template = {"metadata": {"labels": {"app": "d"}}, "spec": {"containers": [container], **rules}}
    spec = {"selector": {"matchLabels": {"app": "d"}}, "template": template}
    stack.client.create(DaemonSet.KIND, {"metadata": {"name": "d", "namespace": "default"}, "spec": spec})


def rule(operator: str, *values: str, key: str = KEY) -> Json:
    return {"key": key, "operator": operator, **({"values": [*values]} if values else {})}


RULES: dict[str, Callable[[str, str], Json]] = {
    "nodeSelector": lambda first, second: {"nodeSelector": {KEY: second}},
    "In": lambda first, second: affinity(rule("In", second, "cr-0123456789abcdef0")),
    "NotIn": lambda first, second: affinity(rule("NotIn", first)),
    "either term": lambda first, second: affinity(rule("In", second), rule("In", "cr-0123456789abcdef0")),
}


@pytest.mark.covers("FLT-03")
@pytest.mark.parametrize(
    ("selection", "written"),
    [
        ("group", "nodeSelector"),
        ("open", "In"),
        ("open", "NotIn"),
        ("capacity-reservations-only", "NotIn"),
        ("group", "either term"),
    ],
)
def test_pod_that_names_a_reservation_gets_one_machine_in_it(
    stack: Stack, selection: str, written: str
) -> None:
    first, second = world(stack, selection, capacity=(RESERVED,))
    waiting = pods(stack, 1, spec=RULES[written](first, second))
    start(stack)
    stack.until(lambda: bound(stack, waiting), "pod bound", step=0.2)
    assert [stack.reservation_of(claim.name) for claim in claims(stack)] == [second]
    assert len(stack.aws.instances()) == 1 and stack.aws.free(first) == 1


@pytest.mark.covers("FLT-03")
@pytest.mark.parametrize("selection", ["group", "open"])
def test_pod_without_a_reservation_gets_one_machine_outside(stack: Stack, selection: str) -> None:
    world(stack, selection)
    waiting = pods(stack, 1, spec=affinity(rule("DoesNotExist")))
    start(stack)
    stack.until(lambda: bound(stack, waiting), "pod bound", step=0.2)
    assert [stack.reservation_of(claim.name) for claim in claims(stack)] == [""]
    stack.advance(60)
    stack.passes()
    assert len(stack.aws.instances()) == 1


@pytest.mark.covers("FLT-03")
def test_pod_that_must_be_in_some_reservation_is_never_launched_outside(stack: Stack) -> None:
    world(stack, "open")
    waiting = pods(stack, 3, cpu="1500m", spec=affinity(rule("Exists")))
    start(stack)
    stack.until(lambda: sum(bound(stack, [name]) for name in waiting) == 2, "two pods bound", step=0.2)
    (left,) = (name for name in waiting if not bound(stack, [name]))
    stack.until_event(left, FAILED, kind="Pod", text="NodePool team")
    assert all(stack.reservation_of(claim.name) for claim in claims(stack))
    assert len(stack.aws.instances()) == 2


@pytest.mark.covers("FLT-03")
@pytest.mark.parametrize("selection", ["group", "open"])
def test_pods_apart_by_reservation_get_one_machine_in_each(stack: Stack, selection: str) -> None:
    ids = world(stack, selection, capacity=(RESERVED,))
    apart = {
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "minDomains": 2,
                "topologyKey": KEY,
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"app": "a"}},
            }
        ]
    }
    waiting = pods(stack, 2, cpu="500m", labels={"app": "a"}, spec=apart)
    start(stack)
    stack.until(lambda: bound(stack, waiting), "pods bound", step=0.2)
    assert sorted(stack.reservation_of(claim.name) for claim in claims(stack)) == sorted(ids)


@pytest.mark.covers("FLT-03")
def test_pods_repelled_by_reservation_get_one_machine_in_each(stack: Stack) -> None:
    ids = world(stack, "group", capacity=(RESERVED,))
    term = {"topologyKey": KEY, "labelSelector": {"matchLabels": {"app": "a"}}}
    apart = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    waiting = pods(stack, 2, cpu="500m", labels={"app": "a"}, spec=apart)
    start(stack)
    stack.until(lambda: bound(stack, waiting), "pods bound", step=0.2)
    assert sorted(stack.reservation_of(claim.name) for claim in claims(stack)) == sorted(ids)


@pytest.mark.covers("FLT-03")
def test_daemon_set_of_one_reservation_leaves_its_pod_the_other(stack: Stack) -> None:
    first, second = world(stack, "group", capacity=(RESERVED,))
    daemon_set(stack, affinity(rule("In", first)))
    waiting = pods(stack, 1, cpu="1500m")
    start(stack)
    stack.until(lambda: bound(stack, waiting), "pod bound", step=0.2)
    assert [stack.reservation_of(claim.name) for claim in claims(stack)] == [second]


@pytest.mark.covers("FLT-03")
@pytest.mark.parametrize("written", ["capacity type", "reservation"])
def test_daemon_set_outside_of_reservations_keeps_a_claim_from_on_demand(stack: Stack, written: str) -> None:
    """The slot is taken before the launch, and on an on-demand machine the DaemonSet leaves no room."""
    odcr = stack.aws.odcr("m5.large", zone=A)
    stack.node_class(id_=odcr)
    types = {"key": names.INSTANCE_TYPE, "operator": "In", "values": ["m5.large"]}
    kinds = {"key": names.CAPACITY_TYPE, "operator": "In", "values": [RESERVED, ON_DEMAND]}
    pool(stack, template={"requirements": [types, kinds]})
    outside = rule("DoesNotExist") if written == "reservation" else rule("In", ON_DEMAND, key=KIND)
    daemon_set(stack, affinity(outside))
    pods(stack, 1, cpu="1500m")
    stack.before_launch(lambda: stack.aws.rival(odcr))
    start(stack)
    stack.until(lambda: claims(stack), "a claim", step=0.2)
    (claim,) = claims(stack)
    stack.until_waiting(claim.name)
    stack.passes()
    assert stack.aws.instances() == []


@pytest.mark.covers("FLT-03")
def test_pod_waits_with_the_rule_as_the_reason_if_no_reservation_is_left(stack: Stack) -> None:
    first, second = world(stack, "group", capacity=(RESERVED,))
    pods(stack, 1, spec=affinity(rule("NotIn", first, second)))
    start(stack)
    event = stack.until_event("p-0", FAILED, kind="Pod", text="NodePool team")
    assert "1 instance type does not match the pod's node affinity" in event.message
    assert first in event.message and second in event.message and names.RESERVATION_ID in event.message
    stack.passes()
    assert claims(stack) == [] and stack.aws.instances() == []


@pytest.mark.covers("FLT-03")
@pytest.mark.parametrize("file", ["input", "not-in"])
def test_reported_inputs_get_one_machine_in_the_second_reservation(stack: Stack, file: str) -> None:
    ids = cases.apply(stack, "ec2-02-reservation-id", file)
    start(stack)
    stack.until(lambda: bound(stack, ["p"]), "pod bound", step=0.2)
    assert [stack.reservation_of(claim.name) for claim in claims(stack)] == [ids["TWO"]]


@pytest.mark.covers("FLT-03")
def test_pods_spread_over_reservations_get_one_machine_each_while_ec2_shows_none_of_them(
    stack: Stack,
) -> None:
    large, small = stack.aws.odcr(count=3), stack.aws.odcr()
    stack.node_class(group=stack.aws.group(large, small))
    # Labels come one after another, and a pod may take the node of another: an empty one is none to end.
    pool(stack, disruption={"consolidateAfter": "Never"})
    selects = {"labelSelector": {"matchLabels": {"app": "s"}}, "whenUnsatisfiable": "DoNotSchedule"}
    spread = {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": KEY, **selects}]}
    start(stack)
    stack.advance(4000)
    stack.polls(2)
    stack.control.lag(3600)
    waiting = pods(stack, 4, cpu="1500m", labels={"app": "s"}, spec=spread)
    stack.until(lambda: len(claims(stack)) == 3, "three claims", step=0.2)
    stack.until_ready(*(claim.name for claim in claims(stack)))
    assert not any(names.CAPACITY_TYPE in claim.labels for claim in claims(stack))
    for _ in range(5):
        stack.advance(2)
        stack.passes()
    assert len(claims(stack)) == 3
    stack.control.lag(0.3)
    stack.advance(3600)
    stack.until(lambda: sum(bound(stack, [name]) for name in waiting) == 3, "three of four", step=0.2)
    assert len(claims(stack)) == 3 and stack.aws.free(large) == 1
