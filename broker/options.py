"""The command line's options, made from `Settings`; every value is checked before a command begins."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import fields
from functools import partial, wraps
from ipaddress import ip_address
from typing import Annotated, Any, Final, get_args, get_type_hints

from broker.option_rules import wrong
from broker.settings import Settings

HINTS: Final = get_type_hints(Settings, include_extras=True)
for _name in (field.name for field in fields(Settings)):
    _option = HINTS[_name].__metadata__[0]
    _option.envvar = _option.envvar or f"BROKER_{_name.upper()}"
# Their values may hold a token or a password, so no message repeats them.
_SECRET: Final = frozenset({"history", "notify_alertmanager", "notify_webhook"})
_PARTS: Final = ("buy_dollars_each", "buy_dollars_namespace")


class BadOptions(ValueError):
    """Invalid values, with one sentence for each."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


def called(name: str) -> str:
    """A field as users know it: `--region (AWS_REGION)`."""
    return f"--{name.replace('_', '-')} ({HINTS[name].__metadata__[0].envvar})"


def problems(settings: Settings, names: Iterable[str] | None = None) -> list[str]:
    """The problems of these fields, or of all: option, value and hint of each."""
    judged = [f.name for f in fields(Settings)] if names is None else list(names)
    sentences = []
    for name in judged:
        value, option = getattr(settings, name), called(name)
        written = [write for rule in HINTS[name].__metadata__[1:] if (write := rule(value))]
        value = "not shown here" if name in _SECRET else value
        sentences += [wrong(option, value, write) for write in written]
    return sentences


def exposed(settings: Settings) -> list[str]:
    """The problems of a web page that other machines reach, or that trusts a header."""
    if not settings.web:
        return []
    header, proxies = called("web_user_header"), called("web_proxies")
    sentences = []
    if settings.web_user_header and not settings.web_proxies:
        sentences.append(
            f"{header} is set without {proxies}: write the CIDR blocks of the proxies that may set it"
        )
    if settings.web_groups_header and not settings.web_user_header:
        sentences.append(f"{called('web_groups_header')} is set without {header}: write both")
    if not (settings.web_user_header or settings.web_tokens or _loopback(settings.web_host)):
        sentences.append(
            f"{called('web_host')} is {settings.web_host!r}, which other machines reach without "
            f"authentication: set {header} and {proxies}, or {called('web_tokens')}, or write 127.0.0.1"
        )
    return sentences


def _loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def without_effect(settings: Settings) -> list[str]:
    """Caps of a part that have no effect, since the cap of the whole is 0.

    `--buy-dollars 0` pauses buying, so this is no error.
    """
    parts = [called(name) for name in _PARTS if getattr(settings, name)]
    return [] if settings.buy_dollars else parts


def options(
    *names: str, besides: Callable[[Settings], Iterable[str]] = lambda _: ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Gives a typer command, which takes `settings` first, an option for each named field, or for all.

    The other fields have their defaults, whatever the environment contains. Before the call it raises
    BadOptions with all problems, and with those of `besides`.
    """
    offered = [field for field in fields(Settings) if field.name in names or not names]
    if unknown := set(names) - {field.name for field in offered}:
        raise ValueError(f"no such settings: {', '.join(sorted(unknown))}")

    def give(command: Callable[..., Any]) -> Callable[..., Any]:
        own = [
            inspect.Parameter(
                f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=_annotation(f.name)
            )
            for f in offered
        ]
        signature = inspect.signature(command, eval_str=True)
        others = [
            p.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for name, p in signature.parameters.items()
            if name != "settings"
        ]

        @wraps(command)
        def run(**given: Any) -> Any:
            chosen = Settings(**{f.name: given.pop(f.name) for f in offered})
            if wrong_values := [*problems(chosen, [f.name for f in offered]), *besides(chosen)]:
                raise BadOptions(dict.fromkeys(wrong_values))
            return command(settings=chosen, **given)

        run.__signature__ = signature.replace(parameters=others + own)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in others + own}
        return run

    return give


def _annotation(name: str) -> Any:
    """The field's type and option for typer.

    Text that is no number stays text: its rule reports it with the other problems.
    """
    type_, option = get_args(HINTS[name])[:2]
    if type_ in (int, float):
        option = copy(option)
        option.parser, option.metavar = partial(_number, type_), f"<{type_.__name__}>"
    return Annotated[type_, option]


def _number(type_: type[Any], text: Any) -> Any:
    try:
        return type_(text)
    except ValueError:
        return text


def region_of(settings: Settings) -> str:
    """The Region: the flag's or AWS_REGION's, else the one that the SDK finds. Raises ValueError."""
    from providers.aws.clients import configured_region, no_region

    region = settings.region or configured_region(settings.aws_profile or None)
    if not region:
        raise ValueError(
            "no AWS Region is set: give --region, set AWS_REGION or AWS_DEFAULT_REGION, or give the profile "
            f"{settings.aws_profile or 'default'!r} of the AWS configuration a `region`"
        )
    if why := no_region(region, endpoint=settings.aws_endpoint):
        where = called("region") if settings.region else "AWS_DEFAULT_REGION, or the profile's region,"
        raise ValueError(f"{where} is {region!r}: {why}")
    return region
