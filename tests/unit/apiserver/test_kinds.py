"""Defaults and checks of built-in kinds; the messages are kube-apiserver's."""

from __future__ import annotations

from typing import Any

import pytest

from local.kube import Cluster, StatusError

from .objects import PODS, Clock, pod, send

Obj = dict[str, Any]
APPS = "/apis/apps/v1/namespaces/default"
CORE = "/api/v1/namespaces/default"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"


def refusal(cluster: Cluster, path: str, obj: Obj) -> list[str]:
    """`field: message` of everything that is wrong with an object."""
    with pytest.raises(StatusError) as refused:
        cluster.create(path, obj)
    assert (refused.value.code, refused.value.reason) == (422, "Invalid")
    causes = refused.value.status()["details"]["causes"]
    return [f"{cause['field']}: {cause['message']}" for cause in causes]


MISMATCH = (
    'spec.template.metadata.labels: Invalid value: {"app":"x"}: `selector` does not match template `labels`'
)


def workload(name: str = "w", *, labels: Obj | None = None, selector: Any = None, **spec: Any) -> Obj:
    labels = {"app": "x"} if labels is None else labels
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    chosen = {"matchLabels": {"app": "x"}} if selector is None else selector
    return {"metadata": {"name": name}, "spec": {"selector": chosen, "template": template, **spec}}


def test_a_deployment_rolls_by_default(cluster: Cluster) -> None:
    spec = cluster.create(f"{APPS}/deployments", workload())["spec"]
    assert spec["replicas"] == 1
    assert spec["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"},
    }
    assert spec["template"]["spec"]["restartPolicy"] == "Always"
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] == 30


def test_a_recreate_strategy_has_no_rolling_update(cluster: Cluster) -> None:
    created = cluster.create(f"{APPS}/deployments", workload(strategy={"type": "Recreate"}))
    assert created["spec"]["strategy"] == {"type": "Recreate"}


@pytest.mark.parametrize(
    ("plural", "status"),
    [
        ("deployments", {}),
        ("replicasets", {"replicas": 0}),
        ("statefulsets", {"replicas": 0, "availableReplicas": 0}),
        (
            "daemonsets",
            {
                "currentNumberScheduled": 0,
                "numberMisscheduled": 0,
                "desiredNumberScheduled": 0,
                "numberReady": 0,
            },
        ),
    ],
)
def test_status_begins_at_zero_for_any_body(cluster: Cluster, plural: str, status: Obj) -> None:
    created = cluster.create(f"{APPS}/{plural}", {**workload(), "status": {"observedGeneration": 7}})
    assert created["status"] == status
    assert created["metadata"]["generation"] == 1


@pytest.mark.parametrize(
    ("obj", "problems"),
    [
        (
            workload(selector={"matchLabels": {"app": "y"}}),
            [MISMATCH],
        ),
        (
            workload(selector={}),
            ["spec.selector: Invalid value: {}: empty selector is invalid for deployment"],
        ),
        (
            workload(replicas=-1),
            ["spec.replicas: Invalid value: -1: must be greater than or equal to 0"],
        ),
        (
            {"metadata": {"name": "w"}, "spec": {"template": workload()["spec"]["template"]}},
            [
                "spec.selector: Required value",
                MISMATCH,
            ],
        ),
    ],
)
def test_an_invalid_deployment_is_refused(cluster: Cluster, obj: Obj, problems: list[str]) -> None:
    assert refusal(cluster, f"{APPS}/deployments", obj) == problems


def test_a_selector_is_immutable(cluster: Cluster) -> None:
    cluster.create(f"{APPS}/deployments", workload())
    with pytest.raises(StatusError, match=r"spec.selector: Invalid value: .*: field is immutable"):
        cluster.patch(f"{APPS}/deployments/w", {"spec": {"selector": {"matchLabels": {"b": "c"}}}})


def test_a_stateful_set_changes_in_few_fields(cluster: Cluster) -> None:
    cluster.create(f"{APPS}/statefulsets", workload(serviceName="s"))
    assert cluster.patch(f"{APPS}/statefulsets/w", {"spec": {"replicas": 3}})["spec"]["replicas"] == 3
    with pytest.raises(StatusError, match="updates to statefulset spec for fields other than"):
        cluster.patch(f"{APPS}/statefulsets/w", {"spec": {"serviceName": "t"}})


