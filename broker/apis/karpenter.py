"""karpenter.sh: NodeClaim (one requested instance) and NodePool (the template and limits of claims).

Fields, rules and defaults are those of Karpenter v1 as its AWS provider 1.15 ships it
(karpenter.sh_nodeclaims.yaml, karpenter.sh_nodepools.yaml). A NodeClaim's spec never changes; conditions
of both are a map by type, so each party applies its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from broker.apis import names
from broker.apis.core import LABEL_KEY, LABEL_VALUE, Taint
from broker.apis.meta import LONGEST_MESSAGE, Condition, Kind, Model, Object, Quantity, Time, instance_of
from broker.apis.schema import SchemaRule, crd

OPERATORS = ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Gte", "Lte"]
DURATION = "^([0-9]+(s|m|h))+$"
DURATION_OR_NEVER = "^(([0-9]+(s|m|h))+|Never)$"


def _domain(variable: str, domain: str, allowed: tuple[str, ...]) -> str:
    """True for a key outside the domain and its subdomains, or one of the allowed."""
    escaped = domain.replace(".", "[.]")
    return f"{variable} in {list(allowed)} || !{variable}.matches('^[^/]*{escaped}(/|$)')"


def _domain_rules(*, over: bool) -> tuple[SchemaRule, ...]:
    """For one key, or with `over` for all keys of a map."""
    key = "k" if over else "self"
    rules = (
        (
            _domain(key, names.KARPENTER, names.KARPENTER_REQUIREMENT_KEYS),
            f"of the domain {names.KARPENTER} only {' and '.join(names.KARPENTER_REQUIREMENT_KEYS)} "
            "may be used; use a domain of your own",
        ),
        (
            f"{key} != '{names.HOSTNAME}'",
            f"{names.HOSTNAME} may not be used: a node's name is known only after its launch",
        ),
        (
            _domain(key, names.KARPENTER_AWS, names.KARPENTER_AWS_REQUIREMENT_KEYS),
            f"of the domain {names.KARPENTER_AWS} only Karpenter's own labels of instances may be used; "
            "use a domain of your own",
        ),
    )
    return tuple(SchemaRule(f"self.all(k, {rule})" if over else rule, message) for rule, message in rules)


class ClaimRequirement(Model):
    """A requirement on one label of the instance."""

    key: Annotated[
        str, crd("The label.", *_domain_rules(over=False), required=True, maxLength=316, pattern=LABEL_KEY)
    ]
    operator: Annotated[str, crd("How the label is compared with values.", required=True, enum=OPERATORS)] = (
        ""
    )
    values: Annotated[
        tuple[str, ...],
        crd(
            "The values to compare with: any number for In, one whole number for Gt, Lt, Gte and Lte.",
            x_kubernetes_list_type="atomic",
        ),
    ] = ()
    min_values: Annotated[
        int | None,
        crd("The number of different values that must stay possible.", minimum=1, maximum=50),
    ] = None


REQUIREMENTS = crd(
    "Requirements on the instance; all must hold.",
    SchemaRule(
        "self.all(x, x.operator != 'In' || (has(x.values) && x.values.size() != 0))",
        "a requirement with operator In needs at least one of values",
    ),
    SchemaRule(
        "self.all(x, !(x.operator in ['Gt', 'Lt', 'Gte', 'Lte']) || "
        "(has(x.values) && x.values.size() == 1 && int(x.values[0]) >= 0))",
        "a requirement with operator Gt, Lt, Gte or Lte needs values to be one whole number",
    ),
    SchemaRule(
        "self.all(x, x.operator != 'In' || !has(x.minValues) || "
        "(has(x.values) && x.values.size() >= x.minValues))",
        "a requirement with minValues needs at least that many values",
    ),
    required=True,
    maxItems=100,
    x_kubernetes_list_type="atomic",
)


class NodeClassRef(Model):
    """The class that defines how the instance is launched. Its group selects the launching controller."""

    group: Annotated[
        str,
        crd(
            f"{names.BROKER}: launched by the broker; {names.KARPENTER_AWS}: by Karpenter; "
            "eks.amazonaws.com: by EKS Auto Mode.",
            SchemaRule("self != ''", "nodeClassRef.group is empty"),
            required=True,
            pattern="^[^/]*$",
        ),
    ] = ""
    kind: Annotated[
        str, crd("Kind of the class.", SchemaRule("self != ''", "nodeClassRef.kind is empty"), required=True)
    ] = ""
    name: Annotated[
        str, crd("Name of the class.", SchemaRule("self != ''", "nodeClassRef.name is empty"), required=True)
    ] = ""


class ResourceRequests(Model):
    """The resources that the instance must have room for."""

    requests: Annotated[dict[str, Quantity], crd("Resources that pods will request.")] = Field(
        default_factory=dict
    )


class NodeClaimTemplateSpec(Model):
    """The common fields of a pool's claims."""

    node_class_ref: Annotated[NodeClassRef, crd(required=True)] = NodeClassRef()
    requirements: Annotated[tuple[ClaimRequirement, ...], REQUIREMENTS] = ()
    taints: Annotated[tuple[Taint, ...], crd("Taints of the node.", x_kubernetes_list_type="atomic")] = ()
    startup_taints: Annotated[
        tuple[Taint, ...],
        crd(
            "Taints of the node that are removed soon after its start; pods need not tolerate them.",
            x_kubernetes_list_type="atomic",
        ),
    ] = ()
    expire_after: Annotated[
        str, crd("How long the node may live.", default="720h", pattern=DURATION_OR_NEVER)
    ] = "720h"
    termination_grace_period: Annotated[
        str, crd("How long draining may take; unlimited if empty.", pattern=DURATION)
    ] = ""


