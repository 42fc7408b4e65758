"""The only writer of a class's status: its conditions are one atomic list that Karpenter writes as well.

Server-side apply would take over the whole list, so it is patched with the resourceVersion of its read
(https://kubernetes.io/docs/reference/using-api/server-side-apply/#merge-strategy).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.apis.karpenter_aws import EC2NodeClass
from broker.kube.cache import Cache
from broker.kube.client import Client


def patch_status(
    client: Client, classes: Cache[EC2NodeClass], node_class: EC2NodeClass, status: Mapping[str, Any]
) -> dict[str, Any]:
    """The class after the patch. Raises Conflict if it was changed meanwhile, NotFound if it is gone."""
    body = {"metadata": {"resourceVersion": node_class.metadata.resource_version}, "status": status}
    answer = client.patch(EC2NodeClass.KIND, node_class.name, body, subresource="status")
    classes.observe(answer)
    return answer
