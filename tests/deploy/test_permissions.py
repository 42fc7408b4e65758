"""The chart's roles are enough for a claim's whole life, and hold no unused right.

On the real API server the broker acts as the chart's service account, so that Kubernetes' own authorizer
decides.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any

import yaml

import broker.apis
from broker.apis import names
from broker.apis.capacity_broker import OnDemandCapacityReservation
from broker.apis.coordination import Lease
from broker.apis.core import Event, Node, Pod
from broker.apis.crds import KIND as CRD
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.meta import Kind
from broker.app import LEASE, Broker
from broker.controllers.launch.calls import RECORDS
from broker.controllers.launch.published import read_shortages
from broker.controllers.odcr.mirror import MANAGED_BY
from broker.controllers.provisioning.published import read_reports, read_types
from broker.kube.client import Client
from broker.kube.errors import AlreadyExists
from broker.kube.identity import NAMESPACE as SYSTEM
from broker.notifications import record
from broker.run import lead
from providers.names import MANAGER
from tests.cluster.everything import pod_groups, unserved
from tests.cluster.karpenter import installed, pool, served, until_terms
from tests.cluster.objects import ON_DEMAND, PDB, RESERVED
from tests.cluster.stack import SETTINGS, Stack
from tests.cluster.taps import writes_of
from tests.deploy import helm
from tests.deploy.ome_story import kueue, reviewing, story
from tests.deploy.requests import AccessRequest, Recording, allows, grants
from tests.deploy.strict import Json

CLUSTER_RULES: list[Json] = [
    rule
    for file in ("cluster", "ome", "webhook", "advisor", "definition")
    for rule in yaml.safe_load((helm.CHART / "rbac" / f"{file}.yaml").read_text())
]
# Room on nodes has a story of its own.
SCHEDULER_RULES: list[Json] = [
    rule
    for file in ("rooms", "scheduler", "scheduler-alone")
    for rule in yaml.safe_load((helm.CHART / "rbac" / f"{file}.yaml").read_text())
]
# Inside of a namespace, by its name.
OWN_RULES: dict[str, list[Json]] = {
    namespace: yaml.safe_load((helm.CHART / "rbac" / f"{file}.yaml").read_text())
    for namespace, file in ((SYSTEM, "system-namespace"), (helm.NAMESPACE, "webhook-namespace"))
}
# The RBAC verbs of the client's methods.
VERBS = {verb: verb for verb in ("get", "list", "watch", "create", "update", "patch", "delete")}
VERBS |= {"apply": "patch", "evict": "create"}
KINDS = {"EVENT": Event.KIND, "LEASE": Lease.KIND, "crds": CRD}
for module in pkgutil.iter_modules(broker.apis.__path__, "broker.apis."):
    members = vars(importlib.import_module(module.name)).items()
    KINDS |= {
        name: member.KIND for name, member in members if isinstance(getattr(member, "KIND", None), Kind)
    }
ACCOUNT = f"system:serviceaccount:{helm.NAMESPACE}:{helm.RELEASE}"


def kind(name: str, plural: str, *, namespaced: bool) -> Kind:
    group = "rbac.authorization.k8s.io"
    return Kind(group=group, version="v1", kind=name, plural=plural, namespaced=namespaced)


NAMESPACE = Kind(group="", version="v1", kind="Namespace", plural="namespaces", namespaced=False)
CLUSTER_ROLE = kind("ClusterRole", "clusterroles", namespaced=False)
CLUSTER_BINDING = kind("ClusterRoleBinding", "clusterrolebindings", namespaced=False)
ROLE = kind("Role", "roles", namespaced=True)
BINDING = kind("RoleBinding", "rolebindings", namespaced=True)


@contextmanager
def granted(client: Client) -> Iterator[None]:
    """The chart's roles, bound to its service account."""
    subjects = [{"kind": "ServiceAccount", "name": helm.RELEASE, "namespace": helm.NAMESPACE}]
    meta = {"name": helm.RELEASE}
    refers = {"apiGroup": ROLE.group, "name": helm.RELEASE}
    created: list[tuple[Kind, Json]] = [
        (CLUSTER_ROLE, {"metadata": meta, "rules": CLUSTER_RULES}),
        (
            CLUSTER_BINDING,
            {"metadata": meta, "subjects": subjects, "roleRef": {**refers, "kind": "ClusterRole"}},
        ),
    ]
    for namespace, rules in OWN_RULES.items():
        inside = {**meta, "namespace": namespace}
        created.append((ROLE, {"metadata": inside, "rules": rules}))
        created.append(
            (BINDING, {"metadata": inside, "subjects": subjects, "roleRef": {**refers, "kind": "Role"}})
        )
    with suppress(AlreadyExists):  # the real server keeps a namespace between tests
        client.create(NAMESPACE, {"metadata": {"name": helm.NAMESPACE}})
    for kind, body in created:
        client.create(kind, body)
    try:
        yield
    finally:
        for kind, body in created:
            client.delete(kind, helm.RELEASE, namespace=body["metadata"].get("namespace"))


