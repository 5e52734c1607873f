"""Targets of notifications, and how they are shown: without the keys that most of them contain."""

from __future__ import annotations

import importlib.util
import re
import shlex
from enum import Enum
from urllib.parse import parse_qsl, urlsplit

from flowlite.output import redact

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://", re.ASCII)
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=(.*)", re.ASCII | re.DOTALL)
# Shorter parts of a URL, such as "v1", are not keys.
_SHORTEST_KEY = 6


class Kind(Enum):
    """The kind of a target."""

    COMMAND = "command"
    WEBHOOK = "webhook"
    APPRISE = "apprise"


def kind_of(target: str) -> Kind:
    """Returns the kind: http and https URLs are webhooks, other URLs are for Apprise, everything else is a command."""
    found = _URL.match(target)
    if found is None:
        return Kind.COMMAND
    return Kind.WEBHOOK if found[1].lower() in ("http", "https") else Kind.APPRISE


def shown(target: str) -> str:
    """Returns a target as it may be shown: host of a webhook, service of Apprise, program of a command."""
    kind = kind_of(target)
    if kind is Kind.COMMAND:
        program = _program(target)
        return program if target.strip() == program else f"{program} {redact.SHOWN}".strip()
    scheme = target.partition("://")[0]
    if kind is Kind.APPRISE:
        return f"{scheme}://{redact.SHOWN}"
    parts = urlsplit(target)
    host = parts.netloc.rpartition("@")[2]
    bare = parts.path in ("", "/") and not parts.query and host == parts.netloc
    return f"{scheme}://{host}" + ("" if bare else f"/{redact.SHOWN}")


def _program(target: str) -> str:
    """The program of a command, which may have variables before it; "" if there is none."""
    return next((word for word in _words(target) if not _ASSIGNMENT.fullmatch(word)), "")


def _words(target: str) -> list[str]:
    try:
        return shlex.split(target)
    except ValueError:  # a quote that is not closed, as in a comment
        return target.split()


def keys_in(target: str) -> list[str]:
    """Returns the parts of a target that must not be shown: a whole URL, and its parts that may be keys."""
    if kind_of(target) is Kind.COMMAND:
        words = {*target.split(), *_words(target)} - {_program(target)}
        # `TOKEN=… ./tell.sh`: the program may show the value alone.
        values = {match[1] for word in words if (match := _ASSIGNMENT.fullmatch(word))}
        return sorted(word for word in words | values if len(word) >= _SHORTEST_KEY)
    parts = urlsplit(target)
    user = parts.netloc.rpartition("@")[0]
    found = [target, target.partition("://")[2], *user.split(":"), *parts.path.split("/")]
    found += [value for _, value in parse_qsl(parts.query)]
    if kind_of(target) is Kind.APPRISE:
        # In URLs of Apprise, the host is often a token.
        found += [parts.netloc, *parts.netloc.split(":")]
    return [each for each in found if len(each) >= _SHORTEST_KEY]


def problem(target: object) -> str:
    """Returns why a value is not a target; "" if it is one."""
    if not isinstance(target, str) or not target.strip() or "\0" in target:
        return "give a command, the URL of a webhook, or a URL of Apprise"
    if kind_of(target) is Kind.WEBHOOK and not urlsplit(target).hostname:
        return f"{shown(target)} has no host"
    return ""


def missing_library(target: str) -> str:
    """Returns what must be installed on this machine to reach a target; "" if nothing is missing."""
    if kind_of(target) is not Kind.APPRISE or importlib.util.find_spec("apprise") is not None:
        return ""
    return (
        f"{shown(target)} needs the library apprise, which is not installed: pip install apprise; "
        "a command and the URL of a webhook need nothing"
    )
