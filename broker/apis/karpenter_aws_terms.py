"""karpenter.k8s.aws: the selectors of an EC2NodeClass for AMIs, subnets, security groups, reservations
and its group.

Terms are ORed, the fields of one term ANDed, and an id stands alone (Karpenter's AWS provider 1.14, its
CRD karpenter.k8s.aws_ec2nodeclasses.yaml). Karpenter's CRD refuses a list only if every term of it breaks
the last rule; here one such term is enough. Karpenter's CRD accepts empty tags as a selection, which its
own objects cannot hold; here they are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

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
        SchemaRule(
            "self.size() != 0", "tags is empty and would select everything: name a tag or leave tags out"
        ),
        maxProperties=20,
    ),
]


def alone(field: str, *others: str) -> SchemaRule:
    """A rule: a term with `field` has none of the others."""
    any_other = " || ".join(f"has(x.{other})" for other in others)
    return SchemaRule(
        f"!self.exists(x, has(x.{field}) && ({any_other}))",
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
                "!self.startsWith('windows') || self.endsWith('@latest')",
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
