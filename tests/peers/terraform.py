"""Terraform with its real AWS provider, offline: the program and a filesystem mirror that holds the
provider.

Every run has a folder of its own, with a copy of the configuration, its state and a CLI configuration file.
That file lets Terraform take providers from the mirror only; so nothing is fetched and nothing is left in
the repository.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TERRAFORM = Path(__file__).resolve().parents[2] / "terraform"

# Where mirrors are kept, after the folder that TERRAFORM_MIRROR names.
MIRRORS = (
    "/opt/tf-plugins",
    "/opt/terraform/plugins",
    "~/.terraform.d/plugins",
    "/usr/local/share/terraform/plugins",
    "/usr/share/terraform/plugins",
)
PROVIDER = "*/hashicorp/aws/*/*/terraform-provider-aws_v*"


class TerraformMissing(Exception):
    """There is no terraform program, or no mirror with the AWS provider, on this machine."""


class TerraformFailed(Exception):
    """A run ended with an error; its text is Terraform's output."""


def find() -> tuple[str, Path]:
    """The program and the mirror."""
    program = shutil.which("terraform")
    if program is None:
        raise TerraformMissing("no terraform on the PATH")
    candidates = [
        Path(name).expanduser() for name in (os.environ.get("TERRAFORM_MIRROR", ""), *MIRRORS) if name
    ]
    for mirror in candidates:
        if next(mirror.glob(PROVIDER), None):
            return program, mirror
    raise TerraformMissing(
        f"no filesystem mirror with the AWS provider ({PROVIDER}) in {', '.join(map(str, candidates))}: "
        "name its folder in TERRAFORM_MIRROR"
    )


def offline(folder: Path) -> dict[str, str]:
    """Copies terraform/ into the folder. Returns the environment of runs there."""
    _, mirror = find()
    shutil.copytree(
        TERRAFORM, folder / "terraform", ignore=shutil.ignore_patterns(".terraform*", "*.tfstate*")
    )
    settings = folder / "cli.tfrc"
    settings.write_text(
        f"provider_installation {{\n  filesystem_mirror {{ path = {json.dumps(str(mirror))} }}\n}}\n"
        "disable_checkpoint = true\n"
    )
    return {name: value for name, value in os.environ.items() if not name.startswith(("TF_", "AWS_"))} | {
        "TF_CLI_CONFIG_FILE": str(settings),
        "TF_IN_AUTOMATION": "1",
        "AWS_EC2_METADATA_DISABLED": "true",
        # Every run decodes the provider's whole schema; fewer collections save a third of the work.
        "GOGC": "400",
    }


@dataclass
class Terraform:
    """One root module with its state."""

    program: str
    root: Path
    environment: Mapping[str, str]
    variables: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def prepare(cls, folder: Path, example: str, **variables: Any) -> "Terraform":
        """A copy of terraform/ in the folder, initialized at one of its examples."""
        environment = offline(folder)
        terraform = cls(find()[0], folder / "terraform" / "examples" / example, environment, variables)
        terraform.run("init", "-input=false", "-no-color")
        return terraform

    def run(self, *arguments: str, codes: Sequence[int] = (0,)) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(
            [self.program, *arguments],
            cwd=self.root,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode not in codes:
            raise TerraformFailed(f"terraform {arguments[0]}: {done.stdout[-5000:]}{done.stderr[-5000:]}")
        return done

    def apply(self, *options: str) -> dict[str, int]:
        """How many resources were added, changed, removed and imported."""
        self._write_variables()
        printed = self.run("apply", "-auto-approve", "-input=false", "-json", *options).stdout
        records = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
        summary = [record["changes"] for record in records if record["type"] == "change_summary"][-1]
        return {name: summary[name] for name in ("add", "change", "remove", "import") if summary.get(name)}

    def plan(self) -> str:
        """The output of a plan that finds changes; nothing if it finds none."""
        self._write_variables()
        done = self.run("plan", "-detailed-exitcode", "-input=false", "-no-color", codes=(0, 2))
        return done.stdout if done.returncode == 2 or "No changes." not in done.stdout else ""

    def destroy(self) -> dict[str, int]:
        return self.apply("-destroy")

    def outputs(self) -> dict[str, Any]:
        printed = json.loads(self.run("output", "-json").stdout)
        return {name: entry["value"] for name, entry in printed.items()}

    def forget(self) -> None:
        """Lose the state, as when it was never there."""
        for path in self.root.glob("terraform.tfstate*"):
            path.unlink()

    def adopt(self, resources: Mapping[str, str]) -> dict[str, int]:
        """Import resources by address and id, in one apply."""
        blocks = [
            f"import {{\n  to = {address}\n  id = {json.dumps(id_)}\n}}\n"
            for address, id_ in resources.items()
        ]
        imports = self.root / "imports.tf"
        imports.write_text("\n".join(blocks))
        try:
            return self.apply()
        finally:
            imports.unlink()

    def _write_variables(self) -> None:
        (self.root / "test.auto.tfvars.json").write_text(json.dumps(self.variables))
