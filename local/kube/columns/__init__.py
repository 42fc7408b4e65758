"""The columns people see of each built-in kind; one that has none shows its name and when it was made."""

from __future__ import annotations

from functools import cache

from local.kube.columns import core, others, workloads
from local.kube.columns.base import Cells, Columns, Table, created, definition, parsed, selector

__all__ = ["Cells", "Columns", "definition", "of", "selector"]

_TABLE: Table = {**core.TABLE, **workloads.TABLE, **others.TABLE}


@cache
def of(storage: str) -> Columns:
    names, cells = _TABLE.get(storage, ("Name, Created At:date", created))
    return Columns(tuple(parsed(name.strip()) for name in names.split(",")), cells)
