"""The CRDs of an installed broker: `crds/` of a checkout, `broker/crds/` of a wheel."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

from broker.apis.meta import Kind

KIND: Final = Kind(group="apiextensions.k8s.io", version="v1", kind="CustomResourceDefinition")

# libyaml's loader where there is one: it reads the same in a tenth of the time.
LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def folder() -> Path:
    """The folder of the YAML files."""
    package = Path(__file__).parents[1]
    folders = [path for path in (package / "crds", package.parent / "crds") if any(path.glob("*.yaml"))]
    if not folders:
        raise FileNotFoundError(
            f"no CRDs in {package / 'crds'} nor {package.parent / 'crds'}: install capacity-broker again, or "
            "in a checkout run python -m local.generators.crdgen"
        )
    return folders[0]


def texts() -> dict[str, str]:
    """File name and YAML text of each CRD, by name."""
    return {path.name: path.read_text() for path in sorted(folder().glob("*.yaml"))}


def load(*files: str) -> list[dict[str, Any]]:
    """The CustomResourceDefinition objects, or those of the named files."""
    return [yaml.load(text, Loader=LOADER) for name, text in texts().items() if not files or name in files]
