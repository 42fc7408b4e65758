"""The commands as a person runs them: their exit code and output, on local AWS and an embedded API server."""

from __future__ import annotations

import json
import re
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from broker import cli
from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.kueue import Namespace
from broker.apis.ome import CapacityReservation
from broker.commands import manifests, troubles
from broker.commands.crds import install
from broker.kube.client import Client
from broker.kube.errors import Forbidden, NotFound, Unavailable
from providers.local import LocalAws
from providers.model import ErrorClass, ProviderError

from .kit import ACCOUNT, REGION, World, claim, files, node_class, run


def planned(world: World, path: str) -> tuple[int, list[dict[str, Any]]]:
    result = run("plan", "-f", path, "--aws-endpoint", world.endpoint, "-o", "json")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, json.loads(result.stdout)


def test_plan_uses_every_slot_then_falls_back_and_says_why(world: World, tmp_path: Path) -> None:
    claims = [claim(f"c-{n}", "reserved", "on-demand") for n in range(3)]
    code, rows = planned(world, files(tmp_path, node_class(world), *claims))
    assert code == 0
    assert [row["pool"] for row in rows] == [
        f"reserved:p5.48xlarge:us-east-1a:{world.odcr}",
        f"reserved:p5.48xlarge:us-east-1a:{world.odcr}",
        "on-demand:p5.48xlarge:us-east-1a",
    ]
    assert "went to claims that come before" in rows[2]["why"]


@pytest.mark.covers("KRP-20")
def test_plan_says_which_way_it_was_solved(world: World, tmp_path: Path) -> None:
    path = files(tmp_path, node_class(world), *(claim(f"c-{n}", "reserved", "on-demand") for n in range(3)))
    person = run("plan", "-f", path, "--aws-endpoint", world.endpoint)
    last = person.stdout.splitlines()[-1]
    assert last.startswith("Solved by min-cost flow: 2 claims in reservations, optimal, ")
    machine = run(
        "plan", "-f", path, "--aws-endpoint", world.endpoint, "-o", "json", "--plan-seconds", "1e-9"
    )
    assert len(json.loads(machine.stdout)) == 3
    assert "Solved by greedy: 2 claims in reservations, not proven optimal" in machine.stderr


def test_plan_changes_nothing(world: World, aws: LocalAws, tmp_path: Path) -> None:
    path = files(tmp_path, node_class(world), claim("c-0"))
    before = aws.control.calls()
    planned(world, path)
    made = {action for action, count in aws.control.calls().items() if count > before.get(action, 0)}
    assert made
    assert not [action for action in made if not action.startswith(("Describe", "Get", "List"))]


def test_plan_of_more_reserved_claims_than_slots_is_a_no(world: World, tmp_path: Path) -> None:
    code, rows = planned(world, files(tmp_path, node_class(world), *(claim(f"c-{n}") for n in range(3))))
    assert code == 1
    assert [row["launches"] for row in rows] == [True, True, False]
    assert rows[2]["why"].startswith("waits: AllReservationsFull: ")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            {
                "capacityReservationSpec": {
                    "capacityReservationPreference": "open",
                    "capacityReservationTarget": {"capacityReservationId": "cr-0123456789abcdef0"},
                }
            },
            ("capacityReservationPreference", "capacityReservationTarget"),
        ),
        (
            {
                "capacityReservationSpec": {
                    "capacityReservationTarget": {"capacityReservationId": "cr-0ffffffffffffffff"}
                }
            },
            ("cr-0ffffffffffffffff", "not found"),
        ),
        ({"subnetSelectorTerms": [{"tags": {"team": "nobody"}}]}, ("subnetSelectorTerms", "nobody")),
        ({"amiSelectorTerms": [{"id": "ami-0123"}]}, ("amiSelectorTerms", "ami-0123")),
        ({"securityGroupSelectorTerms": [{"name": "none"}]}, ("securityGroupSelectorTerms", "none")),
        ({"amiFamily": "AL2"}, ("spec.amiFamily", "AL2023, Bottlerocket or Custom")),
        ({"placementGroupSelector": {"id": "pg-1"}}, ("pg-1", "does not exist")),
    ],
)
def test_plan_names_the_field_and_the_value(
    world: World, tmp_path: Path, spec: dict[str, Any], words: tuple[str, ...]
) -> None:
    code, rows = planned(world, files(tmp_path, node_class(world, **spec), claim("c-0")))
    assert code == 1
    for word in words:
        assert word in rows[0]["why"]


