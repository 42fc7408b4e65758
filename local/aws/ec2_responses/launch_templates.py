"""Launch templates: checked when they are made, shown in pages."""

from __future__ import annotations

from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.exceptions import InvalidLaunchTemplateIdNotFound

from local.aws.ec2 import pages, templates
from local.aws.ec2.world import world
from local.aws.ec2_responses.pipeline import Pipeline

STACK_TAGS = "aws:cloudformation:"


class LaunchTemplateResponses(Pipeline):
    def create_launch_template(self) -> ActionResult:
        templates.check(self._get_param("LaunchTemplateData") or {}, world().codes)
        result = super().create_launch_template()
        answer: Any = result.result
        template = self.ec2_backend.get_launch_template(answer["LaunchTemplate"]["LaunchTemplateId"])
        now = world().clock.now().replace(tzinfo=None)
        template.create_time = answer["LaunchTemplate"]["CreateTime"] = template.versions[0].create_time = now
        return result

    def create_launch_template_version(self) -> ActionResult:
        templates.check(self._get_param("LaunchTemplateData") or {}, world().codes)
        return super().create_launch_template_version()

    def describe_launch_templates(self) -> ActionResult:
        self.error_on_dryrun()
        size = self._get_int_param("MaxResults")
        pages.check_size(size, lowest=1, highest=200)
        backend = self.ec2_backend
        ids = self._get_param("LaunchTemplateIds", [])
        for template_id in ids:
            if template_id not in backend.launch_templates:
                raise InvalidLaunchTemplateIdNotFound(template_id)
        templates = backend.describe_launch_templates(
            template_names=self._get_param("LaunchTemplateNames", []),
            template_ids=ids,
            filters=self._filters_from_querystring(),
        )
        shown, token = pages.page(templates, size=size or 200, token=self._get_param("NextToken"))
        creator = f"arn:{self.partition}:iam::{self.current_account}:root"
        return ActionResult(
            {
                "LaunchTemplates": [
                    {
                        "CreateTime": template.create_time,
                        "CreatedBy": creator,
                        "DefaultVersionNumber": template.default_version_number,
                        "LatestVersionNumber": template.latest_version_number,
                        "LaunchTemplateId": template.id,
                        "LaunchTemplateName": template.name,
                        # moto's CloudFormation tags templates, which CloudFormation does not
                        "Tags": [t for t in template.get_tags() if not t["key"].startswith(STACK_TAGS)],
                    }
                    for template in shown
                ],
                "NextToken": token,
            }
        )

    def describe_launch_template_versions(self) -> ActionResult:
        size, token = self._get_int_param("MaxResults"), self._get_param("NextToken")
        pages.check_size(size, lowest=1, highest=200)
        self.params["MaxResults"] = 1_000_000  # all of moto's, then a page of them
        result = super().describe_launch_template_versions()
        answer: Any = result.result
        answer["LaunchTemplateVersions"], answer["NextToken"] = pages.page(
            answer["LaunchTemplateVersions"], size=size or 200, token=token
        )
        return result
