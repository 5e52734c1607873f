"""The key of a fork server: what two tasks must have in common to share one.

A forked worker must not differ from one that is started anew. The key therefore covers everything that a process
inherits from its parent. Variables that differ between calls without any effect are left out of the fork server's
environment and of the key.
"""

from __future__ import annotations

import os
import re

from ..system.atomic_files import text_of
from ..worker.environment import OWNERS, without_launchers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

_OF_SHELLS_AND_SESSIONS = """
    _ PWD OLDPWD SHLVL PS1 TERM TERM_PROGRAM TERM_PROGRAM_VERSION TERM_SESSION_ID COLORTERM WINDOWID
    GPG_TTY HISTFILE LS_COLORS STY TMUX TMUX_PANE XDG_SESSION_ID XDG_VTNR SHELL_SESSION_ID INVOCATION_ID
    JOURNAL_STREAM VIRTUAL_ENV_PROMPT PYTEST_CURRENT_TEST PYTEST_XDIST_WORKER PYTEST_XDIST_TESTRUNUID
"""
_MEANINGLESS = frozenset(_OF_SHELLS_AND_SESSIONS.split())
_MEANINGLESS_PREFIXES = ("SSH_", "VSCODE_", "KITTY_", "ITERM_", "GNOME_TERMINAL_", "DIRENV_")
_SESSION = re.compile(r"/(session-|app-|vte-spawn-|tmux-spawn-)[^/]*\.scope$", re.MULTILINE)


def inherited(environment: Mapping[str, str], secrets: Iterable[str] = ()) -> dict[str, str]:
    """Returns the part of the starter's environment that a fork server keeps, which all of its tasks have in common.

    Args:
        secrets: Names of secret variables, which only workers get.
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


def key(
    environment: Mapping[str, str], python: str, program: str, command: Iterable[str] | None = None
) -> str:
    """Returns the key of a fork server, as a hash.

    Args:
        environment: The whole environment of the fork server.
        python: Its interpreter.
        program: Hash of the flowlite program that it runs.
        command: The command line of a Python that is held before its script; None for others.
    """
    import hashlib
    import json

    parts = {
        "environment": dict(environment),
        "python": [python, os.path.realpath(python), _facts(python), _facts(_venv(python))],
        "program": program,
        "command": None if command is None else list(command),
        "surroundings": surroundings(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def surroundings() -> dict[str, Any]:
    """Returns what else a process inherits from its parent: user, limits, processors, namespaces, control group."""
    found: dict[str, Any] = {
        "user": [os.getuid(), os.getgid(), sorted(os.getgroups())],
        # os.umask() would change it, for all threads.
        "umask": re.findall(r"^Umask:\s*(\w+)", text_of("/proc/self/status"), re.MULTILINE),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "limits": _limits(),
        "control group": _SESSION.sub("", text_of("/proc/self/cgroup")),
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
    # The namespaces of the calling thread, which its children inherit.
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
