"""The lines of a plan that show the options after the first."""

from __future__ import annotations

from typing import Any

import pytest

from broker.commands.plan.bill import alternatives


def option(type_: str, zone: str = "us-east-1a", usd: float | None = 1.0, kind: str = "on-demand") -> Any:
    pool = f"{kind}:{type_}:{zone}"
    return {"pool": pool, "capacity_type": kind, "instance_type": type_, "usd_hour": usd}


@pytest.mark.covers("USR-24")
def test_options_of_many_types_are_three_lines_and_a_sum() -> None:
    first = [option("m5.large"), option("m5.large", "us-east-1b"), option("m5.xlarge", usd=None)]
    rest = [option(f"m6i.{n}xlarge", usd=float(n)) for n in (2, 4, 8)]
    assert [*alternatives(first + rest)] == [
        "on-demand m5.large in us-east-1a and 1 more: 1.00 $/h",
        "on-demand m5.xlarge in us-east-1a: unknown $/h",
        "on-demand m6i.2xlarge in us-east-1a: 2.00 $/h",
        "2 more options: 4.00-8.00 $/h",
    ]
    assert [*alternatives([*rest, option("p5.48xlarge", kind="reserved", usd=0.0)])][
        -1
    ] == "1 more option: paid"
