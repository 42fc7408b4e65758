"""All that the broker writes for people has the names that users wrote, right plurals and whole dates."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from rich.console import Console

from broker.apis import names
from broker.apis.core import Event
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.ome import CapacityReservation
from broker.commands import watch
from broker.commands.dry_run import DryRun
from broker.commands.errors import problems
from broker.commands.errors.problems_by import GroupBy
from broker.commands.explain import claims
from broker.commands.explain.explanation import OPTION_COLUMNS
from broker.commands.explain.explanation import explain as explain_cluster
from broker.commands.explain.present import rendered
from broker.commands.explain.reading import read
from broker.commands.output import table
from tests.cluster.account import ACCOUNT
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.ome.bought import P5
from tests.cluster.ome.reserved import GPU, reserve
from tests.cluster.ome.test_borrowing import owned
from tests.cluster.stack import Stack

NO_GROUP = f"arn:aws:resource-groups:us-east-1:{ACCOUNT}:group/nobody"
ADJECTIVES = "security|reserved|registered|free|instance|more"
RULES = {
    "no whole ARN": rf"arn:aws(?!{re.escape(NO_GROUP.removeprefix('arn:aws'))})",  # which is the error itself
    "no key of a pool or a shortage": r"\b(?:reserved|on-demand|spot|pool|class|quota|placement):[a-z0-9]",
    "no queue of Kueue": r"default--|research--",
    "one thing in the singular": rf"(?<![\w.:/-])1 (?:(?:{ADJECTIVES}) )?(?!is\b|was\b|has\b)[a-z]+s\b",
    "several things in the plural": rf"(?<![\w.:/-])(?:[02-9]|[1-9]\d) (?:(?:{ADJECTIVES}) )?"
    r"(?:claim|pod|slot|instance|reservation|option|group|subnet|time|type)\b(?! type)",
    "a time has its date": r"(?<!\d{4}-\d\d-\d\d[T ])(?<!\d{4}-\d\d-\d\d[T ]\d\d:)(?<!\d)\d\d:\d\d\b",
    "a date has its year": r"(?<!\d{4}-)\b(?<!-)\d\d-\d\d[T ]\d\d:"
    r"|\b(?:Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\b",
}


def broken(text: str) -> list[str]:
    return [f"{rule}: {text}" for rule, pattern in RULES.items() if re.search(pattern, text)]


@pytest.mark.parametrize(
    "text",
    [
        f"{NO_GROUP.replace('nobody', 'somebody')} is full",
        "reserved:p5.48xlarge:us-east-1a:cr-1: full",
        "1 instances left",
        "1 security groups; more",
        "2 slot free",
        "ends at 12:00 UTC",
        "ends at 01-31 12:00 UTC",
        "ends on Jan 31",
        "LocalQueue research--gpus",
    ],
)
def test_rules_find_their_violations(text: str) -> None:
    assert broken(text)
    assert not broken("1 instance, 1 is free; 2 slots of 1 security group until 2027-01-31T12:00:00Z")


@pytest.mark.covers("USR-08")
@pytest.mark.both_servers
def test_events_conditions_and_tables_are_written_for_people(stack: Stack) -> None:
    texts = _scenario(stack)
    everything = "\n".join(texts)
    for expected in ("group team (m5.large, us-east-1a)", "on-demand c5.large in us-east-1a", "research"):
        assert expected in everything
    assert [problem for text in texts for problem in broken(text)] == []


def _scenario(stack: Stack) -> Sequence[str]:
    """A group, a reservation by id, one that starts later, a shortage, a fallback, a gang, bad values."""
    stack.control.fault(
        action="CreateFleet",
        stage="launch",
        code="InsufficientInstanceCapacity",
        message="no room",
        match={"InstanceType": "c5.large"},
        times=-1,
    )
    by_id, team = stack.aws.odcr(), stack.aws.odcr()
    stack.aws.rival(by_id, 1)
    stack.node_class("by-group", group=stack.aws.group(team))
    stack.node_class("by-id", id_=by_id)
    later = timedelta(days=3)
    block = stack.aws.capacity_block(starts=later, ends=2 * later, state="scheduled")
    stack.node_class("later", id_=block)
    stack.node_class("wrong", group=NO_GROUP)
    stack.node_class("gpus", id_=owned(stack, 1, "default/training"))
    reserve(stack, "training", flavor=P5, quotas={GPU: "8"}, cohort="ml")
    reserve(stack, "research", flavor=P5, quotas={GPU: "0"}, cohort="ml")
    stack.start()
    both = (RESERVED, ON_DEMAND)
    stack.claim("first", node_class="by-group")
    stack.until_launched("first")
    stack.claim("second", node_class="by-group", capacity=both)
    stack.claim("short", node_class="by-group", types=("c5.large",), capacity=(ON_DEMAND,))
    stack.claim("full", node_class="by-group")
    stack.claim("waits", node_class="by-id")
    stack.claim("early", node_class="later", types=(P5,))
    stack.claim("lost", node_class="wrong")
    gang = {names.GANG: "train", names.GANG_SIZE: "2"}
    for name in ("train-0", "train-1"):
        stack.claim(name, node_class="by-id", annotations=gang)
    stack.claim("bad", node_class="by-id", annotations={names.GANG: "odd", names.GANG_SIZE: "two"})
    stack.claim("drawn", node_class="gpus", types=(P5,), annotations={names.DRAWS_FROM: "default/research"})
    stack.until_launched("second")
    waiting = ("short", "full", "waits", "early", "lost", "train-0", "train-1", "bad", "drawn")
    for name in waiting:
        stack.until_waiting(name)
    stack.control.clear_faults()
    stack.control.fault(
        action="CreateFleet", stage="launch", code="ReservationCapacityExceeded", message="full", times=-1
    )
    stack.control.freed_slot_absorbs(False)  # otherwise an instance outside takes the slot
    stack.aws.ec2.terminate_instances(InstanceIds=[stack.instance("first")["InstanceId"]])
    stack.until(lambda: stack.aws.free(team), "the slot is free")
    stack.until(lambda: stack.claim_condition("full", names.CAPACITY_RESERVATION), "the group refuses")
    stack.polls(2)
    return [*_written(stack), *_shown(stack, waiting)]


def _written(stack: Stack) -> Iterator[str]:
    for model in (NodeClaim, EC2NodeClass, NodePool, CapacityReservation):
        for item in stack.all(model):
            status: Any = item.status  # type: ignore[attr-defined]
            yield from (condition.message for condition in status.conditions)
    yield from (event.message for event in stack.all(Event))


def _shown(stack: Stack, waiting: Sequence[str]) -> Iterator[str]:
    """The tables of `explain`, `errors` and `watch`, as a terminal has them."""
    now = stack.clock.now()
    situation = read(stack.client, now)
    pages: list[Any] = [rendered(explain_cluster(situation))]
    for by in GroupBy:
        rows = problems.rows(problems.published(situation, now - timedelta(hours=1)), by)
        pages.append(table("", [*problems.format_rows(rows)], columns=problems.COLUMNS))
    for name in ("second", *waiting):
        claim = stack.get(NodeClaim, name)
        yield from claims.headline(claim, pods=(), usd_hour=claims.price(stack.client, claim))
        attempts = claims.format_attempts(claims.attempts(claim))
        pages.append(table("", attempts, columns=claims.ATTEMPT_COLUMNS))
        forecast = claims.Forecaster(
            client=stack.client,
            provider=stack.provider,
            now=now,
            entitle=lambda provider: DryRun(stack.client, provider, stack.settings, stack.clock).entitlements,
        ).of(claim)
        if forecast is not None:
            yield forecast.decision
            pages.append(table("", claims.format_options(forecast.rows), columns=OPTION_COLUMNS))
            short = claims.format_shortages(claims.shortages(forecast))
            pages.append(table("", short, columns=claims.SHORTAGE_COLUMNS))
    for page in pages:
        out = io.StringIO()
        Console(file=out, width=2000).print(page)
        yield from out.getvalue().splitlines()
    yield from watch.changes({}, watch.facts(explain_cluster(situation)))
