"""Local AWS takes nothing away from moto: moto's own tests pass with it installed."""

import importlib.util
import os

import pytest

from tests.moto_suite.run import compare
from tests.moto_suite.suite import SuiteUnavailable, fetch


@pytest.mark.moto_suite
def test_moto_passes_its_own_tests_with_local_aws_installed() -> None:
    absent = [name for name in ("freezegun", "xdist") if importlib.util.find_spec(name) is None]
    reason = f"moto's tests need {' and '.join(absent)}: install the dev dependencies" if absent else ""
    try:
        fetch()
    except SuiteUnavailable as error:
        reason = str(error)
    if reason and os.environ.get("CI_REQUIRE_PEERS") == "1":
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)

    result = compare()

    assert not result.broken, "\n\n".join(f"{name}\n{text}" for name, text in result.broken.items())
    assert result.ec2_backend.startswith("local.aws."), "the tests ran on plain moto, not on local AWS"
    assert result.ran > 1000, f"only {result.ran} tests were found: moto's tests must have moved"
