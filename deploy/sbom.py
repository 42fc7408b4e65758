"""The software bill of materials of a release, in CycloneDX's JSON: `python deploy/sbom.py VERSION`.

The components are the packages of the image: the dependencies of pyproject.toml and theirs, at the versions
of requirements.lock, with the hashes of their files on PyPI.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from runtime import needed, normalized

ROOT = Path(__file__).resolve().parents[1]
_ENTRY = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def locked(text: str) -> Iterator[tuple[str, str, list[str]]]:
    """Name, version and SHA-256 hashes of each package of a requirements file with hashes."""
    for block in re.split(r"\n(?=\S)", text):
        if found := _ENTRY.match(block):
            yield normalized(found[1]), found[2], _HASH.findall(block)


def bill(version: str, *, lock: str, dependencies: list[str]) -> Bom:
    """Raises LookupError for a required package that is not in the lock."""
    left = needed(dependencies)
    root = _component("capacity-broker", version, ComponentType.APPLICATION)
    found = Bom()
    found.metadata.component = root
    for name, pinned, hashes in locked(lock):
        if name in left:
            found.components.add(_component(name, pinned, ComponentType.LIBRARY, hashes))
            left.discard(name)
    if left:
        raise LookupError(f"not in requirements.lock: {', '.join(sorted(left))}")
    found.register_dependency(root, found.components)
    return found


def _component(name: str, version: str, kind: ComponentType, hashes: list[str] | None = None) -> Component:
    url = PackageURL("pypi", None, name, version)
    files = ExternalReference(
        type=ExternalReferenceType.DISTRIBUTION,
        url=XsUri(f"https://pypi.org/simple/{name}/"),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=each) for each in hashes or ()],
    )
    references = [files] if hashes else []
    return Component(
        name=name, version=version, type=kind, purl=url, bom_ref=str(url), external_references=references
    )


def text(version: str) -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lock = (ROOT / "requirements.lock").read_text()
    made = bill(version, lock=lock, dependencies=project["dependencies"])
    return JsonV1Dot6(made).output_as_string(indent=1) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text(*sys.argv[1:]))
