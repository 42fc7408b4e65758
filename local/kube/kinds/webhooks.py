"""Configurations of webhooks: their defaults and their validation.

Rule: k8s.io/kubernetes/pkg/apis/admissionregistration (v1/defaults.go, validation/validation.go).
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from local.kube.errors import FieldError, problem, supported
from local.kube.kind import KindRules
from local.kube.names import dns_subdomain
from local.kube.wire import Obj

_SIDE_EFFECTS = ("None", "NoneOnDryRun")
_POLICIES = ("Fail", "Ignore")
_LONGEST = 30


def _default(obj: Obj) -> None:
    for hook in obj.get("webhooks") or ():
        for name, value in (("failurePolicy", "Fail"), ("matchPolicy", "Equivalent"), ("timeoutSeconds", 10)):
            if hook.get(name) is None:
                hook[name] = value
        for name in ("namespaceSelector", "objectSelector"):
            if hook.get(name) is None:
                hook[name] = {}
        for rule in hook.get("rules") or ():
            if rule.get("scope") is None:
                rule["scope"] = "*"
        service = (hook.get("clientConfig") or {}).get("service")
        if service and service.get("port") is None:
            service["port"] = 443


def _problems(obj: Obj) -> list[FieldError]:
    return [
        error
        for at, hook in enumerate(obj.get("webhooks") or ())
        for error in _webhook(hook, f"webhooks[{at}]")
    ]


def _webhook(hook: Obj, path: str) -> Iterator[FieldError]:
    name = hook.get("name") or ""
    if len(name.split(".")) < 3:
        why = "should be a domain with at least three segments separated by dots"
        yield problem("invalid", f"{path}.name", why, name)
    else:
        for why in dns_subdomain(name):
            yield problem("invalid", f"{path}.name", why, name)
    if hook["failurePolicy"] not in _POLICIES:
        yield supported(f"{path}.failurePolicy", hook["failurePolicy"], _POLICIES)
    effects = hook.get("sideEffects")
    if effects is None:
        yield problem("required", f"{path}.sideEffects", "must specify one of " + ", ".join(_SIDE_EFFECTS))
    elif effects not in _SIDE_EFFECTS:
        yield supported(f"{path}.sideEffects", effects, _SIDE_EFFECTS)
    if not 1 <= hook["timeoutSeconds"] <= _LONGEST:
        why = f"the timeout value must be between 1 and {_LONGEST} seconds"
        yield problem("invalid", f"{path}.timeoutSeconds", why, hook["timeoutSeconds"])
    config = hook.get("clientConfig") or {}
    if bool(config.get("url")) == bool(config.get("service")):
        yield problem("required", f"{path}.clientConfig", "exactly one of url or service is required")
    elif config.get("url") and urlsplit(config["url"]).scheme != "https":
        why = "'https' is the only allowed URL scheme; desired format: https://host[/path]"
        yield problem("invalid", f"{path}.clientConfig.url", why, config["url"])


VALIDATING = KindRules(default=_default, validate=_problems, generation=True, unconditional=False)
