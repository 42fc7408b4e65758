"""Random small worlds for a scheduler: nodes, bound pods, volumes, and pods to place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

Json = dict[str, Any]
ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
DRIVER = "csi.example.com"
PENDING = 5


@dataclass
class World:
    """The existing objects, in the order of their creation, and the pods to place."""

    seed: int
    cluster: list[Json] = field(default_factory=list)
    storage: list[Json] = field(default_factory=list)
    bound: list[Json] = field(default_factory=list)
    pending: list[Json] = field(default_factory=list)

    def stages(self) -> Iterator[list[Json]]:
        yield self.cluster
        yield self.storage
        yield self.bound


def world(rng: Random, seed: int) -> World:
    """The world of a seed: the same for the same seed."""
    return _Builder(rng, seed).build()


def body(kind: str, name: str, version: str = "v1", namespace: str = "", **rest: Any) -> Json:
    meta: Json = {"name": name, **rest.pop("metadata", {})}
    if namespace:
        meta["namespace"] = namespace
    return {"apiVersion": version, "kind": kind, "metadata": meta, **rest}


class _Builder:
    def __init__(self, rng: Random, seed: int) -> None:
        self.rng, self.seed = rng, seed
        self.nodes = [f"n{seed}-{i}" for i in range(rng.randint(1, 6))]
        self.spaces = [f"a{seed}", f"b{seed}"]
        self.claims: list[tuple[str, str]] = []
        # Half of the worlds have room and few taints, so that pods reach the later filters.
        self.roomy = rng.random() < 0.5

    def build(self) -> World:
        rng = self.rng
        result = World(self.seed)
        result.cluster = [
            *(
                body("Namespace", name, metadata={"labels": self.random_fields({"team": ["x", "y"]})})
                for name in self.spaces
            ),
            *map(self.node, self.nodes),
            body(
                "RuntimeClass",
                "heavy",
                "node.k8s.io/v1",
                handler="heavy",
                overhead={"podFixed": {"cpu": "250m", "memory": "128Mi"}},
            ),
        ]
        result.storage = list(self.storage()) if self.chance(0.4) else []
        for i in range(rng.randint(0, 12 if self.roomy else 8)):
            result.bound.append(self.pod(f"old{self.seed}-{i}", rng.choice(self.nodes)))
        result.pending = [self.pod(f"new{self.seed}-{i}") for i in range(PENDING)]
        return result

    def chance(self, of: float) -> bool:
        return self.rng.random() < of

    def random_fields(self, choices: dict[str, list[str]], of: float = 0.7) -> Json:
        return {key: self.rng.choice(values) for key, values in choices.items() if self.chance(of)}

    # ---- nodes

    def node(self, name: str) -> Json:
        rng = self.rng
        labels = self.random_fields(
            {ZONE: ["z1", "z2", "z3"], "disk": ["ssd", "hdd"], "gen": ["1", "3", "5", "x", "-2"]}
        )
        if self.roomy:
            labels.setdefault(ZONE, "z1")
        if self.chance(0.9):
            labels[HOST] = name
        taints = [
            {"key": key, "value": rng.choice(["", "v"]), "effect": effect}
            for key, effect in (("t1", "NoSchedule"), ("t2", "NoExecute"), ("t3", "PreferNoSchedule"))
            if self.chance(0.03 if self.roomy else 0.15)
        ]
        spec: Json = {"taints": taints} if taints else {}
        if self.chance(0.03 if self.roomy else 0.1):
            spec["unschedulable"] = True
        room = {
            "cpu": rng.choice(["500m", "1", "2", "1999m"]),
            "memory": rng.choice(["512Mi", "1Gi", "4Gi", "1G"]),
            "pods": rng.choice(["1", "2", "4", "110"]),
            **self.random_fields(
                {
                    "example.com/gpu": ["0", "1", "4"],
                    "ephemeral-storage": ["1Gi", "10Gi"],
                    "hugepages-2Mi": ["0", "64Mi"],
                },
                0.5,
            ),
        }
        if self.roomy:
            room = {
                "cpu": "64",
                "memory": "64Gi",
                "pods": rng.choice(["6", "110"]),
                "example.com/gpu": "16",
                "ephemeral-storage": "100Gi",
                "hugepages-2Mi": "1Gi",
            }
        return body(
            "Node",
            name,
            metadata={"labels": labels},
            spec=spec,
            status={"allocatable": room, "capacity": room},
        )

    # ---- volumes

    def storage(self) -> Iterator[Json]:
        rng = self.rng
        if self.chance(0.7):
            for name in self.nodes:
                if self.chance(0.7):
                    count = {"allocatable": {"count": rng.randint(1, 2)}} if self.chance(0.8) else {}
                    yield body(
                        "CSINode",
                        name,
                        "storage.k8s.io/v1",
                        spec={"drivers": [{"name": DRIVER, "nodeID": name, "topologyKeys": [], **count}]},
                    )
        for kind, provisioner in (
            ("late", DRIVER),
            ("manual", "kubernetes.io/no-provisioner"),
            ("soon", DRIVER),
        ):
            rest: Json = {"provisioner": provisioner}
            rest["volumeBindingMode"] = "Immediate" if kind == "soon" else "WaitForFirstConsumer"
            if kind == "late" and self.chance(0.5):
                values = rng.sample(["z1", "z2", "z3"], rng.randint(1, 2))
                rest["allowedTopologies"] = [{"matchLabelExpressions": [{"key": ZONE, "values": values}]}]
            yield body("StorageClass", f"{kind}{self.seed}", "storage.k8s.io/v1", **rest)
        for i in range(rng.randint(1, 5)):
            yield from self.claim(i)

    def claim(self, i: int) -> Iterator[Json]:
        rng = self.rng
        name, space = f"c{self.seed}-{i}", rng.choice(self.spaces)
        self.claims.append((space, name))
        mode = rng.choice(["ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany"])
        spec: Json = {"accessModes": [mode], "resources": {"requests": {"storage": "1Gi"}}}
        if self.chance(0.4):
            kinds = ["late"] * 6 + ["manual", "soon"]
            yield body(
                "PersistentVolumeClaim",
                name,
                namespace=space,
                spec={**spec, "storageClassName": f"{rng.choice(kinds)}{self.seed}"},
            )
            return
        volume = f"pv{self.seed}-{i}"
        yield body(
            "PersistentVolumeClaim",
            name,
            namespace=space,
            metadata={"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
            spec={**spec, "storageClassName": "", "volumeName": volume},
        )
        if self.chance(0.05):
            return  # bound to a volume that is gone
        affinity = {}
        if self.chance(0.5):
            term = self.node_term() if self.chance(0.3) else self.term(ZONE, ["z1", "z2"])
            affinity = {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}
        labels = {ZONE: rng.choice(["z1", "z2", "z1__z3"])} if self.chance(0.3) else {}
        if self.chance(0.1):
            labels["failure-domain.beta.kubernetes.io/zone"] = "z1"
        yield body(
            "PersistentVolume",
            volume,
            metadata={"labels": labels},
            spec={
                "accessModes": [mode],
                "capacity": {"storage": "1Gi"},
                "claimRef": {"namespace": space, "name": name},
                "csi": {"driver": DRIVER, "volumeHandle": rng.choice([volume, f"shared{self.seed}"])},
                **affinity,
            },
        )

    # ---- pods

    def pod(self, name: str, node: str = "") -> Json:
        rng = self.rng
        meta: Json = {
            "labels": self.random_fields({"app": ["web", "db"], "tier": ["1", "2"], "rev": ["a", "b"]})
        }
        if node and self.chance(0.1):
            meta["annotations"] = {"terminating": "yes"}
        spec: Json = {"containers": [self.container(f"c{i}") for i in range(rng.randint(1, 2))]}
        if self.chance(0.25):
            spec["initContainers"] = [self.container(f"i{i}", init=True) for i in range(rng.randint(1, 3))]
        if self.chance(0.1):
            spec["runtimeClassName"] = "heavy"
        if self.chance(0.1):
            spec["resources"] = {
                "requests": {"cpu": rng.choice(["1", "2"]), "memory": rng.choice(["1Gi", "3Gi"])}
            }
        if self.chance(0.1):
            spec["hostNetwork"] = True
        space = rng.choice(self.spaces)
        volumes = list(self.volumes(space))
        if volumes:
            spec["volumes"] = volumes
        if self.chance(0.3):
            spec["tolerations"] = [self.toleration() for _ in range(rng.randint(1, 3))]
        affinity = self.affinity(node)
        if affinity:
            spec["affinity"] = affinity
        if node:
            spec["nodeName"] = node
        else:
            if self.chance(0.05 if self.roomy else 0.2):
                spec["nodeSelector"] = self.random_fields({ZONE: ["z1", "z2"], "disk": ["ssd", "hdd"]}, 0.5)
            if self.chance(0.5 if self.roomy else 0.3):
                spec["topologySpreadConstraints"] = [
                    self.constraint(key) for key in rng.sample([ZONE, HOST, "disk"], rng.randint(1, 2))
                ]
        return body("Pod", name, namespace=space, metadata=meta, spec=spec)

    def container(self, name: str, init: bool = False) -> Json:
        rng = self.rng
        requests = self.random_fields(
            {
                "cpu": ["0", "1m", "100m", "0.3", "999m"],
                "memory": ["0", "1", "100Mi", "300M"],
                "ephemeral-storage": ["500Mi"],
            },
            0.4,
        )
        container: Json = {"name": name, "image": "i", "resources": {"requests": requests}}
        if self.chance(0.15):
            container["resources"]["limits"] = {"example.com/gpu": rng.choice(["0", "1", "2"])}
        elif self.chance(0.1):
            container["resources"]["limits"] = {"cpu": "1200m", "memory": "1Gi", "hugepages-2Mi": "4Mi"}
        if init and self.chance(0.5):
            container["restartPolicy"] = "Always"
        if self.chance(0.15):
            port = rng.choice([80, 81])
            container["ports"] = [{"containerPort": port, "protocol": rng.choice(["TCP", "TCP", "UDP"])}]
            if self.chance(0.8):
                container["ports"][0].update(
                    hostPort=port, hostIP=rng.choice(["", "0.0.0.0", "10.0.0.1", "10.0.0.2"])
                )
        return container

    def volumes(self, space: str) -> Iterator[Json]:
        rng = self.rng
        claim_names = [name for namespace, name in self.claims if namespace == space]
        if claim_names and self.chance(0.6):
            for name in rng.sample(claim_names, rng.randint(1, min(2, len(claim_names)))):
                yield {"name": name, "persistentVolumeClaim": {"claimName": name}}
        if self.chance(0.02):
            yield {"name": "gone", "persistentVolumeClaim": {"claimName": "gone"}}
        if self.chance(0.01):
            yield {
                "name": "own",
                "ephemeral": {
                    "volumeClaimTemplate": {
                        "spec": {
                            "accessModes": ["ReadWriteOnce"],
                            "resources": {"requests": {"storage": "1Gi"}},
                        }
                    }
                },
            }
        if self.chance(0.08):
            yield {"name": "gce", "gcePersistentDisk": {"pdName": "d", "readOnly": self.chance(0.5)}}
        if self.chance(0.05):
            yield {
                "name": "rbd",
                "rbd": {
                    "monitors": rng.sample(["m1", "m2", "m3"], 2),
                    "image": "i",
                    "readOnly": self.chance(0.5),
                },
            }
        if self.chance(0.05):
            yield {
                "name": "iscsi",
                "iscsi": {
                    "targetPortal": "10.0.0.1",
                    "iqn": "iqn.2001-04.com.example:d",
                    "lun": 0,
                    "readOnly": self.chance(0.5),
                },
            }

    def toleration(self) -> Json:
        rng = self.rng
        toleration: Json = {"operator": "Exists"}
        if self.chance(0.95):
            toleration = {
                "key": rng.choice(["t1", "t2", "node.kubernetes.io/unschedulable"]),
                "operator": rng.choice(["Equal", "Exists"]),
            }
            if toleration["operator"] == "Equal":
                toleration["value"] = rng.choice(["", "v"])
        if self.chance(0.5):
            toleration["effect"] = rng.choice(["NoSchedule", "NoExecute"])
            if toleration["effect"] == "NoExecute" and self.chance(0.3):
                toleration["tolerationSeconds"] = 60
        return toleration

    def affinity(self, node: str) -> Json:
        rng = self.rng
        affinity: Json = {}
        if not node and self.chance(0.1 if self.roomy else 0.3):
            terms = [self.node_term() for _ in range(rng.randint(1, 2))]
            affinity["nodeAffinity"] = {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}
            }
        for key, of in (("podAffinity", 0.15), ("podAntiAffinity", 0.25)):
            if self.chance(of):
                affinity[key] = {
                    "requiredDuringSchedulingIgnoredDuringExecution": [
                        self.pod_term() for _ in range(rng.randint(1, 2))
                    ]
                }
        return affinity

    def node_term(self) -> Json:
        rng = self.rng
        term: Json = {}
        if self.chance(0.75):
            term["matchExpressions"] = [
                self.requirement(
                    *rng.choice([(ZONE, ["z1", "z2"]), ("disk", ["ssd"]), ("gen", ["3"])]), numbers=True
                )
                for _ in range(rng.randint(1, 2))
            ]
        if self.chance(0.3):
            operator = rng.choice(["In", "In", "NotIn"])
            names = [*self.nodes, f"gone{self.seed}"]
            term["matchFields"] = [
                {"key": "metadata.name", "operator": operator, "values": [rng.choice(names)]}
                for _ in range(rng.choice([1, 1, 2]))
            ]
        return term

    def term(self, key: str, values: list[str]) -> Json:
        return {"matchExpressions": [{"key": key, "operator": "In", "values": values}]}

    def requirement(self, key: str, values: list[str], numbers: bool = False) -> Json:
        operators = [
            "In",
            "NotIn",
            "Exists",
            "DoesNotExist",
            *(["Gt", "Lt"] if numbers and key == "gen" else []),
        ]
        operator = self.rng.choice(operators)
        requirement: Json = {"key": key, "operator": operator}
        if operator not in ("Exists", "DoesNotExist"):
            requirement["values"] = values
        return requirement

    def selector(self) -> Json:
        selector: Json = {}
        if self.chance(0.7):
            selector["matchLabels"] = self.random_fields({"app": ["web", "db"], "tier": ["1", "2"]}, 0.5)
        if self.chance(0.3):
            selector["matchExpressions"] = [self.requirement("app", ["web"])]
        return selector

    def pod_term(self) -> Json:
        rng = self.rng
        term: Json = {"topologyKey": rng.choice([ZONE, HOST, "disk"])}
        if self.chance(0.95):
            term["labelSelector"] = self.selector()
            keys = rng.choice([{}, {}, {"matchLabelKeys": ["rev"]}, {"mismatchLabelKeys": ["rev"]}])
            term.update(keys)
        if self.chance(0.2):
            term["namespaces"] = rng.sample([*self.spaces, "elsewhere"], rng.randint(1, 2))
        if self.chance(0.25):
            term["namespaceSelector"] = rng.choice(
                [{}, {"matchLabels": {"team": "x"}}, {"matchExpressions": [self.requirement("team", ["x"])]}]
            )
        return term

    def constraint(self, key: str) -> Json:
        rng = self.rng
        constraint: Json = {
            "maxSkew": rng.randint(1, 2),
            "topologyKey": key,
            "whenUnsatisfiable": "DoNotSchedule" if self.chance(0.9) else "ScheduleAnyway",
        }
        if self.chance(0.95):
            constraint["labelSelector"] = self.selector()
            if self.chance(0.3):
                constraint["matchLabelKeys"] = ["rev"]
        if constraint["whenUnsatisfiable"] == "DoNotSchedule" and self.chance(0.3):
            constraint["minDomains"] = rng.randint(1, 4)
        constraint.update(
            self.random_fields(
                {"nodeAffinityPolicy": ["Honor", "Ignore"], "nodeTaintsPolicy": ["Honor", "Ignore"]}, 0.4
            )
        )
        return constraint
