"""Steps that a policy or a webhook refuses: asked for before, and as events on their objects."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from broker.apis.meta import Object
from broker.kube.errors import ApiError
from broker.kube.events import Recorder

REFUSED: Final = "StepRefused"


def ask_first(dry_run: Callable[[], object]) -> None:
    """Asks the API server whether it would do what the dry run asks for. Raises ApiError if not.

    A webhook without support for dry runs makes no answer possible.
    """
    try:
        dry_run()
    except ApiError as error:
        if error.status != HTTPStatus.BAD_REQUEST:
            raise


def tell_refusal(recorder: Recorder, obj: Object, error: ApiError) -> None:
    """Records the refusal on the object; nothing if the error may pass by itself."""
    if error.by_policy:
        recorder.event(obj, "Warning", REFUSED, f"the API server refused a step: {error}", topic=REFUSED)
