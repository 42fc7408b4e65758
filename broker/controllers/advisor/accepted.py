"""Keeps a copy of each accepted `capacityReservationSpec`, and restores a field that was lost.

Invariant: a change of the definition loses no user's value, and restores none that a user removed. The copy
names the identity of its definition, which every change of the definition changes. If the field is gone under
the same definition, a user removed it; under another one, it was pruned. The deciding reads go to the API
server, and only after all its replicas can be expected to know the definition.
"""

from __future__ import annotations

from typing import Any

import structlog

from broker.apis import names
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.karpenter_aws_accepted import AcceptedSpec, load
from broker.apis.karpenter_aws_definition import PROPERTY
from broker.apis.meta import ConditionUpdate
from broker.apis.reservation_spec import validate_reservation_spec
from broker.controllers.advisor.conditions import conditions_patch
from broker.controllers.advisor.definition import DefinitionController
from broker.controllers.nodeclass.status import patch_status
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.controller import Result
from broker.kube.events import Recorder

SOON = 1.0
UNCONFIRMED = ""  # the copy's definition if the field may not have been kept

_log = structlog.get_logger("accepted")


class AcceptedSpecController:
    """Reconciles classes by name."""

    def __init__(
        self,
        client: Client,
        classes: Cache[EC2NodeClass],
        definition: DefinitionController,
        *,
        clock: Clock,
        recorder: Recorder,
    ) -> None:
        self._client = client
        self._classes = classes
        self._definition = definition
        self._clock = clock
        self._recorder = recorder

    def reconcile(self, name: str) -> Result | None:
        """Raises ApiError."""
        node_class, known = self._classes.get(name), self._definition.current()
        if node_class is None or node_class.deleting or known is None:
            return None
        copy = load(node_class.annotations.get(names.ACCEPTED_SPEC))
        if copy is None and known.own:
            return None  # Karpenter's chart never removes the field
        self._write_condition(node_class, served=known.serves or copy is None)
        if not known.serves:
            return None
        node_class = self._classes.get(name) or node_class
        field = node_class.spec.capacity_reservation_spec
        if field is not None and validate_reservation_spec(field):
            return None  # not accepted
        wanted = AcceptedSpec(spec=field, definition=known.identity) if field is not None else None
        if (wanted and wanted.dump()) == (copy and copy.dump()):
            return None
        if wait := self._definition.propagation_wait():
            return Result(requeue_after=wait)
        if not self._definition.confirmed(known.identity):
            return Result(requeue_after=SOON)
        if wanted is not None:
            return self._copy(node_class, wanted)
        if copy is not None and copy.definition != known.identity:
            return self._restore(node_class, copy)
        raw = self._client.get(EC2NodeClass.KIND, name)
        if PROPERTY in raw.get("spec", {}):
            self._classes.reread([raw])
            return Result(requeue_after=SOON)
        self._patch(node_class, {"metadata": {"annotations": {names.ACCEPTED_SPEC: None}}})
        _log.info("the user removed the spec: its copy goes as well", nodeclass=name)
        return None

    def _copy(self, node_class: EC2NodeClass, wanted: AcceptedSpec) -> Result | None:
        """The copy names a definition only after the broker gave up a field that it wrote back under it."""
        if self._disown(node_class.name):
            return Result(requeue_after=SOON)
        spec = wanted.spec.wire()
        kept = self._patch(
            node_class,
            {
                "metadata": {"annotations": {names.ACCEPTED_SPEC: wanted.dump()}},
                "spec": {PROPERTY: spec},
            },
        )
        if kept:
            return None
        # A replica that does not know the property took the write: no user removed the field that is gone
        # now.
        unconfirmed = AcceptedSpec(spec=wanted.spec, definition=UNCONFIRMED)
        fresh = self._classes.get(node_class.name) or node_class
        self._patch(fresh, {"metadata": {"annotations": {names.ACCEPTED_SPEC: unconfirmed.dump()}}})
        return Result(requeue_after=SOON)

    def _restore(self, node_class: EC2NodeClass, copy: AcceptedSpec) -> Result | None:
        """Writes the copied field back. Its copy names the new definition once the class has the field."""
        if not self._patch(node_class, {"spec": {PROPERTY: copy.spec.wire()}}):
            return Result(requeue_after=SOON)
        _log.info("spec written back", nodeclass=node_class.name)
        self._recorder.event(
            node_class,
            "Normal",
            "SpecRestored",
            f"spec.{PROPERTY} was dropped by a change of the definition, and is written back from annotation "
            f"{names.ACCEPTED_SPEC}",
        )
        return Result(requeue_after=SOON)

    def _disown(self, name: str) -> bool:
        """Gives up ownership of the field, which belongs to its user. True if the broker had it.

        While the broker owns the field too, a manifest without it does not remove it
        (https://kubernetes.io/docs/reference/using-api/server-side-apply/#conflicts).
        """
        raw = self._client.get(EC2NodeClass.KIND, name)
        entries = raw["metadata"].get("managedFields", [])
        owned = [entry for entry in entries if entry.get("manager") == self._client.field_manager]
        specs = [spec for entry in owned if (spec := entry.get("fieldsV1", {}).get("f:spec"))]
        given_up = [spec.pop(f"f:{PROPERTY}", None) for spec in specs]
        if not any(given_up):
            return False
        version = raw["metadata"]["resourceVersion"]
        body = {"metadata": {"resourceVersion": version, "managedFields": entries}}
        self._classes.observe(self._client.patch(EC2NodeClass.KIND, name, body))
        return True

    def _patch(self, node_class: EC2NodeClass, body: dict[str, Any]) -> bool:
        """Patches the class. True if the class has the field afterwards."""
        body.setdefault("metadata", {})["resourceVersion"] = node_class.metadata.resource_version
        answer = self._client.patch(EC2NodeClass.KIND, node_class.name, body)
        self._classes.observe(answer)
        return PROPERTY in answer.get("spec", {})

    def _write_condition(self, node_class: EC2NodeClass, *, served: bool) -> None:
        lost = ConditionUpdate(
            type=names.SPEC_SERVED,
            status="False",
            reason="PropertyMissing",
            message=f"the definition of EC2NodeClass no longer has spec.{PROPERTY}; the broker goes on with "
            f"the copy in annotation {names.ACCEPTED_SPEC}. Run capacity-broker crds patch",
        )
        status = conditions_patch(
            node_class, [] if served else [lost], types=(names.SPEC_SERVED,), now=self._clock.now()
        )
        if status is not None:
            patch_status(self._client, self._classes, node_class, status)
