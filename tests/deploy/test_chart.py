"""The chart's objects, as a cluster and its users see them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from broker.admission.registration import SECRET
from broker.apis import names
from broker.app import LEASE
from broker.controllers.launch import published
from broker.controllers.launch.calls import RECORDS
from broker.controllers.provisioning.published import REPORTS, TYPES
from broker.kube.identity import NAME, NAMESPACE
from broker.notifications.record import NAME as NOTIFICATIONS
from broker.options import HINTS, called, problems
from broker.reservations.desired import Caps
from broker.reservations.purchases import LEDGER
from broker.run import taken_ports
from broker.scheduler import SCHEDULER_LEASE
from broker.settings import Settings
from providers.model import PLATFORMS
from tests.cli.kit import main
from tests.controlplane.client import Api
from tests.deploy import helm, strict
from tests.deploy.strict import Json

REQUIRED = {
    "image.repository": "",
    "image.digest": "",
    "clusterName": "CLUSTER_NAME",
    "region": "AWS_REGION",
}
# Options that a pod leaves alone, each with the reason.
NOT_IN_A_POD = {
    "KUBECONFIG": "a pod has its service account",
    "BROKER_CONTEXT": "of a kubeconfig",
    "AWS_PROFILE": "a pod has a role",
    "AWS_ENDPOINT_URL": "AWS itself, or extraEnv",
    "BROKER_LEADER_ELECTION": "two replicas need it, and it is the default",
}


def variables() -> dict[str, Any]:
    """Environment variable to default, of every option."""
    return {HINTS[f.name].__metadata__[0].envvar: f.default for f in fields(Settings)}


def container(manifests: list[Json]) -> Json:
    (container_,) = helm.only(manifests, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert isinstance(container_, dict)
    return container_


def environment(manifests: list[Json]) -> dict[str, Any]:
    return {variable["name"]: variable.get("value") for variable in container(manifests)["env"]}


def test_every_variable_is_an_option_and_every_option_is_there_or_left_out_for_a_reason() -> None:
    assert set(environment(helm.render())) == set(variables()) - set(NOT_IN_A_POD)
    assert environment(helm.render())["BROKER_SCHEDULER"] == "on"


def test_unset_value_is_the_default_of_the_option() -> None:
    set_here = {*REQUIRED.values(), "BROKER_NAMESPACE", "HOSTNAME", "BROKER_HTTP_HOST", "BROKER_LOG_FORMAT"}
    set_here |= {
        "BROKER_SCHEDULER",  # YAML reads on as true
        "CLUSTER_ENDPOINT",
        "CLUSTER_CA_BUNDLE",
        "BROKER_WEBHOOK_PORT",
        "BROKER_WEB",
        "BROKER_RUNBOOKS",  # as in the rules, which link to the page's address
        "BROKER_HISTORY",
    }
    defaults = variables()
    for name, value in environment(helm.render()).items():
        if name not in set_here:
            assert (yaml.safe_load(value) if value else value) == defaults[name], name


def test_all_missing_required_values_are_reported_at_once() -> None:
    values = yaml.safe_load(yaml.safe_dump(helm.GIVEN))
    for path in [*REQUIRED, "networkPolicy.apiServerCIDRs"]:
        _without(values, path)
    with pytest.raises(helm.Refused) as refused:
        helm.render(values)
    required = [line.strip() for line in str(refused.value).splitlines() if " is required: " in line]
    assert {line.partition(" ")[0] for line in required} == {*REQUIRED, "networkPolicy.apiServerCIDRs"}
    assert all("such as " in line or "sha256:" in line for line in required)


@pytest.mark.parametrize("path", REQUIRED)
def test_single_missing_value_is_reported_alone(path: str) -> None:
    values = yaml.safe_load(yaml.safe_dump(helm.GIVEN))
    _without(values, path)
    with pytest.raises(helm.Refused, match=f"{re.escape(path)} is required: ") as refused:
        helm.render(values)
    assert str(refused.value).count(" is required: ") == 1


def _without(values: Json, path: str) -> None:
    *into, last = path.split(".")
    for name in into:
        values = values[name]
    del values[last]


def test_chart_requires_the_values_without_which_the_process_does_not_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable in ("CLUSTER_NAME", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(variable, raising=False)
    assert main("run") == 2
    refused = capsys.readouterr().err
    assert all(variable in refused for variable in REQUIRED.values())


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"clustername": "x"}, "clustername"),
        ({"pollSeconds": "often"}, "/pollSeconds"),
        ({"clusterEndpoint": "0123.eks.amazonaws.com"}, "/clusterEndpoint"),
        ({"logLevel": "chatty"}, "/logLevel"),
        ({"region": "us-east-1a"}, "/region"),
        ({"http": {"port": 80}}, "/http/port"),
        ({"image": {"repository": "x", "digest": "latest"}}, "/image/digest"),
        ({"clusterName": "demo.eu"}, "/clusterName"),
    ],
)
def test_a_wrong_value_is_named(values: Json, field: str) -> None:
    with pytest.raises(helm.Refused, match=field):
        helm.render({**helm.GIVEN, **values})


@pytest.mark.parametrize("value", ["inf", 12.5, 1000000])
@pytest.mark.parametrize(
    ("path", "read"),
    [
        ("buyDollars", lambda caps: caps.dollars),
        ("buyDollarsEach", lambda caps: caps.dollars_each),
        ("buyDollarsNamespace", lambda caps: caps.dollars_namespace),
    ],
)
def test_cap_in_dollars_is_a_number_or_inf(
    path: str, read: Callable[[Caps], float], value: float | str
) -> None:
    given = environment(helm.render({**helm.GIVEN, "buyDollars": 100, path: value}))
    caps = Settings(
        buy_dollars=float(given["BROKER_BUY_DOLLARS"]),
        buy_dollars_each=float(given["BROKER_BUY_DOLLARS_EACH"]),
        buy_dollars_namespace=float(given["BROKER_BUY_DOLLARS_NAMESPACE"]),
    ).caps
    assert read(caps) == float(value)


@pytest.mark.parametrize(
    ("values", "settings"),
    [
        ({"pollSeconds": 0}, {"poll_seconds": 0.0}),
        ({"planSeconds": 0}, {"plan_seconds": 0.0}),
        ({"orphanGraceSeconds": -1}, {"orphan_grace_seconds": -1.0}),
        ({"releaseIdleSeconds": 1e10}, {"release_idle_seconds": 1e10}),
        ({"dedicatedWaitSeconds": -1}, {"dedicated_wait_seconds": -1.0}),
        ({"reservations": {"creatingSeconds": 0}}, {"reservation_creating_seconds": 0.0}),
        ({"reservations": {"steadySeconds": -1}}, {"reservation_steady_seconds": -1.0}),
        ({"vmMemoryOverheadPercent": 1}, {"vm_memory_overhead_percent": 1.0}),
        ({"reservedENIs": -1}, {"reserved_enis": -1}),
        ({"buyDollars": -1}, {"buy_dollars": -1.0}),
        ({"buyInstances": -1}, {"buy_instances": -1}),
        ({"buyPlatforms": "Linux"}, {"buy_platforms": "Linux"}),
        ({"buyPlatforms": "Linux/UNIX, Linux"}, {"buy_platforms": "Linux/UNIX, Linux"}),
        ({"buyTenancies": "host"}, {"buy_tenancies": "host"}),
        ({"clusterEndpoint": "x.example"}, {"cluster_endpoint": "x.example"}),
        ({"clusterCABundle": "!!"}, {"cluster_ca": "!!"}),
        ({"clusterName": "demo.eu"}, {"cluster_name": "demo.eu"}),
        ({"serviceCIDR": "10.100"}, {"service_cidr": "10.100"}),
        ({"logLevel": "loud"}, {"log_level": "loud"}),
    ],
)
def test_value_that_the_process_refuses_the_chart_refuses(values: Json, settings: Json) -> None:
    assert len(problems(Settings(**settings))) == 1
    with pytest.raises(helm.Refused):
        helm.render({**helm.GIVEN, **values})


def counts(schema: Json, *path: str) -> list[tuple[str, ...]]:
    """The values that are whole numbers without a bound."""
    paths: list[tuple[str, ...]] = []
    for name, value in schema.get("properties", {}).items():
        paths += counts(value, *path, name)
        if value.get("type") == "integer" and "maximum" not in value and name != "replicas":
            paths.append((*path, name))
    return paths


def test_large_counts_are_written_as_the_process_reads_them() -> None:
    """Helm reads each number of a file as a float, and would write 30 days of seconds as 2.592e+06."""
    values: Json = {**helm.GIVEN, "scheduler": {"separate": True}}
    written = counts(json.loads((helm.CHART / "values.schema.json").read_text()))
    for *above, name in written:
        into = values
        for key in above:
            into = into.setdefault(key, {})
        into[name] = 2_592_000
    environments = [
        {variable["name"]: variable.get("value") for variable in part["env"]}
        for manifest in helm.render(values)
        if manifest["kind"] == "Deployment"
        for part in manifest["spec"]["template"]["spec"]["containers"]
    ]
    assert [env["BROKER_LONGEST_RESERVATION_TTL"] for env in environments] == ["2592000"] * 2
    assert sum(value == "2592000" for env in environments for value in env.values()) >= len(written)
    assert not [name for env in environments for name, value in env.items() if "e+" in (value or "")]


@pytest.mark.parametrize("release", ["r" * 53, "r" * 38, "capacity-broker"])
def test_names_are_as_short_as_services_need_them_for_every_release(release: str) -> None:
    values: Json = {**helm.GIVEN, "scheduler": {"separate": True}}
    manifests = helm.render(values, release=release)
    services = [item["metadata"]["name"] for item in manifests if item["kind"] == "Service"]
    deployments = [item["metadata"]["name"] for item in manifests if item["kind"] == "Deployment"]
    assert len({*deployments}) == 2 and {*deployments} >= {*services}
    assert all(len(name) <= 63 and name.strip("-") == name for name in deployments)


def test_scheduler_in_pods_of_its_own_has_names_to_serve() -> None:
    values: Json = {**helm.GIVEN, "scheduler": {"separate": True}, "schedulerNames": ""}
    with pytest.raises(helm.Refused, match=r"schedulerNames is required by scheduler\.separate"):
        helm.render(values)
    assert helm.render({**values, "scheduler": {"separate": False}})


@pytest.mark.parametrize("port", [("webhook", "http"), ("web", "http"), ("web", "webhook")])
def test_two_servers_of_a_pod_have_no_port_in_common(port: tuple[str, str]) -> None:
    values: Json = {**helm.GIVEN, **{name: {"port": 9000} for name in port}}
    with pytest.raises(helm.Refused, match=r"9000.*write another port for each"):
        helm.render(values)
    off: Json = {**values, port[0]: {"port": 9000, "enabled": False}}
    assert helm.render(off)
    given: Json = {f"{name}_port": 9000 for name in port}
    assert [*taken_ports(Settings(**{"web": True, "webhook_port": 0, **given}))] == [
        f"{called(f'{port[0]}_port')} is 9000: {called(f'{port[1]}_port')} has it; write another port"
    ]


def test_chart_takes_every_platform_of_ec2() -> None:
    for given in (*PLATFORMS, ", ".join(PLATFORMS)):
        assert (
            environment(helm.render({**helm.GIVEN, "buyPlatforms": given}))["BROKER_BUY_PLATFORMS"] == given
        )


def test_buying_is_paused_by_one_value() -> None:
    given = environment(helm.render({**helm.GIVEN, "buyDollars": 0, "buyDollarsEach": 100}))
    assert (given["BROKER_BUY_DOLLARS"], given["BROKER_BUY_DOLLARS_EACH"]) == ("0", "100")


@pytest.mark.parametrize("value", ["infinity", "12.5", -1])
def test_other_words_and_negative_numbers_are_no_cap(value: Any) -> None:
    with pytest.raises(helm.Refused, match="/buyDollarsEach"):
        helm.render({**helm.GIVEN, "buyDollarsEach": value})


def test_both_probes_use_paths_that_the_process_serves_on_all_addresses() -> None:
    manifests = helm.render({**helm.GIVEN, "http": {"port": 9090}})
    pod, variables_ = container(manifests), environment(manifests)
    assert (variables_["BROKER_HTTP_HOST"], variables_["BROKER_HTTP_PORT"]) == ("0.0.0.0", "9090")
    (port,) = [port_ for port_ in pod["ports"] if port_["name"] == "http"]
    assert port["containerPort"] == 9090
    for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert pod[probe]["httpGet"] == {"path": path, "port": port["name"]}


def test_two_replicas_have_a_budget_that_lets_one_go() -> None:
    manifests = helm.render()
    deployment, budget = helm.only(manifests, "Deployment"), helm.only(manifests, "PodDisruptionBudget")
    assert deployment["spec"]["replicas"] == 2
    assert budget["spec"]["maxUnavailable"] == 1
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    for selector in (
        budget["spec"]["selector"]["matchLabels"],
        deployment["spec"]["selector"]["matchLabels"],
        helm.only(manifests, "Service")["spec"]["selector"],
    ):
        assert selector.items() <= labels.items()


def test_the_process_has_no_rights_on_its_machine() -> None:
    manifests = helm.render()
    pod = helm.only(manifests, "Deployment")["spec"]["template"]["spec"]["securityContext"]
    assert (pod["runAsNonRoot"], pod["runAsUser"]) == (True, 65532)
    assert container(manifests)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_it_does_not_run_on_nodes_that_it_launched() -> None:
    pod = helm.only(helm.render(), "Deployment")["spec"]["template"]["spec"]
    (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert {"key": "karpenter.sh/registered", "operator": "DoesNotExist"} in term["matchExpressions"]


def role(manifests: list[Json], kind: str = "ClusterRole", name: str = helm.RELEASE) -> Json:
    """The broker's own."""
    (role_,) = [
        manifest
        for manifest in manifests
        if manifest["kind"] == kind and manifest["metadata"]["name"] == name
    ]
    return role_