def test_plan_of_a_claim_that_falls_back_says_why_its_class_has_no_reservation(
    world: World, tmp_path: Path
) -> None:
    gone = {"capacityReservationTarget": {"capacityReservationId": "cr-0ffffffffffffffff"}}
    manifest = node_class(world, capacityReservationSpec=gone)
    claims = [claim("c-0", "reserved", "on-demand"), claim("c-1", "on-demand")]
    code, rows = planned(world, files(tmp_path, manifest, *claims))
    assert code == 0
    assert rows[0]["pool"].startswith("on-demand:")
    assert rows[0]["why"].startswith("ReservationNotFound: ") and "cr-0ffffffffffffffff" in rows[0]["why"]
    assert rows[1]["why"] == "the best option that it has", "it asks for none"


def test_plan_of_a_claim_without_its_class(world: World, tmp_path: Path) -> None:
    code, rows = planned(world, files(tmp_path, claim("c-0")))
    assert code == 1
    assert "no EC2NodeClass training in the files" in rows[0]["why"]


def test_plan_leaves_karpenters_claims_to_karpenter(world: World, tmp_path: Path) -> None:
    other = claim("c-0")
    other["spec"]["nodeClassRef"]["group"] = "karpenter.k8s.aws"
    code, rows = planned(world, files(tmp_path, node_class(world), other, claim("c-1")))
    assert code == 1
    assert [row["launches"] for row in rows] == [False, True]
    assert "spec.nodeClassRef.group is 'karpenter.k8s.aws'" in rows[0]["why"]


OWNED = {
    "apiVersion": "ome.io/v1beta1",
    "kind": "CapacityReservation",
    "metadata": {"name": "gpus", "namespace": "vision"},
    "spec": {
        "resourceGroups": [
            {
                "coveredResources": ["nvidia.com/gpu"],
                "flavors": [
                    {
                        "name": "p5.48xlarge",
                        "resources": [{"name": "nvidia.com/gpu", "nominalQuota": "8"}],
                    }
                ],
            }
        ]
    },
}


def drawing(name: str, draws: str = "") -> dict[str, Any]:
    made = claim(name)
    if draws:
        made["metadata"]["annotations"] = {"capacity-broker.io/draws-from": draws}
    return made


@pytest.mark.covers("CAP-09")
def test_plan_and_explain_say_the_same_of_whose_the_slots_are(
    world: World, cluster: tuple[Client, str], tmp_path: Path
) -> None:
    """Two slots of a reservation that owns one: its claims take that one, and a stranger none; whether the
    reservation is in the files or in the cluster."""
    tag = {"Key": "capacity-broker.io/reservation", "Value": "vision/gpus"}
    world.ec2.create_tags(Resources=[world.odcr], Tags=[tag])
    claims = [drawing("own-0", "vision/gpus"), drawing("own-1", "vision/gpus"), drawing("stranger")]
    code, rows = planned(world, files(tmp_path, node_class(world), OWNED, *claims))
    assert (code, [row["launches"] for row in rows]) == (1, [True, False, False])
    belongs = f"reservation {world.odcr} belongs to vision/gpus, and the claim draws from no reservation"
    assert belongs in rows[2]["decision"]

    client, kubeconfig = cluster
    install(client)
    client.create(Namespace.KIND, {"metadata": {"name": "vision"}})
    for kind, document in ((CapacityReservation.KIND, OWNED), (EC2NodeClass.KIND, node_class(world))):
        client.create(kind, document)
    asked = ("--aws-endpoint", world.endpoint, "--kubeconfig", kubeconfig, "-o", "json")
    there = run("plan", "-f", files(tmp_path, *claims), *asked)
    assert (there.stderr.count("\n"), json.loads(there.stdout)) == (1, rows)  # how it was solved, and no more

    for each in claims:
        client.create(NodeClaim.KIND, each)
    told = [json.loads(run("explain", "claim", row["claim"], *asked).stdout)["decision"] for row in rows]
    assert told == [row["decision"] for row in rows]


def test_plan_without_the_cluster_s_name_says_what_it_leaves_out(world: World, tmp_path: Path) -> None:
    """A reservation with the tag of a cluster belongs to that cluster alone."""
    asked = ("plan", "-f", files(tmp_path, node_class(world), claim("c-0")), "--aws-endpoint", world.endpoint)
    tag = {"Key": "capacity-broker.io/cluster", "Value": "prod"}
    world.ec2.create_tags(Resources=[world.odcr], Tags=[tag])
    assert "reservations of prod count as unowned: name the cluster by --cluster-name" in run(*asked).stderr
    assert "nobody's" not in run(*asked, "--cluster-name", "blue").stderr


