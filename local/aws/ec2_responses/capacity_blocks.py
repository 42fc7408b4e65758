"""The actions on Capacity Blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moto.core.responses import ActionResult

from local.aws.ec2 import answers, block_extensions, block_market, blocks, errors, pages
from local.aws.ec2.blocks import Block, Extension
from local.aws.ec2.world import world
from local.aws.ec2_responses.reservations import CapacityReservations, format_time

KIND = "capacity-block"

FILTERS: dict[str, pages.Value[Block]] = {
    "capacity-block-id": lambda block: block.id,
    "ultraserver-type": lambda block: "ultraservers" if block.ultraserver_type else "instances",
    "availability-zone": lambda block: block.first.zone,
    "start-date": lambda block: format_time(block.first.start_date),
    "end-date": lambda block: format_time(block.first.end_date),
    "create-date": lambda block: format_time(block.created),
    "state": lambda block: block.first.state,
}
STATUS_FILTERS: dict[str, pages.Value[Block]] = {"interconnect-status": lambda _: "ok"}
EXTENSION_FILTERS: dict[str, pages.Value[Extension]] = {
    "availability-zone": lambda extension: extension.offer.reservation.zone,
    "availability-zone-id": lambda extension: extension.offer.reservation.zone_id,
    "capacity-block-extension-offering-id": lambda extension: extension.offer.id,
    "capacity-block-extension-status": lambda extension: extension.status,
    "capacity-reservation-id": lambda extension: extension.offer.reservation.id,
    "instance-type": lambda extension: extension.offer.reservation.instance_type,
}


class CapacityBlocks(CapacityReservations):
    def describe_capacity_block_offerings(self) -> ActionResult:
        self.error_on_dryrun()
        offers = block_market.offers(world(), self.ec2_backend, self.params)
        return self._listed("CapacityBlockOfferings", offers, blocks.describe_offer)

    def purchase_capacity_block(self) -> ActionResult:
        self.error_on_dryrun()
        tags = self._parse_tag_specification(KIND)
        block = block_market.purchase(world(), self.ec2_backend, self.params)
        self.ec2_backend.create_tags([block.id], tags.get(KIND, {}))
        self.ec2_backend.create_tags([r.id for r in block.reservations], tags.get("capacity-reservation", {}))
        now = world().ledger.now()
        described = [self._describe(reservation, reservation.view(now)) for reservation in block.reservations]
        return answers.Named(
            {
                "CapacityReservation": described[0],
                "CapacityReservations": described,
                "CapacityBlocks": [self._block(block)],
            }
        )

    def describe_capacity_blocks(self) -> ActionResult:
        self.error_on_dryrun()
        return self._listed("CapacityBlocks", self._blocks(FILTERS), self._block)

    def describe_capacity_block_status(self) -> ActionResult:
        self.error_on_dryrun()
        active_blocks = [block for block in self._blocks(STATUS_FILTERS) if block.first.state == "active"]
        return self._listed("CapacityBlockStatuses", active_blocks, blocks.describe_status)

    def describe_capacity_block_extension_offerings(self) -> ActionResult:
        reservation = self._reservation()
        self.error_on_dryrun()
        hours = self._get_param("CapacityBlockExtensionDurationHours")
        offers = block_extensions.offers(world(), reservation, self.current_account, hours)
        return self._listed("CapacityBlockExtensionOfferings", offers, blocks.describe_extension_offer)

    def purchase_capacity_block_extension(self) -> ActionResult:
        reservation = self._reservation()
        self.error_on_dryrun()
        offer_id = self._get_param("CapacityBlockExtensionOfferingId")
        bought = block_extensions.purchase(world(), reservation, self.current_account, offer_id)
        return answers.Named({"CapacityBlockExtensions": [blocks.describe_extension(bought)]})

    def describe_capacity_block_extension_history(self) -> ActionResult:
        self.error_on_dryrun()
        ids = self._get_param("CapacityReservationIds", [])
        own = [self.ec2_backend.find_reservation(i) for i in ids] if ids else list(self._in_scope().values())
        extensions = self._filtered(
            (extension for extension in world().blocks.extensions if extension.offer.reservation in own),
            EXTENSION_FILTERS,
        )
        return self._listed("CapacityBlockExtensions", extensions, blocks.describe_extension)

    # ---- shared helpers

    def _in_scope(self) -> Mapping[str, Any]:
        return world().ledger.in_scope(self.ec2_backend.account_id, self.ec2_backend.region_name)

    def _blocks(self, filters: Mapping[str, pages.Value[Block]]) -> list[Block]:
        scope, known = self._in_scope(), world().blocks.bought
        own = {block.id: block for block in known.values() if block.first.id in scope}
        ids = self._get_param("CapacityBlockIds", [])
        for block_id in ids:
            if block_id not in own:
                raise errors.Ec2Error(
                    world().codes["block-unknown"], f"The Capacity Block '{block_id}' does not exist"
                )
        requested = [own[block_id] for block_id in dict.fromkeys(ids)] if ids else list(own.values())
        return self._filtered(requested, filters, lambda block: block.id)

    def _block(self, block: Block) -> dict[str, Any]:
        return blocks.describe_block(block, self.tags_of(block.id))
