"""The room that DaemonSets take on nodes to come."""

from __future__ import annotations

from broker.placement.daemons import DaemonOverhead
from tests.unit.placement.builders import node, node_affinity, pod


def test_only_daemon_sets_with_a_pod_on_the_node_take_room() -> None:
    named = [{"key": "metadata.name", "operator": "In", "values": [name]} for name in ("n", "other")]
    daemons = [
        pod("everywhere", requests={"cpu": "100m"}),
        pod("elsewhere", requests={"cpu": "1"}, nodeSelector={"zone": "b"}),
        pod("on-one-node", requests={"cpu": "10m"}, affinity=node_affinity({"matchFields": named[:1]})),
        pod("nowhere", requests={"cpu": "2"}, affinity=node_affinity({"matchFields": named})),
    ]
    overhead = DaemonOverhead(daemons)
    assert overhead.on(node("n")) == {"cpu": 110, "pods": 2}
    assert overhead.on(node("m")) == {"cpu": 100, "pods": 1}
    assert overhead.on(node("m", taints=[{"key": "gpu", "effect": "NoSchedule"}])) == {}
