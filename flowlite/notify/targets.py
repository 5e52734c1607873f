"""Where notifications go, and how a target is shown: never with the keys that are part of most of them."""

from __future__ import annotations

import importlib.util
import re
from enum import Enum
from urllib.parse import parse_qsl, urlsplit

from flowlite.output import redact

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://", re.ASCII)
# Shorter parts of a URL, such as "v1", are no keys.
_SHORTEST_KEY = 6


class Kind(Enum):
    """How a target is reached."""

    COMMAND = "command"
    WEBHOOK = "webhook"
    APPRISE = "apprise"


def kind_of(target: str) -> Kind:
    """A URL of http or https is a webhook, any other URL one of Apprise, and everything else a command."""
    found = _URL.match(target)
    if found is None:
        return Kind.COMMAND
    return Kind.WEBHOOK if found[1].lower() in ("http", "https") else Kind.APPRISE


def shown(target: str) -> str:
    """A target for people: the host of a webhook, the service of Apprise, the program of a command."""
    kind = kind_of(target)
    if kind is Kind.COMMAND:
        first, _, rest = target.strip().partition(" ")
        return f"{first} {redact.SHOWN}" if rest else first
    scheme = target.partition("://")[0]
    if kind is Kind.APPRISE:
        return f"{scheme}://{redact.SHOWN}"
    parts = urlsplit(target)
    host = parts.netloc.rpartition("@")[2]
    bare = parts.path in ("", "/") and not parts.query and host == parts.netloc
    return f"{scheme}://{host}" + ("" if bare else f"/{redact.SHOWN}")


def keys_in(target: str) -> list[str]:
    """What of a target must not be shown: the whole of a URL, and the parts of it that may be keys."""
    if kind_of(target) is Kind.COMMAND:
        return [word for word in target.split()[1:] if len(word) >= _SHORTEST_KEY]
    parts = urlsplit(target)
    user = parts.netloc.rpartition("@")[0]
    found = [target, target.partition("://")[2], *user.split(":"), *parts.path.split("/")]
    found += [value for _, value in parse_qsl(parts.query)]
    if kind_of(target) is Kind.APPRISE:
        # There, what stands in place of the host is often a token.
        found += [parts.netloc, *parts.netloc.split(":")]
    return [each for each in found if len(each) >= _SHORTEST_KEY]


def problem(target: object) -> str:
    """Why a value is no target; "" if it is one."""
    if not isinstance(target, str) or not target.strip() or "\0" in target:
        return "give a command, the URL of a webhook, or a URL of Apprise"
    if kind_of(target) is Kind.WEBHOOK and not urlsplit(target).hostname:
        return f"{shown(target)} has no host"
    return ""


def missing_library(target: str) -> str:
    """What has to be installed here to reach a target; "" if nothing is missing."""
    if kind_of(target) is not Kind.APPRISE or importlib.util.find_spec("apprise") is not None:
        return ""
    return (
        f"{shown(target)} needs the library apprise, which is not installed: pip install apprise; "
        "a command and the URL of a webhook need nothing"
    )
