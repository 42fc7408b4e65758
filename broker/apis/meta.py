"""The common parts of Kubernetes objects: kind, metadata, conditions, decoding and encoding.

Decoding is tolerant: unknown fields are ignored, so a newer API server or Karpenter changes nothing here.
It is also lossy, so objects are never written back whole: the broker patches. Field names and rules:
https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/object-meta/ and
https://github.com/kubernetes/community/blob/master/contributors/devel/sig-architecture/api-conventions.md
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Final, Literal, Protocol, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer
from pydantic.alias_generators import to_camel

from broker.apis.schema import SchemaRule, crd
from broker.text import bounded, format_micros, format_time

Json = dict[str, Any]
ConditionStatus = Literal["True", "False", "Unknown"]
_FIRST: Final = datetime.min.replace(tzinfo=UTC)
LONGEST_MESSAGE: Final = 32768  # characters of a condition's message, by metav1


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A resource in requests. `group` is empty for the core group, `plural` by default the usual one.

    `versions`: all that the broker reads, the preferred first, if they are several.
    """

    group: str
    version: str
    kind: str
    plural: str = ""
    namespaced: bool = False
    versions: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if not self.plural:
            object.__setattr__(self, "plural", _plural(self.kind.lower()))

    @property
    def api_version(self) -> str:
        """`v1`, `apps/v1`: the value of an object's apiVersion."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """`pods`, `ec2nodeclasses.karpenter.k8s.aws`: the form of kubectl and of a CRD's name."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(
        self, *, namespace: str | None = None, name: str | None = None, subresource: str | None = None
    ) -> str:
        """The URL path of a collection, an object, or its subresource.

        A collection of a namespaced kind without a namespace covers all namespaces.
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


def _plural(name: str) -> str:
    """Kubernetes' rule (apimachinery, pkg/api/meta, UnsafeGuessKindToResource)."""
    if name.endswith("s"):
        return f"{name}es"
    return f"{name[:-1]}ies" if name.endswith("y") else f"{name}s"


class Model(BaseModel):
    """A frozen value under Kubernetes' camelCase names. Python names work in constructors.

    `RULES` are the CEL rules of the object as a whole, for the CRD.
    """

    RULES: ClassVar[tuple[SchemaRule, ...]] = ()

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore", strict=False
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **_: object) -> None:
        """Gives the class its table of attribute names, which `broker.kube.lean` shares among its
        objects.

        Pydantic sets attributes from outside, and after some of those Python stops sharing the
        table.
        """
        first = object.__new__(cls)
        for name in cls.model_fields:
            object.__setattr__(first, name, None)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Returns itself, since it is frozen: pydantic copies a default for each object without the field."""
        return self

    def wire(self) -> dict[str, Any]:
        """The JSON of the fields that were set: no defaults, no nulls."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)


# metav1.Time is written in whole seconds; metav1.MicroTime is refused without exactly six digits.
Time = Annotated[datetime, AfterValidator(bounded), PlainSerializer(format_time, when_used="json")]
MicroTime = Annotated[datetime, AfterValidator(bounded), PlainSerializer(format_micros, when_used="json")]

# JSON may hold a quantity or an int-or-string as a number; here it is always text.
Text = Annotated[str, BeforeValidator(lambda value: str(value) if isinstance(value, int | float) else value)]
QUANTITY = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
Quantity = Annotated[
    Text,
    crd(anyOf=[{"type": "integer"}, {"type": "string"}], pattern=QUANTITY, x_kubernetes_int_or_string=True),
]


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
    creation_timestamp: Time | None = None
    deletion_timestamp: Time | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()


class Condition(Model):
    """One observation of the object's state. Reasons are CamelCase; messages are for people."""

    type: Annotated[
        str,
        crd(
            "Type of the condition, in CamelCase or in foo.example.com/CamelCase.",
            required=True,
            maxLength=316,
            pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
            r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
        ),
    ]
    status: Annotated[ConditionStatus, crd("True, False or Unknown.", required=True)] = "Unknown"
    reason: Annotated[
        str,
        crd(
            "Why, in one CamelCase word for programs.",
            required=True,
            minLength=1,
            maxLength=1024,
            pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
        ),
    ] = ""
    message: Annotated[
        str, crd("Why, in a sentence for people.", required=True, maxLength=LONGEST_MESSAGE)
    ] = ""
    last_transition_time: Annotated[Time | None, crd("When the status last changed.", required=True)] = None
    observed_generation: Annotated[
        int | None, crd("The metadata.generation that this was observed at.", format="int64", minimum=0)
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionUpdate:
    """One condition to set; `broker.kube.conditions.set_conditions` adds its time and generation.

    `since`: when the status began, if another system knows it.
    """

    type: str
    status: ConditionStatus
    reason: str
    message: str = ""
    since: datetime | None = None


class Object(Model):
    """A Kubernetes object. Subclasses set KIND and add `spec` and `status`.

    ALIKE: the number of objects of the kind with the same spec.
    """

    KIND: ClassVar[Kind]
    ALIKE: ClassVar[bool] = False

    metadata: ObjectMeta = ObjectMeta()

    @classmethod
    def decode(cls, raw: Mapping[str, Any] | bytes) -> Self:
        """Reads the API server's JSON, decoded or not."""
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
        """`name`, or `namespace/name`: the key in queues and caches."""
        metadata = self.metadata
        return f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name

    @property
    def labels(self) -> dict[str, str]:
        return self.metadata.labels

    @property
    def annotations(self) -> dict[str, str]:
        return self.metadata.annotations

    @property
    def created(self) -> datetime:
        """The first moment of all without a timestamp."""
        return self.metadata.creation_timestamp or _FIRST

    @property
    def age(self) -> tuple[datetime, str]:
        """Orders objects, the oldest first."""
        return self.created, self.key

    @property
    def deleting(self) -> bool:
        return self.metadata.deletion_timestamp is not None


def instance_of(provider_id: str) -> str:
    """The instance's id in `aws:///<zone>/<id>`; empty if there is none yet."""
    return provider_id.rpartition("/")[2]


def condition(conditions: tuple[Condition, ...], type_: str) -> Condition | None:
    """The condition of that type; None if it is not set."""
    for item in conditions:
        if item.type == type_:
            return item
    return None


class StatusWithConditions(Protocol):
    @property
    def conditions(self) -> tuple[Condition, ...]: ...


class ObjectWithConditions(Protocol):
    @property
    def status(self) -> StatusWithConditions: ...


def true_condition(obj: ObjectWithConditions, type_: str) -> Condition | None:
    """The condition of that type if its status is True."""
    current = condition(obj.status.conditions, type_)
    return current if current is not None and current.status == "True" else None


def is_true(obj: ObjectWithConditions, type_: str) -> bool:
    """Whether the object has the condition with status True."""
    return true_condition(obj, type_) is not None


def since(obj: ObjectWithConditions, type_: str, status: str = "True") -> datetime | None:
    """When the condition got this status; None if it does not have it."""
    current = condition(obj.status.conditions, type_)
    return current.last_transition_time if current is not None and current.status == status else None
