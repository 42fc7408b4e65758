"""EC2's answers are decoded as the SDK decodes them."""

from __future__ import annotations

from typing import Any
from xml.sax.saxutils import escape

import botocore.session
import pytest
from botocore.model import ListShape, Shape, StructureShape
from botocore.parsers import EC2QueryParser
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from providers.aws.parser import Ec2Parser, Parsers
from providers.aws.service_models import USED

EC2 = botocore.session.Session().get_service_model("ec2")
ANSWERS = {name: shape for name in USED["ec2"] if (shape := EC2.operation_model(name).output_shape)}
TEXTS = {
    "boolean": st.sampled_from(["true", "false"]),
    "integer": st.integers().map(str),
    "long": st.integers().map(str),
    "double": st.floats(allow_nan=False).map(str),
    "float": st.floats(allow_nan=False).map(str),
    "timestamp": st.sampled_from(["2026-11-29T12:00:00.000Z", "2026-11-29T12:00:00+01:00"]),
    "string": st.sampled_from(["", " ", "a", "<item>", "ü & co"]),
    "blob": st.sampled_from(["", "YQ=="]),
}


def _answer(draw: st.DrawFn, shape: Shape, depth: int = 0) -> str:
    """Elements of a shape, some of them left out, and one that no description has."""
    if isinstance(shape, ListShape):
        members = range(draw(st.integers(0, 2)) if depth < 5 else 0)
        return "".join(f"<item>{_answer(draw, shape.member, depth + 1)}</item>" for _ in members)
    if not isinstance(shape, StructureShape):
        return escape(draw(TEXTS[shape.type_name]))
    parts = ["<newElement><item>1</item></newElement>"]
    if depth < 5:
        for name in draw(st.permutations([*shape.members]))[: draw(st.integers(0, 6))]:
            member = shape.members[name]
            element = member.serialization.get("name", name)
            parts.append(f"<{element}>{_answer(draw, member, depth + 1)}</{element}>")
    return "\n ".join(parts)


def _response(body: str, *, status: int = 200) -> dict[str, Any]:
    return {"status_code": status, "headers": {}, "body": body.encode(), "context": {}}


@pytest.mark.parametrize("operation", ANSWERS)
@settings(max_examples=15, deadline=None, suppress_health_check=[*HealthCheck])
@given(data=st.data())
def test_an_answer_of_any_content_equals_the_decoding_of_the_sdk(operation: str, data: st.DataObject) -> None:
    shape = ANSWERS[operation]
    inner = data.draw(st.composite(_answer)(shape))
    answer = _response(
        f'<Answer xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><requestId>r</requestId>{inner}</Answer>'
    )
    assert Ec2Parser().parse(answer, shape) == EC2QueryParser().parse(answer, shape)


def test_an_error_equals_the_decoding_of_the_sdk() -> None:
    error = "<Error><Code>InsufficientInstanceCapacity</Code><Message/></Error>"
    answer = _response(f"<Response><Errors>{error}</Errors><RequestID>r</RequestID></Response>", status=500)
    shape = ANSWERS["CreateFleet"]
    assert Ec2Parser().parse(answer, shape) == EC2QueryParser().parse(answer, shape)


def test_other_services_have_the_parser_of_the_sdk() -> None:
    assert isinstance(Parsers().create_parser("ec2"), Ec2Parser)
    assert not isinstance(Parsers().create_parser("query"), Ec2Parser)
