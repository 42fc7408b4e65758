"""A Kubernetes API server in the process: `Cluster` answers requests, `ApiServer` puts it on a port.

`Collector` plays the two controllers that an API server alone does not have: garbage and namespaces.
"""

from .cluster import Cluster
from .collector import Collector
from .errors import ApiError
from .http import ApiServer
from .wire import Request, Response

__all__ = ["ApiError", "ApiServer", "Cluster", "Collector", "Request", "Response"]
