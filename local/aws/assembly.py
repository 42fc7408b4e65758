"""Installs the extension into moto, for `mock_aws` and the server alike.

moto's twenty services share one registry object for EC2 and one table of URLs. The class in the registry
and the handler in the table are replaced, so that no imported name has to change.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import cache
from typing import Any

import moto.core.responses
import moto.ec2.urls
import moto.ec2.utils
import moto.kms.models
import moto.moto_api._internal.urls
from moto.core.base_backend import BackendDict
from moto.core.responses import BaseResponse
from moto.core.utils import method_names_from_class
from moto.ec2.models import ec2_backends
from moto.ec2.models.amis import Ami
from moto.ec2.models.elastic_network_interfaces import NetworkInterface
from moto.ec2.utils import EC2_PREFIX_TO_RESOURCE, EC2_RESOURCE_TO_PREFIX, filter_dict_attribute_mapping
from moto.kms.utils import AbstractPrivateKey, generate_private_key
from moto.moto_api._internal import mock_random
from moto.ssm.models import ParameterDict

from local.aws import control_api, groups, images, service_quotas, services, sharing
from local.aws.ec2 import launches, platforms
from local.aws.ec2.backend import LocalEC2Backend
from local.aws.ec2.world import LOCK, world
from local.aws.ec2_responses import LocalEC2Response
from local.aws.iam import enforcement

# resources that can be tagged by id, beside moto's own
PREFIXES = {
    "capacity-reservation": "cr",
    "capacity-reservation-fleet": "crf",
    "capacity-reservation-cancellation-quote": "crcq",
    "capacity-reservation-modification-quote": "crmq",
    "capacity-block": "cb",
    "placement-group": "pg",
}

_lock = threading.Lock()


class Reservations:
    """EC2 as a resource group sees it."""

    def reservation_state(self, account_id: str, region: str, arn: str) -> str | None:
        """The reservations that the account sees: its own and those shared with it."""
        with LOCK:
            here = world()
            here.ledger.run_due()
            reservation = here.ledger.in_scope(account_id, region).get(arn.rpartition("/")[2])
        return (
            reservation.state
            if reservation is not None and (reservation.arn == arn or "/" not in arn)
            else None
        )

    def now(self) -> datetime:
        return world().clock.now()

    def grouping_time(self) -> timedelta:
        return timedelta(seconds=world().knobs.grouping_s)

    def membership_changed(self, account_id: str, region: str) -> None:
        with LOCK:
            world().ledger.absorb_all()


def _digits(size: int = 8) -> str:
    """Draws from the generator that moto seeds."""
    return f"{mock_random.getrandbits(4 * size):0{size}x}"


def _one_for_symmetric(stock: Callable[[str], AbstractPrivateKey]) -> Callable[[str], AbstractPrivateKey]:
    """moto makes an RSA key, which takes 0.1 s, for a symmetric one too, and does not use it."""
    symmetric = "SYMMETRIC_DEFAULT"
    shared = cache(lambda: stock(symmetric))
    return lambda spec: shared() if spec == symmetric else stock(spec)


def install() -> None:
    """Idempotent. Once, before moto's first request: a server keeps the handlers that it started with."""
    with _lock:
        if ec2_backends.backend is LocalEC2Backend:
            return
        ec2_backends.backend = LocalEC2Backend
        moto.ec2.urls.url_paths["{0}/"] = LocalEC2Response.dispatch
        for kind, prefix in PREFIXES.items():
            EC2_RESOURCE_TO_PREFIX[kind], EC2_PREFIX_TO_RESOURCE[prefix] = prefix, kind
        filter_dict_attribute_mapping["capacity-reservation-id"] = "capacity_reservation_id"
        filter_dict_attribute_mapping["instance-lifecycle"] = "lifecycle"
        filter_dict_attribute_mapping["iam-instance-profile.arn"] = "profile_arn"
        Ami.platform_details = property(platforms.details)  # type: ignore[attr-defined]
        Ami.usage_operation = property(platforms.usage_operation)  # type: ignore[attr-defined]
        stock: Any = NetworkInterface.__dict__["attachment"]
        NetworkInterface.attachment = property(  # type: ignore[method-assign,assignment]
            launches.attachment_with_card(stock.fget)
        )
        BaseResponse.call_action = services.with_faults(  # type: ignore[method-assign,assignment]
            BaseResponse.call_action
        )
        ParameterDict._check_loading_status = images.with_published(  # type: ignore[method-assign,assignment]
            ParameterDict._check_loading_status
        )
        # moto inspects the class anew at each call, which takes longer than most calls
        moto.core.responses.method_names_from_class = cache(method_names_from_class)  # type: ignore[attr-defined]
        # a digit at a time takes longer than all else of the 1,300 images that an account begins with
        moto.ec2.utils.random_resource_id = _digits
        moto.kms.models.generate_private_key = _one_for_symmetric(generate_private_key)  # type: ignore[attr-defined,assignment]
        for path in control_api.PATHS:
            moto.moto_api._internal.urls.url_paths[path] = control_api.respond
        groups.install()
        enforcement.install()
        sharing.install()
        service_quotas.install()
        groups.connect(Reservations())
        BackendDict.reset()  # forget objects of moto's own classes