class NodeClaimSpec(NodeClaimTemplateSpec):
    """The requested instance. Never changes."""

    RULES: ClassVar[tuple[SchemaRule, ...]] = (
        SchemaRule("self == oldSelf", "spec is immutable: delete the claim and make another"),
    )

    resources: Annotated[ResourceRequests, crd()] = ResourceRequests()


class NodeClaimCondition(Condition):
    """One observation of the claim's state."""

    reason: Annotated[
        str,
        crd(
            "Why, in one CamelCase word for programs.",
            maxLength=1024,
            pattern="^([A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?|)$",
        ),
    ] = ""
    message: Annotated[str, crd("Why, in a sentence for people.", maxLength=LONGEST_MESSAGE)] = ""


class NodeClaimStatus(Model):
    """The state of the claim and its instance."""

    node_name: Annotated[str, crd("Name of its Node.")] = ""
    provider_id: Annotated[str, crd("Its instance: aws:///ZONE/INSTANCE-ID.")] = Field(
        default="", alias="providerID"
    )
    image_id: Annotated[str, crd("Its AMI.")] = Field(default="", alias="imageID")
    capacity: Annotated[dict[str, Quantity], crd("The instance's capacity.")] = Field(default_factory=dict)
    allocatable: Annotated[dict[str, Quantity], crd("The part of the capacity for pods.")] = Field(
        default_factory=dict
    )
    conditions: Annotated[
        tuple[NodeClaimCondition, ...],
        crd(
            "Conditions of the claim.",
            map_key="type",
        ),
    ] = ()
    last_pod_event_time: Annotated[Time | None, crd("When a pod last came to or left the node.")] = None


class NodeClaim(Object):
    """One requested instance, and its state."""

    KIND: ClassVar[Kind] = Kind(group=names.KARPENTER, version="v1", kind="NodeClaim")
    ALIKE: ClassVar[bool] = True

    spec: Annotated[NodeClaimSpec, crd(required=True)] = NodeClaimSpec()
    status: NodeClaimStatus = NodeClaimStatus()

    @property
    def waits(self) -> bool:
        """Whether it still needs an instance."""
        return not self.status.provider_id and not self.deleting

    @property
    def instance_id(self) -> str:
        """Empty before the launch."""
        return instance_of(self.status.provider_id)

    @property
    def node_pool(self) -> str:
        """Empty for a claim of no NodePool."""
        return self.labels.get(names.NODEPOOL, "")

    @property
    def gang(self) -> str:
        """The claims that are launched together with it; empty for one that is launched alone."""
        return self.annotations.get(names.GANG, "")


def pods_of(claim: NodeClaim) -> list[str]:
    """The keys of the pods that the claim was made for."""
    return pods_in(claim.annotations)


def pods_in(annotations: Mapping[str, str]) -> list[str]:
    """The keys of the pods that a claim with these annotations was made for."""
    keys = (key.strip() for key in annotations.get(names.PODS, "").split(","))
    return [key for key in keys if key]


class Budget(Model):
    """The number of nodes that may be disrupted at once, and when."""

    nodes: Annotated[
        str,
        crd("A count or a percentage.", required=True, default="10%", pattern="^((100|[0-9]{1,2})%|[0-9]+)$"),
    ] = "10%"
    reasons: Annotated[
        tuple[Annotated[str, crd(enum=["Underutilized", "Empty", "Drifted", "Unhealthy"])], ...],
        crd("The reasons that it applies to; all if empty.", maxItems=50, x_kubernetes_list_type="set"),
    ] = ()
    schedule: Annotated[
        str,
        crd(
            "When it begins, as cron writes it, in UTC.",
            pattern=r"^(@(annually|yearly|monthly|weekly|daily|midnight|hourly))|((.+)\s(.+)\s(.+)\s(.+)\s(.+))$",
        ),
    ] = ""
    duration: Annotated[
        str,
        crd("How long it lasts, in hours and minutes.", pattern="^((([0-9]+(h|m))|([0-9]+h[0-9]+m))(0s)?)$"),
    ] = ""


