"""matchConditions: expressions that further restrict the requests of a webhook.

A false condition leaves the webhook out. Without one, a failed condition leaves it out or refuses the
request, by the failure policy. The variable `authorizer` is missing.
Rule: https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#matching-requests-matchconditions
"""

from __future__ import annotations

from local.kube.crd.rules import FAILURES, evaluate
from local.kube.errors import StatusError, forbidden
from local.kube.options import ApiCall
from local.kube.wire import Obj


def hold(hook: Obj, review: Obj, call: ApiCall) -> bool:
    """Raises StatusError where one fails that must not."""
    given = hook.get("matchConditions")
    if not given:
        return True
    request = {name: value for name, value in review["request"].items() if name not in _APART}
    variables = {"request": request, **{name: review["request"][name] for name in _APART}}
    failed = ""
    for condition in given:
        try:
            if evaluate(condition["expression"], variables) is not True:
                return False
        except FAILURES as error:
            failed = failed or f"match condition {condition['name']!r}: {error}"
    if failed and hook.get("failurePolicy") != "Ignore":
        raise _refusal(call, failed)
    return not failed


_APART = ("object", "oldObject")


def _refusal(call: ApiCall, why: str) -> StatusError:
    return forbidden(call.target.resource.subject, call.target.name, why)
