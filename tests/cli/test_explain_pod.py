"""`explain pod|deployment|statefulset|job`: why pods wait, which slots they could have, where they run."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from broker.apis import names
from broker.apis.capacity_broker import OnDemandCapacityReservation
from broker.apis.core import Event, Pod
from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.kueue import Namespace
from broker.apis.meta import Kind
from broker.capacity.attempts import Attempt, Outcome
from broker.capacity.model import Pool
from broker.oncall.journal import dump
from broker.text import format_time
from providers.errors import ErrorClass

from .kit import claim, main, run
from .town import DRAWS, P5, SINCE, A, Town, condition, owned_by

REF = {"group": names.BROKER, "kind": "EC2NodeClass"}
DEPLOYMENTS = Kind(group="apps", version="v1", kind="Deployment", plural="deployments", namespaced=True)


def waits_with_a_claim(town: Town) -> None:
    """Pod `train` waits, and so does the claim that NodePool `gpu` made for it."""
    town.pool("gpu")
    town.pod("train")
    waiting_claim = claim("train-0", "reserved")
    waiting_claim["metadata"] |= {
        "labels": {names.NODEPOOL: "gpu"},
        "annotations": {names.PODS: "ml/train"},
    }
    town.put(NodeClaim, waiting_claim)


@pytest.mark.covers("ONC-01")
def test_page_of_a_pod_has_its_pools_options_slots_next_step_and_one_command(town: Town) -> None:
    town.fill()
    town.pool("gpu", weight=10, kinds=["reserved", "on-demand"])
    town.pool("late")
    taint = {"key": "team", "value": "other", "effect": "NoSchedule"}
    town.pool("others", weight=50, template={"taints": [taint]})
    town.pod("train", annotations=DRAWS)
    page = town.explain("pod", "train", "-n", "ml")
    assert [(row["verdict"], row["nodepool"]) for row in page["nodepools"]] == [
        ("first", "gpu"),
        ("then", "late"),
        ("no", "others"),
    ]
    assert "does not tolerate team=other:NoSchedule" in page["nodepools"][2]["message"]
    full, *bought = page["options"]
    assert (full["verdict"], full["reservation"], full["reason"]) == (
        "skipped",
        town.world.odcr,
        "ReservationFull",
    )
    assert bought[0]["verdict"] == "next" and bought[0]["usd_hour"] > 10
    held = next(row for row in page["slots"] if row.get("claim"))
    assert (held["slot"], held["claim"], held["pods"]) == (town.world.odcr, "holder-0", ["ml/old"])
    assert (held["owner"], held["draws_from"]) == ("ml/gpus", "ml/gpus")
    assert held["since"] == format_time(SINCE) and held["until"] == format_time(SINCE + timedelta(hours=10))
    assert len({frozenset(row) for row in page["slots"]}) == 1, "the page reads the keys of each row"
    (step,) = page["next"]
    expected = "a NodeClaim that NodePool gpu would make for the pod is launched next into on-demand p5"
    assert step.startswith(expected)
    assert [row["command"] for row in page["do"]] == ["capacity-broker watch"]


@pytest.mark.covers("ONC-01")
def test_page_of_a_pod_that_waits_for_a_full_reservation_is_short_and_aligned(town: Town) -> None:
    town.fill()
    town.pool("gpu")
    town.pod("train", annotations=DRAWS)
    shown = town.text("pod", "train", "-n", "ml")
    assert max(map(len, shown.splitlines())) <= 100 and len(shown.splitlines()) < 50
    assert "\x1b" not in shown
    assert shown.startswith("Pod ml/train: waits for ")
    for part in (
        "Why it waits",
        "NodePools",
        "Options of its claim",
        "Slots and their users",
        "Next",
        "You can",
    ):
        assert part in shown
    for part in ("claim holder-0", "(ml/old)", "activeDeadlineSeconds", "waits: AllReservationsFull"):
        assert part in shown
    assert "kubectl edit nodepool gpu" in shown


@pytest.mark.covers("ONC-01")
def test_pod_with_a_waiting_claim_shows_the_options_of_that_claim(town: Town) -> None:
    waits_with_a_claim(town)
    page = town.explain("pod", "train", "-n", "ml")
    assert page["why"][0]["claim"] == "train-0" and page["why"][0]["reason"] == "New"
    assert page["next"] == [f"NodeClaim train-0 is launched next into {town.world.odcr} ({P5}, {A})"]
    assert page["options"] == town.explain("claim", "train-0")["options"]


@pytest.mark.covers("ONC-01")
@pytest.mark.parametrize("class_", [ErrorClass.PERMISSION, ErrorClass.PROFILE_UNKNOWN])
def test_page_of_a_claim_whose_launch_is_refused_each_time_names_the_remedy(
    town: Town, class_: ErrorClass
) -> None:
    waits_with_a_claim(town)
    refusal = Attempt(
        claim="train-0",
        node_class="training",
        pool=Pool(capacity_type="reserved", instance_type=P5, zone=A, reservation=town.world.odcr),
        outcome=Outcome.REFUSED,
        at=SINCE,
        code="UnauthorizedOperation",
        class_=class_,
        next_step=class_.policy.next_step,
    )
    annotations = {names.ATTEMPTS: dump([refusal])}
    town.client.patch(NodeClaim.KIND, "train-0", {"metadata": {"annotations": annotations}})
    page = town.explain("pod", "train", "-n", "ml")
    (step,) = page["next"]
    assert step == f"NodeClaim train-0 {town.explain('claim', 'train-0')['decision']}"
    assert "is tried again into" in step and "launched next" not in step
    assert f"with UnauthorizedOperation: {class_.policy.next_step}" in step
    (helps,) = page["do"]
    assert helps["command"] == "capacity-broker explain claim train-0"
    assert class_.policy.next_step in helps["why"] and "free" not in helps["why"]


@pytest.mark.covers("ONC-01")
def test_page_promises_no_launch_from_a_class_that_is_being_deleted(town: Town) -> None:
    waits_with_a_claim(town)
    kept = {"metadata": {"finalizers": ["example.com/kept"]}}
    town.client.patch(EC2NodeClass.KIND, "training", kept)
    town.client.delete(EC2NodeClass.KIND, "training")
    (step,) = town.explain("pod", "train", "-n", "ml")["next"]
    assert "EC2NodeClass training is being deleted: nothing is launched from it any more" in step


@pytest.mark.covers("ONC-01")
def test_page_tells_what_the_brokers_role_lacks_as_the_class_does(town: Town) -> None:
    town.pool("gpu")
    town.pod("train", annotations=DRAWS)
    lacks = "the broker's role lacks ec2:RunInstances: no policy allows it"
    stored = town.client.get(EC2NodeClass.KIND, "training")
    launchable = condition(names.LAUNCHABLE, "False", "Unauthorized", lacks)
    launchable["observedGeneration"] = stored["metadata"]["generation"]
    town.client.patch(
        EC2NodeClass.KIND, "training", {"status": {"conditions": [launchable]}}, subresource="status"
    )
    assert lacks in "\n".join(town.explain("pod", "train", "-n", "ml")["next"])


@pytest.mark.covers("ONC-01")
def test_page_of_a_bound_pod_has_its_node_claim_reservation_and_price(town: Town) -> None:
    town.fill()
    page = town.explain("pod", "old", "-n", "ml")
    (place,) = page["placed"]
    assert (place["node"], place["claim"], place["reservation"]) == (
        "ip-10-0-0-1",
        "holder-0",
        town.world.odcr,
    )
    assert place["usd_hour"] > 10 and place["owner"] == "ml/gpus" and place["capacity_type"] == "reserved"
    assert page["headline"] == "running on node ip-10-0-0-1 for 3h"
    assert page["next"] == ["nothing: its node stays"]
    shown = town.text("pod", "old", "-n", "ml")
    assert town.world.odcr in shown and "holder-0" in shown and max(map(len, shown.splitlines())) <= 100


@pytest.mark.covers("ONC-01")
def test_page_of_a_pod_in_a_capacity_block_says_when_its_node_drains(town: Town) -> None:
    town.fill()
    end, drain = format_time(SINCE + timedelta(days=1)), format_time(SINCE + timedelta(hours=23))
    kind, mirror = OnDemandCapacityReservation.KIND, town.world.odcr
    town.client.patch(kind, mirror, {"status": {"end": end}}, subresource="status")
    (ordinary,) = town.explain("pod", "old", "-n", "ml")["next"]
    assert ordinary == "nothing: its node stays", "EC2 ends no instance with an ordinary reservation"
    block = {"status": {"drain": drain, "reservationType": "capacity-block"}}
    town.client.patch(kind, mirror, block, subresource="status")
    (step,) = town.explain("pod", "old", "-n", "ml")["next"]
    assert step == f"its node drains from {drain} on, before Capacity Block {mirror} ends at {end}"


@pytest.mark.covers("ONC-01")
def test_page_of_a_pod_in_a_reclaimed_slot_says_that_its_node_ends(town: Town) -> None:
    town.fill()
    taken = condition(names.PREEMPTED, "True", "Reclaimed", "for NodeClaim train-0 of ml/gpus")
    status = {"status": {"conditions": [taken]}}
    town.client.patch(NodeClaim.KIND, "holder-0", status, subresource="status")
    (step,) = town.explain("pod", "old", "-n", "ml")["next"]
    assert step == "NodeClaim holder-0 gives its slot back: for NodeClaim train-0 of ml/gpus"


@pytest.mark.covers("ONC-01")
@pytest.mark.parametrize(
    ("change", "reason", "command"),
    [
        ({}, "NoNodePool", "kubectl get nodepools -o yaml"),
        ({"pool": {"ready": False}}, "NodePoolNotReady", "kubectl describe nodepool gpu"),
        (
            {"pod": {"spec": {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}}},
            "SchedulingGated",
            "kubectl describe pod -n ml train",
        ),
    ],
)
def test_pod_that_gets_no_claim_has_the_reason_and_its_remedy(
    town: Town, change: dict[str, Any], reason: str, command: str
) -> None:
    if "pool" in change or "pod" in change:
        town.pool("gpu", **change.get("pool", {}))
    town.pod("train", **change.get("pod", {}))
    page = town.explain("pod", "train", "-n", "ml")
    assert page["why"][0]["reason"] == reason
    assert [row["command"] for row in page["do"]] == [command]
    assert page["next"] and page["next"][0].startswith("nothing until")


@pytest.mark.covers("ONC-01")
@pytest.mark.parametrize(
    ("kinds", "of_pool"),
    [(["reserved", "on-demand"], "NodePool gpu also buys"), (["reserved"], "so does NodePool gpu")],
)
def test_pod_that_insists_on_a_slot_is_to_be_edited_and_not_only_its_pool(
    town: Town, kinds: list[str], of_pool: str
) -> None:
    town.fill()
    town.pool("gpu", kinds=kinds)
    chosen = {"nodeSelector": {names.CAPACITY_TYPE: "reserved"}}
    town.pod("train", spec=chosen, ownerReferences=[owned_by("Job", "train")])
    (row,) = town.explain("pod", "train", "-n", "ml")["do"]
    assert row["command"] == "kubectl get job -n ml train -o yaml"  # a Job's template cannot be changed
    assert row["why"].endswith(of_pool)


@pytest.mark.covers("ONC-03")
def test_claim_shows_the_pods_on_its_node_and_not_those_that_it_was_made_for(town: Town) -> None:
    town.fill()
    town.client.patch(NodeClaim.KIND, "holder-0", {"metadata": {"annotations": {names.PODS: "ml/gone"}}})
    assert town.explain("claim", "holder-0")["pods"] == ["ml/old"]


@pytest.mark.covers("ONC-01")
def test_pod_that_provisioning_refused_is_promised_no_launch(town: Town) -> None:
    """An option of its pool is free, but the pod lacks something else."""
    town.mirror()
    town.pool("gpu")
    town.pod("train")
    assert "is launched next" in town.explain("pod", "train", "-n", "ml")["next"][0]
    uid = town.client.get(Pod.KIND, "train", namespace="ml")["metadata"]["uid"]
    report = 'Failed to schedule pod, NodePool gpu: persistentvolumeclaim "data" not found'
    town.client.create(
        Event.KIND,
        {
            "metadata": {"name": "train.1", "namespace": "ml"},
            "involvedObject": {"kind": "Pod", "name": "train", "namespace": "ml", "uid": uid},
            "reason": "FailedScheduling",
            "message": report,
            "reportingComponent": "capacity-broker",
            "source": {"component": "capacity-broker"},
            "lastTimestamp": format_time(SINCE),
        },
    )
    page = town.explain("pod", "train", "-n", "ml")
    assert 'persistentvolumeclaim "data" not found' in page["why"][0]["message"]
    assert page["next"] == ["nothing until the reason above is gone; the broker looks again every 10 s"]
    assert [row["command"] for row in page["do"]] == ["kubectl describe pod -n ml train"]
    assert page["options"] and "next" not in [row["verdict"] for row in page["options"]]
    (pool,) = page["nodepools"]
    assert pool["verdict"] == "no" and pool["message"].endswith("for the reason above")
    assert {row["role"] for row in page["slots"]} <= {"could take"}


@pytest.mark.covers("ONC-01")
def test_page_of_a_pod_never_names_itself_as_the_command_that_helps(town: Town) -> None:
    """A free slot that no NodePool may use for the pod."""
    town.mirror()
    town.pool("gpu")
    town.pod("train", spec={"nodeSelector": {names.NODEPOOL: "other"}})
    (row,) = town.explain("pod", "train", "-n", "ml")["do"]
    assert row["command"] == "kubectl get pod -n ml train -o yaml"


@pytest.mark.covers("ONC-01")
def test_page_of_a_pod_gives_no_advice_about_other_pods(town: Town) -> None:
    town.mirror()
    town.pool("gpu", template={"requirements": []})
    town.pool("elsewhere", template={"nodeClassRef": {**REF, "name": "other"}})
    town.pod("other", spec={"nodeSelector": {names.NODEPOOL: "elsewhere"}})
    town.pod("train", spec={"nodeSelector": {names.NODEPOOL: "gpu", names.INSTANCE_TYPE: "p4d.24xlarge"}})
    assert "pod ml/other could have a slot" in str(town.explain("cluster")["do"])
    assert "ml/other" not in str(town.explain("pod", "train", "-n", "ml")["do"])


@pytest.mark.covers("ONC-01")
def test_unknown_names_are_answered_with_the_nearest(town: Town, capsys: pytest.CaptureFixture[str]) -> None:
    town.pool("gpu")
    town.pod("train-0", ownerReferences=[owned_by("Job", "train")])
    town.client.create(
        DEPLOYMENTS,
        {
            "metadata": {"name": "web", "namespace": "ml"},
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": {"app": "web"}},
                "template": {
                    "metadata": {"labels": {"app": "web"}},
                    "spec": {"containers": [{"name": "main", "image": "pause"}]},
                },
            },
        },
    )
    options = ("--kubeconfig", town.kubeconfig)
    for arguments, words in (
        (("pod", "trian-0", "-n", "ml"), "no Pod 'trian-0' in namespace ml: did you mean train-0?"),
        (("pod", "train-0"), "no Pod 'train-0' in namespace default: it is in ml (write -n ml)"),
        (("job", "trian", "-n", "ml"), "no Job 'trian' in this cluster: did you mean train?"),
        (("deployment", "wbe", "-n", "ml"), "no Deployment 'wbe' in this cluster: did you mean web?"),
    ):
        assert main("explain", *arguments, *options) == 2
        assert words in capsys.readouterr().err
    assert "it has no pod" in town.text("deployment", "web", "-n", "ml")
    town.put(Namespace, {"metadata": {"name": "empty"}})
    for arguments, words in (
        (("pod", "foo", "-n", "mll"), "no Namespace 'mll' in this cluster: did you mean ml?"),
        (("job", "foo", "-n", "mll"), "no Namespace 'mll' in this cluster: did you mean ml?"),
        (("pod", "foo", "-n", "empty"), "no Pod 'foo' in namespace empty: there is none at all"),
    ):
        assert main("explain", *arguments, *options) == 2
        assert words in capsys.readouterr().err


OWNERS = {
    "deployment": ("ReplicaSet", "train-6d4b"),
    "statefulset": ("StatefulSet", "train"),
    "job": ("Job", "train"),
}


@pytest.mark.covers("ONC-01")
@pytest.mark.parametrize("kind", OWNERS)
def test_equal_pods_of_a_workload_are_summed(town: Town, kind: str) -> None:
    town.fill()
    town.pool("gpu")
    owner = owned_by(*OWNERS[kind])
    labels = {"pod-template-hash": "6d4b"}
    for number in range(3):
        town.pod(f"train-{number}", ownerReferences=[owner], labels=labels)
    town.pod("train-3", node="ip-10-0-0-1", ownerReferences=[owner], labels=labels)
    page = town.explain(kind, "train", "-n", "ml")
    assert page["headline"].startswith("1 of 4 pods on nodes; 3 pods wait, the oldest for ")
    (place,) = page["placed"]
    assert (place["reservation"], place["count"], place["claims"]) == (town.world.odcr, 1, ["holder-0"])
    (waiting,) = page["waiting"]
    assert waiting["why"][0]["alike"] == ["ml/train-0", "ml/train-1", "ml/train-2"]
    shown = town.text(kind, "train", "-n", "ml")
    assert "Pod ml/train-0 and 2 equal pods: waits for" in shown
    assert shown.count("Options of its claim") == 1


@pytest.mark.covers("ONC-01")
def test_without_ec2_the_rest_of_the_page_is_shown(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    town.mirror(free=0)
    town.holder()
    town.pool("gpu")
    town.pod("train")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    page = town.explain("pod", "train", "-n", "ml")
    assert "EC2 cannot be read" in page["next"][0] and page["nodepools"][0]["verdict"] == "first"


@pytest.mark.covers("ONC-02")
def test_waiting_pods_are_a_section_of_the_cluster_with_equal_ones_as_one_row(town: Town) -> None:
    town.fill()
    town.pool("gpu")
    owner = owned_by("ReplicaSet", "train-6d4b")
    for number in range(3):
        labels = {"pod-template-hash": "6d4b"}
        town.pod(f"train-{number}", ownerReferences=[owner], labels=labels)
    town.pod("claimed")
    waiting_claim = claim("claimed-0", "reserved")
    waiting_claim["metadata"] |= {
        "labels": {names.NODEPOOL: "gpu"},
        "annotations": {names.PODS: "ml/claimed"},
    }
    town.put(NodeClaim, waiting_claim)
    page = town.explain("cluster")
    rows = {row["who"]: row for row in page["pods"]}
    assert rows.keys() == {"Deployment ml/train", "pod ml/claimed"}
    assert rows["Deployment ml/train"]["count"] == 3 and rows["Deployment ml/train"]["nodepool"] == "gpu"
    assert rows["pod ml/claimed"]["claim"] == "claimed-0" and rows["pod ml/claimed"]["since"]
    assert "4 pods wait" in page["headline"]
    assert [row["command"] for row in page["do"] if "explain pod" in row["command"]]
    shown = town.text("cluster")
    assert "Pods that wait" in shown and "Deployment ml/train" in shown and "Unschedulable" in shown


ADVISED = {
    "type": names.RESERVATIONS_ADVISED,
    "status": "True",
    "reason": "ReservationsFound",
    "message": "1 reservation",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}


@pytest.mark.covers("ONC-03")
@pytest.mark.parametrize("free", [0, 1])
def test_pod_of_an_advised_pool_of_karpenter_is_shown_against_the_reservations(town: Town, free: int) -> None:
    town.mirror(free=free)
    town.holder()
    town.client.patch(
        EC2NodeClass.KIND, "training", {"status": {"conditions": [ADVISED]}}, subresource="status"
    )
    town.pool("karpenters", group=names.KARPENTER_AWS)
    town.pod("train")
    page = town.explain("pod", "train", "-n", "ml")
    (why,) = page["why"]
    assert why["reason"] == ("OtherController" if free else "ReservationsFull")
    assert town.world.odcr in why["message"] and A in why["message"]
    assert "held by claim holder-0 (ml/old)" in why["message"]
    assert ("full (2 of 2)" in why["message"]) == (free == 0)
    assert "Insufficient nvidia.com/gpu" in why["message"]
    assert page["next"][0].startswith("Karpenter makes the NodeClaim of NodePool karpenters")
    assert [row for row in page["slots"] if row.get("claim") == "holder-0"]
    (row,) = town.explain("cluster")["pods"]
    assert row["message"] == why["message"]


@pytest.mark.covers("ONC-03")
def test_all_is_well_is_never_printed_while_a_pod_waits(town: Town) -> None:
    assert "all is well" in town.text("cluster") and "nothing needs to be done" in town.text("cluster")
    town.pod("train")
    shown = town.text("cluster") + run("explain", "class", "training", "--kubeconfig", town.kubeconfig).stdout
    assert "all is well" not in shown and "nothing needs to be done" not in shown
    assert "1 pod waits" in shown


@pytest.mark.covers("ONC-03")
def test_claim_of_karpenter_shows_reservation_price_and_attempts(town: Town) -> None:
    def of_karpenter(name: str) -> dict[str, Any]:
        document = claim(name)
        document["spec"]["nodeClassRef"]["group"] = names.KARPENTER_AWS
        return document

    failed = condition("Launched", "Unknown", "LaunchFailed", "no capacity in us-east-1a")
    town.put(NodeClaim, of_karpenter("waits"), {"conditions": [failed]})
    town.client.create(
        Event.KIND,
        {
            "metadata": {"name": "e", "namespace": "default"},
            "involvedObject": {"kind": "NodeClaim", "name": "waits"},
            "type": "Warning",
            "reason": "InsufficientCapacityError",
            "message": "ReservationCapacityExceeded",
            "lastTimestamp": format_time(SINCE),
            "source": {"component": "karpenter"},
        },
    )
    page = town.explain("claim", "waits")
    assert [(row["outcome"], row["code"], row["message"]) for row in page["attempts"]] == [
        ("Refused", "InsufficientCapacityError", "ReservationCapacityExceeded"),
        ("Refused", "LaunchFailed", "no capacity in us-east-1a"),
    ]
    assert "InsufficientCapacityError" in town.text("claim", "waits")

    runs = of_karpenter("runs")
    runs["metadata"]["labels"] = {
        names.RESERVATION_ID: town.world.odcr,
        names.CAPACITY_TYPE: "reserved",
        names.INSTANCE_TYPE: P5,
        names.ZONE: A,
    }
    launched = condition("Launched", "True", "Launched")
    status = {"providerID": "aws:///us-east-1a/i-0abc", "conditions": [launched]}
    town.put(NodeClaim, runs, status)
    page = town.explain("claim", "runs")
    assert page["reservation"] == town.world.odcr and page["usd_hour"] > 10
    assert [row["outcome"] for row in page["attempts"]] == ["Launched"]
    shown = town.text("claim", "runs")
    assert town.world.odcr in shown and "$/h" in shown
