"""User data of each family, read back by the parsers that a node would use."""

from __future__ import annotations

import base64
import email
import tomllib

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from providers.aws.userdata import LARGEST, user_data
from providers.errors import ErrorClass, ProviderError
from providers.launch import Bootstrap

NODE = Bootstrap(
    cluster_name="blue",
    endpoint="https://api.example",
    ca_bundle="Q0E=",
    service_cidr="10.100.0.0/16",
    labels={"karpenter.sh/nodepool": "gpu", "team": "ml"},
    taints=("nvidia.com/gpu=true:NoSchedule", "karpenter.sh/unregistered:NoExecute"),
    kubelet={"maxPods": 58, "clusterDNS": ["10.100.0.10"], "systemReserved": {"cpu": "100m"}},
)


def parts(text: str) -> list[tuple[str, str]]:
    message = email.message_from_bytes(text.encode())
    assert message.get_content_type() == "multipart/mixed"
    assert message["MIME-Version"] == "1.0"
    content = []
    for part in message.walk():
        if not part.is_multipart():
            payload = part.get_payload(decode=True)
            assert isinstance(payload, bytes)
            content.append((part.get_content_type(), payload.decode()))
    return content


def al2023(custom: str = "", bootstrap: Bootstrap = NODE) -> list[tuple[str, str]]:
    return parts(user_data(family="AL2023", bootstrap=bootstrap, custom=custom))


@pytest.mark.covers("KRP-14")
def test_unset_fields_are_not_in_the_node_config() -> None:
    ((_, text),) = al2023(bootstrap=Bootstrap(cluster_name="blue", endpoint="https://api.example"))
    assert yaml.safe_load(text)["spec"] == {
        "cluster": {"name": "blue", "apiServerEndpoint": "https://api.example"}
    }


@pytest.mark.covers("KRP-14")
@pytest.mark.parametrize(
    ("headers", "body", "text"),
    [
        ("Content-Type: text/x-shellscript", "#!/bin/sh\necho ok", "#!/bin/sh\necho ok"),
        (
            "MIME-Version: 1.0\nContent-Type: text/x-shellscript; charset=latin-1\n"
            "Content-Transfer-Encoding: base64",
            base64.b64encode("# é".encode("latin-1")).decode(),
            "# é",
        ),
        (
            "Content-Type: text/x-shellscript\nContent-Transfer-Encoding: base64",
            base64.b64encode("# é".encode()).decode(),
            "# é",
        ),
    ],
    ids=["as written", "with its charset", "without one"],
)
def test_a_single_part_with_headers_is_a_part(headers: str, body: str, text: str) -> None:
    first, last = al2023(f"{headers}\n\n{body}\n")
    assert first == ("text/x-shellscript", text)
    assert last[0] == "application/node.eks.aws"


@pytest.mark.covers("KRP-14")
def test_al2023_gives_a_node_config_for_nodeadm() -> None:
    ((kind, text),) = al2023()
    assert kind == "application/node.eks.aws"
    assert yaml.safe_load(text) == {
        "apiVersion": "node.eks.aws/v1alpha1",
        "kind": "NodeConfig",
        "spec": {
            "cluster": {
                "name": "blue",
                "apiServerEndpoint": "https://api.example",
                "certificateAuthority": "Q0E=",
                "cidr": "10.100.0.0/16",
            },
            "kubelet": {
                "config": {
                    "maxPods": 58,
                    "clusterDNS": ["10.100.0.10"],
                    "systemReserved": {"cpu": "100m"},
                    "registerWithTaints": [
                        {"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"},
                        {"key": "karpenter.sh/unregistered", "effect": "NoExecute"},
                    ],
                },
                "flags": ["--node-labels=karpenter.sh/nodepool=gpu,team=ml"],
            },
        },
    }


def test_al2023_combines_the_instance_store_on_request() -> None:
    bootstrap = Bootstrap(cluster_name="blue", endpoint="https://api", instance_store_raid0=True)
    ((_, text),) = al2023(bootstrap=bootstrap)
    assert yaml.safe_load(text)["spec"]["instance"] == {"localStorage": {"strategy": "RAID0"}}


