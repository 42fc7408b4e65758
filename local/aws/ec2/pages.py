"""Pages and filters as EC2's describe calls have them.

A token names the start of the next page. A filter's values are alternatives, and `*` and `?` in
them match any text and any character (EC2 User Guide, "List and filter your resources").
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from local.aws.ec2 import errors

T = TypeVar("T")
Value = Callable[[T], Any]
MOST_VALUES = 200


def page_after(ids: Sequence[str], shown: Sequence[str], *, size: int, last_id: str | None) -> slice:
    """The items of `shown` after the one with the id `last_id`, in the order of `ids`.

    The last item may be gone by now: the page still goes on at its place.
    """
    if last_id is None:
        return slice(0, size)
    order = {name: position for position, name in enumerate(ids)}
    if last_id not in order:
        raise errors.invalid("NextToken", last_id, "It is not a token of an earlier answer.")
    start = next((i for i, name in enumerate(shown) if order[name] > order[last_id]), len(shown))
    return slice(start, start + size)


def page(rows: Sequence[T], *, size: int | None, token: str | None) -> tuple[Sequence[T], str | None]:
    start = _start(token)
    end = start + size if size else len(rows)
    return rows[start:end], _token(end) if end < len(rows) else None


def _token(start: int) -> str:
    return base64.urlsafe_b64encode(f"from:{start}".encode()).decode()


def _start(token: str | None) -> int:
    if not token:
        return 0
    try:
        position = re.fullmatch("from:([0-9]+)", base64.urlsafe_b64decode(token.encode()).decode())
    except (ValueError, binascii.Error):
        position = None
    if position is None:
        raise errors.invalid("NextToken", token, "It is not a token of an earlier answer.")
    return int(position[1])


def check_size(size: int | None, *, lowest: int, highest: int) -> None:
    if size is not None and not lowest <= size <= highest:
        raise errors.invalid("MaxResults", size, f"Expecting a number from {lowest} to {highest}.")


def check_filters(filters: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
    """An unknown filter, or too many values, are refused, also where there is nothing to filter."""
    if sum(len(values) for values in filters.values()) > MOST_VALUES:
        raise errors.Ec2Error(
            "FilterLimitExceeded", f"The maximum number of filter values in one call is {MOST_VALUES}"
        )
    for name in filters:
        if name != "tag-key" and not name.startswith("tag:") and name not in fields:
            raise errors.Ec2Error("InvalidParameterValue", f"The filter '{name}' is invalid")


def passes(
    row: T, filters: Mapping[str, Sequence[str]], fields: Mapping[str, Value[T]], tags: Mapping[str, str]
) -> bool:
    """Whether a row satisfies every filter; `check_filters` has seen them."""
    for name, values in filters.items():
        if name.startswith("tag:"):
            key = name[4:]
            row_values = [tags[key]] if key in tags else []
        elif name == "tag-key":
            row_values = list(tags)
        else:
            value = fields[name](row)
            row_values = value if isinstance(value, list) else [] if value is None else [value]
        if not any(_like(pattern).match(str(value)) for pattern in values for value in row_values):
            return False
    return True


@lru_cache(maxsize=1024)
def _like(pattern: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(pattern.replace("[", "[[]")))
