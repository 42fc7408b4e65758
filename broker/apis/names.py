"""Every label, annotation, finalizer, taint and tag that the broker reads or writes, once.

Karpenter's are those of karpenter v1 and its AWS provider (pkg/apis/v1/labels.go of each); well-known
Kubernetes labels: https://kubernetes.io/docs/reference/labels-annotations-taints/. The broker's live in their
own domain, because Karpenter's CRDs refuse unknown keys of its domains. Tags and labels that
`providers` reads too are in `providers.names`.
"""

from collections.abc import Mapping
from typing import Final

from providers.names import TAG_CLUSTER, TAG_CLUSTER_UID, TAG_EKS_CLUSTER, TAG_NODECLASS

# Kubernetes
INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
ZONE: Final = "topology.kubernetes.io/zone"
REGION: Final = "topology.kubernetes.io/region"
ARCH: Final = "kubernetes.io/arch"
OS: Final = "kubernetes.io/os"
HOSTNAME: Final = "kubernetes.io/hostname"
NODE_NO_BALANCERS: Final = "node.kubernetes.io/exclude-from-external-load-balancers"
NODE_NOT_READY_TAINT: Final = "node.kubernetes.io/not-ready"
NODE_UNREACHABLE_TAINT: Final = "node.kubernetes.io/unreachable"
CLOUD_UNINITIALIZED_TAINT: Final = "node.cloudprovider.kubernetes.io/uninitialized"
# The prefix of taint keys that end in the name of a rule of the Node Readiness Controller.
READINESS_TAINTS: Final = "readiness.k8s.io/"

# Karpenter
KARPENTER: Final = "karpenter.sh"
CAPACITY_TYPE: Final = "karpenter.sh/capacity-type"
EKS_CAPACITY_TYPE: Final = "eks.amazonaws.com/capacityType"  # of nodes of managed node groups
NODEPOOL: Final = "karpenter.sh/nodepool"
NODEPOOL_HASH: Final = "karpenter.sh/nodepool-hash"
NODEPOOL_HASH_VERSION: Final = "karpenter.sh/nodepool-hash-version"
REGISTERED: Final = "karpenter.sh/registered"
INITIALIZED: Final = "karpenter.sh/initialized"
DO_NOT_SYNC_TAINTS: Final = "karpenter.sh/do-not-sync-taints"
DO_NOT_DISRUPT: Final = "karpenter.sh/do-not-disrupt"
TERMINATION_FINALIZER: Final = "karpenter.sh/termination"
UNREGISTERED_TAINT: Final = "karpenter.sh/unregistered"
DISRUPTED_TAINT: Final = "karpenter.sh/disrupted"
REBOOTING_TAINT: Final = "karpenter.sh/rebooting"
DO_NOT_REPAIR: Final = "karpenter.sh/do-not-repair"
# On a claim: whether it allows fewer values than minValues of its pool asks for.
MIN_VALUES_RELAXED: Final = "karpenter.sh/nodeclaim-min-values-relaxed"
# On a claim that ends: until when its drain may take.
TERMINATION_DEADLINE: Final = "karpenter.sh/nodeclaim-termination-timestamp"

