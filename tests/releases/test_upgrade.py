"""The present broker on the state of each release, and beside older, newer and missing definitions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.apis import crds as own
from broker.apis import names
from broker.apis.capacity_broker import OnDemandCapacityReservation
from broker.apis.crds import KIND as CRD
from broker.apis.karpenter import NodeClaim
from broker.apis.ome import CapacityReservation
from broker.commands.crds import skew
from broker.commands.crds.install import install
from broker.kube.client import Client
from local.aws import LocalAws
from local.in_process import InProcessTransport
from local.kube import Cluster
from tests.cluster.ome.reserved import reservation_status
from tests.cluster.stack import Stack
from tests.cluster.test_rest import tick
from tests.releases.world import Recording, live, released, restore

Json = dict[str, Any]
OWN = {"ome.io", names.BROKER}


@pytest.fixture
def server(local_aws: LocalAws) -> Iterator[LocalAws]:
    local_aws.reset()
    yield local_aws


@pytest.mark.covers("USR-32")
@pytest.mark.parametrize("version", released())
def test_broker_goes_on_from_the_state_of_a_release(version: str, server: LocalAws) -> None:
    stack, instances = restore(server, Recording.load(version))
    try:
        before = {claim.name: claim for claim in stack.all(NodeClaim)}
        assert {row["did"] for row in install(stack.client)} <= {"updated", "unchanged", "created"}
        assert skew.acceptable(skew.check(stack.client))
        stack.control.clear_calls()
        stack.start()
        stack.until_waiting("waits")
        stack.polls(3)
        after = {claim.name: claim for claim in stack.all(NodeClaim)}
        assert sorted(after) == sorted(before)
        assert {name: claim.instance_id for name, claim in after.items()} == {
            name: claim.instance_id for name, claim in before.items()
        }
        assert {instance["InstanceId"] for instance in stack.aws.instances()} == set(instances)
        assert (stack.calls("CreateFleet"), stack.calls("TerminateInstances")) == (0, 0)
        assert reservation_status(stack)["capacityReservationLifecycleState"] == "Active"
        assert stack.broker is not None and not any(
            informer.cache.broken for informer in stack.broker.informers
        )
        # It acts on the recorded objects: a slot becomes free, and the waiting claim gets it.
        stack.delete(NodeClaim, "full")
        stack.until_gone(NodeClaim, "full")
        stack.until(lambda: stack.is_true("waits", names.LAUNCHED), "the free slot is used", step=1.0)
        assert stack.get(NodeClaim, "waits").instance_id not in instances
    finally:
        stack.close()


def altered(change: str) -> list[Json]:
    """This version's definitions, without half of the status fields of the broker's kinds, or with more."""
    crds_ = own.load()
    for crd in crds_:
        if crd["spec"]["group"] not in OWN:
            continue
        for version in crd["spec"]["versions"]:
            schema = version["schema"]["openAPIV3Schema"]["properties"]
            for part in ("spec", "status"):
                fields = schema.get(part, {}).get("properties")
                if fields is None:
                    continue
                if change == "newer":
                    fields["newField"] = {"type": "string"}
                elif part == "status":
                    for name in sorted(fields)[::2]:
                        if name != "conditions":
                            del fields[name]
                            if name in schema[part].get("required", ()):
                                schema[part]["required"].remove(name)
    return crds_


def _status_fields(definitions: list[Json]) -> set[str]:
    """The fields of the status of an OnDemandCapacityReservation."""
    plural = OnDemandCapacityReservation.KIND.plural
    (crd,) = (item for item in definitions if item["spec"]["names"]["plural"] == plural)
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    return {*schema["status"]["properties"]}


def beside(server: LocalAws, definitions: list[Json]) -> Stack:
    cluster = Cluster()
    client = Client(InProcessTransport(cluster), field_manager="release")
    for crd in definitions:
        client.create(CRD, crd)
    return Stack(server, InProcessTransport(cluster))


@pytest.mark.covers("USR-32")
def test_broker_launches_and_rests_beside_older_definitions(server: LocalAws) -> None:
    definitions = altered("older")
    stack = beside(server, definitions)
    try:
        rows = {row["name"]: row for row in skew.check(stack.client)}
        older = rows["ondemandcapacityreservations.capacity-broker.io"]
        assert older["state"] == "older" and "status." in older["detail"]
        assert not skew.acceptable(rows.values())
        odcr = stack.aws.odcr(count=2)
        stack.node_class(id_=odcr)
        stack.start(poll_seconds=30.0)
        stack.claims(2)
        stack.until_ready("c-0", "c-1")
        for _ in range(4):
            tick(stack)
        mirrored = stack.client.get(OnDemandCapacityReservation.KIND, odcr)
        written, declared = {"available", "state", "total", "type", "zone"}, _status_fields(definitions)
        assert declared & written and written - declared
        assert mirrored["status"].keys() & written == declared & written
        for _ in range(3):
            tick(stack)
        again = stack.client.get(OnDemandCapacityReservation.KIND, odcr)
        assert again["metadata"]["resourceVersion"] == mirrored["metadata"]["resourceVersion"]
    finally:
        stack.close()


@pytest.mark.covers("USR-32")
def test_fields_of_newer_definitions_survive_the_broker(server: LocalAws) -> None:
    stack = beside(server, altered("newer"))
    try:
        rows = skew.check(stack.client)
        assert skew.acceptable(rows)
        assert {row["state"] for row in rows} == {"newer", "same"}
        live(stack)
        kind = CapacityReservation.KIND
        stack.client.patch(kind, "training", {"spec": {"newField": "kept"}}, namespace="default")
        stack.polls(2)
        stored = stack.client.get(kind, "training", namespace="default")
        assert stored["spec"]["newField"] == "kept"
        assert stored["status"]["capacityReservationLifecycleState"] == "Active"
    finally:
        stack.close()


@pytest.mark.covers("USR-32")
def test_missing_definition_is_named_by_log_and_readiness(server: LocalAws) -> None:
    stack = Stack(server, InProcessTransport(Cluster()))
    needed = sorted(skew.NEEDED)
    mirrored = OnDemandCapacityReservation.KIND.resource
    try:
        for name in (*needed, mirrored):
            stack.client.delete(CRD, name)
        rows = skew.check(stack.client)
        states = {row["name"]: row["state"] for row in rows}
        assert sorted(name for name, state in states.items() if state == "missing") == needed
        assert [name for name, state in states.items() if state == "absent"] == [mirrored]
        assert not skew.acceptable(rows)
        with capture_logs() as logs:
            broker = stack.start(kubelets=False)
            named = {f"{kind.split('.')[0].removeprefix('ec2')}: {kind} is not installed" for kind in needed}
            stack.until(lambda: named <= broker.ready().keys(), "the kinds are named")
        errors = [entry for entry in logs if entry["log_level"] == "error" and "way_out" in entry]
        assert set(needed) <= {entry["kind"] for entry in errors}
        assert all("crds install" in entry["way_out"] for entry in errors)
        install(stack.client)
        stack.until(lambda: all(broker.ready().values()), "the broker goes on by itself", step=1.0)
        assert skew.acceptable(skew.check(stack.client))
    finally:
        stack.close()
