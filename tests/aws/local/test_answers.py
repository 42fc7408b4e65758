"""The quick writer of answers gives moto's own bytes."""

from __future__ import annotations

import re
from typing import Any

import pytest
from moto.core.responses import ActionResult
from moto.core.serialize import EC2Serializer

from local.aws.ec2 import answers
from tests.aws.local.kit import Aws

READS = ("describe_instances", "describe_subnets", "describe_security_groups", "describe_tags")
NEW_EACH_TIME = re.compile("<requestId>[^<]*<")


def test_answers_have_the_bytes_that_moto_writes(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    ec2: Any = aws.client()
    bodies: list[str] = []

    def read(*, response_dict: Any, **_: object) -> None:
        bodies.append(NEW_EACH_TIME.sub("<", response_dict["body"].decode()))

    image = ec2.describe_images()["Images"][0]["ImageId"]
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "a", "Value": '<&>"é'}, {"Key": "b", "Value": ""}]}]
    ec2.run_instances(ImageId=image, MinCount=1, MaxCount=1, TagSpecifications=tags)
    ec2.meta.events.register("before-parse.ec2.*", read)
    for name in READS:
        getattr(ec2, name)()
    quick, bodies = bodies, []
    monkeypatch.setattr(answers.Remembered, "execute_result", ActionResult.execute_result)
    for name in READS:
        getattr(ec2, name)()
    assert quick == bodies and len(quick) == len(READS)


def test_text_of_each_kind_is_written_as_moto_writes_it() -> None:
    item: dict[str, Any] = {"@id": 'a"b', "empty": [], "none": None, "yes": True, "count": 0}
    item |= {"text": "<é>", "nothing": ""}
    body = {"Answer": {"@xmlns": "http://ec2", "items": {"item": [item, {}, "x", 1.5]}, "kept": {"none": []}}}
    quick, own = (vars(class_)["_serialize_body"] for class_ in (answers.Ec2Xml, EC2Serializer))

    class Plain:
        pretty_print = False

    assert quick(Plain(), body) == own(Plain(), body)
