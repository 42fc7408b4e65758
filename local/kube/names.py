"""Syntax of names, labels, annotations and finalizers, with the API server's messages for violations.

Rule: k8s.io/apimachinery/pkg/util/validation and pkg/api/validation.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from local.kube.errors import FieldError, problem
from local.kube.wire import Obj

STANDARD_FINALIZERS = frozenset({"orphan", "foregroundDeletion", "kubernetes"})

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_LABEL_1035 = "[a-z]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_VALUE = f"({_QUALIFIED})?"
_ANNOTATIONS_LIMIT = 256 << 10

_LABEL_RE, _SUBDOMAIN_RE = re.compile(_LABEL), re.compile(_SUBDOMAIN)
_LABEL_1035_RE, _QUALIFIED_RE, _VALUE_RE = (re.compile(p) for p in (_LABEL_1035, _QUALIFIED, _VALUE))

Check = Callable[[str], list[str]]


def _regex(message: str, pattern: str, *examples: str) -> str:
    shown = ",  or ".join(f"'{example}'" for example in examples)
    return f"{message} (e.g. {shown}, regex used for validation is '{pattern}')"


def _too_long(limit: int, *, unit: str = "characters") -> str:
    return f"must be no more than {limit} {unit}"


def dns_label(name: str) -> list[str]:
    out = [_too_long(63)] if len(name) > 63 else []
    if not _LABEL_RE.fullmatch(name):
        message = (
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', "
            "and must start and end with an alphanumeric character"
        )
        out.append(_regex(message, _LABEL, "my-name", "123-abc"))
    return out


def dns_subdomain(name: str) -> list[str]:
    out = [_too_long(253)] if len(name) > 253 else []
    if not _SUBDOMAIN_RE.fullmatch(name):
        message = (
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
            "and must start and end with an alphanumeric character"
        )
        out.append(_regex(message, _SUBDOMAIN, "example.com"))
    return out


def dns_1035_label(name: str) -> list[str]:
    out = [_too_long(63)] if len(name) > 63 else []
    if not _LABEL_1035_RE.fullmatch(name):
        message = (
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an "
            "alphabetic character, and end with an alphanumeric character"
        )
        out.append(_regex(message, _LABEL_1035, "my-name", "abc-123"))
    return out


def path_segment(name: str) -> list[str]:
    if name in (".", ".."):
        return [f"may not be '{name}'"]
    return [f"may not contain '{bad}'" for bad in ("/", "%") if bad in name]


def qualified(name: str) -> list[str]:
    """`prefix/name`, as label keys and finalizers are."""
    prefix, slash, local = name.rpartition("/")
    out: list[str] = []
    if slash and "/" in prefix:
        message = _regex(_QUALIFIED_MESSAGE, _QUALIFIED, "MyName", "my.name", "123-abc")
        prefixed = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        return [f"a qualified name {message} {prefixed}"]
    if slash:
        if not prefix:
            out.append("prefix part must be non-empty")
        else:
            out += [f"prefix part {error}" for error in dns_subdomain(prefix)]
    if not local:
        out.append("name part must be non-empty")
    elif len(local) > 63:
        out.append("name part " + _too_long(63, unit="bytes"))
    if not _QUALIFIED_RE.fullmatch(local):
        out.append("name part " + _regex(_QUALIFIED_MESSAGE, _QUALIFIED, "MyName", "my.name", "123-abc"))
    return out


_QUALIFIED_MESSAGE = (
    "must consist of alphanumeric characters, '-', '_' or '.', "
    "and must start and end with an alphanumeric character"
)


def label_value(value: str) -> list[str]:
    out = [_too_long(63, unit="bytes")] if len(value) > 63 else []
    if not _VALUE_RE.fullmatch(value):
        message = (
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', "
            "and must start and end with an alphanumeric character"
        )
        out.append(_regex(message, _VALUE, "MyValue", "my_value", "12345"))
    return out


def labels(values: Obj, path: str) -> list[FieldError]:
    out: list[FieldError] = []
    for key in sorted(values):
        if not _good_key(key):
            out += [problem("invalid", path, why, key) for why in qualified(key)]
        if not _good_value(values[key]):
            out += [problem("invalid", path, why, values[key]) for why in label_value(values[key])]
    return out


@lru_cache(maxsize=4096)
def _good_value(value: str) -> bool:
    return len(value) <= 63 and _VALUE_RE.fullmatch(value) is not None


@lru_cache(maxsize=4096)
def _good_key(key: str) -> bool:
    return not qualified(key)


def metadata(meta: Obj, *, namespaced: bool, check: Check) -> list[FieldError]:
    """Problems of an object's metadata when it is written, name first."""
    out: list[FieldError] = []
    if prefix := meta.get("generateName"):
        # The generated suffix is appended, so a trailing dash is not the end.
        trimmed = prefix[:-1] + "a" if len(prefix) > 1 and prefix.endswith("-") else prefix
        out += [problem("invalid", "metadata.generateName", why, prefix) for why in check(trimmed)]
    name = meta.get("name")
    if not name:
        out.append(problem("required", "metadata.name", "name or generateName is required"))
    else:
        out += [problem("invalid", "metadata.name", why, name) for why in check(name)]
    return out + common(meta, namespaced=namespaced)


