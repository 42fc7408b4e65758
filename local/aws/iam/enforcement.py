"""Decides about calls, and words a denial as the called service does.

Invariant: moto decides whether calls are checked, and reads key and signature. This module decides for each
action and resource that a call needs, with their known attributes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from moto.core.exceptions import AccessDeniedError, JsonRESTError
from moto.core.utils import get_service_model
from moto.iam.access_control import IAMRequest
from moto.iam.models import Policy, iam_backends
from moto.iam.responses import IamResponse
from moto.resourcegroups.models import resourcegroups_backends
from moto.resourcegroups.responses import ResourceGroupsResponse
from moto.sqs.responses import SQSResponse
from moto.ssm.responses import SimpleSystemManagerResponse
from moto.utilities.utils import get_partition

from local.aws.ec2.world import world
from local.aws.iam import needs
from local.aws.iam.needs import Need, Where
from local.aws.iam.policies import allows
from local.aws.services import params_of

Needs = Callable[[], Iterable[Need]]


class Denied(JsonRESTError):
    """The denial of services with JSON protocols."""

    code = 403


class AuthorizationRequest(IAMRequest):
    """moto's request, with a decision for each permission that the call needs."""

    def __init__(self, *, needs_: Needs, data: Any, **arguments: Any) -> None:
        # A GET has no body to sign; moto would take the parsed path for one.
        super().__init__(data={} if arguments["method"] == "GET" else data, **arguments)
        self._needs = needs_

    def check_action_permitted(self, resource: str) -> None:
        documents = [json.loads(_document(policy)) for policy in self._access_key.collect_policies()]
        for need in self._needs():
            allowed, denied = allows(documents, need.action, need.resource, need.context)
            if not allowed:
                why = "with an explicit deny" if denied else "because no policy allows it"
                raise AccessDeniedError(
                    user_arn=self._access_key.arn, action=f"{need.action} on resource: {need.resource} {why}"
                )


def check(response: Any, needs_of: Callable[[Where], Iterable[Need]]) -> None:
    """Raises AccessDeniedError, and moto's own for a key or a signature that is none."""
    partition = get_partition(response.region)
    where = Where(
        account=response.current_account,
        region=response.region,
        partition=partition,
        now=world().clock.now(),
    )
    response._authenticate_and_authorize_action(
        partial(AuthorizationRequest, needs_=lambda: needs_of(where)), "*"
    )


def install() -> None:
    """Enforces policies for the services that answer beside EC2."""
    for class_, of in _SERVICES.items():
        class_._authenticate_and_authorize_normal_action = _checked(of)


def _checked(of: Callable[[Any, Where], Iterable[Need]]) -> Callable[..., None]:
    def authorize(response: Any, *_resource: str) -> None:
        try:
            check(response, lambda where: of(response, where))
        except AccessDeniedError as denied:
            if "json" not in get_service_model(response.boto3_service_name).protocol:
                raise
            raise Denied("AccessDeniedException", denied.message) from denied

    return authorize


def _sqs(response: Any, where: Where) -> Iterable[Need]:
    return needs.sqs(where, response._get_action(), params_of(response))


def _ssm(response: Any, where: Where) -> Iterable[Need]:
    return needs.ssm(where, response._get_action(), params_of(response))


def _iam(response: Any, where: Where) -> Iterable[Need]:
    profiles = iam_backends[where.account][where.partition].instance_profiles.values()
    tags = {profile.name: {tag["Key"]: tag["Value"] for tag in profile.tags} for profile in profiles}
    return needs.iam(where, response._get_action(), params_of(response), tags)


def _groups(response: Any, where: Where) -> Iterable[Need]:
    params = params_of(response)
    named = str(params.get("Group") or params.get("GroupName") or "").rpartition("/")[2]
    group = resourcegroups_backends[where.account][where.region].groups.by_name.get(named)
    return needs.groups(
        where, response._get_action(), params, (group.arn, dict(group.tags or {})) if group else None
    )


_SERVICES: dict[Any, Callable[[Any, Where], Iterable[Need]]] = {
    SQSResponse: _sqs,
    SimpleSystemManagerResponse: _ssm,
    IamResponse: _iam,
    ResourceGroupsResponse: _groups,
}


def _document(policy: Any) -> str:
    if isinstance(policy, Policy):
        return str(next(version.document for version in policy.versions if version.is_default))
    return str(policy if isinstance(policy, str) else policy["policy_document"])
