"""Accepted and refused specs, with the words of each refusal.

One table for the API server's CEL and for the broker's own check: a case with different results fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

ID = "cr-0123456789abcdef0"
ARN = "arn:aws:resource-groups:us-east-1:123456789012:group/inference"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`refused` is empty for an accepted spec, or words that the refusal must contain."""

    name: str
    given: Any
    refused: tuple[str, ...] = ()


def target(**fields: Any) -> Json:
    return {"capacityReservationTarget": fields}


def preference(text: Any) -> Json:
    return {"capacityReservationPreference": text}


BOTH = ("capacityReservationPreference", "capacityReservationTarget", "cannot be set together")
TWO_TARGETS = ("capacityReservationId", "capacityReservationResourceGroupArn", "cannot be set together")
EMPTY_TARGET = ("capacityReservationTarget is empty", "capacityReservationId")
BAD_PREFERENCE = ("capacityReservationPreference must be open, none or capacity-reservations-only",)
BAD_ID = ("capacityReservationId must be the id", "cr-0123456789abcdef0")
BAD_ARN = ("capacityReservationResourceGroupArn must be the ARN of a resource group",)

RESERVATION_SPECS = (
    Case(name="open", given=preference("open")),
    Case(name="none", given=preference("none")),
    Case(name="None, as the first design wrote it too", given=preference("None")),
    Case(name="capacity-reservations-only alone", given=preference("capacity-reservations-only")),
    Case(name="an id", given=target(capacityReservationId=ID)),
    Case(
        name="an id with letters that EC2 does not use",
        given=target(capacityReservationId="cr-xyz"),
        refused=BAD_ID,
    ),
    Case(name="an id of another length", given=target(capacityReservationId="cr-0a1b2c3d")),
    Case(name="the longest id", given=target(capacityReservationId="cr-" + "0" * 61)),
    Case(name="a group", given=target(capacityReservationResourceGroupArn=ARN)),
    Case(
        name="a group in another partition",
        given=target(
            capacityReservationResourceGroupArn="arn:aws-us-gov:resource-groups:us-gov-west-1:"
            "123456789012:group/a.b_c-d"
        ),
    ),
    Case(
        name="a group with an id behind its name",
        given=target(capacityReservationResourceGroupArn=f"{ARN}/0123456789abcdefghijklmnop"),
    ),
    Case(
        name="an unknown field beside a known one",
        given=preference("open") | {"capacityReservationUsage": "first"},
    ),
    Case(
        name="preference with id",
        given=preference("open") | target(capacityReservationId=ID),
        refused=BOTH,
    ),
    Case(
        name="preference none with group",
        given=preference("none") | target(capacityReservationResourceGroupArn=ARN),
        refused=BOTH,
    ),
    Case(
        name="capacity-reservations-only with id",
        given=preference("capacity-reservations-only") | target(capacityReservationId=ID),
        refused=BOTH,
    ),
    Case(
        name="id with group",
        given=target(capacityReservationId=ID, capacityReservationResourceGroupArn=ARN),
        refused=TWO_TARGETS,
    ),
    Case(name="empty target", given=target(), refused=EMPTY_TARGET),
    Case(name="misspelt id", given=target(capacityReservationID=ID), refused=EMPTY_TARGET),
    Case(name="empty", given={}, refused=("capacityReservationSpec is empty",)),
    Case(
        name="misspelt preference",
        given={"preference": "open"},
        refused=("capacityReservationSpec is empty",),
    ),
    Case(name="unknown preference", given=preference("targeted"), refused=BAD_PREFERENCE),
    Case(name="preference in other case", given=preference("Open"), refused=BAD_PREFERENCE),
    Case(name="empty preference", given=preference(""), refused=BAD_PREFERENCE),
    Case(name="id of an instance", given=target(capacityReservationId="i-0123456789abcdef0"), refused=BAD_ID),
    Case(name="id in upper case", given=target(capacityReservationId="CR-0123"), refused=BAD_ID),
    Case(name="id with a space", given=target(capacityReservationId=f"{ID} "), refused=BAD_ID),
    Case(name="id with a line end", given=target(capacityReservationId=f"{ID}\n"), refused=BAD_ID),
    Case(name="empty id", given=target(capacityReservationId=""), refused=BAD_ID),
    Case(
        name="name of a group",
        given=target(capacityReservationResourceGroupArn="inference"),
        refused=BAD_ARN,
    ),
    Case(
        name="ARN of a reservation",
        given=target(
            capacityReservationResourceGroupArn=f"arn:aws:ec2:us-east-1:123456789012:capacity-reservation/{ID}"
        ),
        refused=BAD_ARN,
    ),
    Case(
        name="ARN without a group's name",
        given=target(capacityReservationResourceGroupArn=ARN.removesuffix("inference")),
        refused=BAD_ARN,
    ),
    Case(name="two wrong things", given=preference("any") | target(), refused=(*BOTH, *EMPTY_TARGET)),
)

# Refused by the schema before any rule runs: the words are the API server's, the result is the same.
MALFORMED = (
    Case(name="preference is a number", given=preference(5), refused=("capacityReservationPreference",)),
    Case(
        name="target is text",
        given={"capacityReservationTarget": ID},
        refused=("capacityReservationTarget",),
    ),
    Case(name="id is a list", given=target(capacityReservationId=[ID]), refused=("capacityReservationId",)),
    Case(
        name="id beyond all length",
        given=target(capacityReservationId="cr-" + "0" * 62),
        refused=("capacityReservationId",),
    ),
    Case(
        name="ARN beyond all length",
        given=target(capacityReservationResourceGroupArn=ARN + "x" * 500),
        refused=("capacityReservationResourceGroupArn",),
    ),
)


def node_class(
    *, version: str = "v1", spec: Mapping[str, Any] | None = None, without: tuple[str, ...] = ()
) -> Json:
    """An accepted class, with `spec` laid over it and the fields `without` left out."""
    base: Json = {
        "amiSelectorTerms": [{"alias": "al2023@latest"}],
        "subnetSelectorTerms": [{"tags": {"karpenter.sh/discovery": "demo"}}],
        "securityGroupSelectorTerms": [{"tags": {"karpenter.sh/discovery": "demo"}}],
        "role": "node",
    }
    merged = {key: value for key, value in (base | dict(spec or {})).items() if key not in without}
    return {
        "apiVersion": f"karpenter.k8s.aws/{version}",
        "kind": "EC2NodeClass",
        "metadata": {"name": "checked"},
        "spec": merged,
    }


def node_claim(**spec: Any) -> Json:
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "metadata": {"name": "checked"},
        "spec": {
            "nodeClassRef": {"group": "capacity-broker.io", "kind": "EC2NodeClass", "name": "gpu"},
            "requirements": [],
        }
        | spec,
    }


def node_pool(*, template: Mapping[str, Any] | None = None, **spec: Any) -> Json:
    inner = {
        "nodeClassRef": {"group": "capacity-broker.io", "kind": "EC2NodeClass", "name": "gpu"},
        "requirements": [],
    }
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": "checked"},
        "spec": {"template": {"spec": inner} | dict(template or {})} | spec,
    }
