"""Accepted and refused NodeClaims and NodePools."""

from __future__ import annotations

from typing import Any

from tests.unit.apis.cases import Case, Json, node_claim, node_pool


def requirement(key: str, operator: str, *values: str, **more: Any) -> Json:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {}), **more}


def claim_of(*requirements: Json) -> Json:
    return node_claim(requirements=list(requirements))


CLAIMS = (
    Case(name="no requirements", given=claim_of()),
    Case(
        name="reserved only",
        given=claim_of(
            requirement("karpenter.sh/capacity-type", "In", "reserved"),
            requirement("node.kubernetes.io/instance-type", "In", "p5.48xlarge", "p5e.48xlarge", minValues=2),
            requirement("karpenter.k8s.aws/instance-gpu-count", "Gt", "3"),
            requirement("karpenter.k8s.aws/capacity-reservation-id", "Exists"),
            requirement("team.example.com/pool", "NotIn", "a"),
        ),
    ),
    Case(name="whole numbers as requests", given=node_claim(resources={"requests": {"cpu": 4}})),
    Case(name="quantities as requests", given=node_claim(resources={"requests": {"memory": "1.5Gi"}})),
    Case(
        name="no quantity",
        given=node_claim(resources={"requests": {"memory": "much"}}),
        refused=("spec.resources.requests",),
    ),
    Case(
        name="In without values", given=claim_of(requirement("a", "In")), refused=("at least one of values",)
    ),
    Case(name="a value that is no label's", given=claim_of(requirement("a", "NotIn", "a b", "x" * 70))),
    Case(name="Gt of a signed number", given=claim_of(requirement("a", "Gt", "+5"))),
    Case(name="Gt of text", given=claim_of(requirement("a", "Gt", "x")), refused=("one whole number",)),
    Case(name="Lte of two", given=claim_of(requirement("a", "Lte", "1", "2")), refused=("one whole number",)),
    Case(name="Gte of nothing", given=claim_of(requirement("a", "Gte")), refused=("one whole number",)),
    Case(
        name="unknown operator", given=claim_of(requirement("a", "Near", "1")), refused=("operator", "Near")
    ),
    Case(
        name="minValues beyond values",
        given=claim_of(requirement("a", "In", "1", minValues=2)),
        refused=("at least that many values",),
    ),
    Case(
        name="hostname",
        given=claim_of(requirement("kubernetes.io/hostname", "In", "a")),
        refused=("kubernetes.io/hostname may not be used",),
    ),
    Case(
        name="Karpenter's own domain",
        given=claim_of(requirement("karpenter.sh/registered", "In", "true")),
        refused=("of the domain karpenter.sh only",),
    ),
    Case(
        name="a subdomain of it",
        given=claim_of(requirement("x.karpenter.sh/y", "Exists")),
        refused=("of the domain karpenter.sh only",),
    ),
    Case(
        name="Karpenter's AWS domain",
        given=claim_of(requirement("karpenter.k8s.aws/instance-colour", "Exists")),
        refused=("of the domain karpenter.k8s.aws only",),
    ),
    Case(name="a look-alike domain", given=claim_of(requirement("karpenter.sh.example.com/y", "Exists"))),
    Case(
        name="too many requirements",
        given=claim_of(*[requirement("a", "Exists")] * 101),
        refused=("spec.requirements",),
    ),
    Case(
        name="no class",
        given=node_claim(nodeClassRef={"group": "capacity-broker.io", "kind": "EC2NodeClass", "name": ""}),
        refused=("nodeClassRef.name is empty",),
    ),
    Case(
        name="no group of the class",
        given=node_claim(nodeClassRef={"kind": "EC2NodeClass", "name": "gpu"}),
        refused=("spec.nodeClassRef.group",),
    ),
    Case(name="lives for ever", given=node_claim(expireAfter="Never", terminationGracePeriod="48h30m")),
    Case(name="lives for days", given=node_claim(expireAfter="30d"), refused=("expireAfter",)),
    Case(
        name="a taint without effect",
        given=node_claim(taints=[{"key": "gpu"}]),
        refused=("spec.taints[0].effect",),
    ),
)


def template(**metadata: Any) -> Json:
    return node_pool(template={"metadata": metadata})


POOLS = (
    Case(name="the least", given=node_pool()),
    Case(name="weight and limits", given=node_pool(weight=10, limits={"cpu": 1000, "nodes": "5"})),
    Case(name="replicas", given=node_pool(replicas=3, limits={"nodes": 5})),
    Case(
        name="replicas with weight", given=node_pool(replicas=3, weight=1), refused=("weight means nothing",)
    ),
    Case(
        name="replicas with a CPU limit",
        given=node_pool(replicas=3, limits={"cpu": 5}),
        refused=("can only be nodes",),
    ),
    Case(name="weight beyond 100", given=node_pool(weight=101), refused=("spec.weight",)),
    Case(name="labels", given=template(labels={"team": "ml", "karpenter.sh/capacity-type": "reserved"})),
    Case(
        name="label of the pool",
        given=template(labels={"karpenter.sh/nodepool": "x"}),
        refused=("set from the pool's own name",),
    ),
    Case(
        name="label of the host",
        given=template(labels={"kubernetes.io/hostname": "x"}),
        refused=("hostname",),
    ),
    Case(
        name="label of Karpenter's",
        given=template(labels={"karpenter.k8s.aws/mine": "x"}),
        refused=("of the domain karpenter.k8s.aws only",),
    ),
    Case(name="disruption without fields", given=node_pool(disruption={})),
    Case(
        name="budget of repairs",
        given=node_pool(disruption={"budgets": [{"nodes": "1", "reasons": ["Unhealthy"]}]}),
    ),
    Case(name="many limits", given=node_pool(limits={f"example.com/r{i}": 1 for i in range(120)})),
    Case(
        name="budget without an end",
        given=node_pool(
            disruption={"consolidateAfter": "1m", "budgets": [{"nodes": "1", "schedule": "@daily"}]}
        ),
        refused=("schedule and duration together",),
    ),
    Case(
        name="unknown consolidation",
        given=node_pool(disruption={"consolidateAfter": "1m", "consolidationPolicy": "Always"}),
        refused=("consolidationPolicy",),
    ),
)
