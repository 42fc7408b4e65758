"""An UltraServer that EC2 shows as unlaunchable: its owner's status, and the pod that waits for it."""

from __future__ import annotations

import pytest

from broker.apis import names
from broker.commands.explain.reading import read
from broker.oncall.idle_matches import idle_matches
from broker.webpage.live import live_state
from tests.cluster.ome.bought import flavored
from tests.cluster.ome.pods import gpu_pod, gpu_pool
from tests.cluster.ome.reserved import (
    GPU,
    flavors_alone,
    raw_condition,
    reservation_status,
    reserve,
)
from tests.cluster.stack import Stack

OWNER = "default/training"


@pytest.mark.covers("SAF-16", "CAP-07", "FLT-54")
def test_slot_of_an_unlaunchable_ultraserver_is_no_capacity_until_ec2_launches_into_it(stack: Stack) -> None:
    flavors_alone(stack)
    flavored(stack)
    block = stack.aws.capacity_block(ultraserver_type="u-p6e-gb200x72")
    stack.aws.ec2.create_tags(Resources=[block], Tags=[{"Key": names.TAG_RESERVATION, "Value": OWNER}])
    stack.control.set_reservation(block, launchable=False)
    stack.node_class(id_=block)
    reserve(stack, quotas={GPU: "8"})
    gpu_pool(stack, draws=OWNER)
    gpu_pod(stack, "own")
    broker = stack.start()

    def insufficient() -> str:
        condition = raw_condition(reservation_status(stack), "ResourcesSufficient")
        return str(condition["message"]) if condition.get("reason") == "HardwareUnavailable" else ""

    message = stack.until(insufficient, "the status says that nothing can be used", step=1.0)
    assert f"0 of 8 {GPU}" in message and f"{block} of an UltraServer is unlaunchable in EC2" in message

    def between() -> str:
        assert stack.current is not None
        live = live_state(broker)
        return "; ".join(match.text for match in idle_matches(live.waiters, live.idle_slots))

    stack.until(lambda: "is unlaunchable" in between(), "the page names what stands between", step=1.0)
    assert "the slot's owner" not in between(), "its NodePool names the owner"
    assert "the slot's owner" not in "; ".join(m.text for m in read(stack.client, stack.clock.now()).matches)
    stack.control.set_reservation(block, launchable=True)
    stack.until(
        lambda: raw_condition(reservation_status(stack), "ResourcesSufficient").get("status") == "True",
        "it can be used",
        step=1.0,
    )
