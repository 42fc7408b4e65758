"""The broker's own instances and templates: no others are listed, ended or deleted."""

from __future__ import annotations

import pytest

from providers.errors import ErrorClass, ProviderError
from providers.launch import ReservationTarget, Template, TemplateRef

from .world import World


def test_only_this_clusters_instances_are_listed(world: World) -> None:
    (instance,) = world.launch(pools=(world.pool("m5.large"),)).instances
    world.ec2.run_instances(ImageId=world.image(), InstanceType="m5.large", MinCount=1, MaxCount=1)
    assert [i.id for i in world.aws.instances()] == [instance.id]
    assert world.provider(cluster="green").instances() == []
    assert [i.id for i in world.aws.instances([instance.id, "i-0123456789abcdef0"])] == [instance.id]


@pytest.mark.covers("KRP-30")
def test_terminate_ends_instances_and_missing_ones_are_success(world: World) -> None:
    cr = world.reserve(2)
    result = world.launch(ReservationTarget(reservation_id=cr), count=2)
    ids = [i.id for i in result.instances]
    world.aws.terminate([*ids, "i-0123456789abcdef0"])
    assert world.running() == []
    assert world.free(cr) == 2
    world.aws.terminate(ids)
    world.aws.terminate(["i-0123456789abcdef0"])
    world.aws.terminate([])


def test_tags_are_added(world: World) -> None:
    (instance,) = world.launch(pools=(world.pool("m5.large"),)).instances
    world.aws.tag([instance.id], {"Name": "ip-10-0-0-1", "karpenter.sh/nodeclaim": "gpu-1"})
    (tagged,) = world.aws.instances()
    assert tagged.tags["Name"] == "ip-10-0-0-1"
    assert tagged.tags["karpenter.sh/nodepool"] == "gpu"


@pytest.mark.covers("KRP-13")
def test_equal_templates_are_one_and_foreign_ones_are_left(world: World) -> None:
    image = world.image()
    world.ec2.create_launch_template(
        LaunchTemplateName="karpenter.k8s.aws/1", LaunchTemplateData={"ImageId": image}
    )
    first = world.aws.ensure_template(Template(image_id=image), owner="gpu")
    restarted = world.provider()
    assert restarted.ensure_template(Template(image_id=image), owner="gpu") == first
    other = restarted.ensure_template(Template(image_id=image, user_data="x"), owner="gpu")
    green = world.provider(cluster="green").ensure_template(Template(image_id=image), owner="gpu")
    assert len({first.name, other.name, green.name}) == 3
    assert {ref.name for ref in world.aws.templates()} == {first.name, other.name}
    assert all(ref.owner == "gpu" and ref.created and ref.created.tzinfo for ref in world.aws.templates())
    for ref in world.aws.templates():
        world.aws.delete_template(ref)
    world.aws.delete_template(first)
    left = {t["LaunchTemplateName"] for t in world.ec2.describe_launch_templates()["LaunchTemplates"]}
    assert left == {"karpenter.k8s.aws/1", green.name}


@pytest.mark.covers("KRP-13")
def test_more_templates_than_a_page_are_all_listed(world: World) -> None:
    image = world.image()
    names = {
        world.aws.ensure_template(Template(image_id=image, user_data=str(n)), owner="gpu").name
        for n in range(30)
    }
    assert {ref.name for ref in world.aws.templates()} == names


@pytest.mark.covers("KRP-13")
def test_deleted_template_is_made_again(world: World) -> None:
    ref = world.template()
    world.ec2.delete_launch_template(LaunchTemplateName=ref.name)
    with pytest.raises(ProviderError) as caught:
        world.launch()
    assert caught.value.class_ is ErrorClass.TEMPLATE_GONE
    assert len(world.launch(token="t-2").instances) == 1


@pytest.mark.covers("KRP-14")
def test_instance_has_the_values_of_its_template(world: World) -> None:
    group = world.ec2.create_security_group(GroupName="nodes", Description="nodes")["GroupId"]
    world.launch(
        pools=(world.pool("m5.large"),),
        security_group_ids=(group,),
        user_data="#!/bin/sh\n",
        tags={"team": "ml"},
    )
    (instance,) = world.running()
    assert [g["GroupId"] for g in instance["SecurityGroups"]] == [group]
    assert instance["MetadataOptions"]["HttpTokens"] == "required"
    assert {"Key": "team", "Value": "ml"} in instance["Tags"]


def test_deleting_a_template_that_was_never_there_is_success(world: World) -> None:
    world.aws.delete_template(TemplateRef(name="capacity-broker/nothing", id="lt-0123456789abcdef0"))


def test_instances_share_equal_texts(world: World) -> None:
    world.launch(pools=(world.pool("m5.large"),), count=2)
    first, second = world.aws.instances()
    assert first.zone is second.zone and first.image_id is second.image_id
    shared = {id(text) for pair in first.tags.items() for text in pair}
    assert {id(text) for pair in second.tags.items() for text in pair} == shared
