"""User data of each image family, the user's own merged in.

Sources of the formats:
- AL2023: a MIME multi-part archive. Its parts of type application/node.eks.aws are NodeConfig documents that
nodeadm merges in order, later ones winning (awslabs/amazon-eks-ami, nodeadm).
- Bottlerocket: TOML settings (Bottlerocket documentation, settings.kubernetes). Settings that the broker
must decide (cluster, labels, taints, kubelet fields of the class) win; every other setting of the user
stays.
- Custom: the user's text, untouched.
"""

from __future__ import annotations

from collections.abc import Collection

from providers.aws import userdata_bottlerocket
from providers.aws.userdata_al2023 import al2023
from providers.aws.userdata_bottlerocket import bottlerocket
from providers.aws.userdata_common import refused
from providers.launch import Bootstrap

# EC2's limit, before base64.
LARGEST = 16384

_FAMILIES = {"AL2023": al2023, "Bottlerocket": bottlerocket}


def not_applied(*, family: str, kubelet: Collection[str]) -> list[str]:
    """The fields of `spec.kubelet` that the family's user data leaves out."""
    if family == "Bottlerocket":
        return userdata_bottlerocket.not_applied(kubelet)
    return sorted(kubelet) if family == "Custom" else []


def user_data(*, family: str, bootstrap: Bootstrap, custom: str) -> str:
    """The text that the node starts with."""
    if (custom_size := len(custom.encode())) > LARGEST:
        raise refused(f"userData has {custom_size} bytes; EC2 takes {LARGEST}: shorten it")
    if family == "Custom":
        user_data_ = custom
    elif family in _FAMILIES:
        user_data_ = _FAMILIES[family](bootstrap, custom)
    else:
        raise refused(f"amiFamily {family!r} is not known: use AL2023, Bottlerocket or Custom")
    if (size := len(user_data_.encode())) > LARGEST:
        raise refused(
            f"userData makes {size} bytes with the node's own settings; EC2 takes {LARGEST}: shorten it"
        )
    return user_data_
