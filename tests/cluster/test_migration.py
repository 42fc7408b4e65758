"""The pages of migration are tried on local AWS: their commands, in order, print the shown outputs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from broker.apis import names
from broker.apis.meta import Kind
from broker.kube import identity
from tests.cluster import karpenter
from tests.cluster.account import ACCOUNT, CLUSTER, REGION, A
from tests.cluster.conftest import ServedStack
from tests.cluster.objects import ON_DEMAND
from tests.cluster.stack import Stack
from tests.docs.blocks import DOCS, blocks, parts, step_list
from tests.docs.test_runbooks import normal

PLACEHOLDER = "cr-0123456789abcdef0"
DEPLOYMENT = Kind(group="apps", version="v1", kind="Deployment", plural="deployments", namespaced=True)
OTHERS = (
    (re.compile(r"\bi-[0-9a-f]{17}"), "i-0123456789abcdef0"),
    (re.compile(r"\bvol-[0-9a-f]{8,17}"), "vol-0123456789abcdef0"),
    (re.compile(r"(capacity-broker/)[0-9a-f]{40}"), r"\g<1>0123456789"),
    (re.compile(r"(capacity-broker-launches-)\d"), r"\g<1>0"),
    (re.compile(r"\bip-[\d-]+\.ec2"), "ip-172-31-0-4.ec2"),
)
NEEDED = ("kubectl", "aws", "jq")
pytestmark = [
    pytest.mark.kubectl,
    pytest.mark.skipif(
        not all(map(shutil.which, NEEDED)) and os.environ.get("CI_REQUIRE_PEERS") != "1",
        reason=f"not all of {NEEDED} are on PATH",
    ),
]
Play = Callable[[], object]


@dataclass(kw_only=True)
class Story:
    """The state before a page, and the commands of its `sh` blocks that a test plays."""

    stack: Stack
    folder: Path
    kubeconfig: str
    odcr: str = ""
    plays: dict[str, Play] = field(default_factory=dict)  # by a word of the block

    def environment(self) -> Mapping[str, str]:
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return {
            "PATH": programs,
            "PYTHONPATH": str(DOCS.parent),
            "HOME": str(self.folder),
            "KUBECONFIG": self.kubeconfig,
            "AWS_ENDPOINT_URL": self.stack.server.endpoint,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_PAGER": "",
        }

    def printed(self, command: str) -> str:
        done = subprocess.run(
            ["bash", "-c", command.replace(PLACEHOLDER, self.odcr)],
            env=self.environment(),
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        text = normal(done.stdout)
        for pattern, constant in OTHERS:
            text = pattern.sub(constant, text)
        return text

    def follow(self, page: Path) -> None:
        """Runs the page. A command that reads is repeated until the broker has caught up."""
        for number, text in enumerate(blocks(page, "yaml")):
            (self.folder / ("gpu.yaml" if not number else f"gpu-{number}.yaml")).write_text(
                text.replace(PLACEHOLDER, self.odcr)
            )
        for language, text in parts(page):
            if language == "sh":
                (play,) = (play for word, play in self.plays.items() if word in text)
                play()
            elif language == "console":
                for step in step_list([text]):
                    self._step(step.command, normal(step.output))

    def _step(self, command: str, expected: str) -> None:
        shown = [self.printed(command)]
        reads = re.match(r"(kubectl.* get |aws \w+ describe|capacity-broker idle)", command)

        def same() -> bool:
            if shown[-1] != expected and reads:
                shown.append(self.printed(command))
            return shown[-1] == expected

        if reads:
            try:
                self.stack.until(same, command, step=1.0)
            except AssertionError as error:
                raise AssertionError(f"{command}\nprints\n{shown[-1]}\nnot\n{expected}") from error
        assert shown[-1] == expected, f"{command}\nprints\n{shown[-1]}"


@pytest.fixture
def story(served: ServedStack, tmp_path: Path) -> Story:
    return Story(stack=served.stack, folder=tmp_path, kubeconfig=served.kubeconfig)


@pytest.mark.covers("USR-23")
def test_from_karpenter_s_own_terms_and_back(story: Story) -> None:
    stack = story.stack
    story.odcr = stack.aws.odcr("m5.large", A, 1)
    stack.node_class(capacityReservationSelectorTerms=[{"id": story.odcr}])
    karpenter.pool(stack)
    stack.start()
    # Karpenter as released turns its gate off and on in tests/peers/test_karpenter.py.
    story.plays = {"reservedCapacity=false": lambda: None}
    story.follow(DOCS / "operate" / "from-karpenter.md")
    karpenter.until_terms(stack, {"id": story.odcr})


@pytest.mark.covers("USR-23")
def test_from_an_auto_scaling_group_that_targets_a_reservation(story: Story) -> None:
    stack, ec2 = story.stack, story.stack.aws.ec2
    story.odcr = stack.aws.odcr("m5.large", A, 2)
    role, tag = "KarpenterNodeRole-prod", [{"Key": "karpenter.sh/discovery", "Value": "prod"}]
    stack.aws.client("iam").create_role(RoleName=role, AssumeRolePolicyDocument="{}")
    ec2.create_tags(Resources=[*stack.aws.subnets.values(), stack.aws.security_group], Tags=tag)
    target = {"CapacityReservationTarget": {"CapacityReservationId": story.odcr}}
    data = {
        "ImageId": stack.aws.image,
        "InstanceType": "m5.large",
        "CapacityReservationSpecification": target,
    }
    ec2.create_launch_template(LaunchTemplateName="gpu-nodes", LaunchTemplateData=data)
    stack.aws.client("autoscaling").create_auto_scaling_group(
        AutoScalingGroupName="gpu-nodes",
        MinSize=0,
        MaxSize=2,
        DesiredCapacity=2,
        LaunchTemplate={"LaunchTemplateName": "gpu-nodes"},
        VPCZoneIdentifier=stack.aws.subnets[A],
    )
    stack.start()
    story.follow(DOCS / "operate" / "from-node-groups.md")
    assert stack.reservation_of("gpu-0") == story.odcr


@pytest.mark.covers("USR-23")
def test_taking_over_karpenter_s_claims_and_back(story: Story) -> None:
    stack = story.stack
    spec = {"selector": {"matchLabels": {"app": "karpenter"}}, "replicas": 2}
    template = {
        "metadata": {"labels": {"app": "karpenter"}},
        "spec": {"containers": [{"name": "controller", "image": "karpenter"}]},
    }
    metadata = {"name": "karpenter", "namespace": "kube-system"}
    stack.client.create(DEPLOYMENT, {"metadata": metadata, "spec": {**spec, "template": template}})
    stack.node_class(preference="none")
    stack.claim("pending", capacity=(ON_DEMAND,), group=names.KARPENTER_AWS)
    stack.start()

    def set_to(on: bool) -> None:
        stack.stop()
        stack.start(take_over_karpenter=on)

    story.plays = {"Karpenter=true": lambda: set_to(True), "Karpenter=false": lambda: set_to(False)}
    story.follow(DOCS / "operate" / "take-over.md")
    assert stack.aws.instances() == []


@pytest.mark.covers("USR-23")
def test_backing_out(story: Story) -> None:
    stack = story.stack
    uid = identity.cluster_uid(stack.client)
    facts = {"clusterUID": uid, "clusterName": CLUSTER, "accountID": ACCOUNT, "region": REGION}
    identity.pin(stack.client, facts)
    story.odcr = stack.aws.odcr("m5.large", A, 1)
    stack.node_class(id_=story.odcr)
    stack.start()
    stack.claim("c-0")
    stack.until_ready("c-0")
    stack.kubelets.stop()  # they take an instance without the cluster's tag for ended
    story.plays = {"helm uninstall": stack.stop}
    story.follow(DOCS / "operate" / "back-out.md")
    assert len(stack.aws.instances(own_only=False)) == 1
