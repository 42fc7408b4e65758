"""`capacity-broker explain deployment|statefulset|job NAME`: the pods of a workload, equal ones summed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from broker.apis.core import Pod
from broker.apis.meta import Kind
from broker.commands.explain.explanation import Explanation
from broker.commands.explain.pod import PodExplainer
from broker.commands.explain.unknown_names import elsewhere, no_namespace, unknown
from broker.commands.output import age
from broker.kube.client import Client
from broker.kube.errors import Forbidden, NotFound
from broker.oncall.pod_facts import owner_of, pod_command, waits
from broker.oncall.situation import Situation
from broker.oncall.waiting_pods import WaitingGroup, grouped
from broker.oncall.workload_kinds import WORKLOADS
from broker.text import counted

KINDS: Final = {
    name: Kind(group=item.group, version="v1", kind=item.kind, plural=item.plural, namespaced=True)
    for name, item in WORKLOADS.items()
}
_ALIKE: Final = ("capacity_type", "reservation", "instance_type", "zone", "usd_hour")
MOST_GROUPS: Final = 3  # of unequal waiting pods, each with its options


def explain_workload(
    explainer: PodExplainer, connect: Callable[[], Client], kind: Kind, namespace: str, name: str
) -> list[Explanation]:
    """A page with the pods that run, then one for each group of equal pods that wait. Raises ValueError for a
    name that no workload has, and ApiError.
    """
    situation = explainer.situation
    pods = [
        pod for pod in situation.pods if pod.namespace == namespace and owner_of(pod) == f"{kind.kind} {name}"
    ]
    if not pods:
        _check(connect(), situation, kind, namespace, name)
    waiting = [pod for pod in pods if waits(pod)]
    groups = grouped(explainer.rows(waiting))
    by_key = {pod.key: pod for pod in waiting}
    pages = [
        explainer.page(by_key[group.first.key], alike=[by_key[row.key] for row in group.pods])
        for group in groups[:MOST_GROUPS]
    ]
    return [_summary(explainer, kind, f"{namespace}/{name}", pods, groups, pages), *pages]


def _check(client: Client, situation: Situation, kind: Kind, namespace: str, name: str) -> None:
    """Raises ValueError if the workload does not exist."""
    try:
        client.get(kind, name, namespace=namespace)
    except Forbidden:
        return  # its pods are known to be none
    except NotFound as error:
        every = [raw["metadata"] for raw in _every(client, kind, namespace)]
        same = (item["namespace"] for item in every if item["name"] == name)
        if text := elsewhere(kind.kind, name, namespace, same):
            raise ValueError(text) from error
        if text := no_namespace(namespace, (item.name for item in situation.namespaces)):
            raise ValueError(text) from error
        owners = {owner_of(pod): pod.key for pod in situation.pods if pod.namespace == namespace}
        for owner, pod in owners.items():
            if owner.startswith(f"{kind.kind}.") and owner.endswith(f" {name}"):
                raise ValueError(
                    f"{owner} is no {kind.kind} of {kind.group}; one of its pods: {pod_command(pod)}"
                ) from error
        known = {owner.partition(" ")[2] for owner in owners if owner.startswith(f"{kind.kind} ")}
        known |= {item["name"] for item in every if item["namespace"] == namespace}
        known = known or {item["name"] for item in every}
        command = f"kubectl get {kind.plural} -n {namespace}"
        raise ValueError(unknown(kind.kind, name, known, command)) from error


def _every(client: Client, kind: Kind, namespace: str) -> Sequence[Mapping[str, Any]]:
    """All objects of the kind; those of the namespace, if the caller may read no others."""
    try:
        return client.list(kind)[0]
    except Forbidden:
        return client.list(kind, namespace=namespace)[0]


def _summary(
    explainer: PodExplainer,
    kind: Kind,
    key: str,
    pods: Sequence[Pod],
    groups: Sequence[WaitingGroup],
    pages: Sequence[Explanation],
) -> Explanation:
    """The workload above the pages of its waiting pods. Each of these has the command that helps its pods, so
    a person gets no command twice.
    """
    waiting = [pod for pod in pods if waits(pod)]
    placed = [pod for pod in pods if pod.spec.node_name and not pod.ended]
    texts = [f"{len(placed)} of {counted(len(pods), 'pod')} on nodes"]
    if rows := explainer.rows(waiting):
        oldest = age(explainer.situation.now - (rows[0].since or explainer.situation.now))
        texts.append(f"{counted(len(rows), 'pod waits', 'pods wait')}, the oldest for {oldest}")
    namespace, _, name = key.partition("/")
    describe = f"kubectl describe {kind.plural.removesuffix('s')} -n {namespace} {name}"
    idle = "no pod waits" if pods else "its controller makes its pods, none if it is scaled to zero"
    left = groups[MOST_GROUPS:]
    if left:
        texts.append(counted(len(left), "more group of pods waits", "more groups of pods wait"))
    others = [{"command": group.first.command, "why": "pods of a group that is not below"} for group in left]
    help_ = {row["command"]: row for page in pages for row in page.parts["do"]}
    own = [] if rows else [{"command": describe, "why": "its conditions and events"}]
    return Explanation(
        subject=f"{kind.kind} {key}",
        headline="; ".join(texts) if pods else "it has no pod",
        parts={"placed": [*_places(explainer, placed)], "do": [*own, *help_.values(), *others[:1]]},
        shown={"do": [*own, *others[:1]]},
        next=["that of each group of pods is below"] if rows else [f"nothing: {idle}"],
        unread=explainer.situation.unread,
    )


def _places(explainer: PodExplainer, pods: Sequence[Pod]) -> Iterator[dict[str, Any]]:
    """One row for the pods in slots of one reservation, or of one sort outside reservations."""
    rows: dict[tuple[object, ...], list[dict[str, Any]]] = defaultdict(list)
    for pod in pods:
        row = explainer.place(pod)
        if row is not None:
            key = tuple(row[part] for part in _ALIKE)
            rows[key].append(row | {"pod": pod.key})
    for members in rows.values():
        claims = sorted({row["claim"] for row in members})
        first, price = members[0], members[0]["usd_hour"]
        yield {
            **first,
            "count": len(members),
            "claims": claims,
            "pods": sorted(row["pod"] for row in members),
            "usd_hour": None if price is None else round(price * len(claims), 2),
            "where": f"{counted(len(claims), 'claim')}\n{first['instance_type']} in {first['zone']}",
            "beside": None,
        }
