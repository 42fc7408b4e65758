"""Series are bounded, disappear with their object, and are named in one catalog."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from itertools import count
from threading import Thread

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest

from broker.capacity.attempts import Attempt, Outcome
from broker.capacity.model import Pool
from broker.oncall.journal import Journal, forget_class, forget_pools
from broker.oncall.metrics import REGISTRY, BoundedCounter, GaugeTable, follow_together
from local.generators import monitoring
from local.generators.metric_catalog import UnknownSeries, check, definitions
from providers.errors import ErrorClass

NOW = datetime(2026, 11, 21, 3, 0, tzinfo=UTC)
RESERVED = Pool(
    capacity_type="reserved", instance_type="p5.48xlarge", zone="us-east-1a", reservation="cr-gone"
)
PLAIN = Pool(capacity_type="on-demand", instance_type="p5.48xlarge", zone="us-east-1b")


def attempt(
    pool: Pool, outcome: Outcome, class_: ErrorClass | None = None, *, claim: str = "c-0", code: str = ""
) -> Attempt:
    return Attempt(
        claim=claim,
        node_class="metered",
        pool=pool,
        outcome=outcome,
        at=NOW,
        class_=class_,
        code=code,
    )


def fallbacks(**labels: str) -> float | None:
    given = {"nodeclass": "metered", **{key.rstrip("_"): value for key, value in labels.items()}}
    return REGISTRY.get_sample_value("capacity_broker_launch_fallbacks_total", given)


def attempts(pool: Pool, outcome: str, class_: str = "", code: str = "") -> float | None:
    labels = {
        "outcome": outcome,
        "class": class_,
        "code": code,
        "pool": str(pool),
        "nodeclass": "metered",
    }
    return REGISTRY.get_sample_value("capacity_broker_launch_attempts_total", labels)


@pytest.mark.covers("CAP-14")
def test_fallback_counts_once_by_both_capacity_types_and_its_reason() -> None:
    journal, full = Journal(), ErrorClass.RESERVATION_FULL
    journal.write(attempt(RESERVED, Outcome.REFUSED, full, code="ReservationCapacityExceeded"))
    journal.write(attempt(RESERVED, Outcome.REFUSED, ErrorClass.CAPACITY))
    assert fallbacks(from_="reserved", to="on-demand", reason=full) is None
    journal.write(attempt(PLAIN, Outcome.LAUNCHED))
    journal.write(attempt(PLAIN, Outcome.LAUNCHED))
    assert fallbacks(from_="reserved", to="on-demand", reason=full) == 1
    assert attempts(RESERVED, "Refused", full, "ReservationCapacityExceeded") == 1
    assert attempts(PLAIN, "Launched") == 2

    journal.write(attempt(RESERVED, Outcome.REFUSED, full, claim="c-1"))
    journal.write(attempt(RESERVED, Outcome.LAUNCHED, claim="c-1"))
    assert fallbacks(from_="reserved", to="reserved", reason=full) is None
    journal.write(attempt(RESERVED, Outcome.SKIPPED, claim="c-3", code="CapacityTypeMismatch"))
    journal.write(attempt(PLAIN, Outcome.LAUNCHED, claim="c-3"))
    mismatch = fallbacks(from_="reserved", to="on-demand", reason="CapacityTypeMismatch")
    assert mismatch is None
    journal.write(attempt(PLAIN, Outcome.SPILLED, claim="c-2"))
    assert fallbacks(from_="reserved", to="on-demand", reason="spilled") == 1

    forget_pools({"cr-gone"})
    assert attempts(RESERVED, "Refused", full, "ReservationCapacityExceeded") is None
    assert attempts(PLAIN, "Launched") == 3
    forget_class("metered")
    assert attempts(PLAIN, "Launched") is None
    assert fallbacks(from_="reserved", to="on-demand", reason=full) is None


@pytest.mark.covers("CAP-14")
def test_counter_drops_the_series_that_changed_least_recently() -> None:
    registry = CollectorRegistry()
    bounded = BoundedCounter(Counter("x", "X.", ["pool"], registry=registry), limit=2)
    for pool in ("a", "b", "a", "c"):
        bounded.inc(pool)
    assert {pool: registry.get_sample_value("x_total", {"pool": pool}) for pool in "abc"} == {
        "a": 2,
        "b": None,
        "c": 1,
    }


@pytest.mark.covers("CAP-14")
def test_row_disappears_with_its_object() -> None:
    registry = CollectorRegistry(auto_describe=True)
    table = GaugeTable("slots", "Slots.", ("odcr",), registry=registry)
    table.show({("cr-1",): 3, ("cr-2",): 1})
    table.show({("cr-2",): 2})
    assert b'slots{odcr="cr-2"} 2.0' in generate_latest(registry)
    assert b"cr-1" not in generate_latest(registry)
    table.clear()
    assert b"slots{" not in generate_latest(registry)


@pytest.mark.covers("CAP-14")
def test_names_follow_the_conventions_of_prometheus() -> None:
    """https://prometheus.io/docs/practices/naming/; `capacity_reservation_total` is OME's own name."""
    for name, metric in monitoring.catalog().items():
        assert re.fullmatch(r"capacity_(broker|reservation)_[a-z_]+", name), name
        assert name.endswith("_total") == (metric.kind == "counter") or name == "capacity_reservation_total"
        assert not re.search(r"_(ms|milliseconds|minutes|count|bucket|sum)$", name), name
        assert metric.meaning.endswith(".") and len(metric.meaning) < 200, name
        assert not {"claim", "uid", "request_id", "pod", "message"} & {*metric.labels}, name