@pytest.mark.covers("SAF-60")
def test_people_get_roles_of_their_own_within_kubernetes_s() -> None:
    def given(values: Json) -> dict[str, tuple[list[str], list[Json]]]:
        return {
            role_["metadata"]["name"].removeprefix(f"{helm.RELEASE}-reservations-"): (
                sorted(
                    name.partition("aggregate-to-")[2]
                    for name in role_["metadata"]["labels"]
                    if "aggregate-to-" in name
                ),
                role_["rules"],
            )
            for role_ in helm.render({**helm.GIVEN, "userRoles": values})
            if role_["kind"] == "ClusterRole" and role_["metadata"]["name"] != helm.RELEASE
        }

    assert given({"aggregate": True}) == {
        "view": (["admin", "edit", "view"], rules("users-view")),
        "edit": (["admin", "edit"], rules("users-edit")),
        "cluster": ([], rules("users-cluster")),
        "buy": ([], rules("users-buy")),
    }
    assert [into for into, _ in given({}).values()] == [[], [], [], []]
    assert given({"create": False}) == {}


def test_the_webhook_is_reached_through_the_service() -> None:
    manifests = helm.render({**helm.GIVEN, "webhook": {"port": 9999}})
    variables_, service = environment(manifests), helm.only(manifests, "Service")
    assert variables_["BROKER_WEBHOOK_PORT"] == "9999"
    assert variables_["BROKER_WEBHOOK_SERVICE"] == service["metadata"]["name"]
    (port,) = [service_port for service_port in service["spec"]["ports"] if service_port["port"] == 443]
    (open_,) = [
        container_port
        for container_port in container(manifests)["ports"]
        if container_port["name"] == port["targetPort"]
    ]
    assert open_["containerPort"] == 9999
    without = helm.render({**helm.GIVEN, "webhook": {"enabled": False}})
    assert environment(without)["BROKER_WEBHOOK_PORT"] == "0"
    assert len(helm.only(without, "Service")["spec"]["ports"]) == len(container(without)["ports"]) == 1


