"""A Kubernetes API server in the process: `Cluster` answers requests, `ApiServer` puts it on a port.

`Collector` plays the two controllers that an API server alone does not have: garbage and namespaces.
"""

from broker.apiserver.cluster import Cluster
from broker.apiserver.collector import Collector
from broker.apiserver.errors import ApiError
from broker.apiserver.http import ApiServer
from broker.apiserver.wire import Request, Response

__all__ = ["ApiError", "ApiServer", "Cluster", "Collector", "Request", "Response"]
