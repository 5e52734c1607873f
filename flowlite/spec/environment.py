"""Variables that a user may give to the workers."""

from __future__ import annotations

import re

from flowlite.node.worker.environment import FIXED, TABLE
from flowlite.spec.base import as_mapping, shown

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)

# Set by flowlite for each worker; a user's value would contradict the gang.
RESERVED = frozenset(row.name for row in TABLE if row.strength == FIXED) | {
    *("MASTER_ADDR", "MASTER_PORT", "FLOW_MAIN_IP", "FLOW_NODE_IPS", "FLOW_TASK_NAME"),
    "FLOW_PROVIDER",
}


def variable_name(name: str) -> str:
    """Returns the name if a user may set that variable. Raises ValueError."""
    if not _VARIABLE.fullmatch(name):
        raise ValueError(f"{name!r} cannot name a variable: letters, digits and underscores only")
    if name in RESERVED:
        raise ValueError(f"{name} is made by flowlite for each worker and cannot be set")
    return name


def is_unicode(text: str) -> bool:
    """Whether the text can be written as UTF-8; one with lone surrogates cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def variables(value: object) -> dict[str, str]:
    """Checks a mapping from variables to texts. Raises ValueError."""
    found: dict[str, str] = {}
    for name, text in as_mapping(value).items():
        if not isinstance(text, str):
            raise ValueError(f"{name} is {shown(text)}; values must be strings; write it in quotes")
        if "\0" in text:
            raise ValueError(f"{name} has a zero byte in it")
        if not is_unicode(text):
            raise ValueError(f"{name} is not valid Unicode: {shown(text)}")
        found[variable_name(name)] = text
    return found
