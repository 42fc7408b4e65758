"""AL2023's user data: a MIME archive of a NodeConfig and the user's parts.

Invariant: the archive holds every part of the user's, in their order and unchanged in content and type. The
generated NodeConfig is last: nodeadm merges in order, so the broker's settings win, among them the taint
that keeps pods off (Karpenter's order, pkg/providers/amifamily/bootstrap/nodeadm.go). The boundary never
occurs in a part (RFC 2046, section 5.1.1).
"""

from __future__ import annotations

import email
import email.message
from typing import Any, NamedTuple

import yaml

from providers.aws.userdata_common import refused, taint
from providers.launch import Bootstrap

NODE_CONFIG = "application/node.eks.aws"
SHELL = "text/x-shellscript"
ENCODED = ("base64", "quoted-printable")


class MimePart(NamedTuple):
    content_type: str
    content: str


def al2023(bootstrap: Bootstrap, custom: str) -> str:
    """The whole archive."""
    return _archive([*parts(custom), MimePart(NODE_CONFIG, node_config(bootstrap))])


def node_config(bootstrap: Bootstrap) -> str:
    """nodeadm's NodeConfig for this cluster."""
    cluster = {
        "name": bootstrap.cluster_name,
        "apiServerEndpoint": bootstrap.endpoint,
        "certificateAuthority": bootstrap.ca_bundle,
        "cidr": bootstrap.service_cidr,
    }
    spec: dict[str, Any] = {"cluster": {key: value for key, value in cluster.items() if value}}
    config: dict[str, Any] = dict(bootstrap.kubelet)
    if bootstrap.taints:
        config["registerWithTaints"] = [taint(text) for text in bootstrap.taints]
    kubelet: dict[str, Any] = {"config": config} if config else {}
    if bootstrap.labels:
        labels = ",".join(f"{key}={value}" for key, value in sorted(bootstrap.labels.items()))
        kubelet["flags"] = [f"--node-labels={labels}"]
    if kubelet:
        spec["kubelet"] = kubelet
    if bootstrap.instance_store_raid0:
        spec["instance"] = {"localStorage": {"strategy": "RAID0"}}
    document = {"apiVersion": "node.eks.aws/v1alpha1", "kind": "NodeConfig", "spec": spec}
    return yaml.safe_dump(document, sort_keys=False, width=2**16)


def parts(custom: str) -> list[MimePart]:
    """The user's parts: of their archive, or their one document by its content."""
    if not custom.strip():
        return []
    if custom.lstrip().startswith(("MIME-Version:", "Content-Type:")):
        return _parts_of_archive(custom.lstrip())
    return [MimePart(NODE_CONFIG if _is_node_config(custom) else SHELL, custom)]


def _parts_of_archive(custom: str) -> list[MimePart]:
    message = email.message_from_string(custom)
    if not message.is_multipart():
        if message.get_content_maintype() == "multipart":
            raise refused(
                f"userData has content type {message.get_content_type()} and has no parts: check its "
                f"boundary ({message.get_boundary()!r}) and that a blank line follows the headers"
            )
        return [MimePart(message.get_content_type(), _text(message))]
    return [
        MimePart(str(part.get("Content-Type", "text/plain")), _text(part))
        for part in message.walk()
        if not part.is_multipart()
    ]


def _text(part: email.message.Message) -> str:
    """The part's text, its transfer encoding undone."""
    if str(part.get("Content-Transfer-Encoding", "")).strip().lower() not in ENCODED:
        # As written: the email package would take other letters than ASCII apart.
        return str(part.get_payload())
    payload = part.get_payload(decode=True)
    charset = part.get_content_charset() or "utf-8"
    try:
        return payload.decode(charset) if isinstance(payload, bytes) else ""
    except (UnicodeDecodeError, LookupError) as error:
        raise refused(
            f"userData has a part of type {part.get_content_type()} that is no text: {error}"
        ) from error


def _is_node_config(custom: str) -> bool:
    """True for a YAML mapping; a script can look like one (`echo a: b`), so its first line decides before."""
    if custom.lstrip().startswith("#!"):
        return False
    try:
        return isinstance(yaml.safe_load(custom), dict)
    except Exception:  # noqa: BLE001 a document that PyYAML cannot build, such as one nested 2,000 levels deep
        return False


def _archive(entries: list[MimePart]) -> str:
    boundary = "//"
    while any(f"--{boundary}" in entry.content for entry in entries):
        boundary += "/"
    lines = ["MIME-Version: 1.0", f'Content-Type: multipart/mixed; boundary="{boundary}"', ""]
    for entry in entries:
        lines += [f"--{boundary}", f"Content-Type: {entry.content_type}", "", entry.content.rstrip("\n")]
    return "\n".join([*lines, f"--{boundary}--", ""])
