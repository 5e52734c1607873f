"""The client of a host's lease: takes, releases and shows it.

`agent.pyz lease WHAT` reads a request as JSON from its standard input and writes the answer as JSON:

    take     {"lease", "token", "task", "name", "client", "label", "instance", "root", "home", "ttl", "data",
              "towards": [addresses], "make": [directories]}
             -> {"ok": true, "lease": {...}, "address": …, "boot": …} or {"ok": false, "held": {...}}
    release  {"token"} or {"task", "client"}: ends all processes of the task on this host, and removes its directory;
             with "retain", the outputs of its ranks are kept
    keep     {"task", "client", "seconds", "data"}: ends the task, but keeps the host for its owner, with its fork
             servers (forkserver/registry.py)
    show     {} -> {"ok": true, "held": {...} or null}
    tidy     {"root", "dry_run"}: removes secrets of tasks that ended there without a release -> {"homes": [...]}

An owner is a user of the host together with a FLOW_HOME (`client`).
"""

from __future__ import annotations

import json
import os
import sys
import time

from ..system import addresses, atomic_files, processes
from .requests import ask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

NAME = "flowlite-host"
_TAKE_TRIES = 20
# On a full disk, names and small files can often still be created.
_PROBE_BYTES = 256 * 1024


def take(request: Mapping[str, Any], name: str = NAME) -> dict[str, Any]:
    """Takes the host for a task, or returns who holds it. The same token gives the same lease again (idempotent)."""
    from . import lease_holder

    answer: dict[str, Any] | None = None
    for _ in range(_TAKE_TRIES):
        answer = ask({**request, "do": "take"}, name)
        if answer is None:
            answer = lease_holder.start(request, name)
        if answer is not None:
            break
        # Another process took the name first, or is about to release it.
        time.sleep(0.02)
    if answer is None:
        error = f"the name {name} is taken by a process that does not listen; `sudo ss -xap src @{name}` there shows it"
        return {"ok": False, "held": {"state": "unclear"}, "error": error}
    if answer["ok"]:
        answer["boot"] = processes.boot_id()
        answer["address"] = _address(request.get("towards", ()))
        answer["problem"] = _make(request.get("make", ())) or _write(str(request["root"]))
    return answer


def release(request: Mapping[str, Any], name: str = NAME) -> dict[str, Any]:
    """Ends a task on this host, and removes the files of a lease that has expired."""
    answer = ask({**request, "do": "release"}, name)
    if answer is not None and not answer.get("other"):
        return answer
    # The host is free, or held for another task. At most this task's directory is left.
    return {"ok": True, "gone": _forget(request)}


def show(name: str = NAME) -> dict[str, Any]:
    """Returns who holds the host."""
    return {"ok": True, "held": (ask({"do": "show"}, name) or {}).get("held")}


def _address(towards: Any) -> str | None:
    """Returns this host's address on the route to the first of the other hosts that has a route."""
    for other in towards:
        own = addresses.address_towards(str(other))
        # What begins with fe80 means nothing without the name of an interface.
        if own is not None and not own.startswith(("127.", "fe80:")) and own != "::1":
            return own
    return None


def _make(directories: Any) -> str:
    """Creates directories of shared volumes, closed to other users. Returns the error, or ""."""
    for each in directories:
        try:
            atomic_files.make(os.path.expanduser(str(each)))
        except OSError as error:
            return f"{each}: {error.strerror}"
    return ""


def _write(root: str) -> str:
    """Writes a probe file to the task's root and removes it. Returns the error, or ""."""
    probe = os.path.join(root, f".probe-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        os.makedirs(root, mode=0o700, exist_ok=True)
        with atomic_files.new(probe) as descriptor:
            atomic_files.write(descriptor, bytes(_PROBE_BYTES))
        os.unlink(probe)
    except OSError as error:
        return f"nothing can be written to {root}: {error.strerror}"
    return ""


def _forget(request: Mapping[str, Any]) -> bool:
    from . import cleanup

    root, home = str(request.get("root", "")), str(request.get("home", ""))
    if request.get("retain"):
        return not cleanup.keep_outputs(root, home)
    return cleanup.remove_home(root, home) if root and home else False


def templates() -> list[dict[str, Any]]:
    """Returns this user's fork servers that are kept for the next task."""
    from ..forkserver import registry
    from ..system import runtime_dir

    try:
        found = registry.all_of(runtime_dir.find())
    except OSError:
        return []
    return [{"pid": each.pid, "start": each.start} for each in found]


def obey(what: str, request: Mapping[str, Any], name: str = NAME) -> dict[str, Any]:
    """Carries out one request."""
    if what == "take":
        return take(request, name)
    if what == "release":
        return release(request, name)
    if what == "keep":
        spared = {**request, "do": "keep", "spare": templates()}
        return ask(spared, name) or {"ok": False, "held": None}
    if what == "tidy":
        return _tidy(request, name)
    return show(name)


def _tidy(request: Mapping[str, Any], name: str) -> dict[str, Any]:
    from . import cleanup

    held = show(name)["held"] or {}
    root, but = str(request["root"]), str(held.get("home", ""))
    homes = cleanup.forget_secrets(root, but, dry_run=bool(request.get("dry_run")))
    return {"ok": True, "homes": homes}


def main(arguments: list[str]) -> int:
    """`lease WHAT [NAME]`. The exit status is 0 even if the answer is no."""
    what, name = arguments[0], arguments[1] if len(arguments) > 1 else NAME
    known = ("take", "release", "keep", "show", "tidy")
    if what not in known:
        sys.stderr.write(f"lease: {what!r} is none of {', '.join(known)}\n")
        return 2
    answer = obey(what, json.load(sys.stdin), name)
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0
