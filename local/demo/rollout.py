"""`capacity-broker demo --rollout`: a new image for all nodes of a full reservation, and its slots over time.

Four pods fill the four slots of a reservation. The class gets another image, so all nodes drift. The NodePool
allows on-demand, too: nothing keeps the broker from buying but its own rules. `make rollout-demo` plays the
same with Karpenter as released, too. `--once` ends with exit code 0 only if the broker launched each node
once, in its slot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.text import Text

from broker.apis import names
from broker.apis.godel import GodelDeployment
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.commands.output import table
from broker.kube.client import Client
from broker.settings import Settings
from local.demo import account
from local.demo.slot_timeline import MEANINGS, NEW, SlotFigures, SlotSample, SlotTimeline
from local.demo.slot_watch import SlotWatch, WatchedPool
from local.demo.story import Scene, open_scene

NAME: Final = "web"
SLOTS: Final = account.ROLLOUT_SLOTS
TYPE: Final = "c7i.4xlarge"
CPU: Final = "12"  # of 16: a pod a node
STAYS: Final = 3.0  # seconds of the picture after the end
CAPTION: Final = "broker"
BESIDE: Final = "`make rollout-demo` of a checkout plays the same with Karpenter beside it"

Report = Callable[[str], None]
Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutResult:
    """One way through the rollout. `failed`: claims that ended without an instance."""

    by: str
    timeline: SlotTimeline
    failed: int

    def lines(self) -> Sequence[str]:
        """The picture, with a heading and the meanings of its letters."""
        return ["", f"by {self.by}:", *self.timeline.picture(), *self.timeline.legend()]


# Plays the same rollout another way; None with a line for the reader if it cannot.
Beside = Callable[[Report], RolloutResult | None]


def not_here(report: Report) -> RolloutResult | None:
    """The way of a demo without Karpenter."""
    report(BESIDE)
    return None


def demo(settings: Settings, *, once: bool, beside: Beside = not_here) -> int:
    """Runs the demo; the exit code is 0 if the broker replaced each node once, in its slot."""
    with open_scene(settings, make=account.rollout) as scene:
        result = _by_broker(scene)
        results = [result, other] if (other := beside(scene.report)) else [result]
        for shown in results:
            for line in shown.lines():
                scene.out.print(Text(line), soft_wrap=True)
        scene.out.print()
        scene.out.print(table("", figure_rows(results), columns=columns(results)))
        if not once:
            scene.stay(
                "kubectl get nodeclaims,nodepools,odcr",
                "kubectl get events --field-selector reason=DisruptionTerminating",
            )
        return 0 if as_wanted(result) else 1


def _by_broker(scene: Scene) -> RolloutResult:
    ids, user = scene.stage.ids.names, scene.user
    user.create(EC2NodeClass.KIND, _node_class(ids))
    user.create(NodePool.KIND, _node_pool())
    user.create(GodelDeployment.KIND, deployment(NAME, SLOTS, {"cpu": CPU}))
    scene.report(f"{ids['ODCR_WEB']} has {SLOTS} slots, and Deployment {NAME} a pod for each")
    pool = WatchedPool(name=NAME, odcr_ids=[ids["ODCR_WEB"]], slots=SLOTS, app=NAME, pods=SLOTS)
    watch = SlotWatch(scene.stage.client, scene.stage.provider, pool, clock=scene.clock)
    scene.until(lambda: full(watch.sample(), SLOTS) and _shown(user))
    scene.report(f"all slots have a node with a pod; the class gets another image: {ids['NEW_AMI']}")
    narrator = Narrator(scene.report)
    watch = SlotWatch(
        scene.stage.client, scene.stage.provider, pool, clock=scene.clock, changed=narrator.changed
    )
    watch.step()
    watch.start()
    try:
        image = {"spec": {"amiSelectorTerms": [{"id": ids["NEW_AMI"]}]}}
        user.patch(EC2NodeClass.KIND, NAME, image)
        scene.until(lambda: over(watch.timeline, SLOTS))
        scene.clock.sleep(STAYS)
    finally:
        watch.stop()
    return RolloutResult(by=CAPTION, timeline=watch.timeline, failed=len(watch.failed))


class Narrator:
    """Reports each new use of a slot in a line."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._before: Mapping[str, str] = {}

    def changed(self, timeline: SlotTimeline) -> None:
        latest = timeline.latest()
        for row, letter in latest.items():
            if self._before and self._before.get(row) != letter:
                self._report(f"{row:<12} {letter}  {MEANINGS[letter]}")
        for row in self._before.keys() - latest.keys():
            self._report(f"{row:<12}    is gone")
        self._before = latest


