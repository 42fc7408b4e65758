"""Random requests get the same answers, and the same watch streams, from both servers.

CONFORMANCE_SEQUENCES and CONFORMANCE_SEED choose how many sequences and from where; every sequence is a
function of its seed, so a failure is repeated by the seed that it names.
"""

import os
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.conformance.builtin_kinds import ALL
from tests.conformance.definitions import GIZMOS, WIDGETS
from tests.conformance.differences import defects
from tests.conformance.generate import sequence
from tests.conformance.lockstep import Difference, run
from tests.conformance.measure import report, signature
from tests.conformance.shrink import shrink
from tests.conformance.steps import Sequence, Step
from tests.controlplane.client import Api
from tests.support.servers import REAL, empty, over_embedded

SEQUENCES = int(os.environ.get("CONFORMANCE_SEQUENCES", "40"))
SEED = int(os.environ.get("CONFORMANCE_SEED", "0"))
BATCH = 10  # sequences a test
TOUCHED = tuple(kind.collection for kind in ALL)
pytestmark = REAL


@pytest.fixture(scope="module")
def servers(real_api: Api) -> Iterator[tuple[Api, Api]]:
    with over_embedded() as embedded:
        for api in (embedded, real_api):
            api.install(WIDGETS)
            api.install(GIZMOS)
        yield embedded, real_api
    empty(real_api)


def first_defect(sequence_: Sequence, embedded: Api, real: Api) -> Difference | None:
    try:
        with closing(run(sequence_, embedded, real)) as differences:
            return next(defects(differences), None)
    finally:
        for api in (embedded, real):
            empty(api, TOUCHED)


@pytest.mark.parametrize("first", range(SEED, SEED + SEQUENCES, BATCH))
def test_the_same_requests_get_the_same_answers(servers: tuple[Api, Api], first: int) -> None:
    for seed in range(first, min(first + BATCH, SEED + SEQUENCES)):
        defect = first_defect(sequence(seed), *servers)
        if defect is None:
            continue
        expected = signature(defect)

        def shows(shorter: Sequence, expected: str = expected) -> bool:
            other = first_defect(shorter, *servers)
            return other is not None and signature(other) == expected

        short = shrink(defect.sequence, shows)
        last = first_defect(short, *servers) or defect
        pytest.fail(explain(seed, short, last), pytrace=False)


def explain(seed: int, short: Sequence, difference: Difference) -> str:
    before = [str(step) for step in short.steps[: difference.index] if isinstance(step, Step)]
    return "\n".join(
        [
            f"Seed {seed}: the servers differ after {len(before)} requests:",
            *before,
            "",
            report(difference, width=2000),
        ]
    )