# Karpenter on AWS
KARPENTER_AWS: Final = "karpenter.k8s.aws"
ZONE_ID: Final = "topology.k8s.aws/zone-id"
NODECLASS_LABEL: Final = "karpenter.k8s.aws/ec2nodeclass"
NODECLASS_HASH: Final = "karpenter.k8s.aws/ec2nodeclass-hash"
NODECLASS_HASH_VERSION: Final = "karpenter.k8s.aws/ec2nodeclass-hash-version"
RESERVATION_ID: Final = "karpenter.k8s.aws/capacity-reservation-id"
RESERVATION_TYPE: Final = "karpenter.k8s.aws/capacity-reservation-type"
RESERVATION_INTERRUPTIBLE: Final = "karpenter.k8s.aws/capacity-reservation-interruptible"
RESERVATION_LABELS: Final = (RESERVATION_ID, RESERVATION_TYPE, RESERVATION_INTERRUPTIBLE)
# EC2 shows these some time after the launch, and they change with the reservation.
SHOWN_LATER: Final = frozenset({CAPACITY_TYPE, *RESERVATION_LABELS})
INSTANCE_TENANCY: Final = "karpenter.k8s.aws/instance-tenancy"
INSTANCE_CATEGORY: Final = "karpenter.k8s.aws/instance-category"
INSTANCE_FAMILY: Final = "karpenter.k8s.aws/instance-family"
INSTANCE_GENERATION: Final = "karpenter.k8s.aws/instance-generation"
INSTANCE_SIZE: Final = "karpenter.k8s.aws/instance-size"
INSTANCE_HYPERVISOR: Final = "karpenter.k8s.aws/instance-hypervisor"
INSTANCE_ENCRYPTION_IN_TRANSIT: Final = "karpenter.k8s.aws/instance-encryption-in-transit-supported"
INSTANCE_CAPABILITY_FLEX: Final = "karpenter.k8s.aws/instance-capability-flex"
INSTANCE_LOCAL_NVME: Final = "karpenter.k8s.aws/instance-local-nvme"
INSTANCE_CPU: Final = "karpenter.k8s.aws/instance-cpu"
INSTANCE_CPU_MANUFACTURER: Final = "karpenter.k8s.aws/instance-cpu-manufacturer"
INSTANCE_CPU_MHZ: Final = "karpenter.k8s.aws/instance-cpu-sustained-clock-speed-mhz"
INSTANCE_MEMORY: Final = "karpenter.k8s.aws/instance-memory"
INSTANCE_EBS_BANDWIDTH: Final = "karpenter.k8s.aws/instance-ebs-bandwidth"
INSTANCE_NETWORK_BANDWIDTH: Final = "karpenter.k8s.aws/instance-network-bandwidth"
INSTANCE_GPU_NAME: Final = "karpenter.k8s.aws/instance-gpu-name"
INSTANCE_GPU_MANUFACTURER: Final = "karpenter.k8s.aws/instance-gpu-manufacturer"
INSTANCE_GPU_COUNT: Final = "karpenter.k8s.aws/instance-gpu-count"
INSTANCE_GPU_MEMORY: Final = "karpenter.k8s.aws/instance-gpu-memory"
INSTANCE_ACCELERATOR_NAME: Final = "karpenter.k8s.aws/instance-accelerator-name"
INSTANCE_ACCELERATOR_MANUFACTURER: Final = "karpenter.k8s.aws/instance-accelerator-manufacturer"
INSTANCE_ACCELERATOR_COUNT: Final = "karpenter.k8s.aws/instance-accelerator-count"
PLACEMENT_GROUP_ID: Final = "karpenter.k8s.aws/placement-group-id"
PLACEMENT_GROUP_PARTITION: Final = "karpenter.k8s.aws/placement-group-partition"

# The keys of Karpenter's two domains that a requirement may use; its CRD refuses the others.
KARPENTER_REQUIREMENT_KEYS: Final = (CAPACITY_TYPE, NODEPOOL)
KARPENTER_AWS_REQUIREMENT_KEYS: Final = (
    INSTANCE_TENANCY,
    RESERVATION_TYPE,
    RESERVATION_ID,
    RESERVATION_INTERRUPTIBLE,
    NODECLASS_LABEL,
    INSTANCE_ENCRYPTION_IN_TRANSIT,
    INSTANCE_CATEGORY,
    INSTANCE_HYPERVISOR,
    INSTANCE_FAMILY,
    INSTANCE_GENERATION,
    INSTANCE_LOCAL_NVME,
    INSTANCE_SIZE,
    INSTANCE_CPU,
    INSTANCE_CPU_MANUFACTURER,
    INSTANCE_CPU_MHZ,
    INSTANCE_MEMORY,
    INSTANCE_EBS_BANDWIDTH,
    INSTANCE_NETWORK_BANDWIDTH,
    INSTANCE_GPU_NAME,
    INSTANCE_GPU_MANUFACTURER,
    INSTANCE_GPU_COUNT,
    INSTANCE_GPU_MEMORY,
    INSTANCE_ACCELERATOR_NAME,
    INSTANCE_ACCELERATOR_MANUFACTURER,
    INSTANCE_ACCELERATOR_COUNT,
    INSTANCE_CAPABILITY_FLEX,
    PLACEMENT_GROUP_ID,
    PLACEMENT_GROUP_PARTITION,
)

# Of these, the keys of labels that no node of the broker gets: it chooses no partition of a placement group.
UNLABELED_KEYS: Final = (PLACEMENT_GROUP_ID, PLACEMENT_GROUP_PARTITION)

