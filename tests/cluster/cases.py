"""Applies the objects of a case in tests/cases/faults; EC2's ids stand for its `${…}`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import yaml

from broker.apis.core import Pod
from broker.apis.karpenter import NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.meta import Kind
from local.demo.scheduling import schedule
from tests.cluster.objects import PROFILE
from tests.cluster.stack import Stack
from tests.support.fault_cases import case_text

_KINDS: Final[dict[str, Kind]] = {model.KIND.kind: model.KIND for model in (EC2NodeClass, NodePool, Pod)}


def reservations(stack: Stack, case: str) -> dict[str, str]:
    """Creates the reservations and the group of the case's world. Returns EC2's ids by their names."""
    world: dict[str, Any] = yaml.safe_load(case_text(case, "world"))
    ids: dict[str, str] = {}
    for name, item in world["reservations"].items():
        tenancy = {"Tenancy": item["tenancy"]} if "tenancy" in item else {}
        ids[name] = stack.aws.odcr(item["type"], item["zone"], item["count"], **tenancy)
    if group := world.get("group"):
        ids["GROUP"] = stack.aws.group(*(ids[name] for name in group))
    return ids


def objects_of(stack: Stack, case: str, ids: dict[str, str], file: str = "input") -> list[dict[str, Any]]:
    """The case's objects with EC2's ids."""
    text = case_text(case, file)
    subnets = str([{"id": subnet} for subnet in stack.aws.subnets.values()])
    known = {"AMI": stack.aws.image, "SG": stack.aws.security_group, "SUBNETS": subnets}
    known |= {key if key == "GROUP" else f"CR_{key}": value for key, value in ids.items()}
    for key, value in known.items():
        text = text.replace(f"${{{key}}}", value)
    return [*yaml.safe_load_all(text)]


def create(stack: Stack, bodies: Iterable[dict[str, Any]]) -> None:
    """Creates the objects as a user would, and lets kube-scheduler see the pods."""
    for body in bodies:
        if body["kind"] == EC2NodeClass.KIND.kind:
            body["spec"]["instanceProfile"] = PROFILE
        stack.client.create(_KINDS[body["kind"]], body)
    schedule(stack.client)


def apply(stack: Stack, case: str, file: str = "input") -> dict[str, str]:
    """The case's world and objects. Returns EC2's ids by their names in the world."""
    ids = reservations(stack, case)
    create(stack, objects_of(stack, case, ids, file))
    return ids
