"""The account of tests/cluster."""

from tests.cluster.conftest import local_aws, models_read_once

__all__ = ["local_aws", "models_read_once"]