# EC2NodeClass.spec.tags may not hold these, nor any key that begins with TAG_KUBERNETES_CLUSTER.
TAG_NODECLAIM: Final = "karpenter.sh/nodeclaim"
TAG_KUBERNETES_CLUSTER: Final = "kubernetes.io/cluster"
RESTRICTED_TAGS: Final = (TAG_EKS_CLUSTER, NODEPOOL, TAG_NODECLAIM, NODECLASS_LABEL)

# The broker's
BROKER: Final = "capacity-broker.io"
CLASS_FINALIZER: Final = "capacity-broker.io/termination"
RESERVATION_SPEC: Final = "capacity-broker.io/capacity-reservation-spec"
ACCEPTED_SPEC: Final = "capacity-broker.io/accepted-spec"
ADVISED: Final = "capacity-broker.io/advised"
GANG: Final = "capacity-broker.io/gang"
GANG_SIZE: Final = "capacity-broker.io/gang-size"
GANG_DOMAIN: Final = "capacity-broker.io/gang-domain"
PRIORITY: Final = "capacity-broker.io/priority"
PODS: Final = "capacity-broker.io/pods"
LAUNCH: Final = "capacity-broker.io/launch"
# Written by the broker on a claim that EC2 launches: the reservation that its instance counts in until EC2
# shows it.
LAUNCHED_INTO: Final = "capacity-broker.io/launched-into"
# Written by the broker on a claim: the attempts for it.
ATTEMPTS: Final = "capacity-broker.io/attempts"
# Written by the broker on a claim: since when its pods wait, if claims before it gave way.
WAITING_SINCE: Final = "capacity-broker.io/waiting-since"
# On Events: the ids, with commas, of the attempts and of the AWS requests that they are about.
ATTEMPT_IDS: Final = "capacity-broker.io/attempt-ids"
AWS_REQUESTS: Final = "capacity-broker.io/aws-requests"
EXPECT: Final = "capacity-broker.io/expect"
# On a NodePool: whether claims outside reservations move into slots that stay idle. `true` for all, `false`
# for none; without it those that the broker launched outside because their reservations were full.
RETURN_TO_RESERVATIONS: Final = "capacity-broker.io/return-to-reservations"
# Written by the broker on a claim that replaces another: `name/uid` of that claim, and its move.
REPLACES: Final = "capacity-broker.io/replaces"
MOVE: Final = "capacity-broker.io/move"
# Written by the broker on a claim that replaces several: `name/uid` of the others, with commas.
REPLACES_ALSO: Final = "capacity-broker.io/replaces-also"
# Written by the broker on a claim that replaces a static node without pods: no pods follow it.
REPLACES_EMPTY: Final = "capacity-broker.io/replaces-empty"
# Written by the broker on a claim that takes over the slot of the claim that it replaces: the ODCR, and once
# that claim is gone `/` and until when the slot is kept.
TAKES_SLOT: Final = "capacity-broker.io/takes-slot"
# Written by the broker on a claim that is launched beside the full reservation of the claim that it replaces:
# the ODCR, in which EC2 counts it once that claim has ended.
JOINS_SLOT: Final = "capacity-broker.io/joins-slot"
# On a NodePool: launch-first, terminate-first or auto (default), for the nodes in full reservations.
REPLACE: Final = "capacity-broker.io/replace"
# On a NodePool: how many nodes of one reservation may be away at once while they are replaced; 1 by default.
REPLACE_AT_ONCE: Final = "capacity-broker.io/replace-at-once"
# On a NodePool without spec.replicas: `all-reserved`, for a node in each usable slot of its reservations.
REPLICAS: Final = "capacity-broker.io/replicas"
# On a NodePool: changes of the table of repairs, or `off`; the share of its nodes that may be broken at once.
REPAIR: Final = "capacity-broker.io/repair"
REPAIR_AT_MOST: Final = "capacity-broker.io/repair-at-most"
# Written by the broker on a claim: the reboots of its instance.
REBOOTS: Final = "capacity-broker.io/reboots"
# On a claim (by its pool's template, or a DedicatedAICluster's): the reservation that it draws from, as
# `namespace/name` or the name of a ClusterCapacityReservation.
DRAWS_FROM: Final = "capacity-broker.io/draws-from"
# On a Namespace: `true`, or amounts, if the room of its deleted pods may be kept.
KEPT_ROOM: Final = "capacity-broker.io/kept-room"
# On the claims and nodes of a DedicatedAICluster, as label and as taint: the cluster.
DEDICATED: Final = "capacity-broker.io/dedicated-cluster"
# On a DedicatedAICluster, its profile or its reservation: the EC2NodeClass that its instances launch with.
NODE_CLASS: Final = "capacity-broker.io/node-class"
# On a CapacityReservation: Observe (count what exists) or Manage (create, resize, cancel EC2's).
RESERVATION_POLICY: Final = "capacity-broker.io/reservation-policy"
DELETION_POLICY: Final = "capacity-broker.io/deletion-policy"
MATCH_CRITERIA: Final = "capacity-broker.io/match-criteria"
END_DATE: Final = "capacity-broker.io/end-date"
SIZING: Final = "capacity-broker.io/sizing"
# The least number of instances of a flavor that a cap must allow before any is bought; `all` is the default.
MINIMUM: Final = "capacity-broker.io/minimum"
PLATFORM: Final = "capacity-broker.io/platform"
TENANCY: Final = "capacity-broker.io/tenancy"
# On a CapacityReservation: EC2 reservations (ids, with commas) and a group that belong to it.
ADOPT_IDS: Final = "capacity-broker.io/reservation-ids"
ADOPT_GROUP: Final = "capacity-broker.io/reservation-group-arn"
# On a CapacityReservation: ids, with commas, of EC2 reservations that capacity of it was moved to; what it
# lost to them is bought again.
RESTORE_MOVED: Final = "capacity-broker.io/restore-moved"
RESERVED_FINALIZER: Final = "capacity-broker.io/reserved"
# On a CapacityReservation: the namespaces, with commas, or `*`, the pods of which may draw from it too.
ALLOWED_NAMESPACES: Final = "capacity-broker.io/allowed-namespaces"
# On a CapacityReservation: Hold (default; a workload with quota waits for its reserved slots) or Off.
ADMISSION: Final = "capacity-broker.io/admission"
# On a CapacityReservation: None (default), Hold or HoldAndDrain, as its queues' stopPolicy in Kueue.
STOP_POLICY: Final = "capacity-broker.io/stop-policy"
# The labels that OME's documentation selects by.
COHORT_LABEL: Final = "cohort"
RESERVATION_LABEL: Final = "capacity-reservation"
# EC2 tags of a reservation that belongs to a CapacityReservation: its owner and its flavor. On the broker's
# objects in Kueue, TAG_RESERVATION is an annotation.
TAG_RESERVATION: Final = "capacity-broker.io/reservation"
TAG_FLAVOR: Final = "capacity-broker.io/flavor"
TAG_COMPARTMENT: Final = "capacity-broker.io/compartment"
TAG_LAUNCH: Final = LAUNCH
TAG_NODECLASS_HASH: Final = "capacity-broker.io/nodeclass-hash"  # with its version before it
# The broker's own tags of an instance. EC2 takes 50 on a resource (EC2 User Guide, "Tag restrictions").
INSTANCE_TAGS: Final = (TAG_CLUSTER, TAG_CLUSTER_UID, TAG_NODECLASS, TAG_NODECLASS_HASH, TAG_LAUNCH)
MOST_TAGS: Final = 50
TAG_TRIAL: Final = "capacity-broker.io/trial"  # of a launch that is only tried
# On reservations: followed by the cluster's and the class's name.
TAG_ADVISED: Final = ADVISED

