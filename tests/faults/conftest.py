"""What the tests of faults share: one local AWS a process, emptied by each test that uses it."""

from __future__ import annotations

from tests.cluster.conftest import local_aws
from tests.unit.aws.models import models_read_once

__all__ = ["local_aws", "models_read_once"]
