"""A Kubernetes API server in the process: `Cluster` answers requests, `ApiServer` puts it on a port."""

from .cluster import Cluster
from .errors import ApiError
from .http import ApiServer
from .wire import Request, Response

__all__ = ["ApiError", "ApiServer", "Cluster", "Request", "Response"]
