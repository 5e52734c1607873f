"""The table `[mithril]` of the configuration, and the environment variables that replace some of its settings."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from flowlite.node.quick_dataclass import dataclass
from flowlite.settings.parse import at_least, duration_seconds
from flowlite.settings.provider_settings import SSH_CONFIG_VARIABLE, ProviderSettings, read_table

API_URL = "https://api.mithril.ai"
KEY_VARIABLE = "MITHRIL_API_KEY"
IN_SCRIPT = "script"
"""The value of `node_key` that puts the key into the start-up script."""
# An agent that is silent for this long counts as gone; the node then ends the bid by itself.
_LEASE = 600.0
# Agents are given no less (`rented/node.py`).
_SHORTEST_LEASE = 120.0
# Counted from the allocation. Mithril speaks of up to 20 minutes.
_BOOT = 1800.0
_LAG = 90.0
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}", re.ASCII)
# Generous time before GO, after the end and between attempts: this is the last resort, since the agents enforce the
# caps themselves.
AROUND_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class MithrilSettings:
    """The settings of Mithril.

    Attributes:
        project: Name or id of the project; "" for the only one of the account.
        region: Region in which bids are placed; "" for any.
        api_url: URL of the API.
        api_key_file: File with the API key, if it is not in the environment.
        node_key: Whether the machines get an API key of their own to end the bid; "script" puts it into the start-up
            script, where the project can read it, instead of sending it at first contact.
        user: Login user on the machines.
        lease: Seconds of silence after which a machine ends itself.
        boot_timeout: Seconds a machine may take from its allocation until it answers.
        jump: A jump host, as in OpenSSH's ProxyJump; "" for none.
        listing_lag: Seconds for which a new bid may be missing in a listing.
        ssh_config: OpenSSH configuration in which `jump` is looked up; "" for the usual one.
    """

    project: str = ""
    region: str = ""
    api_url: str = API_URL
    api_key_file: str = ""
    node_key: bool | str = True
    user: str = "root"
    lease: float = _LEASE
    boot_timeout: float = _BOOT
    jump: str = ""
    listing_lag: float = _LAG
    ssh_config: str = ""


def from_environment(found: ProviderSettings, environment: Mapping[str, str]) -> ProviderSettings:
    """The settings, overridden by environment variables; a key in the environment overrides one in a file."""
    if environment.get(KEY_VARIABLE):
        found = found.only([key for key in found.values if key != "api_key_file"])
        found = replace(found, credentials=KEY_VARIABLE)
    for key, name in _VARIABLES.items():
        if environment.get(name):
            found = found.with_value(key, environment[name], name)
    return found


def read_settings(settings: ProviderSettings) -> MithrilSettings:
    """Parses and checks the settings.

    Raises:
        ConfigError: An unknown key or an invalid value; the message says where it is.
    """
    return MithrilSettings(**read_table(settings.values, _READERS, "[mithril]", settings.origin_of))


# Readers of single values. A reader returns the value, or raises ValueError with what is allowed.


def _word(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ValueError("a text")
    return value.strip()


def _url(value: object) -> str:
    text = _word(value).rstrip("/")
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
        raise ValueError(f"the address of the API, as in {API_URL!r}, without a key in it")
    if parts.scheme == "http" and not _is_loopback(parts.hostname):
        raise ValueError("an address with https://: the key would travel in the clear")
    return text


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _file(value: object) -> str:
    return os.path.expanduser(_word(value))


def _node_key(value: object) -> bool | str:
    if not isinstance(value, bool) and value != IN_SCRIPT:
        raise ValueError(f'true or false, or "{IN_SCRIPT}"')
    return value


def _user(value: object) -> str:
    if not isinstance(value, str) or not _USER.fullmatch(value):
        raise ValueError("the name of a user, as in 'root' or 'ubuntu'")
    return value


def _patience(value: object) -> float:
    seconds = duration_seconds(value)
    if seconds <= 0:
        raise ValueError("a time above 0, as in '30m' or '90s'")
    return seconds


_READERS: dict[str, Callable[[object], Any]] = {
    "project": _word,
    "region": _word,
    "api_url": _url,
    "api_key_file": _file,
    "node_key": _node_key,
    "user": _user,
    "lease": at_least(_SHORTEST_LEASE),
    "boot_timeout": _patience,
    "jump": _word,
    "listing_lag": _patience,
    "ssh_config": _file,
}
_VARIABLES = {
    "api_url": "MITHRIL_API_URL",
    "project": "MITHRIL_PROJECT",
    "ssh_config": SSH_CONFIG_VARIABLE,
}
