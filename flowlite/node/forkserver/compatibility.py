"""What two tasks must have in common so that workers of both may be forked from one fork server.

A worker that is forked must not differ from one that is started anew. So whatever a process takes from whoever starts
it is part of the key, and what differs from call to call without meaning anything is left out of fork server and key.
"""

from __future__ import annotations

import os
import re

from ..worker.environment import without_launchers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

OWNERS = ("FLOW_HOME", "FLOW_LEASE")
"""Of flowlite's own variables, those that a fork server keeps: by them one finds what belongs to a home or a lease."""

_OF_SHELLS_AND_SESSIONS = """
    _ PWD OLDPWD SHLVL PS1 COLUMNS LINES TERM TERM_PROGRAM TERM_PROGRAM_VERSION TERM_SESSION_ID COLORTERM WINDOWID
    GPG_TTY HISTFILE LS_COLORS STY TMUX TMUX_PANE XDG_SESSION_ID XDG_VTNR SHELL_SESSION_ID INVOCATION_ID
    JOURNAL_STREAM VIRTUAL_ENV_PROMPT PYTEST_CURRENT_TEST PYTEST_XDIST_WORKER PYTEST_XDIST_TESTRUNUID
"""
_MEANINGLESS = frozenset(_OF_SHELLS_AND_SESSIONS.split())
_MEANINGLESS_PREFIXES = ("SSH_", "VSCODE_", "KITTY_", "ITERM_", "GNOME_TERMINAL_", "DIRENV_")
_SESSION = re.compile(r"/(session-|app-|vte-spawn-|tmux-spawn-)[^/]*\.scope$", re.MULTILINE)


def inherited(environment: Mapping[str, str], secrets: Iterable[str] = ()) -> dict[str, str]:
    """What a fork server takes from the environment of its starter: all that the tasks that use it have in common.

    Args:
        secrets: Names of secret variables; they are given to workers, and to nobody else.
    """
    hidden = set(secrets)
    return {
        name: value
        for name, value in without_launchers(environment).items()
        if name not in hidden
        and name not in _MEANINGLESS
        and not name.startswith(_MEANINGLESS_PREFIXES)
        and (not name.startswith("FLOW_") or name in OWNERS)
    }


def key(environment: Mapping[str, str], python: str, program: str) -> str:
    """One word for all that counts.

    Args:
        environment: The whole environment of the fork server.
        python: Its interpreter.
        program: A hash of the program of ours that it runs.
    """
    import hashlib
    import json

    parts = {
        "environment": dict(environment),
        "python": [python, os.path.realpath(python), _facts(python), _facts(_venv(python))],
        "program": program,
        "surroundings": surroundings(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def surroundings() -> dict[str, Any]:
    """What else a process takes from its starter: user, limits, processors, namespaces, control group."""
    found: dict[str, Any] = {
        "user": [os.getuid(), os.getgid(), sorted(os.getgroups())],
        # Asking for it any other way would change it, for all threads.
        "umask": re.findall(r"^Umask:\s*(\w+)", _read("/proc/self/status"), re.MULTILINE),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "limits": _limits(),
        "control group": _SESSION.sub("", _read("/proc/self/cgroup")),
        "namespaces": _namespaces(),
    }
    if hasattr(os, "sched_getaffinity"):
        found["processors"] = sorted(os.sched_getaffinity(0))
    return found


def _limits() -> list[tuple[int, int]]:
    import resource

    kinds = sorted(getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_"))
    return [resource.getrlimit(kind) for kind in kinds]


def _namespaces() -> list[str]:
    # Of the thread that asks, whose children will be in them.
    directory = "/proc/thread-self/ns"
    try:
        return sorted(os.readlink(os.path.join(directory, name)) for name in os.listdir(directory))
    except OSError:
        return []


def _venv(python: str) -> str:
    return os.path.join(os.path.dirname(os.path.dirname(python)), "pyvenv.cfg")


def _facts(path: str) -> list[int]:
    try:
        status = os.stat(path)
    except OSError:
        return []
    return [status.st_mtime_ns, status.st_size]


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
