"""The text of a reservation's name, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.quota.usage import ReservationKey

NAMES = st.text(alphabet="ab-.", max_size=6)


@given(st.builds(ReservationKey, NAMES, NAMES))
def test_parse_is_the_inverse_of_str(reserved: ReservationKey) -> None:
    assert ReservationKey.parse(str(reserved)) == reserved


@pytest.mark.parametrize(
    ("text", "reserved"),
    [
        ("team/gpu", ReservationKey("team", "gpu")),
        ("gpu", ReservationKey("", "gpu")),
        ("", ReservationKey("", "")),
        ("/gpu", ReservationKey("", "gpu")),
        ("team/", ReservationKey("team", "")),
        ("a/b/c", ReservationKey("a/b", "c")),
    ],
)
def test_text_is_divided_at_its_last_slash(text: str, reserved: ReservationKey) -> None:
    assert ReservationKey.parse(text) == reserved
