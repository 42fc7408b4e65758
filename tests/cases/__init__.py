"""Cases from the test tables of Koordinator, Gödel and nos, as data.

`reservations_quota.yaml` holds values transcribed from koordinator-sh/koordinator a7a1b76,
kubewharf/godel-scheduler 90de2d0 and nebuly-ai/nos 12e0a72, all Apache-2.0. Each case names its source.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from broker.apis.crds import LOADER

Case = dict[str, Any]
FILE: Final = Path(__file__).with_name("reservations_quota.yaml")


def cases(project: str, table: str) -> tuple[Case, ...]:
    """The cases of one table, such as `koordinator`, `filter`."""
    return tuple(_tables()[project][table])


@cache
def _tables() -> Any:
    return yaml.load(FILE.read_text(), Loader=LOADER)
