"""Each loop watches the kinds that it reads: a change of any is acted upon at once, unless a row says why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from broker.apis.karpenter import NodeClaim
from broker.apis.kueue import ResourceFlavor
from broker.apis.ome import CapacityReservation
from tests.cluster.everything import bodies, pod_groups, put, unserved
from tests.cluster.stack import Stack
from tests.cluster.test_provisioning import pods, pool
from tests.cluster.watched_reads import WatchedReads

CLASSES, CLAIMS, PODS = "ec2nodeclasses.karpenter.k8s.aws", "nodeclaims.karpenter.sh", "pods"
CLUSTERS, PROFILES = "dedicatedaiclusters.ome.io", "dedicatedaiclusterprofiles.ome.io"
KEPT = "only for the slots that EC2's description keeps for successors, with its own trigger"
RESOLVED = "through the resolved class, with its own trigger"
SOON = "while pods or nodes wait, a pass comes after ten seconds, as in Karpenter"
TIMER = "Karpenter's own period of ten seconds"
# The kinds that a loop reads and does not watch, by loop, with the reason.
UNWATCHED: Mapping[str, Mapping[str, str]] = {
    "admissions": {CLAIMS: "only for slots in lasting use by others", "nodes": "as claims"},
    "advisor": {CLAIMS: KEPT},
    "disruption": dict.fromkeys(
        (
            "capacityreservations.ome.io",
            "clustercapacityreservations.ome.io",
            CLASSES,
            "compositeelasticquotas.nos.nebuly.com",
            "csinodes.storage.k8s.io",
            "daemonsets.apps",
            CLUSTERS,
            PROFILES,
            "elasticquotas.nos.nebuly.com",
            "limitranges",
            "namespaces",
            "nodes",
            "persistentvolumeclaims",
            "persistentvolumes",
            "poddisruptionbudgets.policy",
            PODS,
            "reservations.scheduling.godel.kubewharf.io",
            "reservations.scheduling.koordinator.sh",
            "resourceflavors.kueue.x-k8s.io",
            "resourcequotas",
            "storageclasses.storage.k8s.io",
        ),
        TIMER,
    ),
    "elastic": {"nodes": "only to read sizes of GPUs, which a node has from its start"},
    "endings": {CLAIMS: "the end of an EC2 reservation comes by EC2's description"},
    "impairments": {CLAIMS: "EC2 reports the health of instances by a timer"},
    "instance-labels": {CLAIMS: "an instance is labelled by EC2's listing", "nodes": "as claims"},
    "inventory": {CLASSES: "the groups of classes are described by a timer", CLAIMS: KEPT},
    "launch": {
        PROFILES: "only for the priority of a claim that has its cluster",
        "nodepools.karpenter.sh": "only to report a shortage on the pool",
        PODS: "only for the priority and the reports of a claim",
    },
    "mirror": {CLASSES: RESOLVED, CLAIMS: KEPT},
    "nodeclaim": {PODS: "a drain looks again by itself"},
    "nodeclass": {CLAIMS: KEPT},
    "nodepool": {"namespaces": "a pool's status shows rights, which launches read themselves"},
    "odcrs": {
        CLAIMS: KEPT,
        "namespaces": "only for the claims that a purchase counts; it runs with each poll",
    },
    "provisioning": dict.fromkeys(
        (
            "compositeelasticquotas.nos.nebuly.com",
            "csinodes.storage.k8s.io",
            "daemonsets.apps",
            PROFILES,
            CLASSES,
            "elasticquotas.nos.nebuly.com",
            "leases.coordination.k8s.io",
            "limitranges",
            "persistentvolumeclaims",
            "persistentvolumes",
            "podgroups.scheduling.k8s.io",
            "podgroups.scheduling.x-k8s.io",
            "workloads.scheduling.k8s.io",
            "reservations.scheduling.godel.kubewharf.io",
            "storageclasses.storage.k8s.io",
        ),
        SOON,
    ),
    "quota": {
        "clusterqueues.kueue.x-k8s.io": "made by the broker from a reservation, which is watched",
        "namespaces": "through the reservation's status, and the launch loop, which nominates slots",
    },
    "scheduler": {"namespaces": "by its timer of fifteen seconds", "resourcequotas": "as namespaces"},
    "staticpools": dict.fromkeys(("daemonsets.apps", PROFILES, CLASSES, "limitranges"), SOON),
    "trial": {
        CLASSES: RESOLVED,
        CLAIMS: "only to skip a trial that a launch has made",
        "nodepools.karpenter.sh": "only for the types of a trial",
    },
}


@pytest.fixture
def pod_groups_served(stack: Stack) -> Iterator[None]:
    with pod_groups(stack):
        yield


@pytest.mark.usefixtures("kueue", "pod_groups_served")
def test_a_loop_watches_each_kind_that_its_decisions_read(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = WatchedReads(monkeypatch)
    stack.node_class("good", id_=stack.aws.odcr(count=4))
    stack.start(pod_batch_idle_seconds=0.2, pod_batch_max_seconds=1.0)
    stack.start_scheduler()
    stack.claim("before", node_class="good")
    stack.until_ready("before")
    kinds = {model: body for model, body in bodies(stack).items() if model not in unserved(stack)}
    put(stack, ResourceFlavor, kinds[ResourceFlavor], "h100")
    put(stack, CapacityReservation, kinds[CapacityReservation], "training")
    for number, (model, body) in enumerate(kinds.items()):
        put(stack, model, body, f"a-{number}")
    pool(stack, "team", node_class="good")
    pool(stack, "fixed", node_class="good", replicas=1)
    pods(stack, 1, cpu="5000")
    stack.delete(NodeClaim, "before")
    stack.passes()
    for _ in range(3):
        stack.polls()
        stack.advance(70)
    stack.polls(3)
    assert {"admissions", "launch", "provisioning", "staticpools", "disruption"} <= {*recorded.reads}
    left = {loop: kinds - {*UNWATCHED.get(loop, {})} for loop, kinds in recorded.unwatched().items()}
    assert {loop: kinds for loop, kinds in left.items() if kinds} == {}
