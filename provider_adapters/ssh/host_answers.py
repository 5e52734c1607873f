"""What a host may answer about itself and about its lease: checked in one place, before anything acts on it.

A host that turned hostile, or runs another program in the place of ours, must not end a launch that has enough other
hosts, nor a command that looks at all of them. Values of other types than we send, addresses and paths that are none,
and numbers that are not finite are refused here, with the name of the field.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Any

from flowlite.errors import ProviderError
from flowlite.node.protocol.json_shapes import (
    Shape,
    anything,
    count,
    fields,
    flag,
    integer,
    listing,
    mapping,
    maybe,
    moment,
    number,
    pair,
    text,
)

_LONGEST = 4096
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_VERSION = re.compile(r"([a-z]+-)?\d{1,9}\.\d{1,9}\.\d{1,9}", re.ASCII)


def _line(value: Any) -> None:
    """A name or a path: a short text without control characters."""
    text(value)
    if len(value) > _LONGEST or _CONTROL.search(value):
        raise ValueError(" is no plain line")


def _address(value: Any) -> None:
    """An IP address, or "" for none."""
    _line(value)
    if value:
        ipaddress.ip_address(value)


def _python(value: Any) -> None:
    """A path and a version."""
    pair(_line)(value)
    if not _VERSION.fullmatch(value[1]):
        raise ValueError(" has no version")


_GPU = fields({"index": count, "uuid": _line, "name": _line, "memory_gb": number})
_LINES = dict.fromkeys(("boot", "system", "machine", "home", "root"), _line)
_REASONS = dict.fromkeys(("unsafe", "unwritable", "sockets", "no_sockets"), text)
_FACTS = fields(
    {},
    {
        **_LINES,
        **_REASONS,
        "pythons": listing(_python),
        "cores": count,
        "memory_gb": number,
        "gpus": listing(_GPU),
        "ssh_address": _address,
        "default_address": _address,
        "disk": mapping(number),
        "tools": listing(_line),
        "ends_at_logout": flag,
        "now": moment,
    },
)
# A holder of another user, or one that does not answer: what the kernel knows.
_HELD = fields({}, {"state": _line, "uid": integer, "user": _line})
# What we gave to our own holder, and it gives back.
_DATA = fields(
    dict.fromkeys(("key", "host", "root", "home", "python", "agent"), _line),
    {
        "launched_at": moment,
        "pythons": listing(pair(_line)),
        "gpus": listing(count),
    },
)
_LEASE = fields(
    {
        **dict.fromkeys(("lease", "marker", "instance", "home", "task", "client"), _line),
        "data": _DATA,
    },
    {
        "label": _line,
        "seconds": number,
        "left": number,
        "warm": fields({}, {"task": _line, "instance": _line}),
    },
)
_FOREIGN = fields({"uid": integer, "user": _line})


def _held(value: Any) -> None:
    """Who holds a host."""
    _HELD(value)
    if value.get("state") == "foreign":
        _FOREIGN(value)
    elif "client" in value:
        _LEASE(value)


_ANSWER = fields(
    {},
    {
        "ok": flag,
        "other": flag,
        "gone": anything,
        "lease": _held,
        "held": maybe(_held),
        "boot": _line,
        "address": maybe(_address),
        "problem": text,
        "error": text,
        "homes": listing(_line),
    },
)


def of_host(told: Mapping[str, Any]) -> dict[str, Any]:
    """What a host reports about itself: {…, "held": holder of its lease or None}. Raises ProviderError."""
    return _checked(told, "what is no description of a host", _FACTS, _ANSWER)


def of_lease(told: Any) -> dict[str, Any]:
    """What a host answers to a request about its lease, "ok" being false unless it says so. Raises ProviderError."""
    return {"ok": False, **_checked(told, "what cannot be a lease", _ANSWER)}


def _checked(told: Any, what: str, *shapes: Shape) -> dict[str, Any]:
    try:
        for shape in shapes:
            shape(told)
    except ValueError as error:
        raise ProviderError(f"it answers {what}: {str(error).lstrip('. ')[:200]}") from None
    return dict(told)