def test_a_daemon_set_counts_the_changes_of_its_template(cluster: Cluster) -> None:
    cluster.create(f"{APPS}/daemonsets", workload())
    path, key = f"{APPS}/daemonsets/w", "deprecated.daemonset.template.generation"
    assert cluster.patch(path, {"metadata": {"labels": {"a": "b"}}})["metadata"]["annotations"] == {key: "1"}
    changed = cluster.patch(path, {"spec": {"template": {"metadata": {"annotations": {"a": "b"}}}}})
    assert changed["metadata"]["annotations"] == {key: "2"}
    assert changed["metadata"]["generation"] == 2


def job(**more: Any) -> Obj:
    pod_spec = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}
    return {"metadata": {"name": "j"}, "spec": {"template": {"spec": pod_spec}, **more}}


def test_a_job_selects_its_pods_by_its_uid(cluster: Cluster) -> None:
    created = cluster.create("/apis/batch/v1/namespaces/default/jobs", job())
    uid = created["metadata"]["uid"]
    assert created["spec"]["selector"] == {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    assert created["spec"]["template"]["metadata"]["labels"] == {
        "batch.kubernetes.io/controller-uid": uid,
        "batch.kubernetes.io/job-name": "j",
        "controller-uid": uid,
        "job-name": "j",
    }
    assert (
        created["spec"]["completions"],
        created["spec"]["parallelism"],
        created["spec"]["backoffLimit"],
    ) == (
        1,
        1,
        6,
    )


def test_a_job_may_not_restart_always(cluster: Cluster) -> None:
    obj = job()
    obj["spec"]["template"]["spec"]["restartPolicy"] = "Always"
    problems = refusal(cluster, "/apis/batch/v1/namespaces/default/jobs", obj)
    assert problems == [
        'spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"'
    ]


def test_deleted_job_leaves_its_pods_by_default(cluster: Cluster) -> None:
    jobs = "/apis/batch/v1/namespaces/default/jobs"
    cluster.create(jobs, job())
    cluster.delete(f"{jobs}/j")
    assert cluster.get(f"{jobs}/j")["metadata"]["finalizers"] == ["orphan"]
    cluster.create(jobs, {**job(), "metadata": {"name": "k"}})
    cluster.delete(f"{jobs}/k", propagationPolicy="Background")
    with pytest.raises(StatusError, match="not found"):
        cluster.get(f"{jobs}/k")


def service(name: str = "s", **spec: Any) -> Obj:
    return {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], **spec}}


def test_a_service_gets_an_address_and_keeps_it(cluster: Cluster) -> None:
    created = cluster.create(f"{CORE}/services", service())
    address = created["spec"]["clusterIP"]
    assert address.startswith("10.96.")
    assert created["spec"]["ports"] == [{"protocol": "TCP", "port": 80, "targetPort": 80}]
    replaced = cluster.update(f"{CORE}/services/s", service(selector={"a": "b"}))
    assert replaced["spec"]["clusterIP"] == address
    with pytest.raises(StatusError, match="may not change once set"):
        cluster.patch(f"{CORE}/services/s", {"spec": {"clusterIP": "10.96.1.1", "clusterIPs": ["10.96.1.1"]}})


def test_a_node_port_service_gets_a_port(cluster: Cluster) -> None:
    created = cluster.create(f"{CORE}/services", service(type="NodePort"))
    assert 30_000 <= created["spec"]["ports"][0]["nodePort"] < 32_768


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"ports": []}, "spec.ports: Required value"),
        ({"type": "Frob"}, 'spec.type: Unsupported value: "Frob": supported values: '),
        ({"ports": [{"port": 0}]}, "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535"),
        ({"ports": [{"port": 1}, {"port": 2}]}, "spec.ports[0].name: Required value"),
        ({"type": "ExternalName"}, "spec.externalName: Required value"),
    ],
)
def test_an_invalid_service_is_refused(cluster: Cluster, spec: Obj, problem: str) -> None:
    assert any(
        reported.startswith(problem) for reported in refusal(cluster, f"{CORE}/services", service(**spec))
    )


