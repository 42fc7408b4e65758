"""A Kubernetes API server in the process: `Cluster` answers requests, `ApiServer` puts it on a port.

`Collector` plays the two controllers that an API server alone does not have: garbage and namespaces.
"""

from local.kube.cluster import Cluster
from local.kube.collector import Collector
from local.kube.errors import StatusError
from local.kube.http import ApiServer
from local.kube.wire import ApiRequest, Response

__all__ = ["ApiRequest", "ApiServer", "Cluster", "Collector", "Response", "StatusError"]
