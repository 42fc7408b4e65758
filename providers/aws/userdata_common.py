"""Shared by the families of user data: taints as text, and the error for invalid user data."""

from __future__ import annotations

from collections.abc import Mapping

from providers.aws import errors
from providers.errors import ProviderError


def refused(message: str) -> ProviderError:
    """The error that names the fault in the user data."""
    return errors.misconfigured("InvalidUserData", message, operation="user_data")


def taint(text: str) -> Mapping[str, str]:
    """A taint of the form key=value:Effect or key:Effect."""
    pair, _, effect = text.rpartition(":")
    key, _, value = pair.partition("=")
    if not key or not effect:
        raise errors.misconfigured(
            "InvalidTaint",
            f"taint {text!r} is not key=value:Effect or key:Effect",
            operation="user_data",
        )
    return {"key": key, "value": value, "effect": effect} if value else {"key": key, "effect": effect}
