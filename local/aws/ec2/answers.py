"""Large responses: the same bytes as moto's, in a fraction of the time.

For each member of each object moto searches the spelling of its attribute again. Objects with the API's
names (`Named`) need no search. Elsewhere (`Remembered`) the spelling is the same for all objects of a class
at one place of a response. Names of elements, which its writer of XML checks one by one, are EC2's own here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from moto import settings
from moto.core.common_types import TYPE_RESPONSE
from moto.core.model import Shape
from moto.core.responses import ActionContext, ActionResult
from moto.core.serialize import AttributePickerContext, EC2Serializer, XFormedAttributePicker
from moto.core.utils import get_value

Spelling = tuple[tuple[str, ...], Callable[[Any], Any] | None]

# Of these, all objects of a class have one spelling.
LARGE = frozenset(
    {
        "DescribeImages",
        "DescribeInstanceTypeOfferings",
        "DescribeInstanceTypes",
        "DescribeInstances",
        "DescribeSpotPriceHistory",
    }
)
MISSING = object()
_spellings: dict[tuple[str, type, str, str], Spelling] = {}


class Named(ActionResult):
    def execute_result(self, context: ActionContext) -> TYPE_RESPONSE:
        return _serialize(self.result, Ec2Xml(context.operation_model))


class Remembered(ActionResult):
    def execute_result(self, context: ActionContext) -> TYPE_RESPONSE:
        transformers = getattr(context.response, "RESPONSE_KEY_PATH_TO_TRANSFORMER", None)
        picker = XFormedAttributePicker(response_transformers=transformers)
        return _serialize(self.result, _RememberedXml(context.operation_model, value_picker=picker))


def _serialize(result: object, serializer: EC2Serializer) -> TYPE_RESPONSE:
    serializer.pretty_print = settings.PRETTIFY_RESPONSES
    sent: Any = serializer.serialize(result)
    return sent["status_code"], sent["headers"], sent["body"]


class Ec2Xml(EC2Serializer):
    def get_value(self, value: Any, key: str, shape: Shape) -> Any:
        return value.get(key)

    def _serialize_body(self, body: Mapping[str, Any]) -> str:
        if self.pretty_print:
            return super()._serialize_body(body)
        ((name, value),) = body.items()
        return '<?xml version="1.0" encoding="utf-8"?>\n' + "".join(_xml(name, value))


class _RememberedXml(Ec2Xml):
    def get_value(self, value: Any, key: str, shape: Shape) -> Any:
        place = (self.operation_name, type(value), ".".join(self.path), key)
        known = _spellings.get(place)
        if known is None:
            known = _spellings[place] = self._spelling(value, key, shape)
        names, transform = known
        for name in names:
            attribute = get_value(value, name, MISSING)
            if attribute is not MISSING:
                return transform(attribute) if transform else attribute
        return transform(None) if transform else None

    def _spelling(self, value: Any, key: str, shape: Shape) -> Spelling:
        path = ".".join(self.path)
        model, picker = self.operation_model, self._value_picker
        context = AttributePickerContext(value, key, shape, model, model.service_model, path)
        transforms = picker.response_transformers.items()
        matching = (transform for ending, transform in transforms if f"{path}.{key}".endswith(ending))
        return tuple(dict.fromkeys(picker.get_possible_keys(context))), next(matching, None)


def _xml(name: str, value: Any) -> Iterator[str]:
    """An element for the value, or for each item of a list. A key `@name` is an attribute."""
    for item in value if isinstance(value, list) else (value,):
        if isinstance(item, dict):
            children = {key: child for key, child in item.items() if key[0] != "@"}
            attributes = "".join(
                f" {key[1:]}={quoteattr(str(item[key]))}" for key in item if key not in children
            )
            inner = "".join(part for key, child in children.items() for part in _xml(key, child))
            yield f"<{name}{attributes}>{inner}</{name}>" if inner else f"<{name}{attributes}/>"
        else:
            text = escape(_text(item))
            yield f"<{name}>{text}</{name}>" if text else f"<{name}/>"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)
