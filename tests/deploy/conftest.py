"""The stack of tests/cluster: a cluster, an account and a broker between them."""

from tests.cluster.conftest import local_aws, models_read_once, stack

__all__ = ["local_aws", "models_read_once", "stack"]
