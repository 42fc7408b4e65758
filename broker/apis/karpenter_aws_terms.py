"""karpenter.k8s.aws: the selectors of an EC2NodeClass for AMIs, subnets, security groups, reservations
and its group.

Terms are ORed and the fields of one term ANDed (Karpenter's AWS provider 1.15, its CRD
karpenter.k8s.aws_ec2nodeclasses.yaml). An id selects alone; the CRD rejects fields beside it only if every
term has some, so `unread_fields` names them. The CRD accepts empty tags; `empty_terms` names such terms,
since they would select everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Final

from pydantic import Field

from broker.apis.meta import Model
from broker.apis.reservation_spec import ID
from broker.apis.schema import SchemaRule, crd

# alias family → the amiFamily that goes with it
AMI_FAMILIES: Mapping[str, str] = {
    "al2": "AL2",
    "al2023": "AL2023",
    "bottlerocket": "Bottlerocket",
    "windows2019": "Windows2019",
    "windows2022": "Windows2022",
    "windows2025": "Windows2025",
}
ACCOUNT = "^[0-9]{12}$"

Tags = Annotated[
    dict[str, str],
    crd(
        "Tags that the resource must have; the value * means any value.",
        SchemaRule(
            "self.all(k, k != '' && self[k] != '')", "a tag needs a key and a value; use '*' for any value"
        ),
        maxProperties=20,
    ),
]


def alone(field: str, *others: str, every: bool = True) -> SchemaRule:
    """A rule: a term with `field` has none of the others. `every`: only a list of such terms is rejected."""
    any_other = " || ".join(f"has(x.{other})" for other in others)
    several = f"has(x.{field}) && ({any_other})"
    return SchemaRule(
        f"self.size() == 0 || !self.all(x, {several})" if every else f"!self.exists(x, {several})",
        f"a term with '{field}' selects by that alone: move {', '.join(others)} to another term",
    )


def at_least_one(*fields: str) -> SchemaRule:
    return SchemaRule(
        f"self.all(x, {' || '.join(f'has(x.{field})' for field in fields)})",
        f"each term must set at least one of {', '.join(fields)}",
    )


class AMISelectorTerm(Model):
    """Selects AMIs; the fields of one term are ANDed, terms are ORed."""

    alias: Annotated[
        str,
        crd(
            "An EKS optimized AMI as family@version; version may be latest.",
            SchemaRule(
                "self.matches('^[a-zA-Z0-9]+@.+$')", "alias must be family@version, such as al2023@latest"
            ),
            SchemaRule(
                f"self.matches('^({'|'.join(AMI_FAMILIES)})@')",
                f"alias has an unknown family; known are {', '.join(AMI_FAMILIES)}",
            ),
            SchemaRule(
                "!self.startsWith('windows') || self.matches('^[^@]+@latest(@|$)')",
                "alias of a windows family must have the version latest",
            ),
            maxLength=30,
        ),
    ] = ""
    id: Annotated[str, crd("Id of the AMI.", pattern="ami-[0-9a-z]+")] = ""
    name: Annotated[str, crd("Name of the AMI (not its Name tag).")] = ""
    owner: Annotated[str, crd("Owner of the AMI: an account id, self, amazon or aws-marketplace.")] = ""
    tags: Tags = Field(default_factory=dict)
    ssm_parameter: Annotated[str, crd("Name or ARN of the SSM parameter that holds the AMI's id.")] = Field(
        default="", alias="ssmParameter"
    )


class SubnetSelectorTerm(Model):
    """Selects subnets; the fields of one term are ANDed, terms are ORed."""

    id: Annotated[str, crd("Id of the subnet.", pattern="subnet-[0-9a-z]+")] = ""
    tags: Tags = Field(default_factory=dict)


class SecurityGroupSelectorTerm(Model):
    """Selects security groups; the fields of one term are ANDed, terms are ORed."""

    id: Annotated[str, crd("Id of the security group.", pattern="sg-[0-9a-z]+")] = ""
    name: Annotated[str, crd("Name of the security group (not its Name tag).")] = ""
    tags: Tags = Field(default_factory=dict)


class CapacityReservationSelectorTerm(Model):
    """Selects capacity reservations for Karpenter; the fields of one term are ANDed, terms are ORed."""

    id: Annotated[str, crd("Id of the reservation.", pattern=ID)] = ""
    owner_id: Annotated[str, crd("Account that owns the reservation.", pattern=ACCOUNT)] = Field(
        default="", alias="ownerID"
    )
    instance_match_criteria: Annotated[
        str, crd("How instances are matched to the reservation.", enum=["open", "targeted"])
    ] = ""
    tags: Tags = Field(default_factory=dict)


class PlacementGroupSelector(Model):
    """The placement group that instances are launched into, by name or by id."""

    RULES: ClassVar[tuple[SchemaRule, ...]] = (
        SchemaRule("has(self.name) || has(self.id)", "placementGroupSelector must set name or id"),
        SchemaRule(
            "!(has(self.name) && has(self.id))",
            "placementGroupSelector must set one of name and id, not both",
        ),
    )

    id: Annotated[str, crd("Id of the placement group.", pattern="^pg-[0-9a-z]+$")] = ""
    name: Annotated[str, crd("Name of the placement group.", minLength=1)] = ""


SelectorTerm = (
    AMISelectorTerm | SubnetSelectorTerm | SecurityGroupSelectorTerm | CapacityReservationSelectorTerm
)
# The first of these that a term sets selects alone.
_ALONE: Final[Mapping[type[SelectorTerm], tuple[str, ...]]] = {
    AMISelectorTerm: ("id", "ssmParameter"),
    SubnetSelectorTerm: ("id",),
    SecurityGroupSelectorTerm: ("id", "name"),
    CapacityReservationSelectorTerm: ("id",),
}


def selecting(term: SelectorTerm) -> str:
    """The field that selects alone; empty if all fields of the term do."""
    fields = term.wire()
    return next((field for field in _ALONE[type(term)] if fields.get(field)), "")


def unread_fields(terms: Sequence[SelectorTerm]) -> Iterator[str]:
    """The fields beside one that selects alone, as `[0].tags`."""
    for index, term in enumerate(terms):
        if alone_ := selecting(term):
            yield from (f"[{index}].{field}" for field in term.wire() if field != alone_)


def empty_terms(terms: Sequence[SelectorTerm]) -> Iterator[str]:
    """The terms that would select everything, as `[0]`."""
    return (f"[{index}]" for index, term in enumerate(terms) if not any(term.wire().values()))
