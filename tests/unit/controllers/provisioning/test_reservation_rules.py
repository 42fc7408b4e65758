"""The rules of a claim about its reservation, and claims in flight whose labels are not known yet."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.capacity.requirements import Requirements
from broker.controllers.nodereservation.occupancy import NodeOccupancy
from broker.controllers.provisioning.existing import PodAssignment, assign, existing
from broker.controllers.provisioning.learned import LearnedRoom
from broker.controllers.provisioning.reservation_rules import reservation_rules
from broker.placement.gangs import unknown_sizes
from broker.placement.packing_model import MachineOption, PendingPod
from broker.placement.storage import Storage
from tests.unit.placement.builders import pod
from tests.unit.placement.packing import TYPE, option, pending

KEY = names.RESERVATION_ID
Json = dict[str, Any]
NOW = datetime(2026, 11, 1, tzinfo=UTC)


def machine(source: str = "") -> MachineOption:
    return option(source=source, labels={KEY: source} if source else {})


OFFERED = [machine("one"), machine("two"), machine()]


def terms(*rules: Json) -> Json:
    """Required node affinity with a term for each rule."""
    selector = {"nodeSelectorTerms": [{"matchExpressions": [item]} for item in rules]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": selector}}}


def rule(operator: str, *values: str, key: str = KEY) -> Json:
    return {"key": key, "operator": operator, **({"values": [*values]} if values else {})}


NEAR = {"topologyKey": KEY, "labelSelector": {"matchLabels": {"app": "a"}}}


@pytest.mark.covers("FLT-03")
@pytest.mark.parametrize(
    ("spec", "fitting", "allowed"),
    [
        ({"nodeSelector": {KEY: "two"}}, [1], {"two"}),
        (terms(rule("In", "two", "three")), [1], {"two", "three"}),
        (terms(rule("NotIn", "one")), [1, 2], {"two", "three", None}),
        (terms(rule("Exists")), [0, 1], {"one", "two", "three"}),
        (terms(rule("DoesNotExist")), [2], {None}),
        # A choice between terms is made by the machines that fit.
        (terms(rule("In", "two"), rule("In", "three")), [1], {"two"}),
        (terms(rule("In", "two"), rule("DoesNotExist")), [1, 2], {"two", "three", None}),
        (terms(rule("NotIn", "one", "three"), rule("In", "one", key="zone")), [1, 2], {"two", None}),
        ({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [NEAR]}}},
         [1], {"two"}),
        # Without a rule of the pod: one reservation's nodes have less room, for a DaemonSet of theirs.
        ({}, [1, 2], {"two", "three", None}),
        ({}, [0, 1, 2], {"one", "two", "three", None}),
    ],
)  # fmt: skip
def test_claim_allows_exactly_the_reservations_that_its_pods_accept(
    spec: Json, fitting: list[int], allowed: set[str | None]
) -> None:
    rules = reservation_rules([pod(**spec)], [OFFERED[place] for place in fitting], OFFERED)
    required = Requirements.of((item["key"], item["operator"], item.get("values", ())) for item in rules)
    assert {value for value in ("one", "two", "three", None) if required.allows(KEY, value)} == allowed


def in_flight(*requirements: Json, pods: str = "default/own", **more: Any) -> NodeClaim:
    return NodeClaim.decode(
        {
            "metadata": {"name": "c", "uid": "c", "annotations": {names.PODS: pods}, "labels": more},
            "spec": {
                "nodeClassRef": {"group": names.BROKER, "kind": "EC2NodeClass", "name": "gpu"},
                "requirements": [*requirements],
                "resources": {"requests": {"cpu": "1", "memory": "1Gi", "pods": "1"}},
            },
        }
    )


def assigned(claim: NodeClaim, *pods: PendingPod) -> PodAssignment:
    known = existing(NodeOccupancy(), [claim], [], Storage(), LearnedRoom(), NOW)
    return assign(pods, known, [], unknown_sizes, NOW)


@pytest.mark.covers("FLT-03")
@pytest.mark.parametrize(
    "spec",
    [
        terms(rule("In", "m5.large", "m5.xlarge", key=TYPE)),
        terms(rule("NotIn", "one")),
        terms(rule("Exists", key=names.INSTANCE_GPU_NAME)),
        {"nodeSelector": {KEY: "two"}},
    ],
)
def test_pod_keeps_the_claim_that_was_made_for_it_until_its_labels_are_known(spec: Json) -> None:
    """Otherwise a second claim is made, with whatever pods come next."""
    claim = in_flight(rule("In", "m5.large", "m5.xlarge", key=TYPE))
    assert assigned(claim, pending("own", **spec)).nominated == {"default/own": "c"}


@pytest.mark.covers("FLT-03")
@pytest.mark.parametrize(
    ("rules", "spec", "takes"),
    [
        ([], {}, True),
        ([], terms(rule("DoesNotExist")), False),
        ([], terms(rule("NotIn", "one")), False),
        ([], terms(rule("Exists")), False),
        ([rule("NotIn", "one")], terms(rule("NotIn", "one")), True),
        ([rule("NotIn", "one", "two")], terms(rule("NotIn", "one")), True),
        ([rule("In", "two", "three")], terms(rule("NotIn", "one")), True),
        ([rule("In", "two", "three")], terms(rule("In", "two", "three", "four")), True),
        ([rule("In", "two", "three")], terms(rule("Exists")), True),
        ([rule("In", "two", "three")], terms(rule("In", "two")), False),
        ([{"key": KEY, "operator": "DoesNotExist"}], terms(rule("DoesNotExist")), True),
    ],
)
def test_pod_takes_the_room_of_another_claim_only_if_each_reservation_will_do(
    rules: list[Json], spec: Json, takes: bool
) -> None:
    claim = in_flight(*rules, pods="default/gone")
    assert (assigned(claim, pending("other", **spec)).taken == {"default/other": "c"}) is takes
