"""The labels of a node to come that do not follow from its instance alone.

Invariant: packing, claims in flight, DaemonSets and the zones of volumes read the labels of a node to come
from here, so that a pod is never refused for a label that its node will have. The older names of labels are
written by the kubelet, by the cloud controller and by the EBS driver; the other labels by the broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from broker.apis.label_names import RENAMED
from broker.apis.names import INITIALIZED, NODECLASS_LABEL, REGISTERED

# The labels of every node that the broker registered.
JOINED: Final[Mapping[str, str]] = {REGISTERED: "true", INITIALIZED: "true"}


def class_labels(node_class: str) -> dict[str, str]:
    """The label of the node's EC2NodeClass."""
    return {NODECLASS_LABEL: node_class}


def future_labels(labels: Mapping[str, str], node_class: str) -> dict[str, str]:
    """All labels of a node to come. `labels`: those of its claim and its instance."""
    older = {name: labels[new] for name, new in RENAMED.items() if new in labels}
    return {**older, **labels, **class_labels(node_class), **JOINED}
