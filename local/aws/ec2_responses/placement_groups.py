"""The actions on placement groups."""

from __future__ import annotations

from typing import Any

from moto.core.responses import ActionResult, EmptyResult

from local.aws.ec2 import answers, errors, pages, placement_groups
from local.aws.ec2.placement_groups import Ec2PlacementGroup
from local.aws.ec2.world import world
from local.aws.ec2_responses.pipeline import Pipeline

FILTERS: dict[str, pages.Value[Ec2PlacementGroup]] = {
    "group-name": lambda group: group.name,
    "group-arn": lambda group: group.arn,
    "spread-level": lambda group: group.spread_level,
    "state": lambda group: group.state,
    "strategy": lambda group: group.strategy,
}


class PlacementGroups(Pipeline):
    def create_placement_group(self) -> ActionResult:
        self.error_on_dryrun()
        tags = self._parse_tag_specification("placement-group").get("placement-group", {})
        group = placement_groups.create(self.ec2_backend, self.params)
        self.ec2_backend.create_tags([group.id], tags)
        return ActionResult({"PlacementGroup": placement_groups.describe(group, tags)})

    def describe_placement_groups(self) -> ActionResult:
        self.error_on_dryrun()
        backend = self.ec2_backend
        named = [placement_groups.find(backend, name) for name in self._get_param("GroupNames", [])]
        ids = set(self._get_param("GroupIds", []))
        known: dict[str, Ec2PlacementGroup] = {group.id: group for group in backend.placement_groups.values()}
        if unknown := ids - set(known):
            raise errors.Ec2Error(
                "InvalidPlacementGroupId.NotFound", f"The Placement Group ID '{unknown.pop()}' does not exist"
            )
        groups = named or [group for group in known.values() if not ids or group.id in ids]
        shown: list[dict[str, Any]] = [
            placement_groups.describe(group, backend.tags.get(group.id, {}))
            for group in self._filtered(groups, FILTERS, lambda group: group.id)
        ]
        return answers.Named({"PlacementGroups": shown})

    def delete_placement_group(self) -> ActionResult:
        self.error_on_dryrun()
        name = self._get_param("GroupName")
        arn = placement_groups.arn_of(self.ec2_backend, name)
        ledger = world().ledger
        in_use = any(
            o.where and o.needs.placement_group_arn == arn for o in ledger.occupants.values()
        ) or any(r.usable and r.placement_group_arn == arn for r in ledger.reservations.values())
        placement_groups.delete(self.ec2_backend, name, in_use=in_use)
        return EmptyResult()
