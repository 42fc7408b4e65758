"""A free slot in a zone that a pod's rules about other pods shut is no option of it, and the rule is told."""

from __future__ import annotations

from typing import Any, Final

import pytest

from broker.apis import names
from broker.oncall.pod_reports import FAILED
from tests.cluster.account import A, B
from tests.cluster.objects import RESERVED
from tests.cluster.stack import Stack
from tests.cluster.test_mixed_pools import required
from tests.cluster.test_provisioning import bound, pods, pool, start
from tests.cluster.test_waiting_pods import explained

OF_APP: Final = {"labelSelector": {"matchLabels": {"app": "a"}}}
SPREAD: Final = {"maxSkew": 1, "topologyKey": names.ZONE, "whenUnsatisfiable": "DoNotSchedule", **OF_APP}


def near(key: str) -> dict[str, Any]:
    term = {"topologyKey": key, **OF_APP}
    return {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


@pytest.mark.covers("ONC-01", "FLT-54", "FLT-30")
@pytest.mark.parametrize(
    ("rules", "shut", "text"),
    [
        (near(names.ZONE), {B}, "its pod affinity"),
        (near(names.HOSTNAME), {A, B}, "its pod affinity"),
        ({"topologySpreadConstraints": [SPREAD]}, {A}, "its topology spread constraint"),
    ],
    ids=["zone", "host name", "spread"],
)
def test_slot_where_no_new_node_may_have_the_pod_is_not_an_option_of_it(
    stack: Stack, rules: dict[str, Any], shut: set[str], text: str
) -> None:
    slots = [stack.aws.odcr("m5.large", A, 2 if A in shut else 1), stack.aws.odcr("m5.large", B, 1)]
    stack.node_class(group=stack.aws.group(*slots))
    pool(stack, template={"requirements": required(["m5.large"], [RESERVED])})
    start(stack)
    placed = {"nodeSelector": {names.ZONE: A}}
    first = pods(stack, 1, "first", cpu="1500m", labels={"app": "a"}, spec=placed)
    stack.until(lambda: bound(stack, first), "the first pod bound", step=0.2)
    if text.endswith("constraint"):
        again = pods(stack, 1, "other", cpu="1500m", spec={"nodeSelector": {names.ZONE: B}})
        stack.until(lambda: bound(stack, again), "zone B has a node", step=0.2)
    pods(stack, 1, "late", cpu="1500m", labels={"app": "a"}, spec=rules)
    stack.until_event("late-0", FAILED, kind="Pod")
    page = explained(stack, "late-0")
    unfit = {row["zone"]: row["message"] for row in page["options"] if row["verdict"] == "unfit"}
    assert unfit == {zone: f"{text} admits no new node in {zone}" for zone in shut}
    assert {row["zone"] for row in page["slots"]} == {A, B} - shut
    assert f"{text} admits no new node in" in page["do"][0]["why"]