def common(meta: Obj, *, namespaced: bool) -> list[FieldError]:
    return _namespace(meta, namespaced=namespaced) + words(meta) + finalizers(meta)


def _namespace(meta: Obj, *, namespaced: bool) -> list[FieldError]:
    out: list[FieldError] = []
    namespace = meta.get("namespace")
    if namespaced and not namespace:
        out.append(problem("required", "metadata.namespace"))
    elif namespace and not namespaced:
        out.append(problem("forbidden", "metadata.namespace", "not allowed on this type"))
    elif namespace:
        out += [problem("invalid", "metadata.namespace", why, namespace) for why in dns_label(namespace)]
    return out


def words(meta: Obj) -> list[FieldError]:
    """Problems of labels, annotations and owners."""
    out: list[FieldError] = []
    if meta.get("labels"):
        out += labels(meta["labels"], "metadata.labels")
    if notes := meta.get("annotations"):
        for key in sorted(notes):
            if not _good_key(key):
                out += [
                    problem("invalid", "metadata.annotations", why, key) for why in qualified(key.lower())
                ]
        # A character is four bytes at most: only long texts are counted.
        long = sum(map(len, notes)) + sum(map(len, notes.values())) > _ANNOTATIONS_LIMIT // 4
        if long and sum(len(k.encode()) + len(v.encode()) for k, v in notes.items()) > _ANNOTATIONS_LIMIT:
            why = f"may not be more than {_ANNOTATIONS_LIMIT} bytes"
            out.append(problem("too_long", "metadata.annotations", why))
    if meta.get("ownerReferences"):
        out += _owners(meta["ownerReferences"])
    return out


def _owners(owners: list[Obj]) -> list[FieldError]:
    path, out, first = "metadata.ownerReferences", list[FieldError](), ""
    for owner in owners:
        if not owner.get("apiVersion"):
            out.append(problem("invalid", f"{path}.apiVersion", "version must not be empty", ""))
        for part in ("kind", "name", "uid"):
            if not owner.get(part):
                out.append(problem("invalid", f"{path}.{part}", "must not be empty", ""))
        if owner.get("apiVersion") == "v1" and owner.get("kind") == "Event":
            why = "/v1, Kind=Event is disallowed from being an owner"
            out.append(problem("invalid", path, why, owner))
        if owner.get("controller"):
            current = f"{owner.get('kind')}/{owner.get('name')}"
            if first:
                why = (
                    'Only one reference can have Controller set to true. Found "true" in references for '
                    f"{first} and {current}"
                )
                out.append(problem("invalid", path, why, owners))
            first = first or current
    return out


def finalizers(meta: Obj) -> list[FieldError]:
    path, names = "metadata.finalizers", meta.get("finalizers") or []
    out = [problem("invalid", path, why, name) for name in names for why in qualified(name)]
    if "orphan" in names and "foregroundDeletion" in names:
        why = "finalizer orphan and foregroundDeletion cannot be both set"
        out.append(problem("invalid", path, why, names))
    return out


IMMUTABLE = "field is immutable"
_FIXED = ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")


def metadata_update(meta: Obj, old: Obj) -> list[FieldError]:
    """Immutable metadata, and values that an update may not set."""
    return fixed(meta, old) + words(meta)


def fixed(meta: Obj, old: Obj) -> list[FieldError]:
    out: list[FieldError] = []
    if old.get("deletionTimestamp"):
        added = sorted(set(meta.get("finalizers") or ()) - set(old.get("finalizers") or ()))
        if added:
            listed = ", ".join(f'"{finalizer}"' for finalizer in added)
            why = (
                "no new finalizers can be added if the object is being deleted, "
                f"found new finalizers []string{{{listed}}}"
            )
            out.append(problem("forbidden", "metadata.finalizers", why))
    for name in _FIXED:
        if meta.get(name) != old.get(name):
            out.append(problem("invalid", f"metadata.{name}", IMMUTABLE, meta.get(name)))
    return out
