"""Pods, nodes, leases, configmaps and disruption budgets, for random requests; see `kinds`."""

from random import Random

from tests.conformance.kinds import GIZMOS, LABELS, METADATA, WIDGETS, Kind, Object


def _pod(random: Random) -> Object:
    container: Object = {"name": "main", "image": "img:1"}
    if random.random() < 0.4:
        container["resources"] = {"requests": {"cpu": random.choice(("1", "500m", "0.5")), "memory": "1Gi"}}
    spec: Object = {"containers": [container]}
    if random.random() < 0.3:
        spec["nodeName"] = random.choice(("a", "n1"))
    if random.random() < 0.2:
        spec["terminationGracePeriodSeconds"] = random.choice((0, 1, 60))
    if random.random() < 0.2:
        spec["schedulingGates"] = [{"name": "test.io/gate"}]
    return {"metadata": {"labels": random.choice(LABELS)}, "spec": spec}


POD_CHANGES: tuple[Object, ...] = (
    {"spec": {"containers": [{"name": "main", "image": "img:2"}]}},
    {"spec": {"containers": [{"name": "side", "image": "img:3"}]}},
    {"spec": {"containers": [{"name": "main"}]}},
    {"spec": {"containers": []}},
    {"spec": {"nodeName": "n2"}},
    {"spec": {"nodeSelector": {"zone": "a"}}},
    {"spec": {"activeDeadlineSeconds": 30}},
    {"spec": {"terminationGracePeriodSeconds": 5}},
    {"spec": {"tolerations": [{"key": "k", "operator": "Exists"}]}},
    {"spec": {"schedulingGates": []}},
    {"spec": {"schedulingGates": None}},
    {"spec": {"priority": 5}},
    {"spec": {"restartPolicy": "Sometimes"}},
    {"spec": {"unknown": True}},
    {"status": {"phase": "Running"}},
)

RUNNING: Object = {
    "status": {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}],
    }
}
ALLOWS: Object = {
    "status": {
        "disruptionsAllowed": 1,
        "currentHealthy": 2,
        "desiredHealthy": 1,
        "expectedPods": 2,
        "observedGeneration": 9,
    }
}
FORBIDS: Object = {
    "status": {
        "disruptionsAllowed": 0,
        "currentHealthy": 1,
        "desiredHealthy": 1,
        "expectedPods": 1,
        "observedGeneration": 9,
    }
}

POD_STATUS: tuple[Object, ...] = (
    {"status": {"phase": "Running", "podIP": "10.0.0.1", "startTime": "2020-01-01T00:00:00Z"}},
    {"status": {"phase": "Succeeded"}},
    RUNNING,
    RUNNING,
    RUNNING,
    {
        "status": {
            "conditions": [
                {"type": "Ready", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"},
            ]
        }
    },
    {
        "status": {
            "conditions": [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "lastTransitionTime": "2020-01-01T00:00:00Z",
                }
            ]
        }
    },
    {"status": {"nominatedNodeName": "n1"}},
    {"status": {"message": "hello"}, "metadata": {"labels": {"app": "y"}}},
    {"status": {"conditions": None}},
)


def _node(random: Random) -> Object:
    spec: Object = {}
    if random.random() < 0.5:
        spec["taints"] = [{"key": "k", "value": "v", "effect": "NoSchedule"}]
    if random.random() < 0.5:
        spec["providerID"] = "aws:///us-east-1a/i-1"
    return {"metadata": {"labels": random.choice(LABELS)}, "spec": spec}


NODE_CHANGES: tuple[Object, ...] = (
    {"spec": {"taints": [{"key": "k", "value": "w", "effect": "NoSchedule"}]}},
    {"spec": {"taints": [{"key": "l", "effect": "NoExecute"}, {"key": "k", "effect": "NoSchedule"}]}},
    {"spec": {"taints": [{"key": "k", "effect": "Never"}]}},
    {"spec": {"taints": None}},
    {"spec": {"unschedulable": True}},
    {"spec": {"unschedulable": None}},
    {"spec": {"providerID": "aws:///us-east-1b/i-2"}},
    {"spec": {"providerID": None}},
    {"spec": {"podCIDR": "10.1.0.0/24"}},
    {"status": {"capacity": {"cpu": "4"}}},
)

NODE_STATUS: tuple[Object, ...] = (
    {"status": {"capacity": {"cpu": "4", "memory": "8Gi"}, "allocatable": {"cpu": "3900m"}}},
    {"status": {"capacity": {"cpu": "many"}}},
    {
        "status": {
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "KubeletReady",
                    "lastTransitionTime": "2020-01-01T00:00:00Z",
                    "lastHeartbeatTime": "2020-01-01T00:00:00Z",
                }
            ]
        }
    },
    {"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}},
    {"status": {"addresses": [{"type": "Hostname", "address": "h"}]}},
    {"status": {"nodeInfo": {"kubeletVersion": "v1.36.3"}}},
    {"status": {"conditions": None}, "spec": {"unschedulable": True}},
)


