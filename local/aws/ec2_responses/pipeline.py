"""The way of every EC2 call: scripted refusal, client token, the action under the lock, lost reply, the
count.

Errors are answered with the HTTP status that they carry. A reply that a fault loses is a connection that
drops: on the server's socket, or in process as the error that the SDK would raise for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from moto.core.common_types import TYPE_RESPONSE
from moto.core.exceptions import AccessDeniedError, ServiceException
from moto.core.responses import ActionResult
from moto.ec2.responses import EC2Response
from moto.moto_api._internal import mock_random

from local.aws import services
from local.aws.ec2 import answers, idempotency, pages, request, shapes, templates
from local.aws.ec2.errors import Ec2Error
from local.aws.ec2.world import LOCK, SEES_NOW, AwsWorld, world
from local.aws.faults import InjectedFault
from local.aws.iam import ec2 as ec2_needs
from local.aws.iam import enforcement

T = TypeVar("T")

NOW = "X-Local-Aws-Now"  # a header: describe calls of this caller have no lag
REQUEST_ID = re.compile("(<request_?id>)[^<]*<", re.IGNORECASE)


class Pipeline(EC2Response):
    replay: Callable[[Any], Any] | None = None
    """Set by actions that show the present state if a call is repeated."""
    code: str | None = None
    """The code of the error that is answered, if any."""

    def serialized(self, action_result: ActionResult) -> TYPE_RESPONSE:
        result = action_result.result
        if isinstance(result, ServiceException):
            self.code = result.code
        elif self._get_action() in answers.LARGE:
            action_result = answers.Remembered(result)
        status, headers, body = super().serialized(action_result)
        return getattr(result, "http_status", status), headers, body

    @staticmethod
    def _enrich_response(headers: dict[str, str], body: Any) -> tuple[dict[str, str], Any]:
        """A request id of its own for every answer, the same in the header and the body."""
        headers, body = EC2Response._enrich_response(headers, body)
        request_id = headers["x-amzn-requestid"] = str(mock_random.uuid4())
        if isinstance(body, str):
            body = REQUEST_ID.sub(rf"\g<1>{request_id}<", body, count=1)
        return headers, body

    def call_action(self) -> TYPE_RESPONSE:
        here, action = world(), self._get_action()
        params = self._request_params()
        fault = here.faults.take(action, "request", params)
        if fault is not None and fault.code:
            lost, reply = None, self._refuse(_error_of(fault))
        else:
            reply = self._do(here, action, params)
            lost = here.faults.take(action, "response", params)
            if lost is not None and lost.code:
                reply = self._refuse(_error_of(lost))
        here.calls.record(
            action,
            at=here.clock.now(),
            status=int(reply[0]),
            code=self.code,
            request_id=reply[1].get("x-amzn-requestid"),
            access_key=self.access_key,
            params=params,
        )
        if lost is not None and not lost.code:
            services.drop(self)
        return reply

    def _request_params(self) -> dict[str, Any]:
        params = getattr(self, "params", None)
        return dict(params) if isinstance(params, Mapping) else {}

    def _do(self, here: AwsWorld, action: str, params: Mapping[str, Any]) -> TYPE_RESPONSE:
        with LOCK, request.answering(action, params):
            here.ledger.run_due()
            token = SEES_NOW.set(NOW in self.headers)
            try:
                return self._answer(here, action, params)
            except ServiceException as refused:
                return self._refuse(refused)
            finally:
                SEES_NOW.reset(token)

    def _answer(self, here: AwsWorld, action: str, params: Mapping[str, Any]) -> TYPE_RESPONSE:
        shapes.check(action, params)
        key = idempotency.key_of(
            action, self.current_account, self.region, params, self._zone(action, params)
        )
        digest = idempotency.digest_of(params) if key else ""
        if key and (answered := here.replies.get(key, digest)):
            self._authenticate_and_authorize_normal_action()  # a token is no permission
            replayed = answered.replay(self)
            if isinstance(replayed, ActionResult):
                return self._sent(replayed)
            status, headers, body = replayed
            return status, *self._enrich_response(dict(headers), body)
        reply = super().call_action()
        if key and int(reply[0]) < 300:
            here.replies.put(key, digest, self.replay or (lambda _: reply))
        return reply

    def _authenticate_and_authorize_normal_action(self, resource: str = "*") -> None:
        """IAM decides; EC2 has its own error code for a denial."""
        action, params = self._get_action(), self._request_params()
        try:
            enforcement.check(self, lambda where: ec2_needs.needs(self.ec2_backend, where, action, params))
        except AccessDeniedError as denied:
            raise Ec2Error(
                "UnauthorizedOperation",
                "You are not authorized to perform this operation. " + denied.message,
            ) from denied

    def _zone(self, action: str, params: Mapping[str, Any]) -> str | None:
        """RunInstances' token counts in the zone or subnet that the request names."""
        if action != "RunInstances":
            return None
        placement = params.get("Placement") or {}
        return placement.get("AvailabilityZone") or templates.subnet_of(params)

    def tags_of(self, resource_id: str) -> list[dict[str, str]]:
        return [{"Key": k, "Value": v} for k, v in self.ec2_backend.tags.get(resource_id, {}).items()]

    def _filtered(
        self, rows: Iterable[T], fields: Mapping[str, pages.Value[T]], id_: Callable[[T], str] = lambda _: ""
    ) -> list[T]:
        """The rows that satisfy the call's filters. `id_` names the resource with a row's tags."""
        filters = self._filters_from_querystring()
        pages.check_filters(filters, fields)
        tags = self.ec2_backend.tags
        return [row for row in rows if pages.passes(row, filters, fields, tags.get(id_(row), {}))]

    def _listed(
        self, member: str, rows: Sequence[T], describe: Callable[[T], dict[str, Any]]
    ) -> ActionResult:
        """A page of the rows."""
        size = self._get_int_param("MaxResults")
        shown, token = pages.page(rows, size=size, token=self._get_param("NextToken"))
        return answers.Named({member: [describe(row) for row in shown], "NextToken": token})

    def _refuse(self, error: ServiceException) -> TYPE_RESPONSE:
        return self._sent(ActionResult(error))

    def _sent(self, result: ActionResult) -> TYPE_RESPONSE:
        status, headers, body = self.serialized(result)
        headers["status"] = str(status)
        headers, body = self._enrich_response(headers, body)
        return status, headers, body


def _error_of(fault: InjectedFault) -> Ec2Error:
    assert fault.code is not None
    return Ec2Error(fault.code, fault.message or f"Scripted by {fault.id}", status=fault.status)
