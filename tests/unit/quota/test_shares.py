"""Fair sharing: the largest share, and the setting."""

from __future__ import annotations

import pytest

from broker.options import problems
from broker.quota.model import FlavorResource, Queue, Quota, QuotaCohort
from broker.quota.shares import share
from broker.quota.tree import Tree
from broker.settings import Settings
from tests.unit.quota.rounds import CLASS, Dedicated, Reservation, Setting, World

CPU = FlavorResource("default", "cpu")
RARE = FlavorResource("default", "rare")
P5 = "p5.48xlarge"
BOTH = "LessThanOrEqualToFinalShare,LessThanInitialShare"


@pytest.mark.covers("SAF-36")
@pytest.mark.parametrize(
    ("weight", "used", "published"),
    [
        (0.0, {}, 0),
        (0.0, {CPU: 10}, 0),  # all of its own, and nothing borrowed
        (0.0, {CPU: 11}, None),
        (0.0, {RARE: 5}, 0),  # it borrows a resource of which its cohort lends none
        (0.0, {RARE: 5, CPU: 11}, None),
        (2.0, {CPU: 14}, 100),
        (2.0, {RARE: 5}, 0),
    ],
)
def test_weight_of_zero_is_infinite_only_if_the_node_borrows(
    weight: float, used: dict[FlavorResource, int], published: int | None
) -> None:
    quotas = {CPU: Quota(nominal=10), RARE: Quota(nominal=0)}
    tree = Tree(
        [
            Queue(name="a", cohort="c", quotas=quotas, weight=weight),
            Queue(name="b", cohort="c", quotas=quotas),
        ],
        [QuotaCohort(name="c")],
    )
    tree.queues["a"].add(used)
    node_share = share(tree.queues["a"])
    assert node_share.published == published
    # The largest of all only if it is infinite.
    tree.queues["b"].add({CPU: 20})
    assert (node_share.order > share(tree.queues["b"]).order) is (published is None)


@pytest.mark.covers("SAF-36")
@pytest.mark.parametrize(
    ("fair", "drained"),
    [("", []), (BOTH, [("cluster a2", "b0", "InCohortFairSharing")])],
)
def test_fair_sharing_is_a_setting(fair: str, drained: list[tuple[str, str, str]]) -> None:
    """Two reservations borrow from a third: one already borrows all three slots when the other requests
    one."""
    rule = {"reclaimWithinCohort": "Any"}
    world = World(
        Setting(
            reservations=[
                Reservation(name="a", nominal={P5: 0}, rule=rule),
                Reservation(name="b", nominal={P5: 0}, rule=rule),
                Reservation(name="lends", nominal={P5: 3}),
            ],
            slots={"cr-lends": ("lends", P5, 3)},
            clusters=[
                *(Dedicated(name=f"a{number}", draws="a", count=1, round=number) for number in range(3)),
                Dedicated(name="b0", draws="b", count=1, round=6),
            ],
        ),
        settings=Settings(dedicated_node_class=CLASS, fair_sharing=fair),
    )
    for _ in range(20):
        world.round()
    assert [(drain.victim, drain.preemptor, drain.reason) for drain in world.drains] == drained


@pytest.mark.covers("SAF-36")
def test_strategies_are_those_that_kueue_allows() -> None:
    assert Settings().strategies == ()
    assert Settings(fair_sharing="LessThanInitialShare").strategies == ("LessThanInitialShare",)
    assert Settings(fair_sharing=BOTH.replace(",", ", ")).strategies == tuple(BOTH.split(","))
    for wrong in ("fair", "LessThanInitialShare,LessThanOrEqualToFinalShare"):
        (problem,) = problems(Settings(fair_sharing=wrong))
        assert f"--fair-sharing (BROKER_FAIR_SHARING) is '{wrong}': write {BOTH} or " in problem
