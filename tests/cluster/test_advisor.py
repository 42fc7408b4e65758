"""What the broker writes into classes that Karpenter launches, beside a played Karpenter."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import names
from broker.apis.karpenter import NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.kube.client import Client
from tests.cluster import objects
from tests.cluster.account import A, B, tags
from tests.cluster.stack import Stack

LIST = "capacityReservationSelectorTerms"
ADVISED = names.RESERVATIONS_ADVISED


def terms(stack: Stack, name: str = "gpu") -> list[dict[str, Any]]:
    """The class's selector terms, as the API server serves them."""
    return list(stack.client.get(EC2NodeClass.KIND, name)["spec"].get(LIST, []))


def until_terms(stack: Stack, *wanted: dict[str, Any], name: str = "gpu") -> None:
    stack.until(lambda: terms(stack, name) == [*wanted], f"{name} has the terms {wanted}")


def pool(
    stack: Stack,
    name: str = "gpu",
    *,
    node_class: str = "gpu",
    capacity: tuple[str, ...] = (objects.RESERVED, objects.ON_DEMAND),
) -> str:
    """A NodePool of Karpenter's."""
    body = objects.node_pool(name, node_class=node_class)
    template = body["spec"]["template"]["spec"]
    template["nodeClassRef"]["group"] = names.KARPENTER_AWS
    template["requirements"] = (
        [{"key": names.CAPACITY_TYPE, "operator": "In", "values": [*capacity]}] if capacity else []
    )
    stack.client.create(NodePool.KIND, body)
    return name


def ids(*odcrs: str) -> list[dict[str, Any]]:
    return [{"id": odcr} for odcr in sorted(odcrs)]


@pytest.mark.covers("KRP-31")
def test_an_id_becomes_a_term_once_a_pool_of_karpenter_s_uses_the_class(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.start()
    stack.node_class(id_=odcr)
    stack.until_class(names.RESERVATIONS_RESOLVED, "True")
    assert terms(stack) == []
    pool(stack)
    until_terms(stack, {"id": odcr})
    stack.until_class(ADVISED, "True", reason="TermsWritten")


@pytest.mark.covers("KRP-31")
def test_the_terms_follow_the_members_of_a_group(stack: Stack) -> None:
    first, second = stack.aws.odcr(), stack.aws.odcr("m5.xlarge", B)
    group = stack.aws.group(first)
    stack.start()
    stack.node_class(group=group)
    pool(stack)
    until_terms(stack, {"id": first})
    stack.aws.join("team", second)
    until_terms(stack, *ids(first, second))
    stack.aws.ec2.cancel_capacity_reservation(CapacityReservationId=first)
    until_terms(stack, {"id": second})
    stack.aws.ec2.cancel_capacity_reservation(CapacityReservationId=second)
    until_terms(stack)
    stack.until_class(ADVISED, "True", reason="NothingToSelect")