# By kind, every annotation of the broker's that an object may carry, read or written by the broker. On a
# NodePool: its own (OF_THE_POOL) and those of its template, which its claims get. Other kinds are not
# checked.
_OF_CLAIMS: Final = (DRAWS_FROM, GANG, GANG_SIZE, GANG_DOMAIN, PRIORITY, PODS, EXPECT)
_OF_THE_POOL: Final = (
    RETURN_TO_RESERVATIONS,
    REPLACE,
    REPLACE_AT_ONCE,
    REPLICAS,
    REPAIR,
    REPAIR_AT_MOST,
)
_OF_RESERVATIONS: Final = (
    RESERVATION_POLICY,
    DELETION_POLICY,
    MATCH_CRITERIA,
    END_DATE,
    SIZING,
    MINIMUM,
    PLATFORM,
    TENANCY,
    ADOPT_IDS,
    ADOPT_GROUP,
    RESTORE_MOVED,
    ADMISSION,
    STOP_POLICY,
    NODE_CLASS,
    ALLOWED_NAMESPACES,
)
# By kind, those that only the broker writes: never suggested to a user, and none changes a launch.
WRITTEN_BY_BROKER: Final[Mapping[str, tuple[str, ...]]] = {
    "EC2NodeClass": (ACCEPTED_SPEC, ADVISED),
    "NodeClaim": (
        LAUNCH,
        LAUNCHED_INTO,
        ATTEMPTS,
        WAITING_SINCE,
        REPLACES,
        REPLACES_ALSO,
        REPLACES_EMPTY,
        MOVE,
        JOINS_SLOT,
        TAG_FLAVOR,
        REBOOTS,
    ),
}
ANNOTATIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "CapacityReservation": _OF_RESERVATIONS,
    "ClusterCapacityReservation": _OF_RESERVATIONS,
    "DedicatedAICluster": (NODE_CLASS,),
    "DedicatedAIClusterProfile": (NODE_CLASS,),
    "EC2NodeClass": (RESERVATION_SPEC, *WRITTEN_BY_BROKER["EC2NodeClass"]),
    "NodeClaim": (*_OF_CLAIMS, TAKES_SLOT, *WRITTEN_BY_BROKER["NodeClaim"]),
    "NodePool": (*_OF_CLAIMS, *_OF_THE_POOL),
    "Namespace": (DRAWS_FROM, KEPT_ROOM),
}
# Read on the NodePool itself; all its others are read on its claims, so they belong in its template.
OF_THE_POOL: Final = frozenset(_OF_THE_POOL)
# Those of them that affect purchases from EC2, their terms, and releases.
BUYING_TERMS: Final = frozenset(_OF_RESERVATIONS) - {ADMISSION, STOP_POLICY, NODE_CLASS, ALLOWED_NAMESPACES}