def test_a_secret_shows_its_text_encoded_and_keeps_its_type(cluster: Cluster) -> None:
    created = cluster.create(f"{CORE}/secrets", {"metadata": {"name": "s"}, "stringData": {"a": "b"}})
    assert created["data"] == {"a": "Yg=="}
    assert created["type"] == "Opaque"
    assert "stringData" not in created
    with pytest.raises(StatusError, match="type: Invalid value"):
        cluster.patch(f"{CORE}/secrets/s", {"type": "other"})


def test_an_immutable_secret_cannot_be_changed(cluster: Cluster) -> None:
    cluster.create(f"{CORE}/secrets", {"metadata": {"name": "s"}, "immutable": True})
    with pytest.raises(StatusError, match="field is immutable when `immutable` is set"):
        cluster.patch(f"{CORE}/secrets/s", {"data": {"a": "Yg=="}})


PRIORITIES = "/apis/scheduling.k8s.io/v1/priorityclasses"


def test_pods_get_the_priority_of_their_class(cluster: Cluster) -> None:
    cluster.create(PRIORITIES, {"metadata": {"name": "high"}, "value": 100, "preemptionPolicy": "Never"})
    spec = cluster.create(PODS, pod("a", priorityClassName="high"))["spec"]
    assert (spec["priority"], spec["preemptionPolicy"]) == (100, "Never")
    assert cluster.create(PODS, pod("b"))["spec"]["priority"] == 0
    with pytest.raises(StatusError, match="no PriorityClass with name frob was found"):
        cluster.create(PODS, pod("c", priorityClassName="frob"))


def test_a_pod_without_a_class_gets_the_default_class(cluster: Cluster) -> None:
    cluster.create(PRIORITIES, {"metadata": {"name": "usual"}, "value": 7, "globalDefault": True})
    spec = cluster.create(PODS, pod("a"))["spec"]
    assert (spec["priorityClassName"], spec["priority"]) == ("usual", 7)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("high", 2_000_000_000, "maximum allowed value of a user defined priority is 1000000000"),
        ("system-mine", 1, "priority class names with 'system-' prefix are reserved for system use only"),
    ],
)
def test_the_highest_priorities_are_the_systems(cluster: Cluster, name: str, value: int, why: str) -> None:
    (problem,) = refusal(cluster, PRIORITIES, {"metadata": {"name": name}, "value": value})
    assert problem.endswith(why)


def test_a_class_keeps_its_value(cluster: Cluster) -> None:
    cluster.create(PRIORITIES, {"metadata": {"name": "high"}, "value": 100})
    with pytest.raises(StatusError, match="value: Forbidden: may not be changed in an update"):
        cluster.patch(f"{PRIORITIES}/high", {"value": 200})


def test_every_pod_stays_five_minutes_on_a_lost_node(cluster: Cluster) -> None:
    given = [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}]
    tolerations = cluster.create(PODS, pod("a", tolerations=given))["spec"]["tolerations"]
    assert {toleration["key"]: toleration.get("tolerationSeconds") for toleration in tolerations} == {
        "node.kubernetes.io/not-ready": None,
        "node.kubernetes.io/unreachable": 300,
    }


def event(**more: Any) -> Obj:
    about = {"kind": "Pod", "name": "p", "namespace": "default"}
    return {"metadata": {"name": "e"}, "involvedObject": about, "reason": "R", "message": "m", **more}


def test_an_event_is_shown_by_both_groups(cluster: Cluster) -> None:
    cluster.create(f"{CORE}/events", event(count=3, source={"component": "kubelet"}))
    newer = cluster.get(f"{EVENTS}/e")
    assert (newer["note"], newer["deprecatedCount"], newer["regarding"]["name"]) == ("m", 3, "p")
    assert newer["deprecatedSource"] == {"component": "kubelet"}
    changed = cluster.patch(f"{CORE}/events/e", {"count": 4})
    assert changed["message"] == "m"
    listed = cluster.get(EVENTS, fieldSelector="regarding.name=p")["items"]
    assert [shown["deprecatedCount"] for shown in listed] == [4]


