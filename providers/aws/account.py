"""One cluster's access to one AWS account and Region: the base of a class for each noun of AWS's API.

Invariant: AwsProvider is the sum of these classes, as CapacityProvider is the sum of their protocols
(`providers.base`). So names of methods and attributes are unique among them.
"""

from __future__ import annotations

from providers.aws.cache import TtlCache
from providers.aws.clients import Aws
from providers.aws.tags import Owner

ACCOUNT_TTL = 3600.0


class AwsAccount:
    """The calls, and the cluster that they are made for."""

    def __init__(self, aws: Aws, owner: Owner) -> None:
        self._aws, self._owner = aws, owner
        self._account: TtlCache[str, str] = TtlCache(ttl=ACCOUNT_TTL, monotonic=aws.clock.monotonic)

    def identify(self, cluster_uid: str) -> None:
        self._owner.uid = cluster_uid

    def account_id(self, *, cached: bool = True) -> str:
        def read_account_id() -> str:
            return str(self._aws.call(self._aws.sts.get_caller_identity)["Account"])

        return (self._account.get if cached else self._account.renew)("account", read_account_id)
