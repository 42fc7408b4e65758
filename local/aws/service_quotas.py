"""Service Quotas' answers for EC2: the vCPU quotas that the control plane has set, and no others.

A quota without a limit here has no value, so it is NoSuchResourceException, as in moto.
"""

from __future__ import annotations

from typing import Any

from moto.core.base_backend import BackendDict
from moto.servicequotas import urls
from moto.servicequotas.models import ServiceQuotasBackend, servicequotas_backends

from local.aws.ec2.quotas import QUOTAS, Key
from local.aws.ec2.world import LOCK, world

EC2 = "ec2"


def install() -> None:
    if servicequotas_backends.backend is not LocalQuotasBackend:
        servicequotas_backends.backend = LocalQuotasBackend
        BackendDict.reset()


class LocalQuotasBackend(ServiceQuotasBackend):
    @property
    def _url_module(self) -> Any:  # moto derives it from the class's own module, which is not moto's
        return urls

    def get_service_quota(self, service_code: str, quota_code: str) -> dict[str, Any]:
        with LOCK:
            limit = world().quotas.limits.get(Key(self.account_id, self.region_name, quota_code))
        if service_code != EC2 or limit is None:
            return super().get_service_quota(service_code, quota_code)
        where = f"{self.region_name}:{self.account_id}"
        return {
            "ServiceCode": EC2,
            "ServiceName": "Amazon Elastic Compute Cloud (Amazon EC2)",
            "QuotaArn": f"arn:{self.partition}:servicequotas:{where}:{EC2}/{quota_code}",
            "QuotaCode": quota_code,
            "QuotaName": QUOTAS[quota_code].name,
            "Value": float(limit),
            "Unit": "None",
            "Adjustable": True,
            "GlobalQuota": False,
        }
