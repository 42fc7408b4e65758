"""The text of a reservation's name, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.quota.usage import Reserved

NAMES = st.text(alphabet="ab-.", max_size=6)


@given(st.builds(Reserved, NAMES, NAMES))
def test_parse_is_the_inverse_of_str(reserved: Reserved) -> None:
    assert Reserved.parse(str(reserved)) == reserved


@pytest.mark.parametrize(
    ("text", "reserved"),
    [
        ("team/gpu", Reserved("team", "gpu")),
        ("gpu", Reserved("", "gpu")),
        ("", Reserved("", "")),
        ("/gpu", Reserved("", "gpu")),
        ("team/", Reserved("team", "")),
        ("a/b/c", Reserved("a/b", "c")),
    ],
)
def test_text_is_divided_at_its_last_slash(text: str, reserved: Reserved) -> None:
    assert Reserved.parse(text) == reserved
