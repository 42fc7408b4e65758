"""The test that runs each command of the pages, and the commands that no test can run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from tests.docs.commands import Command


class Owner(NamedTuple):
    """A test that runs commands of a page from the page's text."""

    pages: str
    languages: tuple[str, ...]
    file: str
    test: str
    reads: str  # the part of the test's file that opens the page
    commands: tuple[str, ...] = ("*",)


MIGRATION = "tests/cluster/test_migration.py"
EXAMPLES = "tests/docs/test_examples.py"
BOTH = ("sh", "console")
CLUSTER_TEST: Final = "tests/docs/test_cluster_commands.py"
# The commands of these pages run one after another in one cluster, in this order.
CLUSTER_PAGES: Final = (
    "docs/use/demos.md",
    "README.md",
    "docs/operate/operations.md",
    "docs/operate/troubleshooting.md",
    "docs/operate/production.md",
    "docs/operate/web-page.md",
    "docs/operate/webhook.md",
    "docs/reference/capacity-reservation-spec.md",
    "docs/use/reservations.md",
    "docs/use/borrowing.md",
    "docs/use/dedicated-clusters.md",
    "docs/use/odcr-life.md",
    "docs/use/kueue.md",
)
CI_TEST: Final = "tests/docs/test_commands.py"
INSTALL_TEST: Final = "tests/deploy/test_install_pages.py"
PLAN_TEST: Final = "tests/cli/test_plan_examples.py"
EXAMPLE_PLAN: Final = "capacity-broker plan -f examples/*"
SEED_TEST: Final = "tests/simulation/test_seeds.py"
# Commands without a test, and the reason.
NOT_RUN: Final[Mapping[str, str]] = {
    "docker build *": "needs a Docker daemon; deploy/release.py runs it where one answers",
    "kubectl * port-forward *": "needs a kubelet",
    "kubectl logs *": "needs a kubelet",
    "helm upgrade karpenter oci:*": "needs a registry; tests/peers tries both values of the gate",
    "make bench*": "a long measurement; tests/benchmarks runs each benchmark at its small size",
    "make release * DRY_RUN=1": "makes the files of the command without DRY_RUN, which a test runs",
    "make soak *": "runs long; it is `make simulate` with a number of seeds",
    "python -m tests.simulation.mutants": "a long measurement; docs/contribute/figures.md has its result",
}
OWNERS: Final = (
    Owner(
        "docs/contribute/embedded-api.md",
        BOTH,
        EXAMPLES,
        "test_embedded_server_starts_as_shown_and_answers_kubectl",
        'DOCS / "contribute/embedded-api.md"',
    ),
    Owner(
        "docs/contribute/local-aws.md",
        BOTH,
        EXAMPLES,
        "test_local_aws_starts_as_shown_and_its_knobs_work",
        'DOCS / "contribute/local-aws.md"',
    ),
    Owner(
        "docs/contribute/releases.md",
        ("sh",),
        "tests/deploy/test_release.py",
        "test_one_command_makes_the_release_and_the_wheel_runs_the_demo",
        'DOCS / "contribute/releases.md"',
    ),
    Owner(
        "docs/contribute/simulation.md",
        ("sh",),
        SEED_TEST,
        "test_shown_seed_ends_without_a_violation",
        "SEED_TEST",
        ("python -m tests.simulation --start *",),
    ),
    *(
        Owner(
            page,
            ("sh",),
            INSTALL_TEST,
            "test_shown_installation_runs_the_broker_until_it_is_uninstalled",
            f'blocks(DOCS / "{page.removeprefix("docs/")}", "sh")',
            ("helm *",),
        )
        for page in ("docs/operate/back-out.md", "docs/operate/take-over.md")
    ),
    Owner(
        "docs/operate/back-out.md", BOTH, MIGRATION, "test_backing_out", 'DOCS / "operate" / "back-out.md"'
    ),
    Owner(
        "docs/operate/from-karpenter.md",
        BOTH,
        MIGRATION,
        "test_from_karpenter_s_own_terms_and_back",
        'DOCS / "operate" / "from-karpenter.md"',
    ),
    Owner(
        "docs/operate/from-node-groups.md",
        BOTH,
        MIGRATION,
        "test_from_an_auto_scaling_group_that_targets_a_reservation",
        'DOCS / "operate" / "from-node-groups.md"',
    ),
    Owner(
        "docs/operate/take-over.md",
        BOTH,
        MIGRATION,
        "test_taking_over_karpenter_s_claims_and_back",
        'DOCS / "operate" / "take-over.md"',
    ),
    Owner(
        "docs/operate/operations.md",
        ("console",),
        "tests/docs/test_words.py",
        "test_readiness_names_the_reads_that_the_broker_waits_for",
        'steps(DOCS / "operate/operations.md")',
        ("curl *",),
    ),
    Owner(
        "docs/runbooks/capacity-*.md",
        ("console",),
        "tests/docs/test_runbooks.py",
        "test_commands_of_a_runbook_print_the_shown_output",
        'RUNBOOKS.glob("capacity-*.md")',
    ),
    Owner(
        "docs/use/quickstart-eks.md",
        ("sh",),
        "tests/peers/test_quickstart.py",
        "test_each_command_of_the_quick_start_leads_to_a_pod_in_a_reservation",
        'PAGE = DOCS / "use/quickstart-eks.md"',
    ),
    Owner(
        "docs/operate/webhook.md",
        ("console",),
        "tests/deploy/test_user_roles.py",
        "test_shown_annotation_that_buys_is_refused_as_shown",
        'DOCS / "operate/webhook.md"',
        ("kubectl annotate *",),
    ),
    Owner(
        "docs/operate/webhook.md",
        ("console",),
        "tests/docs/test_reservations.py",
        "test_answers_of_the_webhook_are_as_shown",
        'DOCS / "operate/webhook.md"',
        ("kubectl apply *",),
    ),
    Owner(
        "docs/operate/web-page.md",
        ("sh",),
        "tests/deploy/test_page_access.py",
        "test_shown_request_with_a_token_reads_the_record",
        'DOCS / "operate/web-page.md"',
        ("curl *",),
    ),
    Owner(
        "docs/use/reservations.md",
        ("console",),
        "tests/docs/test_reservations.py",
        "test_detail_of_a_failed_reservation_is_as_shown",
        'steps(DOCS / "use/reservations.md")',
    ),
    *(
        Owner(page, BOTH, CI_TEST, "test_ci_runs_shown_targets", "CI_TEST", ("make demo ONCE=1", "make test"))
        for page in ("README.md", "docs/use/demos.md")
    ),
    Owner(
        "docs/contribute/simulation.md",
        BOTH,
        CI_TEST,
        "test_ci_runs_shown_targets",
        "CI_TEST",
        ("make simulate",),
    ),
    Owner(
        "README.md",
        BOTH,
        "tests/cli/test_page_programs.py",
        "test_shown_run_leads_a_cluster",
        "commands()",
        ("capacity-broker run *",),
    ),
    *(
        Owner(page, BOTH, PLAN_TEST, "test_shown_plan_launches_every_claim", "PLAN_TEST", (EXAMPLE_PLAN,))
        for page in ("README.md", "docs/operate/operations.md")
    ),
    *(
        Owner(
            page,
            BOTH,
            INSTALL_TEST,
            "test_shown_installation_runs_the_broker_until_it_is_uninstalled",
            "INSTALL_TEST",
            ("helm install *",),
        )
        for page in ("README.md", "docs/operate/install.md")
    ),
    Owner(
        "docs/operate/install.md",
        BOTH,
        INSTALL_TEST,
        "test_shown_installation_of_the_definitions_is_complete",
        "INSTALL_TEST",
    ),
    *(
        Owner(page, BOTH, CLUSTER_TEST, "test_commands_of_the_pages_on_a_cluster", "CLUSTER_PAGES")
        for page in CLUSTER_PAGES
    ),
)


def owner(command: Command) -> Owner | None:
    """The first owner in the table; None for a command that is not run."""
    if any(fnmatchcase(plain(command), pattern) for pattern in NOT_RUN):
        return None
    for candidate in OWNERS:
        if (
            fnmatchcase(command.page, candidate.pages)
            and command.language in candidate.languages
            and any(fnmatchcase(plain(command), pattern) for pattern in candidate.commands)
        ):
            return candidate
    return None


def plain(command: Command) -> str:
    """The command on one line, without its comment."""
    text = re.sub(r"\s+# .*", "", command.text.replace("\\\n", " "))
    return text.removeprefix(".venv/bin/").strip()
