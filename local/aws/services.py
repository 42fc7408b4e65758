"""Counts and scripted failures for all services beside EC2 (Resource Groups, SSM, IAM, SQS and more).

moto's other services answer as ever, and their calls are counted like EC2's. A fault at the request or
response stage that names one of their actions applies to them, in the service's own protocol.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, Final
from xml.sax.saxutils import escape

from botocore.exceptions import ConnectionClosedError
from moto.core.common_types import TYPE_RESPONSE
from moto.core.responses import BaseResponse
from moto.core.utils import get_service_model
from moto.moto_api._internal import mock_random

from local.aws.ec2.errors import STATUS
from local.aws.ec2.world import LOCK, world
from local.aws.faults import InjectedFault

_IAM: Final = threading.RLock()
CallAction = Callable[[BaseResponse], TYPE_RESPONSE]


def with_faults(stock: CallAction) -> CallAction:
    """moto's `call_action`, with scripted faults before and after it. EC2 has its own pipeline."""

    def call_action(response: BaseResponse) -> TYPE_RESPONSE:
        if response.service_name in ("ec2", "moto_api"):
            return stock(response)
        action = response._get_action()
        if not action:
            return stock(response)
        here, params = world(), params_of(response)
        if response.service_name == "sqs":  # EC2's events up to now are in the queue before it is read
            with LOCK:
                here.ledger.run_due()
        fault = here.faults.take(action, "request", params)
        if fault is not None and fault.code:
            lost, reply = None, refusal(response, fault)
        else:
            # moto's IAM lists the very dictionaries that another call may change meanwhile.
            with _IAM if response.service_name == "iam" else nullcontext():
                reply = stock(response)
            lost = here.faults.take(action, "response", params)
            if lost is not None and lost.code:
                reply = refusal(response, lost)
        here.calls.record(
            action,
            at=here.clock.now(),
            status=int(reply[0]),
            code=next((f.code for f in (fault, lost) if f is not None), None),
            request_id=reply[1].get("x-amzn-requestid"),
            access_key=response.access_key,
            params=params,
        )
        if lost is not None and not lost.code:
            drop(response)
        return reply

    return call_action


def params_of(response: BaseResponse) -> dict[str, Any]:
    parsed = getattr(response, "params", None)
    if isinstance(parsed, Mapping):
        return dict(parsed)
    try:
        body = json.loads(response.body or "{}")
    except (ValueError, TypeError):
        body = None
    if isinstance(body, dict):
        return body
    return {key: value[0] for key, value in response.querystring.items() if isinstance(value, list)}


def refusal(response: BaseResponse, fault: InjectedFault) -> TYPE_RESPONSE:
    """A scripted error in the shape that the service's clients read."""
    code, message = str(fault.code), fault.message or f"Scripted by {fault.id}"
    status = fault.status or STATUS.get(code, 400)
    request_id = str(mock_random.uuid4())
    headers = {"x-amzn-requestid": request_id, "status": str(status)}
    protocol = get_service_model(response.boto3_service_name).protocol
    if "json" in protocol:
        headers |= {"x-amzn-errortype": code, "content-type": "application/json"}
        return status, headers, json.dumps({"__type": code, "message": message})
    error = (
        f"<Error><Type>Sender</Type><Code>{escape(code)}</Code><Message>{escape(message)}</Message></Error>"
    )
    headers["content-type"] = "text/xml"
    return status, headers, f"<ErrorResponse>{error}<RequestId>{request_id}</RequestId></ErrorResponse>"


def drop(response: BaseResponse) -> None:
    """Lose the reply: the server's socket closes, in process the SDK's own error for that is raised."""
    connection = response.normalized_request.environ.get("werkzeug.socket")
    if connection is None:
        raise ConnectionClosedError(endpoint_url=response.uri)
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # the client was faster
