"""What every Kubernetes object has: its kind, its metadata, conditions, and how it is read and written.

Decoding is tolerant (unknown fields are ignored, so a newer API server or a newer Karpenter changes nothing
here) and lossy, so objects are never written back whole: the broker patches. Field names and rules:
https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/object-meta/ and
https://github.com/kubernetes/community/blob/master/contributors/devel/sig-architecture/api-conventions.md
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

ConditionStatus = Literal["True", "False", "Unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A resource as requests name it. `group` is empty for the core group."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool

    @property
    def api_version(self) -> str:
        """`v1`, `apps/v1`: what an object's apiVersion says."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """`pods`, `ec2nodeclasses.karpenter.k8s.aws`: how kubectl and a CRD's name spell it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(
        self, *, namespace: str | None = None, name: str | None = None, subresource: str | None = None
    ) -> str:
        """The URL path of a collection, an object, or its subresource.

        A collection of a namespaced kind without a namespace is that of all namespaces.
        """
        if namespace and not self.namespaced:
            raise ValueError(f"{self.kind} has no namespace, got {namespace!r}")
        if name and self.namespaced and not namespace:
            raise ValueError(f"{self.kind} {name!r} needs a namespace")
        if subresource and not name:
            raise ValueError(f"subresource {subresource!r} of {self.kind} needs a name")
        parts = ["/apis", self.group] if self.group else ["/api"]
        parts.append(self.version)
        parts += ["namespaces", namespace] if namespace else []
        return "/".join([*parts, self.plural, *filter(None, (name, subresource))])


class Model(BaseModel):
    """A frozen value under Kubernetes' camelCase names. Python names work in constructors."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore", strict=False
    )

    def wire(self) -> dict[str, Any]:
        """The JSON that was set: no defaults, no nulls."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)


# JSON may hold a quantity or an int-or-string as a number; here it is always text.
Text = Annotated[str, BeforeValidator(lambda value: str(value) if isinstance(value, int | float) else value)]
Quantity = Text


# https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
SCALES = {f"{prefix}i": Decimal(1024) ** power for power, prefix in enumerate("KMGTPE", 1)}
SCALES |= {suffix: Decimal(1000) ** power for power, suffix in enumerate("num", -3)}
SCALES |= {suffix: Decimal(1000) ** power for power, suffix in enumerate("kMGTPE", 1)}


@lru_cache(maxsize=4096)
def quantity(text: str) -> float:
    """`100m`, `2Gi`, `1e3` in base units: cores, bytes, counts."""
    suffix = next((text[-size:] for size in (2, 1) if text[-size:] in SCALES), "")
    try:
        return float(Decimal(text.removesuffix(suffix)) * SCALES.get(suffix, Decimal(1)))
    except InvalidOperation:
        raise ValueError(
            f"not a quantity: {text!r}; write a number with a suffix such as m, k, Mi or Gi"
        ) from None


def quantities(values: Mapping[str, str]) -> dict[str, float]:
    return {name: quantity(value) for name, value in values.items()}


class OwnerReference(Model):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(Model):
    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()


class Condition(Model):
    """metav1.Condition, as https://pkg.go.dev/k8s.io/apimachinery/pkg/apis/meta/v1#Condition."""

    type: str
    status: ConditionStatus = "Unknown"
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None
    observed_generation: int | None = None


class Object(Model):
    """A Kubernetes object. Subclasses set KIND and add `spec` and `status`."""

    KIND: ClassVar[Kind]

    metadata: ObjectMeta = ObjectMeta()

    @classmethod
    def decode(cls, raw: Mapping[str, Any] | bytes) -> Self:
        """From what the API server sent, decoded or not."""
        return cls.model_validate_json(raw) if isinstance(raw, bytes) else cls.model_validate(raw)

    def wire(self) -> dict[str, Any]:
        return {"apiVersion": self.KIND.api_version, "kind": self.KIND.kind, **super().wire()}

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def key(self) -> str:
        """`name`, or `namespace/name`: what queues and caches know it by."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @property
    def labels(self) -> dict[str, str]:
        return self.metadata.labels

    @property
    def annotations(self) -> dict[str, str]:
        return self.metadata.annotations

    @property
    def deleting(self) -> bool:
        return self.metadata.deletion_timestamp is not None


def condition(conditions: tuple[Condition, ...], type_: str) -> Condition | None:
    """The condition of that type; None when nobody has set it."""
    return next((item for item in conditions if item.type == type_), None)
