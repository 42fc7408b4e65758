"""Errors from outside of a command, each as one line with the way out.

Invariant: an error from outside ends in a sentence for a person, never in a traceback; a bug of the program
keeps its traceback.
"""

from __future__ import annotations

from broker.commands.manifests import BadManifest
from broker.kube.errors import ApiError, Forbidden, NotFound, Unavailable
from broker.kube.transports import ConfigurationError
from broker.options import BadOptions
from providers.model import ErrorClass, ProviderError

# The message of each has its way out; a permission would not help.
EXPIRED_CODES = ("ExpiredToken", "ExpiredTokenException", "RequestExpired")
# AWS does not accept the credentials themselves.
REFUSED_CODES = (
    "AuthFailure",
    "InvalidClientTokenId",
    "MissingAuthenticationToken",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
)
EXPECTED_ERRORS = (ApiError, ConfigurationError, ProviderError, BadManifest, ValueError)


def format_errors(error: Exception) -> list[str]:
    """One of EXPECTED_ERRORS, in a line for each of its problems."""
    if isinstance(error, BadManifest | BadOptions):
        return [" ".join(problem.split()) for problem in error.problems]
    return [format_error(error)]


def format_error(error: Exception) -> str:
    """One of EXPECTED_ERRORS, in a line."""
    return " ".join(_error_text(error).split())


def _error_text(error: Exception) -> str:
    match error:
        case NotFound() if not error.details.get("name"):
            return (
                f"the cluster does not know this kind ({error.message or '404'}): "
                "`capacity-broker crds install` adds it"
            )
        case NotFound():
            return f"not found: {error.message}"
        case Forbidden(status=401):
            return f"the cluster: {error}: log in to it again, or name another --context"
        case Forbidden():
            return f"the cluster: {error}: have your user or group bound to a role that allows it"
        case Unavailable(status=0):
            return f"the cluster: {error}: check that it is up, or name another --kubeconfig or --context"
        case ApiError() | ConfigurationError():
            return f"the cluster: {error}"
        case ProviderError(code="NoCredentials"):
            return f"AWS: {error}"
        case ProviderError(code=code) if code in EXPIRED_CODES:
            return f"AWS: {error}"
        case ProviderError(code=code) if code in REFUSED_CODES:
            return f"AWS: {error}: AWS does not accept these credentials; --aws-profile names others"
        case ProviderError(code="UnreadableAnswer"):
            return (
                f"AWS: {error}: check the Region (--region), the endpoint (--aws-endpoint), and any proxy or "
                "load balancer before it"
            )
        case ProviderError(class_=ErrorClass.PERMISSION):
            request = f" (request {error.request_id})" if error.request_id else ""
            return (
                f"AWS: {error}{request}: let your user or role do {error.operation}; "
                "--aws-profile names another"
            )
        case ProviderError():
            return f"AWS: {error}"
        case _:
            return str(error)