def test_expression_with_an_unknown_series_or_label_is_refused() -> None:
    registry = CollectorRegistry()
    GaugeTable("capacity_broker_slots", "Slots.", ("odcr",), registry=registry)
    known = definitions([registry])
    check('sum by (odcr) (capacity_broker_slots{odcr=~"cr-.*", namespace="x"})', known)
    for expr in (
        "capacity_broker_slot",
        'capacity_broker_slots{zone="a"}',
        "sum by (zone) (capacity_broker_slots)",
    ):
        with pytest.raises(UnknownSeries):
            check(expr, known)


def test_tables_of_one_scrape_show_one_reading_and_the_next_scrape_another() -> None:
    registry, readings = CollectorRegistry(), count(1)
    first, second = (GaugeTable(name, name, (), registry=registry) for name in ("first", "second"))
    follow_together(lambda: next(readings), {table: lambda value: {(): value} for table in (first, second)})

    def shown() -> dict[str, float]:
        return {sample.name: sample.value for family in registry.collect() for sample in family.samples}

    assert [shown(), shown()] == [{"first": 1, "second": 1}, {"first": 2, "second": 2}]
    assert [registry.get_sample_value("first") for _ in range(2)] == [3, 4]  # the others are not asked
    assert shown() == {"first": 5, "second": 5}


def test_tables_of_scrapes_at_once_show_no_reading_of_an_earlier_one() -> None:
    registry, readings = CollectorRegistry(), count(1)
    first, second = (GaugeTable(name, name, (), registry=registry) for name in ("first", "second"))
    follow_together(lambda: next(readings), {table: lambda value: {(): value} for table in (first, second)})
    meanwhile: list[list[float]] = []

    def scrape() -> list[float]:
        return [sample.value for family in registry.collect() for sample in family.samples]

    begun = registry.collect()
    shown = [sample.value for sample in next(iter(begun)).samples]
    other = Thread(target=lambda: meanwhile.append(scrape()))
    other.start()
    other.join()
    shown += [sample.value for family in begun for sample in family.samples]
    assert (shown, meanwhile, scrape()) == ([1, 1], [[2, 2]], [3, 3])
