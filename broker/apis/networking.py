"""The addresses of Services: those of one Service, and the cluster's ranges for them.

https://kubernetes.io/docs/concepts/services-networking/cluster-ip-allocation/,
https://kubernetes.io/docs/reference/kubernetes-api/networking/service-cidr-v1/ (since Kubernetes 1.33)
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from broker.apis.meta import Kind, Model, Object


class ServiceSpec(Model):
    cluster_ip: str = Field(default="", alias="clusterIP")


class Service(Object):
    KIND: ClassVar[Kind] = Kind(group="", version="v1", kind="Service", namespaced=True)

    spec: ServiceSpec = ServiceSpec()


class ServiceCIDRSpec(Model):
    cidrs: tuple[str, ...] = ()


class ServiceCIDR(Object):
    KIND: ClassVar[Kind] = Kind(group="networking.k8s.io", version="v1", kind="ServiceCIDR")

    spec: ServiceCIDRSpec = ServiceCIDRSpec()
