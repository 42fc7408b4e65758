"""Large responses: the same bytes as moto's, in a fraction of the time.

For each member of each object moto searches the spelling of its attribute again. Objects with the API's
names (`Named`) need no search. Elsewhere (`Remembered`) the spelling is the same for all objects of a class
at one place of a response.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moto import settings
from moto.core.common_types import TYPE_RESPONSE
from moto.core.responses import ActionContext, ActionResult
from moto.core.serialize import AttributePickerContext, XFormedAttributePicker
from moto.core.utils import get_value

Spelling = tuple[tuple[str, ...], Callable[[Any], Any] | None]

MISSING = object()
_spellings: dict[tuple[str, type, str, str], Spelling] = {}


class Named(ActionResult):
    def execute_result(self, context: ActionContext) -> TYPE_RESPONSE:
        return _serialize(context, self.result, _member)


class Remembered(ActionResult):
    def execute_result(self, context: ActionContext) -> TYPE_RESPONSE:
        transformers = getattr(context.response, "RESPONSE_KEY_PATH_TO_TRANSFORMER", None)
        return _serialize(context, self.result, _Picker(response_transformers=transformers))


def _serialize(context: ActionContext, result: object, picker: Callable[..., Any]) -> TYPE_RESPONSE:
    serializer = context.serializer_class(
        operation_model=context.operation_model,
        pretty_print=settings.PRETTIFY_RESPONSES,
        value_picker=picker,
    )
    sent: Any = serializer.serialize(result)
    return sent["status_code"], sent["headers"], sent["body"]


def _member(context: AttributePickerContext) -> Any:
    return context.obj.get(context.key)


class _Picker(XFormedAttributePicker):
    def __call__(self, context: AttributePickerContext) -> Any:
        operation = context.operation_model
        place = (operation.name if operation else "", type(context.obj), context.key_path, context.key)
        known = _spellings.get(place)
        if known is None:
            known = _spellings[place] = self._spelling(context)
        names, transform = known
        value: Any = None
        for name in names:
            attribute = get_value(context.obj, name, MISSING)
            if attribute is not MISSING:
                value = attribute
                break
        return transform(value) if transform else value

    def _spelling(self, context: AttributePickerContext) -> Spelling:
        names = tuple(dict.fromkeys(self.get_possible_keys(context)))
        path = f"{context.key_path}.{context.key}"
        transforms = (t for ending, t in self.response_transformers.items() if path.endswith(ending))
        return names, next(transforms, None)