@pytest.mark.parametrize(
    ("custom", "kind"),
    [
        ("#!/bin/bash\necho hello: world\n", "text/x-shellscript"),
        ("apiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\n", "application/node.eks.aws"),
    ],
)
def test_al2023_accepts_a_script_or_a_node_config_unchanged(custom: str, kind: str) -> None:
    added, generated = al2023(custom)
    assert generated[0] == "application/node.eks.aws"
    assert added[0] == kind
    assert added[1].strip() == custom.strip()


def test_al2023_keeps_every_part_of_the_users_archive_in_order_before_its_own() -> None:
    custom = (
        'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="B"\n\n'
        "--B\nContent-Type: text/x-shellscript\n\n#!/bin/sh\necho 1\n"
        "--B\nContent-Type: application/node.eks.aws\n\nkind: NodeConfig\n"
        "--B\nContent-Type: text/x-shellscript\n\n#!/bin/sh\necho 2\n--B--\n"
    )
    content = al2023(custom)
    assert [kind for kind, _ in content] == [
        "text/x-shellscript",
        "application/node.eks.aws",
        "text/x-shellscript",
        "application/node.eks.aws",
    ]
    assert [text.split()[-1] for _, text in content[:-1]] == ["1", "NodeConfig", "2"]
    assert content[-1] == al2023()[0], "nodeadm uses the last part: the node's own settings"


def _archive_of(headers: str, content: str) -> str:
    top = 'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="B"\n\n'
    return f"{top}--B\nContent-Type: text/x-shellscript{headers}\n\n{content}\n--B--\n"


@pytest.mark.parametrize(
    ("headers", "content"),
    [
        ('; charset="utf-8"', "#!/bin/sh\necho 'Grüße, 東京'"),
        ("", "#!/bin/sh\necho 'Grüße, 東京'"),
        (
            '; charset="utf-8"\nContent-Transfer-Encoding: base64',
            base64.b64encode("#!/bin/sh\necho 'Grüße, 東京'".encode()).decode(),
        ),
    ],
)
def test_al2023_keeps_letters_of_every_language(headers: str, content: str) -> None:
    user_data_ = user_data(family="AL2023", bootstrap=NODE, custom=_archive_of(headers, content))
    assert "echo 'Grüße, 東京'" in user_data_


@pytest.mark.parametrize("charset", ["utf-8", "no-such-charset"])
def test_a_binary_part_is_refused(charset: str) -> None:
    headers = f'; charset="{charset}"\nContent-Transfer-Encoding: base64'
    custom = _archive_of(headers, base64.b64encode(b"\xff\xfe\xff").decode())
    with pytest.raises(ProviderError, match="is no text"):
        user_data(family="AL2023", bootstrap=NODE, custom=custom)


@pytest.mark.parametrize("broken", ["no boundary", "no parts"])
def test_a_broken_archive_is_refused_with_its_problem(broken: str) -> None:
    header = "Content-Type: multipart/mixed" + ('; boundary="B"' if broken == "no parts" else "")
    with pytest.raises(ProviderError, match="boundary") as caught:
        al2023(f"MIME-Version: 1.0\n{header}\n\nnothing\n")
    assert caught.value.class_ is ErrorClass.CONFIGURATION


@given(st.text(st.characters(codec="ascii", categories=("L", "N", "P", "Z")), max_size=40))
def test_no_script_breaks_out_of_its_part(line: str) -> None:
    script = f"#!/bin/sh\n{line}\n--//\n--//--\nlast"
    content = al2023(script)
    assert len(content) == 2
    assert content[0][1] == script


def bottlerocket(custom: str = "", bootstrap: Bootstrap = NODE) -> dict[str, object]:
    return tomllib.loads(user_data(family="Bottlerocket", bootstrap=bootstrap, custom=custom))


