"""How each worker of a fork server starts: forked as it is, as a script in this Python, or as a Python of its own."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

from ..system.atomic_files import names_in
from ..worker import script
from .observed_imports import SITE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from .observed_imports import ObservedImports


class Choice(NamedTuple):
    """How one worker starts.

    Attributes:
        begin: Runs a script in the forked process; None for other workers.
        afresh: Whether a function is called in a new Python.
        why: Why a worker that could run in the forked process is a Python of its own; "" otherwise.
    """

    begin: script.Begin | None = None
    afresh: bool = False
    why: str = ""


class WorkerChoice:
    """Chooses how the workers of one reaper start, in which it is.

    Args:
        spec: The spec of the fork server. "script" has the start of a held Python, "why" says why it is none.
        hazard: Why workers must not be forked, or None.
        observed: What the imports of the fork server have read.
    """

    def __init__(
        self, spec: Mapping[str, Any], hazard: str | None, observed: ObservedImports
    ) -> None:
        self._spec = spec
        self._hazard = hazard
        self._observed = observed

    def start_of(self, order: Mapping[str, Any]) -> Choice:
        """Returns how the worker of an order starts."""
        if "argv" not in order:
            start = order["call"].get("start", "auto")
            why = ""
            if start == "auto":
                why = self._hazard or self._observed.why_read(
                    order["environment"], str(order["workdir"] or os.getcwd())
                )
            return Choice(afresh=start == "spawn" or bool(why), why=why)
        if "ahead" not in order:
            return Choice()
        if "script" not in self._spec:
            return Choice(why=str(self._spec.get("why") or ""))
        why = self._why_not(order)
        return Choice(why=why) if why else Choice(self._begin(order))

    def _why_not(self, order: Mapping[str, Any]) -> str:
        if "gang" in order or "batch" in order:
            return "node 0 starts it"
        if "why" in self._spec:
            return str(self._spec["why"])
        if self._hazard is not None:
            return self._hazard
        ahead = order["ahead"]
        early = frozenset(ahead["imports"]) - frozenset(ahead["late"])
        why = self._observed.why_not(
            order["environment"],
            str(order["workdir"] or os.getcwd()),
            early | {SITE, "sitecustomize"},
            frozenset(ahead["writes"]),
        )
        return why or _shadowed(self._directory(order))

    def _directory(self, order: Mapping[str, Any]) -> str:
        """The directory from which the script imports first."""
        start = self._spec["script"]
        if start["module"]:
            return str(order["workdir"] or os.getcwd())
        path = os.path.join(order["workdir"] or "", start["target"])
        return os.path.dirname(os.path.realpath(path))

    def _begin(self, order: Mapping[str, Any]) -> script.Begin:
        start = self._spec["script"]
        rest = list(order["argv"][start["replaces"] :])
        made = {
            "name": start["name"],
            "command": [*start["words"], *rest],
            "argv": ["-m" if start["module"] else start["target"], *rest],
            "target": start["target"],
            "module": start["module"],
        }
        changes, loaded = self._observed.changes, tuple(self._observed.loaded)
        return script.Begin({**order, "script": made}, os.getpid(), changes, loaded)


def _shadowed(directory: str) -> str:
    """Returns that a directory has a module which was imported from elsewhere; "" if it has none."""
    for entry in names_in(directory):
        name, _, suffix = entry.partition(".")
        module = sys.modules.get(name)
        if module is None or not (suffix == "py" or suffix.endswith("so") or not suffix):
            continue
        origin = getattr(getattr(module, "__spec__", None), "origin", None)
        if origin in (None, "built-in", "frozen") or str(origin).startswith(f"{directory}{os.sep}"):
            continue
        if suffix or os.path.isfile(os.path.join(directory, name, "__init__.py")):
            return f"{entry} in the script's directory hides a module that was imported ahead"
    return ""