def _lease(random: Random) -> Object:
    spec: Object = {"holderIdentity": random.choice(("me", "you")), "leaseDurationSeconds": 15}
    if random.random() < 0.5:
        spec["renewTime"] = "2020-01-01T00:00:00.000000Z"
    return {"metadata": {"labels": random.choice(LABELS)}, "spec": spec}


LEASE_CHANGES: tuple[Object, ...] = (
    {"spec": {"holderIdentity": "them", "leaseTransitions": 1}},
    {"spec": {"holderIdentity": ""}},
    {"spec": {"holderIdentity": None}},
    {"spec": {"renewTime": "2020-02-02T02:02:02.123456Z"}},
    {"spec": {"renewTime": "2020-02-02T02:02:02Z"}},
    {"spec": {"leaseDurationSeconds": 0}},
    {"spec": {"leaseDurationSeconds": "x"}},
    {"spec": {"leaseTransitions": -1}},
    {"spec": None},
)


def _configmap(random: Random) -> Object:
    return {"metadata": {"labels": random.choice(LABELS)}, "data": {"k": random.choice(("v", "w"))}}


CONFIGMAP_CHANGES: tuple[Object, ...] = (
    {"data": {"k": "x"}},
    {"data": {"k": None, "l": "y"}},
    {"data": {"bad key": "x"}},
    {"data": {"k": 1}},
    {"data": None},
    {"binaryData": {"b": "aGVsbG8="}},
    {"binaryData": {"k": "aGVsbG8="}},
    {"immutable": True},
    {"immutable": None},
)


def _budget(random: Random) -> Object:
    return {
        "metadata": {"labels": random.choice(LABELS)},
        "spec": {
            "selector": {"matchLabels": {"app": random.choice("xy")}},
            "minAvailable": random.choice((1, "50%")),
        },
    }


BUDGET_CHANGES: tuple[Object, ...] = (
    {"spec": {"minAvailable": 2}},
    {"spec": {"minAvailable": "10%"}},
    {"spec": {"minAvailable": "ten"}},
    {"spec": {"minAvailable": None, "maxUnavailable": 1}},
    {"spec": {"maxUnavailable": 1}},
    {"spec": {"selector": {"matchLabels": {"app": "x"}}}},
)

BUDGET_STATUS: tuple[Object, ...] = (
    ALLOWS,
    ALLOWS,
    FORBIDS,
    {"status": {"disruptionsAllowed": 1, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}},
    {"status": {"disruptionsAllowed": -1}},
)

PODS = Kind(
    kind="Pod",
    api_version="v1",
    collection="/api/v1/namespaces/default/pods",
    make=_pod,
    changes=POD_CHANGES + METADATA,
    status_changes=POD_STATUS,
    subresources=("status", "binding", "eviction"),
    field_selectors=("spec.nodeName=n1", "status.phase=Pending", "metadata.name!=a", "spec.nodeName!=a"),
    last={"spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]}},
)

NODES = Kind(
    kind="Node",
    api_version="v1",
    collection="/api/v1/nodes",
    make=_node,
    changes=NODE_CHANGES + METADATA,
    status_changes=NODE_STATUS,
    subresources=("status",),
    field_selectors=("metadata.name!=a", "spec.unschedulable=false"),
)

LEASES = Kind(
    kind="Lease",
    api_version="coordination.k8s.io/v1",
    collection="/apis/coordination.k8s.io/v1/namespaces/default/leases",
    make=_lease,
    changes=LEASE_CHANGES + METADATA,
    field_selectors=("metadata.name!=a",),
)

CONFIGMAPS = Kind(
    kind="ConfigMap",
    api_version="v1",
    collection="/api/v1/namespaces/default/configmaps",
    make=_configmap,
    changes=CONFIGMAP_CHANGES + METADATA,
    field_selectors=("metadata.name!=a",),
)

BUDGETS = Kind(
    kind="PodDisruptionBudget",
    api_version="policy/v1",
    collection="/apis/policy/v1/namespaces/default/poddisruptionbudgets",
    make=_budget,
    changes=BUDGET_CHANGES + METADATA,
    status_changes=BUDGET_STATUS,
    subresources=("status",),
    field_selectors=("metadata.name!=a",),
    last={"spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "none"}}}},
)

ALL = (WIDGETS, GIZMOS, PODS, NODES, LEASES, CONFIGMAPS, BUDGETS)
