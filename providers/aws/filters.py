"""Selector terms as EC2 filters, by which every Describe call here narrows.

Invariant: a term never selects everything. An unknown id gives an empty response instead of an error, since
ids are sent as filters too. Filter names and the limit of 200 values are from the EC2 API Reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from providers.aws import errors
from providers.model import Selector

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import FilterTypeDef

T = TypeVar("T")

VALUES = 200


def batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Consecutive slices of at most `size`."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def of_tags(selector: Selector) -> list[FilterTypeDef]:
    """A filter for each tag; the value "*" matches the key alone."""
    return [
        {"Name": "tag-key", "Values": [key]} if value == "*" else {"Name": f"tag:{key}", "Values": [value]}
        for key, value in sorted(selector.tags.items())
    ]


def of_terms(
    terms: Sequence[Selector], *, field: str, id_name: str, name: str
) -> Iterator[list[FilterTypeDef]]:
    """The filters of each Describe call that the terms need: one for all plain ids, one for each other term.

    `field` names the terms in an error; `id_name` and `name` are EC2's filter names (`name` may be empty).
    """
    plain = sorted({term.id for term in terms if term.id and not term.tags and not term.name})
    for ids in batches(plain, VALUES):
        yield [{"Name": id_name, "Values": list(ids)}]
    for term in terms:
        if term.id in plain and not term.tags and not term.name:
            continue
        term_filters = of_tags(term)
        if term.id:
            term_filters.append({"Name": id_name, "Values": [term.id]})
        if term.name and name:
            term_filters.append({"Name": name, "Values": [term.name]})
        if not term_filters:
            fields = "id, name or tags" if name else "id or tags"
            raise errors.misconfigured(
                "EmptySelector",
                f"a term of {field} selects by nothing ({term}): give it {fields}",
                operation=field,
            )
        yield term_filters
