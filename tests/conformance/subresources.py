"""Random requests about subresources: status, scale, binding and eviction."""

from random import Random

from tests.conformance import requests
from tests.conformance.kinds import Kind, Object
from tests.conformance.steps import APPLY, MERGE, Step, Uid, Version


def status(random: Random, kind: Kind, name: str) -> Step:
    if random.random() < 0.25:
        path = f"{kind.collection}/{name}"
        body = requests.edited(random, kind, path, kind.status_changes)
        return Step(method="PUT", path=f"{path}/status", query=requests.write_options(random), body=body)
    patch = random.choice((requests.merge_patch, requests.merge_patch, requests.json_patch, requests.apply))
    return patch(random, kind, name, kind.status_changes, "/status")


def get_status(random: Random, kind: Kind, name: str) -> Step:
    return Step(method="GET", path=f"{kind.collection}/{name}/status")


def scale(random: Random, kind: Kind, name: str) -> Step:
    path = f"{kind.collection}/{name}/scale"
    count = random.choice((0, 2, 3, -1, "x"))
    match random.randint(0, 3):
        case 0:
            return Step(method="GET", path=path)
        case 1:
            body = {
                "apiVersion": "autoscaling/v1",
                "kind": "Scale",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"replicas": count},
            }
            return Step(method="PUT", path=path, query=requests.write_options(random), body=body)
        case 2:
            body = {"apiVersion": "autoscaling/v1", "kind": "Scale", "spec": {"replicas": count}}
            query = requests.write_options(random) | {"fieldManager": random.choice(requests.MANAGERS)}
            return Step(method="PATCH", path=path, query=query, body=body, content=APPLY)
        case _:
            body = {"spec": {"replicas": count}}
            return Step(
                method="PATCH", path=path, query=requests.write_options(random), body=body, content=MERGE
            )


def bind(random: Random, kind: Kind, name: str) -> Step:
    body: Object = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name},
        "target": {"apiVersion": "v1", "kind": "Node", "name": random.choice(("n1", "n2"))},
    }
    match random.random():
        case roll if roll < 0.1:
            body["metadata"]["uid"] = Uid(f"{kind.collection}/{name}")
        case roll if roll < 0.15:
            body["target"] = {"kind": "Node"}
        case roll if roll < 0.2:
            body["metadata"]["annotations"] = {"bound": "yes"}
        case _:
            pass
    query = {"dryRun": "All"} if random.random() < 0.1 else {}
    return Step(method="POST", path=f"{kind.collection}/{name}/binding", query=query, body=body)


def evict(random: Random, kind: Kind, name: str) -> Step:
    body: Object = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    match random.random():
        case roll if roll < 0.2:
            body["deleteOptions"] = {"gracePeriodSeconds": random.choice((0, 5))}
        case roll if roll < 0.3:
            body["deleteOptions"] = {
                "preconditions": {"resourceVersion": Version(f"{kind.collection}/{name}", 1)}
            }
        case roll if roll < 0.4:
            body["deleteOptions"] = {"dryRun": ["All"]}
        case _:
            pass
    return Step(method="POST", path=f"{kind.collection}/{name}/eviction", body=body)
