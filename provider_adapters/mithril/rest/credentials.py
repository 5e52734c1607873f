"""Finds the account's API key, and masks keys in the provider's texts."""

from __future__ import annotations

import os
import re
from pathlib import Path

from flowlite.errors import PermissionRefused
from flowlite.settings import credentials
from flowlite.settings.credentials import Key
from provider_adapters.mithril.settings import KEY_VARIABLE as VARIABLE

_ANY_KEY = re.compile(r"fkey_[A-Za-z0-9_-]+")


def find_key(api_key_file: str, home: Path, *, without_variable: bool = False) -> Key | None:
    """The account's key; None if there is none.

    It is read from the configured file; without one, from the environment, the usual file (0600) or the keyring.

    Args:
        api_key_file: The setting of that name. The submitting user's environment variable has taken precedence already
            (`settings.py`); a variable of this process's starter does not concern the task.
        home: FLOW_HOME.
        without_variable: Do not look at the environment.

    Raises:
        PermissionRefused: A file with a key can be read by others, or its content is not a key.
    """
    return credentials.find_key(
        "mithril",
        variable=VARIABLE,
        file=api_key_file or None,
        usual=usual_file(home),
        environment={} if api_key_file or without_variable else None,
    )


def is_wanted(api_key_file: str, home: Path) -> bool:
    """Whether there is a key to use. A keyring that cannot be opened does not count."""
    try:
        return find_key(api_key_file, home) is not None
    except PermissionRefused:
        if api_key_file or os.environ.get(VARIABLE) or usual_file(home).exists():
            raise
        return False


def usual_file(home: Path) -> Path:
    """The file that is read for the key if none is configured."""
    return home / "keys" / "mithril"


def how_to_give_one(home: Path) -> str:
    """What to do if there is no key, as a text for the user."""
    return (
        f"set {VARIABLE}, or write the key to {usual_file(home)} (mode 0600), or to the file that `api_key_file` under "
        f"[mithril] names, or put it into the keyring (`keyring set {credentials.SERVICE} mithril`)"
    )


def masked(text: str) -> str:
    """A text of the provider with all keys masked."""
    return _ANY_KEY.sub("fkey_…", text)
