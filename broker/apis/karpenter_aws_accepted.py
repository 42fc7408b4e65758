"""The copy of an accepted `capacityReservationSpec` that the broker keeps in an annotation of the class.

Karpenter's own definition of EC2NodeClass has the field only if it was added there. An upgrade of the
definition drops it, and the next write of the object then drops the value for good. The copy records the
definition (uid and generation) under which the field was last seen. So if a field is missing under the
same definition, its user removed it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import ValidationError

from broker.apis.reservation_spec import CapacityReservationSpec, validate_reservation_spec
from broker.text import InvalidText, decode_object


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedSpec:
    """A valid spec as written, and the definition that had its field."""

    spec: CapacityReservationSpec
    definition: str

    def dump(self) -> str:
        fields: dict[str, Any] = {"spec": self.spec.wire(), "definition": self.definition}
        return orjson.dumps(fields, option=orjson.OPT_SORT_KEYS).decode()


def load(annotation: str | None) -> AcceptedSpec | None:
    """None without a copy, or if the broker cannot have made it."""
    try:
        fields = decode_object(annotation or "")
        spec = CapacityReservationSpec.model_validate(fields["spec"])
        accepted = AcceptedSpec(spec=spec, definition=str(fields["definition"]))
    except (InvalidText, KeyError, TypeError, ValidationError):
        return None
    return None if validate_reservation_spec(spec) else accepted
