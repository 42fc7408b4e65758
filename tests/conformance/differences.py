"""The allowed differences between the embedded server's responses and kube-apiserver's, with reasons.

Everything else is a defect. A line names the requests (method, path and query, a regular expression), the
place in the response that may differ (a regular expression over paths such as `body.message`), the
allowed differences there, and the reason.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.conformance.lockstep import Difference
from tests.conformance.steps import Step


def anything(real: Any, embedded: Any) -> bool:
    return True


def after(text: str) -> Callable[[Any, Any], bool]:
    """Only the text after `text`, a regular expression, differs."""

    def excused(real: Any, embedded: Any) -> bool:
        heads = [re.match(f".*?{text}", str(text_), re.DOTALL) for text_ in (real, embedded)]
        return all(heads) and len({head[0] for head in heads if head}) == 1

    return excused


def the_same_patched(real: Any, embedded: Any) -> bool:
    """An object quoted as JSON, in another order of its keys."""
    matches = [
        re.fullmatch(r'(.*Invalid value: )(".*"): (.*)', str(text), re.DOTALL) for text in (real, embedded)
    ]
    parts = [(match[1], json.loads(json.loads(match[2])), match[3]) for match in matches if match]
    return len(parts) == 2 and parts[0] == parts[1]


def one_version_more(real: Any, embedded: Any) -> bool:
    """The real server made a version where the embedded one saw no change."""
    versions = [re.fullmatch(r"<version-(\d+)>", str(text)) for text in (real, embedded)]
    counts = [int(version[1]) for version in versions if version]
    return len(counts) == 2 and counts[0] == counts[1] + 1


@dataclass(frozen=True, kw_only=True)
class Allowed:
    reason: str
    request: str = ".*"
    place: str
    differ: Callable[[Any, Any], bool] = anything
    message: str = ""  # the start of the real server's message, if only that answer is meant


ALLOWED: tuple[Allowed, ...] = (
    Allowed(
        request=r"PATCH .*/scale\?.*",
        place=r"status|body\..*",
        message="failed to create manager for existing fields: failed to convert live object",
        reason="Applying the scale of a custom resource without managers is a 500: a bug of Kubernetes.",
    ),
    Allowed(
        request=r"(POST|PUT|PATCH) .*/widgets.*",
        place=r"body\.(message|details\.causes.*)",
        message="Wrong.",
        reason="An object of a wrong kind is refused before it has defaults; its rules may fail for that.",
    ),
    Allowed(
        request=r"(PUT|PATCH) .*/(widgets|gizmos)/.*",
        place=r"body\.metadata\.resourceVersion",
        differ=one_version_more,
        reason="Empty labels and finalizers of a custom resource are stored but never shown: the real server "
        "counts leaving them out as a change.",
    ),
    Allowed(
        place=r"body\.columnDefinitions\[\d+\]\.description",
        reason="The columns of built-in kinds are described by comments of Go code, without an effect.",
    ),
    Allowed(
        request=r"(PUT|PATCH) .*/pods/.*",
        place=r"body\.(message|details\.causes\[\d+\]\.message)",
        differ=after("pod updates may not change fields other than "),
        reason="The change is shown as a diff of Go structs.",
    ),
    Allowed(
        request=r"PATCH .*",
        place=r"body\.message",
        differ=after(r"failed to create typed patch object \([^)]*\): "),
        reason="Of several problems the real server reports a random part.",
    ),
    Allowed(
        request=r"PATCH .*",
        place=r"body\.(message|details\.causes\[\d+\]\.message)",
        differ=the_same_patched,
        reason="A patched object that cannot be read back is quoted whole; its keys come in another order.",
    ),
)


def unexplained(difference: Difference) -> list[tuple[str, Any, Any]]:
    """The changes that no line of the table allows."""
    request = difference.request
    query = "&".join(f"{key}={value}" for key, value in request.query.items())
    method = request.method if isinstance(request, Step) else "WATCH"
    name = f"{method} {request.path}?{query}"
    body = difference.real.get("body")
    message = str(body.get("message", "")) if isinstance(body, dict) else ""
    lines = [
        line for line in ALLOWED if re.fullmatch(line.request, name) and message.startswith(line.message)
    ]
    return [change for change in difference.changes() if not any(_excuses(line, change) for line in lines)]


def _excuses(line: Allowed, change: tuple[str, Any, Any]) -> bool:
    place, real, embedded = change
    return re.fullmatch(line.place, place) is not None and line.differ(real, embedded)


def defects(differences: Iterator[Difference]) -> Iterator[Difference]:
    return (difference for difference in differences if unexplained(difference))
