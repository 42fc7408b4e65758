"""The classes of AWS's nouns, of which the provider is the sum."""

from __future__ import annotations

from collections import Counter

from providers.aws import AwsProvider
from providers.aws.account import AwsAccount


def test_no_noun_overrides_a_name_of_another() -> None:
    nouns = [noun for noun in AwsProvider.__mro__ if issubclass(noun, AwsAccount) and noun is not AwsProvider]
    names = Counter(name for noun in nouns for name in vars(noun) if not name.startswith("__"))
    assert [name for name, count in names.items() if count > 1] == []
