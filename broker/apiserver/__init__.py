"""A Kubernetes API server in the process: `Cluster` answers requests, `ApiServer` puts it on a port.

`Collector` plays the two controllers that an API server alone does not have: garbage and namespaces.
"""

from broker.apiserver.cluster import Cluster
from broker.apiserver.collector import Collector
from broker.apiserver.errors import StatusError
from broker.apiserver.http import ApiServer
from broker.apiserver.wire import ApiRequest, Response

__all__ = ["ApiRequest", "ApiServer", "Cluster", "Collector", "Response", "StatusError"]
