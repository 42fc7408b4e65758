"""The platform that an image bills as, which has to equal a reservation's platform.

Source: EC2 User Guide, "AMI billing information fields" (PlatformDetails and UsageOperation). Every Linux
without a licence of its own, Ubuntu and BYOL included, is Linux/UNIX. moto's images carry no such field, so
it is read from the publisher and the name.
"""

from __future__ import annotations

from typing import Any

LINUX = "Linux/UNIX"
RED_HAT = "309956199498"
SUSE = "013907871322"

USAGE_OPERATION: dict[str, str] = {
    LINUX: "RunInstances",
    "Red Hat Enterprise Linux": "RunInstances:0010",
    "SUSE Linux": "RunInstances:000g",
    "Windows": "RunInstances:0002",
    "Windows with SQL Server Enterprise": "RunInstances:0102",
    "Windows with SQL Server Standard": "RunInstances:0006",
    "Windows with SQL Server Web": "RunInstances:0202",
}


def details(image: Any) -> str:
    if image is None:
        return LINUX
    name = image.name or ""
    if image.platform == "windows":
        for edition in ("Enterprise", "Standard", "Web"):
            if f"SQL_{edition}" in name or f"SQL {edition}" in name or f"_{edition}-SQL" in name:
                return f"Windows with SQL Server {edition}"
        return "Windows"
    if image.owner_id == RED_HAT or name.startswith("RHEL-"):
        return "Red Hat Enterprise Linux"
    if image.owner_id == SUSE and name.startswith("suse-sles"):
        return "SUSE Linux"
    return LINUX


def usage_operation(image: Any) -> str | None:
    return USAGE_OPERATION.get(details(image))
