"""Keeps the record of field managers when a client writes an object whole or patches it."""

from __future__ import annotations

from local.kube.apply.managers import updated
from local.kube.apply.verb import context_of
from local.kube.options import ApiCall
from local.kube.state import ApiState
from local.kube.times import stamp
from local.kube.wire import Obj


def managed(state: ApiState, call: ApiCall, live: Obj | None, obj: Obj) -> Obj:
    """The object with its record of field managers brought up to date."""
    context = context_of(call)
    updated(context.empty if live is None else live, obj, call.manager, stamp(state.clock()), context)
    return obj


_DUPLICATE = (
    ".metadata.ownerReferences contains duplicate entries{when}; API server dedups owner references in "
    "1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) "
    "observed: {uids}"
)


def unique_owners(call: ApiCall, obj: Obj, *, after: bool = False) -> None:
    """Owners that are named twice count once, with a warning."""
    owners = obj["metadata"].get("ownerReferences")
    if not owners or len(owners) < 2:
        return
    kept: list[Obj] = []
    repeated: list[str] = []
    for owner in owners:
        if owner in kept:
            repeated.append(owner.get("uid", ""))
        else:
            kept.append(owner)
    if repeated:
        obj["metadata"]["ownerReferences"] = kept
        when = " after mutating admission happens" if after else ""
        call.warn(_DUPLICATE.format(when=when, uids=", ".join(repeated)))