def rules(file: str) -> list[Json]:
    return list(yaml.safe_load((helm.CHART / "rbac" / f"{file}.yaml").read_text()))


def test_rights_that_go_with_a_value_go_without_it() -> None:
    manifests = helm.render({**helm.GIVEN, "advise": False})
    assert role(manifests)["rules"] == [
        *rules("cluster"),
        *rules("ome"),
        *rules("rooms"),
        *rules("scheduler"),
        *rules("webhook"),
        *rules("web-events"),
    ]
    assert environment(manifests)["BROKER_ADVISE"] == "false"
    manifests = helm.render({**helm.GIVEN, "keepDefinition": True})
    files = ("cluster", "ome", "rooms", "scheduler", "webhook", "web-events", "advisor", "definition")
    assert role(manifests)["rules"] == [rule for file in files for rule in rules(file)]
    assert environment(manifests)["BROKER_KEEP_DEFINITION"] == "true"
    manifests = helm.render({**helm.GIVEN, "webhook": {"enabled": False}})
    assert role(manifests)["rules"] == [
        *rules("cluster"),
        *rules("ome"),
        *rules("rooms"),
        *rules("scheduler"),
        *rules("web-events"),
        *rules("advisor"),
    ]
    assert helm.only(manifests, "Role")["rules"] == [
        *rules("system-namespace"),
        *rules("scheduler-namespace"),
    ]
    manifests = helm.render({**helm.GIVEN, "schedulerNames": ""})
    assert rules("scheduler")[0] not in role(manifests)["rules"]
    assert environment(manifests)["BROKER_SCHEDULER_NAMES"] == ""
    assert helm.only(
        [manifest for manifest in manifests if manifest["metadata"].get("namespace") == NAMESPACE], "Role"
    )["rules"] == rules("system-namespace")


