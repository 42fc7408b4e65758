"""Steps that a policy or a webhook of the cluster refuses, as events on their objects."""

from __future__ import annotations

from typing import Final

from broker.apis.meta import Object
from broker.kube.errors import ApiError
from broker.kube.events import Recorder

REFUSED: Final = "StepRefused"


def tell_refusal(recorder: Recorder, obj: Object, error: ApiError) -> None:
    """Records the refusal on the object; nothing if the error may pass by itself."""
    if error.by_policy:
        recorder.event(obj, "Warning", REFUSED, f"the API server refused a step: {error}", topic=REFUSED)
