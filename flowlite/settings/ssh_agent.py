"""The SSH agent that the user's programs had last, for supervisors that outlive the login which began them.

The socket of an agent that is forwarded (`ssh -A`) or that a login starts is gone after the logout, and that of the
next login has another path. Each program that opens FLOW_HOME notes its own here.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from flowlite.errors import ConfigError
from flowlite.node.system.atomic_files import write_atomically
from flowlite.settings import flow_home

_FILE = "ssh-agent"


def note(home: Path) -> None:
    """Notes the agent of this process, if it has one. A home that cannot be written to is left alone."""
    path = os.environ.get("SSH_AUTH_SOCK", "")
    with suppress(OSError, ValueError):
        if os.path.exists(path) and seen_last() != path:
            write_atomically(home / _FILE, os.fsencode(path))


def seen_last() -> str:
    """The socket of the agent that was noted last; "" if none was."""
    try:
        return os.fsdecode((flow_home.home() / _FILE).read_bytes())
    except (OSError, ConfigError):
        return ""