def test_scheduler_in_pods_of_its_own_takes_its_rights_with_it() -> None:
    manifests = helm.render({**helm.GIVEN, "scheduler": {"separate": True, "replicas": 3}})
    name = f"{helm.RELEASE}-scheduler"
    own = {manifest["kind"]: manifest for manifest in manifests if manifest["metadata"]["name"] == name}
    broker = role(manifests, "Deployment")["spec"]["template"]["spec"]
    pod = own["Deployment"]["spec"]["template"]["spec"]
    assert own["Deployment"]["spec"]["replicas"] == 3
    assert (broker["serviceAccountName"], pod["serviceAccountName"]) == (helm.RELEASE, name)
    assert own["ServiceAccount"]["metadata"].get("annotations") is None  # no role in AWS
    parts = {
        spec["serviceAccountName"]: {
            variable["name"]: variable.get("value") for variable in spec["containers"][0]["env"]
        }
        for spec in (broker, pod)
    }
    assert (parts[helm.RELEASE]["BROKER_SCHEDULER"], parts[name]["BROKER_SCHEDULER"]) == ("off", "only")
    assert {key: value for key, value in parts[name].items() if parts[helm.RELEASE].get(key) != value} == {
        "BROKER_SCHEDULER": "only"
    }
    given = {
        f"{manifest['kind']} {manifest['metadata']['name']}": manifest.get("rules") for manifest in manifests
    }
    assert given[f"ClusterRole {helm.RELEASE}"] == [
        rule
        for file in ("cluster", "ome", "rooms", "webhook", "web-events", "advisor")
        for rule in rules(file)
    ]
    assert given[f"ClusterRole {name}"] == [
        rule for file in ("rooms", "scheduler", "scheduler-alone") for rule in rules(file)
    ]
    assert given[f"Role {helm.RELEASE}"] == rules("system-namespace")
    assert given[f"Role {name}"] == rules("scheduler-namespace")
    for kind in ("ClusterRoleBinding", "RoleBinding"):
        assert (
            [subject["name"] for subject in own[kind]["subjects"]] == [name] == [own[kind]["roleRef"]["name"]]
        )
    labels = own["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for kind in ("Service", "NetworkPolicy", "PodDisruptionBudget", "ServiceMonitor"):
        spec = own[kind]["spec"]
        selector = spec.get("podSelector") or spec["selector"]
        assert selector.get("matchLabels", selector).items() <= labels.items()
    broker_labels = role(manifests, "Deployment")["spec"]["selector"]["matchLabels"]
    assert not broker_labels.items() <= labels.items()  # neither the webhook's Service nor a budget meets it


def test_the_roles_hold_the_rules_and_are_bound_to_the_pods_account() -> None:
    manifests = helm.render()
    pod = helm.only(manifests, "Deployment")["spec"]["template"]["spec"]
    account = helm.only(manifests, "ServiceAccount")["metadata"]
    assert pod["serviceAccountName"] == account["name"]
    assert account["annotations"] == helm.GIVEN["serviceAccount"]["annotations"]
    webhook = f"{helm.RELEASE}-webhook"
    whole = ("cluster", "ome", "rooms", "scheduler", "webhook", "web-events", "advisor")
    for kind, name, namespace, files in (
        ("ClusterRole", helm.RELEASE, None, whole),
        ("Role", helm.RELEASE, NAMESPACE, ("system-namespace", "scheduler-namespace")),
        ("Role", webhook, helm.NAMESPACE, ("webhook-namespace",)),
    ):
        given, binding = role(manifests, kind, name), role(manifests, f"{kind}Binding", name)
        assert given["rules"] == [rule for file in files for rule in rules(file)]
        assert given["metadata"].get("namespace") == binding["metadata"].get("namespace") == namespace
        assert binding["roleRef"] == {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": kind,
            "name": given["metadata"]["name"],
        }
        assert binding["subjects"] == [
            {"kind": "ServiceAccount", "name": account["name"], "namespace": helm.NAMESPACE}
        ]
    for name, limited in (
        (
            helm.RELEASE,
            [
                [LEASE],
                [NAME],
                [*RECORDS, NOTIFICATIONS, LEDGER, published.NAME, TYPES, REPORTS],
                [SCHEDULER_LEASE],
            ],
        ),
        (webhook, [[SECRET]]),
    ):
        given = role(manifests, "Role", name)
        assert [r["resourceNames"] for r in given["rules"] if "resourceNames" in r] == limited


def test_an_account_that_is_there_is_used_by_its_name() -> None:
    manifests = helm.render({**helm.GIVEN, "serviceAccount": {"create": False, "name": "mine"}})
    assert not [manifest for manifest in manifests if manifest["kind"] == "ServiceAccount"]
    assert helm.only(manifests, "ClusterRoleBinding")["subjects"][0]["name"] == "mine"
    with pytest.raises(helm.Refused, match=r"serviceAccount\.name"):
        helm.render({**helm.GIVEN, "serviceAccount": {"create": False}})


def test_metrics_are_scraped_if_the_service_monitor_is_enabled() -> None:
    manifests = helm.render()
    service, monitor = helm.only(manifests, "Service"), helm.only(manifests, "ServiceMonitor")
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["honorLabels"] is True  # or `namespace` would be the broker's
    assert (endpoint["path"], endpoint["port"]) == ("/metrics", service["spec"]["ports"][0]["name"])
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    without = helm.render({**helm.GIVEN, "serviceMonitor": {"enabled": False}})
    assert not [manifest for manifest in without if manifest["kind"] == "ServiceMonitor"]


@pytest.mark.covers("SAF-60")
def test_the_image_is_pinned_by_digest() -> None:
    where, digest = helm.GIVEN["image"]["repository"], helm.GIVEN["image"]["digest"]
    assert container(helm.render())["image"] == f"{where}@{digest}"
    tagged = helm.render({**helm.GIVEN, "image": {**helm.GIVEN["image"], "tag": "0.1.0"}})
    assert container(tagged)["image"] == f"{where}:0.1.0@{digest}"


@pytest.mark.covers("SAF-60")
def test_metrics_are_for_the_monitoring_namespace_and_reviews_for_the_api_server() -> None:
    manifests = helm.render()
    policy = helm.only(manifests, "NetworkPolicy")["spec"]
    labels = helm.only(manifests, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert policy["policyTypes"] == ["Ingress"]
    monitoring = {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}
    assert policy["ingress"] == [
        {"ports": [{"port": "http"}], "from": [{"namespaceSelector": monitoring}]},
        {
            "ports": [{"port": "webhook"}],
            "from": [{"ipBlock": {"cidr": cidr}} for cidr in helm.GIVEN["networkPolicy"]["apiServerCIDRs"]],
        },
    ]
    ports = {port["name"] for port in container(manifests)["ports"]}
    assert ports == {"http", "webhook"}, "every port has a rule"
    with pytest.raises(helm.Refused, match=r"networkPolicy\.apiServerCIDRs"):
        helm.render({**helm.GIVEN, "networkPolicy": {}})
    without = helm.render({**helm.GIVEN, "networkPolicy": {}, "webhook": {"enabled": False}})
    assert len(helm.only(without, "NetworkPolicy")["spec"]["ingress"]) == 1


@pytest.mark.covers("SAF-60")
def test_annotations_that_buy_or_adopt_are_those_of_the_admission_policy() -> None:
    spec = helm.only(helm.render(), "ValidatingAdmissionPolicy")["spec"]
    (changed,) = [variable["expression"] for variable in spec["variables"] if variable["name"] == "changed"]
    assert set(re.findall(r'"(capacity-broker\.io/[a-z-]+)"', changed)) == names.BUYING_TERMS
    bound = helm.only(helm.render(), "ValidatingAdmissionPolicyBinding")
    policy = helm.only(helm.render(), "ValidatingAdmissionPolicy")["metadata"]["name"]
    assert (bound["spec"]["policyName"], bound["spec"]["validationActions"]) == (policy, ["Deny"])
    off = helm.render({**helm.GIVEN, "admissionPolicy": {"enabled": False}})
    assert not [manifest for manifest in off if "AdmissionPolicy" in manifest["kind"]]


def test_the_api_server_takes_every_manifest_strictly(api: Api) -> None:
    manifests = [
        manifest for manifest in helm.render(namespace="default") if manifest["kind"] != "ServiceMonitor"
    ]

    def send(method: str, path: str, query: Any, body: Json | None) -> tuple[int, Json]:
        return api.request(method, path, query, body)

    assert strict.create(send, manifests, dry_run=True) == []
    assert len(manifests) == 17


def test_an_unknown_field_is_refused_and_the_service_monitor_is_taken() -> None:
    send, manifests = strict.prepared(helm.NAMESPACE), helm.render()
    helm.only(manifests, "Deployment")["spec"]["template"]["spec"]["containers"][0]["prots"] = []
    helm.only(manifests, "ServiceMonitor")["spec"]["endpoints"][0]["prot"] = "http"
    wrong = strict.create(send, manifests)
    assert [problem.partition("/")[0] for problem in sorted(wrong)] == ["Deployment", "ServiceMonitor"]
    assert strict.create(strict.prepared(helm.NAMESPACE), helm.render()) == []


@pytest.mark.real
def test_helm_installs_upgrades_and_prints_the_next_steps(real: Api, tmp_path: Path) -> None:
    kubeconfig, values = tmp_path / "kubeconfig", tmp_path / "values.yaml"
    kubeconfig.write_text(real.kubeconfig())
    values.write_text(yaml.safe_dump({**helm.GIVEN, "serviceMonitor": {"enabled": False}}))
    cluster = ("--kubeconfig", str(kubeconfig), "--namespace", helm.NAMESPACE)
    env = {
        "HELM_CACHE_HOME": str(tmp_path),
        "HELM_CONFIG_HOME": str(tmp_path),
        "HELM_DATA_HOME": str(tmp_path),
    }
    chart = (helm.RELEASE, str(helm.CHART), "--values", str(values), *cluster)
    try:
        output = helm.run("install", *chart, "--create-namespace", env=env)
        assert "capacity-broker crds install" in output
        assert helm.GIVEN["serviceAccount"]["annotations"]["eks.amazonaws.com/role-arn"] in output
        helm.run("upgrade", *chart, "--set", "replicas=3", env=env)
        path = f"/apis/apps/v1/namespaces/{helm.NAMESPACE}/deployments/{helm.RELEASE}"
        assert real.request("GET", path).body["spec"]["replicas"] == 3
    finally:
        helm.run("uninstall", helm.RELEASE, *cluster, "--ignore-not-found", env=env)
    assert (
        real.request("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles/capacity-broker").status == 404
    )


EXPOSED: Json = {"host": "0.0.0.0", "userHeader": "X-Forwarded-User", "proxies": ["10.0.1.7/32"]}


def test_a_web_page_that_others_reach_needs_authentication() -> None:
    with pytest.raises(helm.Refused, match=r"web\.host is 0\.0\.0\.0"):
        helm.render({**helm.GIVEN, "web": {"host": "0.0.0.0"}})
    with pytest.raises(helm.Refused, match=r"web\.proxies is required"):
        helm.render({**helm.GIVEN, "web": {**EXPOSED, "proxies": []}})
    with pytest.raises(helm.Refused, match="/web/proxies"):
        helm.render({**helm.GIVEN, "web": {**EXPOSED, "proxies": ["0.0.0.0/0"]}})


def test_the_web_page_has_a_port_and_rights_only_where_others_reach_it() -> None:
    alone = helm.render()
    assert "web" not in {port["name"] for port in container(alone)["ports"]}
    assert rules("web")[0] not in role(alone)["rules"]
    without = helm.render({**helm.GIVEN, "web": {"enabled": False}})
    assert rules("web-events")[0] in role(alone)["rules"]
    assert rules("web-events")[0] not in role(without)["rules"]
    peers = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress"}}}]
    policy = {**helm.GIVEN["networkPolicy"], "webFrom": peers}
    manifests = helm.render({**helm.GIVEN, "web": EXPOSED, "networkPolicy": policy})
    given = environment(manifests)
    assert (given["BROKER_WEB_HOST"], given["BROKER_WEB_PROXIES"]) == ("0.0.0.0", "10.0.1.7/32")
    assert "web" in {port["name"] for port in container(manifests)["ports"]}
    assert "web" in {port["targetPort"] for port in helm.only(manifests, "Service")["spec"]["ports"]}
    ingress = helm.only(manifests, "NetworkPolicy")["spec"]["ingress"]
    assert {"ports": [{"port": "web"}], "from": peers} in ingress
    held = role(manifests)["rules"]
    assert rules("web")[0] in held and rules("web-tokens")[0] not in held
    held = role(helm.render({**helm.GIVEN, "web": {"tokens": True}}))["rules"]
    assert rules("web")[0] in held and rules("web-tokens")[0] in held


def test_the_volume_of_the_history_has_twice_its_limit() -> None:
    manifests = helm.render({**helm.GIVEN, "history": {"mebibytes": 300}})
    volumes = helm.only(manifests, "Deployment")["spec"]["template"]["spec"]["volumes"]
    assert [v["emptyDir"]["sizeLimit"] for v in volumes if v["name"] == "history"] == ["600Mi"]
    assert environment(manifests)["BROKER_HISTORY_MEBIBYTES"] == "300"
