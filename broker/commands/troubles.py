"""Errors from outside of a command, each as one line with the remedy.

Invariant: an error from outside ends in a sentence for a person, never in a traceback; a bug of the program
keeps its traceback.
"""

from __future__ import annotations

from broker.commands.manifests import BadManifest
from broker.kube.errors import ApiError, Forbidden, NotFound, Unavailable
from broker.kube.transports import ConfigurationError
from broker.options import BadOptions
from providers.aws.errors import way_out
from providers.errors import ProviderError

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
        case ProviderError():
            request = f" (request {error.request_id})" if error.request_id else ""
            remedy = way_out(error)
            return f"AWS: {error}{request}{f': {remedy}' if remedy else ''}"
        case _:
            return str(error)