def test_new_event_needs_reporter_action_and_time(cluster: Cluster) -> None:
    whole = {
        "metadata": {"name": "e"},
        "regarding": {"kind": "Pod", "name": "p", "namespace": "default"},
        "eventTime": "2023-11-14T22:13:20.000000Z",
        "reportingController": "example.com/c",
        "reportingInstance": "c-1",
        "action": "Did",
        "reason": "R",
        "note": "n",
        "type": "Normal",
    }
    assert cluster.create(EVENTS, whole)["note"] == "n"
    assert cluster.get(f"{CORE}/events/e")["message"] == "n"
    for name in ("reportingController", "reportingInstance", "action", "reason"):
        lacking = {key: value for key, value in whole.items() if key != name}
        assert f"{name}: Required value" in refusal(cluster, EVENTS, lacking)
    assert refusal(cluster, EVENTS, {key: value for key, value in whole.items() if key != "eventTime"}) == [
        "eventTime: Required value"
    ]
    with pytest.raises(StatusError, match=r"reason: Invalid value: .*: field is immutable"):
        cluster.patch(f"{EVENTS}/e", {"reason": "Other"})


def test_event_is_in_the_namespace_of_its_object(cluster: Cluster) -> None:
    elsewhere = {"kind": "Pod", "name": "p", "namespace": "other"}
    (problem,) = refusal(cluster, f"{CORE}/events", event(involvedObject=elsewhere))
    assert problem == 'involvedObject.namespace: Invalid value: "other": does not match event.namespace'


def test_volumes_in_use_are_protected(cluster: Cluster) -> None:
    claim = {
        "metadata": {"name": "c"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    created = cluster.create(f"{CORE}/persistentvolumeclaims", claim)
    assert created["metadata"]["finalizers"] == ["kubernetes.io/pvc-protection"]
    assert created["status"] == {"phase": "Pending"}


def test_a_binding_keeps_its_role(cluster: Cluster) -> None:
    path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    role = {"kind": "ClusterRole", "name": "r"}
    created = cluster.create(
        path, {"metadata": {"name": "b:c"}, "roleRef": role, "subjects": [{"kind": "User", "name": "u"}]}
    )
    assert created["roleRef"]["apiGroup"] == created["subjects"][0]["apiGroup"] == "rbac.authorization.k8s.io"
    with pytest.raises(StatusError, match="cannot change roleRef"):
        cluster.patch(f"{path}/b:c", {"roleRef": {"name": "s"}})


def test_containers_are_limited_to_their_maximum(cluster: Cluster) -> None:
    limit = {"type": "Container", "max": {"cpu": "2"}, "min": {"cpu": "1"}, "default": {"memory": "1Gi"}}
    created = cluster.create(f"{CORE}/limitranges", {"metadata": {"name": "l"}, "spec": {"limits": [limit]}})
    (shown,) = created["spec"]["limits"]
    assert shown["default"] == {"cpu": "2", "memory": "1Gi"}
    assert shown["defaultRequest"] == {"cpu": "2", "memory": "1Gi"}


@pytest.mark.parametrize(
    ("plural", "spec", "status"),
    [
        (
            "selfsubjectaccessreviews",
            {"resourceAttributes": {"verb": "delete", "resource": "nodes"}},
            {"allowed": True},
        ),
        ("selfsubjectrulesreviews", {"namespace": "default"}, None),
    ],
)
def test_every_access_review_is_allowed(cluster: Cluster, plural: str, spec: Obj, status: Any) -> None:
    answer = send(cluster, "POST", f"/apis/authorization.k8s.io/v1/{plural}", {"spec": spec})
    assert answer.status == 201
    assert answer.json()["status"] == status or answer.json()["status"]["resourceRules"][0]["verbs"] == ["*"]


def test_self_subject_review_names_the_user(cluster: Cluster) -> None:
    answer = send(cluster, "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {})
    assert answer.json()["status"]["userInfo"]["username"] == "admin"


def test_a_pod_without_an_image_is_refused(cluster: Cluster) -> None:
    assert refusal(cluster, PODS, pod(containers=[{"name": "c"}])) == [
        "spec.containers[0].image: Required value"
    ]


def test_objects_are_stamped_with_the_clusters_clock(cluster: Cluster, clock: Clock) -> None:
    clock.now += 60
    assert cluster.create(PODS, pod())["metadata"]["creationTimestamp"] == "2023-11-14T22:14:20Z"