class Disruption(Model):
    """When Karpenter may replace nodes of the pool."""

    consolidate_after: Annotated[
        str,
        crd("How long a node must be underutilized first.", default="0s", pattern=DURATION_OR_NEVER),
    ] = "0s"
    consolidation_policy: Annotated[
        str,
        crd(
            "Which nodes.",
            default="WhenEmptyOrUnderutilized",
            enum=["WhenEmpty", "WhenEmptyOrUnderutilized", "Balanced"],
        ),
    ] = "WhenEmptyOrUnderutilized"
    budgets: Annotated[
        tuple[Budget, ...],
        crd(
            "Limits on it; the strictest that is active counts.",
            SchemaRule(
                "self.all(x, has(x.schedule) == has(x.duration))",
                "a budget needs schedule and duration together, or neither",
            ),
            default=[{"nodes": "10%"}],
            maxItems=50,
            x_kubernetes_list_type="atomic",
        ),
    ] = (Budget(),)


NODEPOOL_RULE = f"{names.NODEPOOL} is set from the pool's own name"


class TemplateMeta(Model):
    """Labels and annotations of claims and nodes."""

    labels: Annotated[
        dict[str, Annotated[str, crd(maxLength=63, pattern=LABEL_VALUE)]],
        crd(
            "Labels of claims and nodes.",
            *_domain_rules(over=True),
            SchemaRule(
                f"self.all(k, k != '{names.NODEPOOL}')", f"{names.NODEPOOL} is set from the pool's own name"
            ),
            maxProperties=100,
            x_kubernetes_map_type="atomic",
        ),
    ] = Field(default_factory=dict)
    annotations: Annotated[
        dict[str, str], crd("Annotations of claims and nodes.", x_kubernetes_map_type="granular")
    ] = Field(default_factory=dict)


class PoolRequirement(ClaimRequirement):
    """A requirement on one label of the instance."""

    key: Annotated[
        str,
        crd(
            "The label.",
            *_domain_rules(over=False),
            SchemaRule(f"self != '{names.NODEPOOL}'", NODEPOOL_RULE),
            required=True,
            maxLength=316,
            pattern=LABEL_KEY,
        ),
    ]


class PoolNodeClassRef(NodeClassRef):
    """The class that defines how the instance is launched. Its group selects the launching controller,
    and is fixed."""

    RULES: ClassVar[tuple[SchemaRule, ...]] = tuple(
        SchemaRule(
            f"self.{field} == oldSelf.{field}",
            f"nodeClassRef.{field} is immutable: make another pool and remove this one",
        )
        for field in ("group", "kind")
    )


class PoolTemplateSpec(NodeClaimTemplateSpec):
    """The common fields of the pool's claims."""

    node_class_ref: Annotated[PoolNodeClassRef, crd(required=True)] = PoolNodeClassRef()
    requirements: Annotated[tuple[PoolRequirement, ...], REQUIREMENTS] = ()


class NodeClaimTemplate(Model):
    """The template of the pool's claims."""

    metadata: Annotated[TemplateMeta, crd()] = TemplateMeta()
    spec: Annotated[PoolTemplateSpec, crd(required=True)] = PoolTemplateSpec()


class NodePoolSpec(Model):
    """The claims that may be created, and their limits."""

    RULES: ClassVar[tuple[SchemaRule, ...]] = (
        SchemaRule(
            "has(self.replicas) == has(oldSelf.replicas)",
            "replicas cannot be added or removed: make another pool",
        ),
        SchemaRule(
            "!has(self.replicas) || !has(self.limits) || size(self.limits) == 0 || "
            "(size(self.limits) == 1 && 'nodes' in self.limits)",
            "limits of a pool with replicas can only be nodes",
        ),
        SchemaRule(
            "!has(self.replicas) || !has(self.weight)", "weight means nothing for a pool with replicas"
        ),
    )

    template: Annotated[NodeClaimTemplate, crd(required=True)] = NodeClaimTemplate()
    disruption: Annotated[Disruption, crd(default={"consolidateAfter": "0s"})] = Disruption()
    limits: Annotated[dict[str, Quantity], crd("Limits on the total resources of the pool's nodes.")] = Field(
        default_factory=dict
    )
    weight: Annotated[
        int | None, crd("Pools with more weight are tried first.", format="int32", minimum=1, maximum=100)
    ] = None
    replicas: Annotated[
        int | None,
        crd("A fixed number of nodes, instead of as many as pods need.", format="int64", minimum=0),
    ] = None


class NodePoolStatus(Model):
    """The nodes of the pool."""

    nodes: Annotated[int, crd("Its nodes.", default=0, format="int64")] = 0
    resources: Annotated[dict[str, Quantity], crd("Their total resources.")] = Field(default_factory=dict)
    node_class_observed_generation: Annotated[
        int | None, crd("Generation of the class that the pool's health was seen with.", format="int64")
    ] = None
    conditions: Annotated[
        tuple[Condition, ...],
        crd(
            "Conditions of the pool.",
            map_key="type",
        ),
    ] = ()


class NodePool(Object):
    """A template for claims that serve pods, with limits."""

    KIND: ClassVar[Kind] = Kind(group=names.KARPENTER, version="v1", kind="NodePool")

    spec: Annotated[NodePoolSpec, crd(required=True)] = NodePoolSpec()
    status: NodePoolStatus = NodePoolStatus()

    @property
    def draws_from(self) -> str:
        """The reservation that its nodes draw from, as it is written; empty for none."""
        return self.spec.template.metadata.annotations.get(names.DRAWS_FROM, "")
