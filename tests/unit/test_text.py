"""Text from outside: the accepted and refused inputs of each decoder; no other code decodes."""

from __future__ import annotations

import ast
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker import text
from broker.text import LARGEST_INTEGER, InvalidText

BROKER = Path(text.__file__).parent
DECODERS: list[Callable[[str], Any]] = [
    text.decode_json,
    text.decode_object,
    text.exact,
    text.quantity,
    text.decode_whole,
    text.decode_time,
    text.decode_duration,
]
HOSTILE = [
    "[" * 2000,
    '{"a":' * 2000,
    "[" * 300_000,
    "[" * 40 + "]" * 40,
    "9" * 5000,
    "9" * 1_000_001,
    "1e400",
    "1e-999999999999999999",
    "1e9999999999999999999999",
    "[1e30]",
    "[123456789012345678901234567890]",
    '"' + "a" * 300_000 + '"',
    '"\\ud800"',
    "\ud800",
    "\x00",
    "NaN",
    "-Infinity",
    "٣",
    "²",
    "9" * 60 + "h",
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59-14:00",
    "2027-01-31",
    "1h" * 5000,
]


@pytest.mark.covers("SAF-51")
@pytest.mark.parametrize("decode", DECODERS, ids=lambda decode: decode.__name__)
@pytest.mark.parametrize("given", HOSTILE, ids=lambda given: f"{given[:12]!a}-{len(given)}")
def test_hostile_text_gives_a_short_refusal_or_a_bounded_value(
    decode: Callable[[str], Any], given: str
) -> None:
    try:
        value = decode(given)
    except InvalidText as error:
        assert len(str(error)) < 400
    else:
        _usable(value)


@pytest.mark.covers("SAF-51")
@given(st.text(max_size=80) | st.from_regex(r"[-+0-9.eEKMGTPinuhsmTZ:\[\]{}\"]{0,70}", fullmatch=True))
def test_any_text_is_decoded_or_refused(given: str) -> None:
    for decode in DECODERS:
        try:
            _usable(decode(given))
        except InvalidText:
            continue


def _usable(value: Any) -> None:
    """Arithmetic with the value stays within Python's limits."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    if isinstance(value, datetime):
        assert value - text.LONGEST_DURATION < value < value + text.LONGEST_DURATION
    elif isinstance(value, timedelta):
        assert now - abs(value) <= now <= now + abs(value)
    elif not isinstance(value, str | list | dict | bool | None):
        assert -LARGEST_INTEGER <= int(value * 1) <= LARGEST_INTEGER + 1  # a float rounds 2^63-1 up


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("[" * 2000, "is not JSON"),
        ("[" * 33 + "]" * 33, "is nested more than 32 levels deep"),
        ('"' + "a" * 262_143 + '"', "has 262145 characters: write at most 262144"),
        ('{"flavors": {"a": 1e30}}', "has the number 1e\\+30: write one of at most"),
        ("[]", "is not a JSON object"),
        ("", "is not JSON"),
    ],
)
def test_json_beyond_a_limit_is_refused_with_the_limit(given: str, message: str) -> None:
    with pytest.raises(InvalidText, match=message):
        text.decode_object(given)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("1h30m", 5400), ("90s", 90), ("1.5s", 1.5), (".5m", 30), ("-3ms", -0.003), ("+2h", 7200), ("0", 0)],
)
def test_durations_are_read_as_go_reads_them(given: str, seconds: float) -> None:
    assert text.decode_duration(given) == timedelta(seconds=seconds)


@pytest.mark.parametrize("given", ["", "1", "h", "1h 2m", "PT1H", "1d", "9999999h", "Never"])
def test_an_invalid_duration_is_named(given: str) -> None:
    with pytest.raises(InvalidText, match="duration"):
        text.decode_duration(given)


def test_a_time_is_written_in_utc_with_four_digits_of_its_year() -> None:
    moment = datetime(999, 1, 31, 2, 30, 5, 250_000, tzinfo=UTC)
    assert text.format_time(moment) == "0999-01-31T02:30:05Z"
    assert text.format_micros(moment) == "0999-01-31T02:30:05.250000Z"


def test_times_are_in_utc() -> None:
    assert text.decode_time(" 2027-01-31T02:00:00+02:00 ") == datetime(2027, 1, 31, tzinfo=UTC)


def test_a_quantity_of_65_characters_is_refused_and_names_its_key() -> None:
    with pytest.raises(InvalidText, match=r"'cpu': not a quantity: '1+'\.\.\. \(65 characters\)"):
        text.quantities({"memory": "1Gi", "cpu": "1" * 65})


# Text from the API server or the operator, and the broker's own files.
_TRUSTED = {
    "admission/webhook.py",
    "apis/crds.py",
    "commands/plan/drafts.py",
    "kube/client.py",
    "kube/errors.py",
    "kube/published.py",
    "version.py",
}
_PARSERS = {
    "json.loads",
    "orjson.loads",
    "datetime.fromisoformat",
    "datetime.strptime",
    "Decimal",
    "ast.literal_eval",
    "yaml.load",
    "yaml.safe_load",
    "tomllib.loads",
}


@pytest.mark.covers("SAF-51")
def test_only_one_module_decodes_external_text() -> None:
    violations = set()
    for path in sorted(BROKER.rglob("*.py")):
        at = path.relative_to(BROKER).as_posix()
        if at == "text.py" or at.startswith(("apiserver/", "demo/")) or at in _TRUSTED:
            continue
        text = path.read_text()
        if not any(name in text for name in (*_PARSERS, ".validate_json")):
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func)
            constant = bool(node.args) and isinstance(node.args[0], ast.Constant)
            if (name in _PARSERS and not constant) or name.endswith(".validate_json"):
                violations.add(f"{at}:{node.lineno} {name}")
    assert not violations
