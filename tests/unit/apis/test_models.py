"""Objects as the broker reads and writes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.apis.coordination import Lease, LeaseSpec
from broker.apis.core import Event, Node, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass, EC2NodeClassV1Beta1
from broker.apis.meta import Condition, Kind, Object, condition
from broker.text import quantities, quantity
from tests.unit.apis.cases import node_claim, node_class, node_pool

PODS = Pod.KIND
CLASSES = EC2NodeClass.KIND


@pytest.mark.parametrize(
    ("kind", "where", "path"),
    [
        (PODS, {}, "/api/v1/pods"),
        (PODS, {"namespace": "a"}, "/api/v1/namespaces/a/pods"),
        (PODS, {"namespace": "a", "name": "b"}, "/api/v1/namespaces/a/pods/b"),
        (
            PODS,
            {"namespace": "a", "name": "b", "subresource": "status"},
            "/api/v1/namespaces/a/pods/b/status",
        ),
        (CLASSES, {}, "/apis/karpenter.k8s.aws/v1/ec2nodeclasses"),
        (CLASSES, {"name": "gpu"}, "/apis/karpenter.k8s.aws/v1/ec2nodeclasses/gpu"),
        (EC2NodeClassV1Beta1.KIND, {"name": "x"}, "/apis/karpenter.k8s.aws/v1beta1/ec2nodeclasses/x"),
    ],
)
def test_a_kind_has_its_paths(kind: Kind, where: dict[str, str], path: str) -> None:
    assert kind.path(**where) == path


@pytest.mark.parametrize(
    ("kind", "where", "message"),
    [
        (CLASSES, {"namespace": "a"}, "EC2NodeClass has no namespace"),
        (PODS, {"name": "b"}, "Pod 'b' needs a namespace"),
        (CLASSES, {"subresource": "status"}, "needs a name"),
    ],
)
def test_an_invalid_path_is_refused(kind: Kind, where: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind.path(**where)


def test_a_kind_is_named_as_kubectl_names_it() -> None:
    assert (PODS.resource, CLASSES.resource) == ("pods", "ec2nodeclasses.karpenter.k8s.aws")
    assert (PODS.api_version, CLASSES.api_version) == ("v1", "karpenter.k8s.aws/v1")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("4", 4),
        ("100m", 0.1),
        ("700m", 0.7),
        ("1.5", 1.5),
        ("2Gi", 2 * 1024**3),
        ("1Ki", 1024),
        ("1k", 1000),
        ("1e3", 1000),
        ("1E3", 1000),
        ("12E", 2.0**63),
        ("1Ei", 2.0**60),
        ("250u", 0.00025),
        ("-1", -1),
        ("9" * 64, 2.0**63),
        ("1e400", 2.0**63),
        ("-1e400", -(2.0**63)),
    ],
)
def test_quantities_are_read_in_base_units(text: str, value: float) -> None:
    assert quantity(text) == value


@pytest.mark.parametrize("text", ["", "much", "NaN", "1_0", "1e1.5", "1GiB", "Gi", "1 Gi", "0x1"])
def test_an_invalid_quantity_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        quantity(text)


@pytest.mark.parametrize(
    ("model", "raw"),
    [
        (
            EC2NodeClass,
            node_class(spec={"capacityReservationSpec": {"capacityReservationPreference": "open"}}),
        ),
        (NodeClaim, node_claim(taints=[{"key": "gpu", "effect": "NoSchedule"}])),
        (NodePool, node_pool(weight=7, limits={"cpu": "10"})),
        (
            Node,
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": "n", "labels": {"a": "b"}},
                "spec": {
                    "providerID": "aws:///us-east-1a/i-1",
                    "taints": [{"key": "k", "effect": "NoExecute"}],
                },
                "status": {
                    "allocatable": {"cpu": "3920m"},
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            },
        ),
    ],
)
def test_objects_round_trip(model: type[Object], raw: dict[str, Any]) -> None:
    assert model.decode(raw).wire() == raw
    assert model.decode(orjson.dumps(raw)).wire() == raw


@pytest.mark.parametrize("model", [EC2NodeClass, NodeClaim, NodePool, Node, Pod, Lease, Event])
def test_unknown_fields_are_ignored(model: type[Object]) -> None:
    known = {"metadata": {"name": "a", "uid": "u"}}
    newer = {
        "metadata": {"name": "a", "uid": "u", "managedFields": [{"manager": "x"}], "newer": 1},
        "newer": {"a": [1]},
    }
    assert model.decode(newer) == model.decode(known)


def test_acronyms_keep_their_capitals() -> None:
    status = {
        "providerID": "aws:///us-east-1a/i-1",
        "imageID": "ami-1",
        "conditions": [{"type": "Launched", "status": "Unknown"}],
    }
    claim = NodeClaim.decode({**node_claim(), "status": status})
    assert (claim.status.provider_id, claim.status.image_id) == ("aws:///us-east-1a/i-1", "ami-1")
    assert claim.wire()["status"] == status
    spec = EC2NodeClass.decode(
        node_class(
            spec={
                "associatePublicIPAddress": False,
                "metadataOptions": {"httpProtocolIPv6": "enabled"},
                "kubelet": {
                    "clusterDNS": ["10.0.0.10"],
                    "cpuCFSQuota": True,
                    "imageGCHighThresholdPercent": 9,
                },
                "blockDeviceMappings": [{"ebs": {"snapshotID": "snap-1", "kmsKeyID": "k"}}],
                "amiSelectorTerms": [{"ssmParameter": "/golden"}],
                "capacityReservationSelectorTerms": [{"ownerID": "123456789012"}],
                "ipPrefixCount": 2,
            }
        )
    ).spec
    assert spec.associate_public_ip_address is False
    assert spec.metadata_options.http_protocol_ipv6 == "enabled"
    assert spec.kubelet is not None
    assert (spec.kubelet.cluster_dns, spec.kubelet.cpu_cfs_quota) == (["10.0.0.10"], True)
    assert spec.kubelet.image_gc_high_threshold_percent == 9
    (mapping,) = spec.block_device_mappings
    assert mapping.ebs is not None
    assert (mapping.ebs.snapshot_id, mapping.ebs.kms_key_id) == ("snap-1", "k")
    assert spec.ami_selector_terms[0].ssm_parameter == "/golden"
    assert spec.capacity_reservation_selector_terms[0].owner_id == "123456789012"
    assert spec.ip_prefix_count == 2


def test_an_object_is_immutable() -> None:
    node = Node.decode({"metadata": {"name": "a"}})
    with pytest.raises(ValueError, match="frozen"):
        node.spec.unschedulable = True  # type: ignore[misc]


def test_keys_and_deletion() -> None:
    pod = Pod.decode(
        {"metadata": {"namespace": "a", "name": "b", "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    )
    assert (pod.key, pod.deleting) == ("a/b", True)
    node = Node.decode({"metadata": {"name": "n"}})
    assert (node.key, node.deleting) == ("n", False)


def test_conditions_are_looked_up_by_type() -> None:
    ready = Condition(type="Ready", status="True")
    assert condition((Condition(type="Launched"), ready), "Ready") is ready
    assert condition((ready,), "Launched") is None


@given(
    st.datetimes(
        min_value=datetime(300, 1, 2),
        max_value=datetime(9699, 12, 31),
        timezones=st.sampled_from([UTC, timezone(timedelta(hours=9))]),
    )
)
def test_times_are_written_as_kubernetes_reads_them(at: datetime) -> None:
    """Whole seconds in a condition; in a Lease exactly six digits, which is refused otherwise."""
    lease = Lease(spec=LeaseSpec(renew_time=at)).wire()["spec"]["renewTime"]
    assert len(lease) == len("2026-01-01T00:00:00.000000Z")
    assert datetime.fromisoformat(lease) == at
    transition = Condition(type="Ready", last_transition_time=at).wire()["lastTransitionTime"]
    assert len(transition) == len("2026-01-01T00:00:00Z")
    assert datetime.fromisoformat(transition) == at.astimezone(UTC).replace(microsecond=0)


def test_numbers_in_resources_are_read_as_text() -> None:
    claim = NodeClaim.decode(node_claim(resources={"requests": {"cpu": 4, "memory": "1Gi"}}))
    assert claim.spec.resources.requests == {"cpu": "4", "memory": "1Gi"}
    assert quantities(claim.spec.resources.requests) == {"cpu": 4.0, "memory": 1024.0**3}


def test_a_large_list_is_decoded() -> None:
    pod = {
        "metadata": {"name": "a", "namespace": "b", "uid": "u", "labels": {"app": "x"}},
        "spec": {
            "nodeName": "n",
            "containers": [{"name": "c", "image": "i", "env": [{"name": "E", "value": "v"}] * 20}],
            "tolerations": [{"operator": "Exists"}],
        },
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }
    listed = [Pod.decode(pod) for _ in range(2000)]
    assert {pod_.spec.node_name for pod_ in listed} == {"n"}


def test_an_event_of_an_older_server_is_decoded() -> None:
    event = Event.decode(
        {
            "metadata": {"name": "e", "namespace": "default"},
            "involvedObject": {"kind": "NodeClaim", "name": "train-0"},
            "reason": "Launched",
            "firstTimestamp": None,
            "eventTime": None,
            "source": {},
        }
    )
    assert (event.involved_object.name, event.first_timestamp, event.type) == ("train-0", None, "Normal")