@contextmanager
def leading(stack: Stack, recording: Recording) -> Iterator[Broker]:
    """A broker under its Lease, with a record of all its requests."""
    running: list[Broker | None] = []
    stop = threading.Event()
    provider = stack.provider()
    provider.instance_types()
    settings: Any = {
        **vars(SETTINGS),
        "leader_election": True,
        "namespace": helm.NAMESPACE,
        "keep_definition": True,
        "buy_dollars": 1000.0,
        "scheduler_names": "",
    }
    thread = threading.Thread(
        target=lead,
        args=(Client(recording), provider, type(SETTINGS)(**settings)),
        kwargs={"clock": stack.clock, "stop": stop, "running": running.append},
    )
    thread.start()
    stack.kubelets.start()
    try:
        first = stack.until(lambda: running[:1], "the Lease was won")[0]
        assert first is not None
        yield first
    finally:
        stop.set()
        stack.clock.advance(1)
        thread.join(120)
        stack.kubelets.stop()


EVICTION = AccessRequest(verb="create", group="", resource="pods/eviction", namespace="default", name="held")


def _types_and_reasons_are_published(stack: Stack) -> None:
    """As soon as a pod waits."""
    stack.pod("waits", nodeSelector={names.NODEPOOL: "none"})
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node"}
    stack.client.patch(
        Pod.KIND, "waits", {"status": {"conditions": [refused]}}, namespace="default", subresource="status"
    )
    stack.until(lambda: read_types(stack.client), "the instance types are published")
    stack.until(lambda: read_reports(stack.client), "its reason is published", step=1.0)
    stack.delete(Pod, "waits", namespace="default")


def life(stack: Stack, broker: Broker, recording: Recording) -> None:
    """Two claims for one slot: launch, refusal, fallback, join, drain against a budget, end."""
    odcr = stack.aws.odcr(count=1)
    # As after a reservation that EC2 no longer shows.
    mirror = {"metadata": {"name": "cr-00000000000000000", "labels": {MANAGED_BY: MANAGER}}}
    stack.client.create(OnDemandCapacityReservation.KIND, mirror)
    stack.node_pool()
    stack.until(lambda: served(stack), "the field is added to Karpenter's definition")
    stack.node_class(id_=odcr)
    advised(stack, odcr)
    stack.pod("train")
    # Another client writes to the claim just before the broker does: the broker reads it again.
    rival = {"metadata": {"annotations": {"team": "a"}}}
    stack.tap.on(writes_of("nodeclaims", "c-0"), lambda _: stack.edit(NodeClaim, "c-0", rival))
    stack.claim("c-0", pool="gpu")
    stack.until_ready("c-0")
    assert stack.reservation_of("c-0") == odcr
    stack.claim("c-1", capacity=(RESERVED,), pods=("default/train",))
    stack.until_event("train", "AllReservationsFull", kind="Pod")
    stack.claim("c-2", capacity=(RESERVED, ON_DEMAND), pool="gpu", pods=("default/train",))
    stack.until_ready("c-2")
    nominated = stack.get(Pod, "train", namespace="default").status.nominated_node_name
    assert nominated == stack.get(NodeClaim, "c-2").status.node_name
    stack.until(lambda: _reported_full(stack), "the pool's condition shows that its reservation is full")

    code = "InsufficientInstanceCapacity"
    stack.control.fault(action="CreateFleet", stage="launch", times=1, code=code, message="none left")
    stack.claim("c-3", capacity=(ON_DEMAND,))
    stack.until(lambda: read_shortages(stack.client).by_scope, "the shortage is published")
    stack.delete(NodeClaim, "c-3")

    record.write(broker.client, record.read(broker.client))
    _types_and_reasons_are_published(stack)

    # From here on only the broker removes nodes.
    stack.kubelets.stop()
    drained = stack.get(NodeClaim, "c-0").status.node_name
    stack.budget("none", app="train", allowed=0)
    stack.pod("held", node=drained, labels={"app": "train"})
    # A budget holds only pods that are ready.
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    stack.client.patch(Pod.KIND, "held", {"status": ready}, namespace="default", subresource="status")
    stack.until(lambda: broker.read.pods.cache.find("default/held"), "the broker sees the pod")
    stack.delete(NodeClaim, "c-0")
    stack.until_event("c-0", "EvictionBlocked")
    # Another text between two equal ones: the second of these is counted on the event of the first.
    claim = stack.get(NodeClaim, "c-0")
    for text in ("one", "another", "one"):
        broker.recorder.event(claim, "Normal", "Counted", text)
        broker.recorder.flush()
    for tries in (2, 3):
        stack.clock.advance(2)
        stack.until(lambda n=tries: recording.seen[EVICTION] >= n, "the eviction is tried again")  # type: ignore[misc]
    stack.client.delete(PDB, "none", namespace="default")
    stack.until_gone(NodeClaim, "c-0")
    stack.until_gone(Node, drained)

    stack.until_gone(OnDemandCapacityReservation, "cr-00000000000000000")
    stack.delete(Node, stack.get(NodeClaim, "c-2").status.node_name)
    stack.until_gone(NodeClaim, "c-2")