def test_plan_without_a_cluster_says_what_it_goes_by(world: World, tmp_path: Path) -> None:
    told = run(
        "plan", "-f", files(tmp_path, node_class(world), claim("c-0")), "--aws-endpoint", world.endpoint
    )
    assert told.stderr.startswith("the files alone are planned with, and no cluster: none is configured")


def test_plan_names_the_claims_of_the_cluster_that_it_does_not_count(
    world: World, cluster: tuple[Client, str], tmp_path: Path
) -> None:
    client, kubeconfig = cluster
    install(client)
    for name in ("w-0", "w-1", "w-2", "w-3", "c-0"):
        client.create(NodeClaim.KIND, claim(name))
    theirs = claim("theirs")
    theirs["spec"]["nodeClassRef"]["group"] = "karpenter.k8s.aws"
    client.create(NodeClaim.KIND, theirs)
    client.create(NodeClaim.KIND, claim("runs"))
    there = {"metadata": {"name": "runs"}, "status": {"providerID": "aws:///us-east-1a/i-1"}}
    client.apply(NodeClaim.KIND, there, subresource="status")
    path = files(tmp_path, node_class(world), claim("c-0"))
    told = run("plan", "-f", path, "--aws-endpoint", world.endpoint, "--kubeconfig", kubeconfig)
    assert told.stderr.splitlines()[0].endswith("may take these slots first: w-0, w-1, w-2 and 1 more")