@pytest.mark.covers("KRP-14")
def test_bottlerocket_gives_settings_of_its_api() -> None:
    assert bottlerocket() == {
        "settings": {
            "kubernetes": {
                "cluster-name": "blue",
                "api-server": "https://api.example",
                "cluster-certificate": "Q0E=",
                "node-labels": {"karpenter.sh/nodepool": "gpu", "team": "ml"},
                "node-taints": {
                    "nvidia.com/gpu": ["true:NoSchedule"],
                    "karpenter.sh/unregistered": [":NoExecute"],
                },
                "max-pods": 58,
                "cluster-dns-ip": "10.100.0.10",
                "system-reserved": {"cpu": "100m"},
            }
        }
    }


def test_bottlerocket_keeps_the_users_settings_except_those_of_the_node_class() -> None:
    custom = """
[settings.host-containers.admin]
enabled = true
[settings.kernel.sysctl]
"vm.max_map_count" = "262144"
[settings.kubernetes]
cluster-name = "other"
registry-qps = 20
[settings.kubernetes.node-labels]
mine = "1"
team = "theirs"
[settings.kubernetes.node-taints]
old = ["x:NoSchedule"]
"""
    settings = bottlerocket(custom)["settings"]
    assert isinstance(settings, dict)
    assert settings["host-containers"] == {"admin": {"enabled": True}}
    assert settings["kernel"] == {"sysctl": {"vm.max_map_count": "262144"}}
    kubernetes = settings["kubernetes"]
    assert (kubernetes["cluster-name"], kubernetes["registry-qps"]) == ("blue", 20)
    assert kubernetes["node-labels"] == {"mine": "1", "team": "ml", "karpenter.sh/nodepool": "gpu"}
    assert "old" not in kubernetes["node-taints"]


def test_bottlerocket_writes_false_and_omits_empty_values() -> None:
    bootstrap = Bootstrap(
        cluster_name="blue",
        endpoint="e",
        kubelet={"cpuCFSQuota": False, "clusterDNS": [], "kubeReserved": {}},
    )
    settings = bottlerocket(bootstrap=bootstrap)["settings"]
    assert settings == {
        "kubernetes": {"cluster-name": "blue", "api-server": "e", "cpu-cfs-quota-enforced": False}
    }


def test_bottlerocket_mounts_the_instance_store_on_request() -> None:
    bootstrap = Bootstrap(cluster_name="blue", endpoint="e", instance_store_raid0=True)
    settings = bottlerocket(bootstrap=bootstrap)["settings"]
    assert isinstance(settings, dict)
    (command,) = settings["bootstrap-commands"].values()
    assert command["commands"][0] == ["apiclient", "ephemeral-storage", "init"]
    assert command["essential"] is True and command["mode"] == "always"


@pytest.mark.parametrize("custom", ["#!/bin/sh\necho no", "[settings", "settings = 3"])
def test_bottlerocket_refuses_invalid_toml(custom: str) -> None:
    with pytest.raises(ProviderError, match="userData") as caught:
        bottlerocket(custom)
    assert caught.value.class_ is ErrorClass.CONFIGURATION


@pytest.mark.covers("KRP-14")
def test_custom_is_the_users_text_unchanged() -> None:
    text = "anything\r\n at all \n"
    assert user_data(family="Custom", bootstrap=NODE, custom=text) == text


def test_an_unknown_family_is_refused_with_the_known_families() -> None:
    with pytest.raises(ProviderError, match="'AL2' is not known: use AL2023, Bottlerocket or Custom"):
        user_data(family="AL2", bootstrap=NODE, custom="")


@pytest.mark.parametrize("taint", ["gpu", ":NoSchedule", "=v:NoSchedule"])
def test_a_malformed_taint_is_named(taint: str) -> None:
    with pytest.raises(ProviderError, match="taint"):
        al2023(bootstrap=Bootstrap(cluster_name="blue", endpoint="e", taints=(taint,)))


def test_user_data_over_ec2s_limit_is_refused_with_both_sizes() -> None:
    with pytest.raises(ProviderError, match=str(LARGEST)):
        user_data(family="Custom", bootstrap=NODE, custom="x" * (LARGEST + 1))