# Condition types. Karpenter's on a NodeClaim; its own on an EC2NodeClass are never written by the broker.
LAUNCHED: Final = "Launched"
REGISTERED_CONDITION: Final = "Registered"
INITIALIZED_CONDITION: Final = "Initialized"
READY: Final = "Ready"
DRAINED: Final = "Drained"
VOLUMES_DETACHED: Final = "VolumesDetached"
DRIFTED: Final = "Drifted"
CONSOLIDATABLE: Final = "Consolidatable"
DISRUPTION_REASON: Final = "DisruptionReason"
# On claims: the owner reclaims the slot, and the claim that will get it. The first is Kueue's reason.
PREEMPTED: Final = "Preempted"
RECLAIMING: Final = "Reclaiming"
INSTANCE_TERMINATING: Final = "InstanceTerminating"
# On claims that are kept though EC2 does not list their instance.
INSTANCE_LISTED: Final = "InstanceListed"
# On claims while EC2 reports it: a failed status check of the instance or of its host, a scheduled event.
INSTANCE_IMPAIRED: Final = "InstanceImpaired"
SYSTEM_IMPAIRED: Final = "SystemImpaired"
EVENT_SCHEDULED: Final = "EventScheduled"
INSTANCE_SIGNS: Final = (INSTANCE_IMPAIRED, SYSTEM_IMPAIRED, EVENT_SCHEDULED)
# On NodePools: whether few enough nodes are broken, and the nodes that ended by repair lately.
REPAIR_ALLOWED: Final = "RepairAllowed"
RECENT_REPAIRS: Final = "RecentRepairs"
# The broker's: the first on claim, class and pool, the others on the class alone.
CAPACITY_RESERVATION: Final = "CapacityReservation"
RESERVATION_SPEC_VALID: Final = "CapacityReservationSpecValid"
RESERVATIONS_RESOLVED: Final = "ReservationsResolved"
LAUNCHABLE: Final = "Launchable"
RESERVATIONS_DESCRIBED: Final = "ReservationsDescribed"
RESERVATIONS_ADVISED: Final = "ReservationsAdvised"
RESERVED_ALLOWED: Final = "ReservedAllowed"
SPEC_SERVED: Final = "CapacityReservationSpecServed"