def test_plan_without_claims_is_no_success(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = files(tmp_path, node_class(world))
    monkeypatch.setattr("sys.argv", ["capacity-broker", "plan", "-f", path, "--aws-endpoint", world.endpoint])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert f"{path}: no NodeClaim to plan" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", ("not YAML",)),
        ("a: 1", ("kind is missing",)),
        (
            "apiVersion: karpenter.sh/v1\nkind: NodeClaim\nmetadata: {name: x}\nspec: {requirements: 7}",
            ("NodeClaim x", "spec.requirements", "7"),
        ),
        ("apiVersion: karpenter.sh/v1\nkind: NodeClaim", ("NodeClaim", "metadata.name is missing")),
        (
            "apiVersion: karpenter.k8s.aws/v1\nkind: EC2NodeClass\nmetadata: {name: x}\n"
            "spec: {amiSelectorTerms: [{id: '${AMI}'}], role: '${ROLE}'}",
            (
                "spec.amiSelectorTerms[0].id is ${AMI}; ",
                "bad.yaml: spec.role is ${ROLE}: replace",
                "envsubst",
            ),
        ),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(manifests.BadManifest) as caught:
        for document in manifests.read([str(path)]):
            manifests.decode(document)
    for word in words:
        assert word in str(caught.value)


def test_what_a_script_or_another_s_object_has_of_its_own_is_no_placeholder(tmp_path: Path) -> None:
    path = tmp_path / "good.yaml"
    path.write_text(
        "apiVersion: karpenter.k8s.aws/v1\nkind: EC2NodeClass\nmetadata: {name: x}\n"
        "spec: {userData: 'echo ${HOME}'}\n---\nkind: ConfigMap\nmetadata: {name: y}\ndata: {a: '${B}'}\n"
    )
    assert [each["kind"] for each in manifests.read([str(path)])] == ["EC2NodeClass", "ConfigMap"]


COMMANDS = ("run", "demo", "plan", "inventory", "idle", "crds install", "crds patch", "explain claim")


@pytest.mark.parametrize("command", ["", "crds", "explain", "crds print", *COMMANDS])
def test_help_fits_a_terminal_and_cuts_no_name(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    told = run(*command.split(), "--help")
    assert told.exit_code == 0
    assert max(map(len, told.stdout.splitlines())) <= 80
    assert "…" not in told.stdout


def test_each_command_shows_its_own_options_under_headings() -> None:
    shown = {each: run(*each.split(), "--help").stdout for each in COMMANDS}
    assert "\nReserving in EC2:\n  --buy-dollars <float>" in shown["run"]
    assert "[env var: AWS_REGION]" in shown["idle"]
    assert [each for each, text in shown.items() if "--buy-dollars" in text] == ["run"]
    headings = {each: re.findall(r"^(\w.*):$", text, re.MULTILINE) for each, text in shown.items()}
    for each in ("inventory", "idle"):
        assert headings[each] == ["Options", "Cluster that instances join", "AWS", "Kubernetes"]
    assert headings["crds patch"] == ["Options", "Kubernetes"]
    assert headings["demo"] == ["Options", "Log"]
    assert len(headings["run"]) == 11


def test_kubectl_s_plugin_is_the_same_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (made,) = [each for each in entry_points(group="console_scripts") if each.name == "kubectl-odcr"]
    monkeypatch.setattr("sys.argv", ["/usr/local/bin/kubectl-odcr", "idle", "--help"])
    with pytest.raises(SystemExit) as ended:
        made.load()()
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("Usage: kubectl odcr idle [OPTIONS]")


def test_inventory_counts_what_idles(world: World) -> None:
    result = run("inventory", "--aws-endpoint", world.endpoint, "-o", "json")
    rows = json.loads(result.stdout)
    assert [(row["id"], row["total"], row["free"]) for row in rows] == [(world.odcr, 2, 2)]
    assert rows[0]["usd_hour"] > 50
    table = run("inventory", "--aws-endpoint", world.endpoint).stdout
    head, _line, total = table.splitlines()
    assert head.split()[:3] == ["ID", "TYPE", "ZONE"]
    assert total == f"{ACCOUNT}, {REGION}: 2 of 2 slots idle in 1 reservation; {rows[0]['usd_hour']:.2f} $/h"
    assert "\x1b[" not in table


def test_inventory_counts_no_slots_of_what_is_cancelled(world: World) -> None:
    world.ec2.cancel_capacity_reservation(CapacityReservationId=world.odcr)
    _head, line, total = run("inventory", "--aws-endpoint", world.endpoint).stdout.splitlines()
    assert " cancelled " in line
    assert total == f"{ACCOUNT}, {REGION}: 0 of 0 slots idle in 0 reservations; 0.00 $/h; 1 not active"


def test_crds_are_installed_and_karpenters_own_left_alone(cluster: tuple[Client, str]) -> None:
    client, kubeconfig = cluster
    first = json.loads(run("crds", "install", "--kubeconfig", kubeconfig, "-o", "json").stdout)
    assert {row["did"] for row in first} == {"created"}
    again = json.loads(run("crds", "install", "--kubeconfig", kubeconfig, "-o", "json").stdout)
    assert {row["did"] for row in again} == {"unchanged"}
    theirs = "nodeclaims.karpenter.sh"
    body = {"metadata": {"annotations": {"capacity-broker.io/managed": None}}}
    before = client.patch(manifests.CRD, theirs, body)["metadata"]["resourceVersion"]
    rows = {row["name"]: row["did"] for row in install(client)}
    assert rows[theirs] == "kept"
    assert client.get(manifests.CRD, theirs)["metadata"]["resourceVersion"] == before


def test_run_without_a_cluster_name_says_which_option(
    cluster: tuple[Client, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["capacity-broker", "run", "--kubeconfig", cluster[1]])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert (
        "not set, though nodes cannot join without: --cluster-name (CLUSTER_NAME)" in capsys.readouterr().err
    )


def test_no_cluster_is_one_line_and_exit_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "nowhere")
    monkeypatch.setattr("sys.argv", ["capacity-broker", "explain", "claim", "x", "--kubeconfig", missing])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert missing in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (NotFound(404, "NotFound", "404 page not found"), "`capacity-broker crds install` adds"),
        (Forbidden(403, "Forbidden", 'User "x" cannot list nodeclaims'), "bound to a role that allows it"),
        (Forbidden(401, "Unauthorized", "Unauthorized"), "log in to it again, or name another --context"),
        (Unavailable(0, "NewConnectionError", "no answer from the\nAPI server"), "check that it is up"),
        (
            ProviderError(
                "UnauthorizedOperation",
                "You are not authorized",
                class_=ErrorClass.PERMISSION,
                request_id="req-1",
                operation="DescribeCapacityReservations",
            ),
            "(request req-1): let your user or role do DescribeCapacityReservations",
        ),
        (
            ProviderError("Unavailable", "try later", class_=ErrorClass.TRANSIENT),
            "AWS: call: Unavailable",
        ),
    ],
)
def test_what_goes_wrong_outside_is_one_line_with_the_way_out(error: Exception, words: str) -> None:
    assert isinstance(error, troubles.EXPECTED_ERRORS)
    said = troubles.told(error)
    assert words in said
    assert "\n" not in said


def test_no_credentials_is_one_line_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], aws: LocalAws
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setattr("sys.argv", ["capacity-broker", "inventory", "--aws-endpoint", aws.endpoint])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert "credentials" in capsys.readouterr().err