def full(sample: SlotSample, slots: int) -> bool:
    """Whether each slot has a node, and each pod runs."""
    return len(sample.reserved) == slots and not sample.missing and not sample.outside


def over(timeline: SlotTimeline, pods: int) -> bool:
    """Whether all nodes are new, and have a pod each."""
    sample = timeline.last
    uses = [*sample.reserved.values(), *sample.outside.values()]
    return uses == [NEW] * pods and not sample.missing


def as_wanted(result: RolloutResult) -> bool:
    """Whether each node was launched once, in its slot, and one pod at most was away."""
    figures = result.timeline.figures()
    wanted = (SLOTS, 0, 0, 0, 1)
    counts = (figures.launches, result.failed, figures.most_outside, figures.idle_at_end)
    return (*counts, figures.most_missing) == wanted and over(result.timeline, SLOTS)


def columns(results: Sequence[RolloutResult]) -> Mapping[str, str]:
    return {"figure": "", **{result.by: result.by.upper() for result in results}}


def figure_rows(results: Sequence[RolloutResult]) -> Sequence[Mapping[str, str]]:
    """The four lines of figures, a column a result."""
    figures = {result.by: (result, result.timeline.figures()) for result in results}
    return [
        {"figure": name, **{by: text(result, of) for by, (result, of) in figures.items()}}
        for name, text in _LINES.items()
    ]


def _launches(result: RolloutResult, of: SlotFigures) -> str:
    return f"{of.launches}, {result.failed}"


def _slots(_: RolloutResult, of: SlotFigures) -> str:
    return f"{of.idle:.0f}, {of.idle_at_end}"


def _bought(_: RolloutResult, of: SlotFigures) -> str:
    return f"{of.most_outside}, {of.outside:.0f}"


def _pods(_: RolloutResult, of: SlotFigures) -> str:
    return f"{of.most_missing}, {of.missing:.0f}"


_LINES: Final[Mapping[str, Callable[[RolloutResult, SlotFigures], str]]] = {
    "launches, and claims that ended without one": _launches,
    "slot-seconds empty, and slots empty at the end": _slots,
    "instances outside at once, and instance-seconds": _bought,
    "pods away at once, and pod-seconds": _pods,
}


# ---- the objects of a user


def deployment(name: str, replicas: int, requests: Mapping[str, str], **spec: Any) -> Json:
    """A Deployment whose pods run on the pool of the demo only. `spec`: more of the pods'."""
    container = {
        "name": "main",
        "image": "registry.k8s.io/pause:3.10",
        "resources": {"requests": {**requests}},
    }
    labels = {"app": name}
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container], **spec}},
        },
    }


def _node_class(ids: Mapping[str, str]) -> Json:
    selectors = [{"tags": {"karpenter.sh/discovery": account.CLUSTER}}]
    return {
        "metadata": {"name": NAME},
        "spec": {
            "capacityReservationSpec": {
                "capacityReservationTarget": {"capacityReservationId": ids["ODCR_WEB"]}
            },
            "amiFamily": "AL2023",
            "amiSelectorTerms": [{"id": ids["AMI"]}],
            "subnetSelectorTerms": selectors,
            "securityGroupSelectorTerms": selectors,
            "instanceProfile": account.PROFILE,
        },
    }


def _node_pool() -> Json:
    def one_of(key: str, *values: str) -> Json:
        return {"key": key, "operator": "In", "values": [*values]}

    return {
        "metadata": {"name": NAME},
        "spec": {
            "disruption": {"consolidateAfter": "Never", "budgets": [{"nodes": "100%"}]},
            "template": {
                "spec": {
                    "nodeClassRef": {"group": names.BROKER, "kind": "EC2NodeClass", "name": NAME},
                    "requirements": [
                        one_of(names.INSTANCE_TYPE, TYPE),
                        one_of(names.CAPACITY_TYPE, "reserved", "on-demand"),
                    ],
                    "expireAfter": "Never",
                }
            },
        },
    }


def _shown(client: Client) -> bool:
    """Whether the claims have what drift is compared with."""
    claims = list(map(NodeClaim.decode, client.list(NodeClaim.KIND)[0]))
    return bool(claims) and all(
        claim.labels.get(names.RESERVATION_ID) and names.NODEPOOL_HASH in claim.annotations
        for claim in claims
    )
