"""Replaces values that two servers cannot agree on by values that they must agree on.

A uid becomes its order of appearance, and a time becomes its format. An object's resourceVersion becomes
its order among that object's own versions, so a write without changes that creates a version shows. Two
orders are ignored: that of managedFields, which depends on the wall clock's seconds, and that of the
problems or conflicts of one object, which the real server lists in the random order of a Go map.
"""

import re
from typing import Any

UID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
# Times of the year 2020 are the test's own and are compared.
TIME = re.compile(r"(?!2020)\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
GENERATED = re.compile(r"\b(gen\d+-)[a-z0-9]{5}\b")
LATEST = re.compile(r"(too old resource version: \d+) \(\d+\)")
QUOTED = re.compile(r"(resource ?version[^0-9]{0,40})(\d+)", re.IGNORECASE)


class Mask:
    """The names given to one server's uids and resourceVersions in one sequence."""

    def __init__(self, *, ignore: frozenset[str] = frozenset()) -> None:
        self._ignored = ignore  # keys left out, to measure the rest
        self._uids: dict[str, str] = {}
        self._versions: dict[tuple[str, str], str] = {}
        self._counts: dict[str, int] = {}
        self._known: dict[str, str] = {}

    def value(self, value: Any) -> Any:
        if isinstance(value, dict):
            return self._object(value)
        if isinstance(value, list):
            return [self.value(item) for item in value]
        return self.text(value) if isinstance(value, str) else value

    def text(self, text: str) -> str:
        text = UID.sub(lambda match: self._uids.setdefault(match[0], f"<uid-{len(self._uids) + 1}>"), text)
        text = TIME.sub(lambda match: "<microtime>" if match[1] else "<time>", text)
        text = LATEST.sub(r"\1 (<latest>)", text)
        return GENERATED.sub(r"\1<random>", text)

    def message(self, text: str) -> str:
        """A message may quote a resourceVersion."""
        return QUOTED.sub(lambda match: match[1] + self._known.get(match[2], "<revision>"), self.text(text))

    def _object(self, value: dict[str, Any]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, item in value.items():
            if key in self._ignored:
                continue
            if key == "metadata" and isinstance(item, dict):
                out[key] = self._metadata(item, str(value.get("kind", "")))
            elif key == "message" and isinstance(item, str):
                out[key] = self.message(item)
            else:
                out[self.text(key)] = self.value(item)
        return self._ages(_in_order(out) if out.get("kind") == "Status" else out)

    def _metadata(self, meta: dict[str, Any], kind: str) -> dict[str, Any]:
        out = dict(meta)
        version = out.get("resourceVersion")
        if version and "uid" in meta:
            out["resourceVersion"] = self._version(str(meta["uid"]), str(version))
        elif version:
            out["resourceVersion"] = "<revision>"
        if "continue" in out:
            out["continue"] = "<token>" if out["continue"] else ""
        fields = out.pop("managedFields", None)
        out = {key: item for key, item in out.items() if key not in self._ignored}
        out = {key: self.value(item) if key != "resourceVersion" else item for key, item in out.items()}
        if fields is not None and "managedFields" not in self._ignored:
            out["managedFields"] = sorted(self.value(fields), key=_entry_order)
        return out

    def _version(self, uid: str, version: str) -> str:
        if (uid, version) not in self._versions:
            self._counts[uid] = self._counts.get(uid, 0) + 1
            name = f"<version-{self._counts[uid]}>"
            self._versions[uid, version] = name
            self._known[version] = name
        return self._versions[uid, version]

    def _ages(self, table: dict[str, Any]) -> dict[str, Any]:
        """The Age column of a Table counts seconds."""
        if table.get("kind") != "Table" or not table.get("rows"):
            return table
        ages = [i for i, c in enumerate(table.get("columnDefinitions") or []) if c.get("name") == "Age"]
        for row in table["rows"]:
            row["cells"] = ["<age>" if i in ages else cell for i, cell in enumerate(row["cells"])]
        return table


def _in_order(status: dict[str, Any]) -> dict[str, Any]:
    causes = (status.get("details") or {}).get("causes") or []
    problems = list(dict.fromkeys(f"{cause.get('field')}: {cause.get('message')}" for cause in causes))
    listed = "[" + ", ".join(problems) + "]"
    if len(causes) < 2:
        return status
    out = {**status, "details": {**status["details"], "causes": sorted(causes, key=_cause_order)}}
    if status["message"].endswith(listed):
        out["message"] = status["message"].removesuffix(listed) + "[" + ", ".join(sorted(problems)) + "]"
    return out


def _cause_order(cause: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(cause.get(key, "")) for key in ("field", "reason", "message"))


def _entry_order(entry: dict[str, Any]) -> tuple[str, ...]:
    return tuple(
        str(entry.get(key, "")) for key in ("operation", "manager", "subresource", "apiVersion", "time")
    )
