"""`capacity-broker demo`: the whole way of a claim, on this machine, with the real broker.

It applies the examples and prints each event. `--once` ends with exit code 0 only if every claim ended as
its example expects.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from rich.console import Console

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.meta import condition, is_true
from broker.app import REGISTRIES
from broker.capacity.attempts import Outcome
from broker.commands import manifests
from broker.commands.examples import examples
from broker.commands.explain.live import LIVE
from broker.commands.output import table
from broker.commands.plan.pod_manifests import pods_of
from broker.oncall.http import HttpServer
from broker.oncall.journal import recorded
from broker.settings import Settings
from broker.text import counted
from broker.webpage.assembly import OnCallViews
from local.demo import account
from local.demo.examples import apply
from local.demo.stage import Stage, where
from local.demo.story import Scene, open_scene
from local.demo.workloads import WORKLOADS
from providers.model import Instance

COLUMNS = {
    "claim": "CLAIM",
    "pool": "LAUNCHED INTO",
    "reservation": "EC2 COUNTS IT IN",
    "before": "SKIPPED OR REFUSED",
    "as": "OK",
}

WEB_SLOTS = 3
PLAY: Final = (
    "any Deployment, StatefulSet, Job or Pod that you apply gets nodes and runs, for example:\n"
    "         kubectl create deployment hello --image=nginx --replicas=3"
)


def demo(settings: Settings, *, once: bool) -> int:
    """Runs the demo; the exit code is 0 if every claim ended as its example expects."""
    with open_scene(settings, make=account.build) as scene:
        stage, clock = scene.stage, scene.clock
        http = HttpServer(
            host="127.0.0.1",
            port=0,
            ready=stage.broker.ready,
            registries=(*REGISTRIES, scene.registry),
        )
        page = replace(settings, web=True, web_port=0)
        views = OnCallViews(page, stage.client, clock=clock, explainer=LIVE)
        views.follow(stage.broker)
        views.record(stage.scheduler)
        documents = manifests.read([str(examples() / "pods")], fill=stage.ids.fill)
        http.start()
        views.start()
        try:
            scene.report(f"broker ready; metrics at {http.url}/metrics")
            scene.report(f"web page at {views.url}")
            good, other = _story(scene, documents)
            if not once:
                _start_return(scene, other)
                scene.report(PLAY)
                scene.stay(*_to_try(), page=views.url)
            return 0 if good else 1
        finally:
            views.close()
            http.close()


def _story(scene: Scene, documents: Sequence[dict[str, Any]]) -> tuple[bool, str]:
    """Whether every claim ended as expected, and the instance of another user that may leave."""
    stage, report = scene.stage, scene.report
    given = manifests.read([str(examples())], fill=stage.ids.fill)
    claims = [d for d in given if d["kind"] == NodeClaim.KIND.kind]
    other = account.rival(stage.aws.endpoint, stage.ids, stage.ids.names["ODCR_WEB"])
    served = [d for d in documents if (d["apiVersion"], d["kind"]) in manifests.KINDS]
    classes = apply(stage.client, [*served, *(d for d in given if d not in claims)])
    report(f"applied {len(classes)} classes and NodePools")
    shown: set[str] = set()
    scene.until(lambda: _every_class_shown(stage, shown, report))
    report(f"an instance of another user has one of the three slots of {stage.ids.names['ODCR_WEB']}")
    count = len(pods_of(documents))
    report(f"made {count} pods: a Deployment, a Job and a gang of two")
    for document in (d for d in documents if d not in served):
        metadata = {"namespace": "default", **document["metadata"]}
        scene.user.apply(WORKLOADS[document["kind"]], {**document, "metadata": metadata})
    placed = scene.until(lambda: sum(map(bool, _nodes(stage).values())) == count)
    _show_pods(scene)
    report(f"an instance of another user takes the only slot of {stage.ids.names['ODCR_FULL']}")
    account.rival(stage.aws.endpoint, stage.ids, stage.ids.names["ODCR_FULL"])
    report(f"applied {len(apply(stage.client, claims))} NodeClaims")
    finished = scene.until(lambda: _all_ready(stage))
    report("every claim has a node" if finished else "some claims still wait")
    return _closing(stage, scene.out) and placed, other


def _to_try() -> Sequence[str]:
    bought = os.path.relpath(examples() / "reservations" / "bought.yaml")
    return (
        "kubectl scale deployment shop --replicas=4",
        "kubectl get nodeclaims,ec2nodeclasses,odcr",
        "capacity-broker explain claim overflow-0",
        "capacity-broker inventory",
        f"kubectl apply -f {bought}",
        "kubectl get capacityreservations -A",
    )


def _nodes(stage: Stage) -> dict[str, str]:
    """The node of each pod; empty for one that waits."""
    pods = map(Pod.decode, stage.client.list(Pod.KIND, namespace="default")[0])
    return {pod.name: pod.spec.node_name for pod in pods if not pod.deleting}


def _show_pods(scene: Scene) -> None:
    """One line a pod: its node, and the reservation that EC2 counts the node in."""
    places = _places(scene.stage)
    for name, node in sorted(_nodes(scene.stage).items()):
        scene.report(f"pod {name:<22} on {node or '-'}, {places.get(node, 'no node yet')}")


def _places(stage: Stage) -> dict[str, str]:
    """The reservation in which EC2 counts each node, by its name."""
    slots = {i.id: i.reservation_id for i in stage.provider.instances()}
    slot_by_node = ((claim.status.node_name, slots.get(claim.instance_id, "")) for claim in _claims(stage))
    return {node: f"in a slot of {slot}" if slot else "on-demand" for node, slot in slot_by_node if node}


def _start_return(scene: Scene, other: str) -> None:
    """Frees a slot, and reports the node that returns to it while the demo stays up."""
    stage = scene.stage
    odcr = stage.ids.names["ODCR_WEB"]
    account.leave(stage.aws.endpoint, other)
    scene.report(f"a slot of {odcr} becomes free: a node returns to it once the slot was idle for a minute")

    def watch() -> None:
        def returned() -> bool:
            places = _places(stage)
            return sum(odcr in places.get(node, "") for node in _nodes(stage).values()) == WEB_SLOTS

        if scene.until(returned):
            scene.report("the node of one pod has returned to the reservation:")
            _show_pods(scene)

    threading.Thread(target=watch, name="return", daemon=True).start()


def _classes(stage: Stage) -> list[EC2NodeClass]:
    return sorted(map(EC2NodeClass.decode, stage.client.list(EC2NodeClass.KIND)[0]), key=lambda c: c.name)


def _every_class_shown(stage: Stage, shown: set[str], report: Callable[[str], None]) -> bool:
    """Shows each class once its reservations are resolved; True after all."""
    classes = _classes(stage)
    for node_class in classes:
        resolved = condition(node_class.status.conditions, names.RESERVATIONS_RESOLVED)
        if resolved is not None and resolved.status == "True" and node_class.name not in shown:
            report(f"class {node_class.name:<9} {resolved.reason}: {resolved.message}")
            shown.add(node_class.name)
    return bool(classes) and len(shown) == len(classes)


def _claims(stage: Stage) -> list[NodeClaim]:
    return sorted(map(NodeClaim.decode, stage.client.list(NodeClaim.KIND)[0]), key=lambda c: c.name)


def _all_ready(stage: Stage) -> bool:
    claims = _claims(stage)
    return bool(claims) and all(is_true(claim, names.READY) for claim in claims)


def _closing(stage: Stage, out: Console) -> bool:
    """Prints the closing table; returns True if every claim ended as its example expects."""
    instances = {i.id: i for i in stage.provider.instances()}
    rows = [_row(claim, instances, stage) for claim in _claims(stage)]
    out.print()
    out.print(table("", rows, columns=COLUMNS))
    good = bool(rows) and all(row["as"] == "yes" for row in rows)
    count = sum(row["as"] == "yes" for row in rows)
    out.print(f"\n{count} of {counted(len(rows), 'claim')} ended as the examples expect.")
    return good


def _row(claim: NodeClaim, instances: dict[str, Instance], stage: Stage) -> dict[str, Any]:
    attempts = recorded(claim)
    instance = instances.get(claim.instance_id)
    final = next((a for a in reversed(attempts) if a.outcome in (Outcome.LAUNCHED, Outcome.ADOPTED)), None)
    before = "; ".join(a.code for a in attempts if a.outcome in _NOT_TAKEN)
    return {
        "claim": claim.name,
        "pool": where(final.pool) if final else "-",
        "reservation": (instance.reservation_id if instance else "") or "-",
        "before": before or "-",
        "as": "yes" if _expected(claim, instance, stage) else "NO",
    }


_NOT_TAKEN = (Outcome.REFUSED, Outcome.SKIPPED, Outcome.SPILLED)


def _expected(claim: NodeClaim, instance: Instance | None, stage: Stage) -> bool:
    """EC2's own word on where the instance runs, against the example's."""
    if instance is None or not instance.alive or not is_true(claim, names.READY):
        return False
    expected: dict[str, Sequence[str]] = {
        "odcr": [stage.ids.names["ODCR_P5"]],
        "group": stage.provider.group(stage.ids.names["GROUP_ARN"]).member_ids,
        "open": [stage.ids.names["ODCR_OPEN"]],
        "on-demand": [""],
        "none": [""],
        "web": [stage.ids.names["ODCR_WEB"], ""],
    }
    return instance.reservation_id in expected.get(claim.annotations.get(names.EXPECT, ""), ())