def advised(stack: Stack, odcr: str) -> None:
    """A class that Karpenter launches gets its terms, and its spec is copied."""
    stack.node_class("theirs", id_=odcr)
    pool(stack, "theirs", node_class="theirs")
    until_terms(stack, {"id": odcr}, name="theirs")
    stack.until(
        lambda: names.ACCEPTED_SPEC in stack.get(EC2NodeClass, "theirs").annotations, "copied", step=1.0
    )


def _reported_full(stack: Stack) -> bool:
    condition = stack.condition(NodePool, "gpu", names.CAPACITY_RESERVATION)
    return condition is not None and condition.status == "False"


def calls() -> list[tuple[str, str, int]]:
    """Every call of a client in the code of a broker, as `verb group/resource`, with its file and line."""
    folder = helm.ROOT / "broker"
    places = ((folder / "controllers", "**/*.py"), (folder / "admission", "*.py"), (folder / "kube", "*.py"))
    files = sorted(file for place, files in places for file in place.glob(files))
    return [
        (text, file.name, node.lineno)
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and (text := _called(node, file.name))
    ]


def _called(node: ast.Call, file: str) -> str:
    args = node.args
    if isinstance(node.func, ast.Attribute):
        client, method = ast.unparse(node.func.value), node.func.attr
    elif ast.unparse(node.func) == "remove" and args:  # broker.kube.removal
        client, method, args = ast.unparse(args[0]), "delete", args[1:]
    else:
        return ""
    if method not in VERBS or client not in ("client", "self._client"):
        return ""
    verb = VERBS[method]
    if method == "evict":
        return f"{verb} /pods/eviction"
    path = ast.unparse(args[0]).removesuffix(".KIND")
    first = path.rpartition(".")[2]
    if file == "informer.py" or (first not in KINDS and first[:1].islower()):
        return ""  # of several kinds, which a life and a story show
    assert first in KINDS, f"{file}:{node.lineno}: {first} is a kind that this test does not know"
    named = (k.value for k in node.keywords if k.arg == "subresource")
    more = [value.value for value in named if isinstance(value, ast.Constant)]
    return f"{verb} {KINDS[first].group}/{'/'.join([KINDS[first].plural, *map(str, more)])}"


def test_every_call_in_the_code_is_allowed() -> None:
    """Also those that no claim's life comes to."""
    allowed = {
        f"{verb} {group}/{resource}"
        for rule in (*CLUSTER_RULES, *SCHEDULER_RULES, *chain(*OWN_RULES.values()))
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    code_calls = calls()
    assert len(code_calls) > 15
    assert [call for call in code_calls if call[0] not in allowed] == []


def alike(grant: Mapping[str, Any]) -> Mapping[str, Any]:
    """Which ConfigMap records a fleet call depends on its id: a life of few calls uses some of them."""
    named = grant.get("resourceNames", [""])[0]
    return {**grant, "resourceNames": RECORDS} if named in RECORDS else grant


def _first(grant: Mapping[str, Any]) -> tuple[str, str, str]:
    return grant["apiGroups"][0], grant["resources"][0], grant["verbs"][0]


def test_the_roles_are_enough_and_no_more(stack: Stack) -> None:
    recording = Recording(stack.tap, ACCOUNT)
    with installed(stack), pod_groups(stack), kueue(stack) as world, granted(stack.client):
        with leading(stack, recording) as broker, reviewing(stack, Client(recording)) as webhook:
            life(stack, broker, recording)
            story(world, webhook)
        assert stack.get(Lease, LEASE, namespace=SYSTEM).spec.holder_identity in (None, "")
        # Its list is not found, so that no watch follows.
        unwatched = {(model.KIND.group, model.KIND.plural, "watch") for model in unserved(stack)}
    assert recording.refused == []
    everything = set(recording.seen)
    inside = ("leases", "configmaps", "secrets")
    own = {
        namespace: {a for a in everything if a.namespace == namespace and a.resource in inside}
        for namespace in OWN_RULES
    }
    checked = [(OWN_RULES[namespace], seen) for namespace, seen in own.items()]
    for rules, seen in (*checked, (CLUSTER_RULES, everything.difference(*own.values()))):
        beyond = [str(a) for a in sorted(seen) if not any(allows(rule, a) for rule in rules)]
        assert beyond == [], "used, and not in the chart's roles"
        idle = [grant for grant in grants(rules) if not any(allows(alike(grant), a) for a in seen)]
        idle = [grant for grant in idle if _first(grant) not in unwatched]
        assert idle == [], "in the chart's roles, and never used"
