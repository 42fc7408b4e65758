"""The tags and labels that show the cluster and the maker of resources and objects."""

from typing import Final

# The name and the UID of the cluster that a resource was made for, and its EC2NodeClass.
TAG_CLUSTER: Final = "capacity-broker.io/cluster"
TAG_CLUSTER_UID: Final = "capacity-broker.io/cluster-uid"
TAG_NODECLASS: Final = "capacity-broker.io/nodeclass"
# On ODCRs that a broker made, and so may resize and cancel, and on the broker's objects in Kueue.
MANAGED_BY: Final = "capacity-broker.io/managed-by"
# The broker as a manager: the value of its labels and tags, and the source of its Events.
MANAGER: Final = "capacity-broker"
# Karpenter's tag, which the broker never sets (see providers.aws.tags).
TAG_EKS_CLUSTER: Final = "eks:eks-cluster-name"
