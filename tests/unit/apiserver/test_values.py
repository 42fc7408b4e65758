"""Quantities, times and ages: read and written as Kubernetes does."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local.kube.durations import age, human, span
from local.kube.quantity import amount, canonical
from local.kube.times import canonical as canonical_time
from local.kube.times import canonical_micro, parse, stamp


@pytest.mark.parametrize(
    ("given_text", "shown"),
    [
        ("1", "1"),
        ("0", "0"),
        ("0Mi", "0"),
        ("1000m", "1"),
        ("1500m", "1500m"),
        ("0.5", "500m"),
        (".5", "500m"),
        ("1.", "1"),
        ("1000", "1k"),
        ("1500", "1500"),
        ("1024Mi", "1Gi"),
        ("1536Mi", "1536Mi"),
        ("0.5Gi", "512Mi"),
        ("0.1Ki", "102400m"),
        ("1000000", "1M"),
        ("1e3", "1e3"),
        ("12e4", "120e3"),
        ("1E6", "1e6"),
        ("100u", "100u"),
        ("1n", "1n"),
        ("0.1n", "1n"),
        ("-1000m", "-1"),
        ("+5", "5"),
    ],
)
def test_a_quantity_is_shown_in_its_canonical_form(given_text: str, shown: str) -> None:
    assert canonical(given_text) == shown


@pytest.mark.parametrize("text", ["", "x", "1x", "1 Gi", "Gi", "1Gi1", "--1", "1ki", "0x10", "1e"])
def test_malformed_quantities_are_recognized(text: str) -> None:
    assert canonical(text) is None
    assert amount(text) is None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("9" * 5000, "9223372036854775807"),
        ("-" + "9" * 5000, "-9223372036854775807"),
        ("9" * 5000 + "Ei", "9223372036854775807"),
        ("8Ei", "9223372036854775807"),
        ("0" * 5000, "0"),
        ("." + "0" * 5000 + "1", "1n"),
        ("0." + "9" * 5000, "1"),
        ("1e400", "10e399"),
        ("1e999999999", "1e999999999"),
        ("1e-999999999", "1e-9"),
        ("1e9999999999", None),
        ("1e" + "9" * 5000, None),
        ("٣", None),
    ],
)
def test_a_quantity_of_any_length_is_capped_rounded_or_refused(text: str, shown: str | None) -> None:
    value = amount(text)
    assert canonical(text) == shown
    assert (value is None) == (shown is None)
    assert value is None or abs(value) <= 2**63 - 1


@given(
    st.integers(min_value=0, max_value=10**9),
    st.sampled_from(["", "m", "k", "M", "G", "Ki", "Mi", "Gi", "u"]),
)
def test_the_canonical_form_keeps_the_amount_and_is_stable(number: int, suffix: str) -> None:
    shown = canonical(f"{number}{suffix}")
    assert shown is not None
    assert amount(shown) == amount(f"{number}{suffix}")
    assert canonical(shown) == shown


def test_amounts_are_exact() -> None:
    assert amount("1500m") == Decimal("1.5")
    assert amount("1Gi") == 2**30


@pytest.mark.parametrize(
    ("text", "second", "micro"),
    [
        ("2023-11-14T22:13:20Z", "2023-11-14T22:13:20Z", None),
        ("2023-11-14T22:13:20.5Z", "2023-11-14T22:13:20Z", None),
        ("2023-11-14T23:13:20+01:00", "2023-11-14T22:13:20Z", None),
        ("2023-11-14T22:13:20.123456Z", "2023-11-14T22:13:20Z", "2023-11-14T22:13:20.123456Z"),
        ("2023-11-14T23:13:20.100000+01:00", "2023-11-14T22:13:20Z", "2023-11-14T22:13:20.100000Z"),
        ("yesterday", None, None),
        ("2023-11-14", None, None),
        ("2023-13-14T22:13:20Z", None, None),
        ("2023-11-14T22:13:20", None, None),
    ],
)
def test_times_are_shown_in_utc(text: str, second: str | None, micro: str | None) -> None:
    assert canonical_time(text) == second
    assert canonical_micro(text) == micro


def test_a_timestamp_is_read_back() -> None:
    at = parse(stamp(1_700_000_000.9))
    assert at is not None
    assert at.timestamp() == 1_700_000_000


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "<invalid>"),
        (-0.5, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (125, "2m5s"),
        (599, "9m59s"),
        (600, "10m"),
        (3 * 3600 - 1, "179m"),
        (3 * 3600, "3h"),
        (3 * 3600 + 600, "3h10m"),
        (8 * 3600, "8h"),
        (47 * 3600, "47h"),
        (48 * 3600, "2d"),
        (49 * 3600, "2d1h"),
        (8 * 86400, "8d"),
        (2 * 365 * 86400, "2y"),
        (2 * 365 * 86400 + 86400, "2y1d"),
        (9 * 365 * 86400, "9y"),
    ],
)
def test_ages_are_short_texts(seconds: float, text: str) -> None:
    assert human(seconds) == text


def test_an_age_is_counted_from_a_timestamp() -> None:
    assert age("2023-11-14T22:13:20Z", 1_700_000_045.0) == "45s"
    assert age(None, 1_700_000_045.0) == "<unknown>"


def test_an_open_duration_ends_now() -> None:
    assert span("2023-11-14T22:13:20Z", "2023-11-14T22:13:50Z", 0.0) == "30s"
    assert span("2023-11-14T22:13:20Z", None, 1_700_000_060.0) == "60s"
    assert span(None, None, 0.0) == ""
