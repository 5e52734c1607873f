"""The identity of this FLOW_HOME towards machines and clouds: its id, and the person it belongs to."""

from __future__ import annotations

import getpass
import os
import re
import secrets
import socket
from contextlib import suppress
from pathlib import Path

from flowlite.errors import ProviderError
from provider_adapters.durable import create_durably

_FILE = "client"
_NO_TAG = re.compile(r"[^\w .:/=+\-@]")


def home_id(home: Path) -> str:
    """The id of a FLOW_HOME: 16 hexadecimal digits, created on first use and never changed.

    Leases on hosts carry it, and rented resources have it as the tag `flowlite:home`.

    Raises:
        ProviderError: The id cannot be written.
    """
    path = home / _FILE
    try:
        with suppress(FileNotFoundError):
            if found := path.read_text().strip():
                return found
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        create_durably(path, secrets.token_hex(8))
        return path.read_text().strip()
    except OSError as error:
        raise ProviderError(f"{path} cannot be written: {error.strerror or error}") from error


def owner() -> str:
    """`user@machine`, for people who come across rented resources: the value of the tag `flowlite:owner`.

    It has only characters that every service of AWS takes in tags. A user of a Windows domain is `DOMAIN\\user`.
    """
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return _NO_TAG.sub("-", f"{user}@{socket.gethostname().partition('.')[0]}")
