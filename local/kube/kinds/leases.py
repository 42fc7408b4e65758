"""Leases: durations and counts that make sense; a PUT may create one, but not replace one unseen."""

from __future__ import annotations

from local.kube.errors import FieldError, problem
from local.kube.kind import FIXED, VALID, KindRules
from local.kube.kinds.checks import not_negative
from local.kube.wire import Obj


def _create(obj: Obj) -> None:
    # Coordinated leader election is not served: its fields are dropped, as where the feature is off.
    for name in ("strategy", "preferredHolder"):
        (obj.get("spec") or {}).pop(name, None)


def _update(obj: Obj, _: Obj) -> None:
    _create(obj)


def _validate(obj: Obj) -> list[FieldError]:
    spec, out = obj.get("spec") or {}, list[FieldError]()
    seconds = spec.get("leaseDurationSeconds")
    if seconds is not None and seconds <= 0:
        out.append(problem("invalid", "spec.leaseDurationSeconds", "must be greater than 0", seconds))
    return out + not_negative(spec.get("leaseTransitions"), "spec.leaseTransitions")


RULES = KindRules(
    create=_create,
    update=_update,
    validate=_validate,
    create_on_update=True,
    unconditional=False,
    update_order=(FIXED, VALID),
)
