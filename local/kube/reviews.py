"""Reviews of access and identity, created as objects. Here every user may do everything.

Rule: https://kubernetes.io/docs/reference/access-authn-authz/authorization/#checking-api-access
"""

from __future__ import annotations

from local.kube.incoming import read_object
from local.kube.managing import managed
from local.kube.options import ApiCall
from local.kube.state import ApiState
from local.kube.times import stamp
from local.kube.wire import Obj, Response, reply

ME: Obj = {"username": "admin", "uid": "admin", "groups": ["system:masters", "system:authenticated"]}
_RULES: Obj = {
    "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
    "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    "incomplete": False,
}
_ANSWERS: dict[str, Obj] = {
    "localsubjectaccessreviews": {"allowed": True},
    "selfsubjectaccessreviews": {"allowed": True},
    "subjectaccessreviews": {"allowed": True},
    "selfsubjectrulesreviews": _RULES,
    "selfsubjectreviews": {"userInfo": ME},
    "tokenreviews": {"user": {}, "error": "this server has no tokens"},
}
REVIEWS = frozenset(_ANSWERS)


def answer(state: ApiState, call: ApiCall) -> Response:
    call.check("CreateOptions")
    review = read_object(call)
    plural = call.target.resource.plural
    if plural == "selfsubjectreviews":
        review["metadata"]["creationTimestamp"] = stamp(state.clock())
    elif plural == "selfsubjectrulesreviews":
        review["spec"] = {}
    else:
        review = managed(state, call, None, review)
    return reply({**review, "status": _ANSWERS[plural]}, status=201)
