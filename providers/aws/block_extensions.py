"""The extensions of Capacity Blocks that were bought."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from providers.aws.account import AwsAccount
from providers.aws.clock import utc
from providers.model import BlockExtension

PAGE: Final = 1000
# An extension whose payment failed changes nothing (EC2 API Reference, CapacityBlockExtension).
_PAID: Final = {"payment-pending": False, "payment-succeeded": True}


class BlockExtensions(AwsAccount):
    """Reads extensions."""

    def extensions(self, odcr_ids: Collection[str]) -> Sequence[BlockExtension]:
        """The extensions of these blocks that are paid, or may still be."""
        extensions: list[BlockExtension] = []
        for page in self._aws.pages(
            self._aws.ec2.describe_capacity_block_extension_history,
            CapacityReservationIds=sorted(odcr_ids),
            MaxResults=PAGE,
        ):
            for item in page["CapacityBlockExtensions"]:
                paid = _PAID.get(item.get("CapacityBlockExtensionStatus", ""))
                start = utc(item.get("CapacityBlockExtensionStartDate"))
                end = utc(item.get("CapacityBlockExtensionEndDate"))
                if paid is not None and start is not None and end is not None:
                    id_ = item.get("CapacityReservationId", "")
                    extensions.append(BlockExtension(odcr_id=id_, start=start, end=end, paid=paid))
        return extensions
