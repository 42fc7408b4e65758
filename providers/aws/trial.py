"""A trial launch: EC2 reports if the broker's role may launch, and launches nothing.

The template is made, since EC2 decides by its tags and content, and deleted again. CreateFleet and
RunInstances are dry runs with it. CreateFleet calls RunInstances as the broker, and a dry run of the one
proves nothing about the other. Karpenter validates a class alike (pkg/controllers/nodeclass/validation.go).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import structlog

from providers.aws import errors, fleet
from providers.aws.launch_templates import LaunchTemplates, template_data
from providers.aws.tags import to_ec2
from providers.errors import ProviderError
from providers.launch import LaunchRequest, Override, Template, TemplateRef
from providers.model import Market

_log = structlog.get_logger("aws.trial")


class Trials(LaunchTemplates):
    """Launches as dry runs."""

    def try_launch(
        self,
        template: Template,
        *,
        owner: str,
        overrides: Sequence[Override],
        market: Market,
        tags: Mapping[str, str],
    ) -> str:
        """Tries one override after another, with a launch's tags, until one is allowed (empty).

        If a policy denies all of them: the denial of the first, the action in front. Raises ProviderError for
        any other refusal.
        """
        try:
            ref = self.ensure_template(template, owner=owner)
        except ProviderError as error:
            return _denial(error)
        first = ""
        try:
            for override in overrides:
                request = LaunchRequest(
                    token=uuid.uuid4().hex,
                    template=ref,
                    overrides=(override,),
                    count=1,
                    market=market,
                    tags=tags,
                )
                fleet_parameters: Any = fleet.fleet_request(request, cluster=self._owner)
                instance = _instance(template, ref.name, override, {**tags, **self._owner.labels()})
                try:
                    _dry(partial(self._aws.call, self._aws.ec2.create_fleet, **fleet_parameters, DryRun=True))
                    _dry(partial(self._aws.call, self._aws.ec2.run_instances, **instance, DryRun=True))
                except ProviderError as error:
                    denial = _denial(error)
                    first = first or denial
                    continue
                return ""
        finally:
            self._delete_tried(ref)
        return first

    def _delete_tried(self, ref: TemplateRef) -> None:
        try:
            self.delete_template(ref)
        except ProviderError as error:
            # Launches do not need it; the sweep deletes what is left.
            _log.warning("template of a trial not deleted", template=ref.name, error=str(error))


def _denial(error: ProviderError) -> str:
    """The denial in words. Raises the error again if no policy denied the call."""
    if not errors.denied(error):
        raise error
    return f"{errors.denied_action(error)}: {error.message} (a dry run: {error.operation})"


def _dry(call: Callable[[], object]) -> None:
    try:
        call()
    except ProviderError as error:
        if not errors.only_tried(error):
            raise


def _instance(template: Template, name: str, override: Override, labels: Mapping[str, str]) -> dict[str, Any]:
    """RunInstances' parameters. EC2 takes the subnet on the interfaces, where there are any."""
    parameters: dict[str, Any] = {
        "LaunchTemplate": {"LaunchTemplateName": name, "Version": "$Latest"},
        "InstanceType": override.instance_type,
        "MinCount": 1,
        "MaxCount": 1,
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": to_ec2(labels)} for kind in ("instance", "volume")
        ],
    }
    interfaces: Any = template_data(template).get("NetworkInterfaces")
    if not interfaces:
        return {**parameters, "SubnetId": override.subnet_id}
    return {
        **parameters,
        "NetworkInterfaces": [{**interface, "SubnetId": override.subnet_id} for interface in interfaces],
    }
