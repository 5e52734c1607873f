"""The Python of a machine for agent and workers: which of those that it has, or one that uv installs there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowlite import python_request

if TYPE_CHECKING:
    from flowlite.connect.base import Connection

OLDEST = "3.11"
"""The oldest Python that the agent supports."""


def choose(pythons: Iterable[tuple[str, str]], minor: str | None) -> tuple[str, str] | None:
    """The first of these paths and versions that is new enough, preferably of that minor version; None if none is."""
    known = [each for each in pythons if is_new_enough(each[1])]
    same = [each for each in known if minor and each[1].startswith(f"{minor}.")]
    return next(iter(same or known), None)


def is_new_enough(version: str) -> bool:
    """Whether the agent runs on that version. Only CPython has a bare one."""
    return version[:1].isdigit() and _numbers(version)[:2] >= _numbers(OLDEST)


def bring(connection: Connection, root: str, machine: str, minor: str | None, home: Path) -> None:
    """Installs a Python, of that minor version if it is new enough, below flowlite's directory on a machine.

    Args:
        root: The absolute path of that directory.
        machine: The output of `uname -m` there.
        home: FLOW_HOME.

    Raises:
        NodeUnreachable: The machine does not answer.
        ProviderError: It cannot be installed.
    """
    # Rarely needed, and slow to import.
    from flowlite.connect.pythons import install

    version = minor if minor and is_new_enough(minor) else python_request.version_here()
    platform = f"linux-{machine}-glibc"
    install(connection, root, platform, version, python_request.index_settings(), home)


def spec_for_node(options: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any] | None:
    """The Python that a node has to make for its workers, as `NodeSettings.python_spec`.

    Args:
        options: Those of the plan. In a container, the Python of the machine does not count.
        data: {"python", "pythons"}, of the instance: the path that was chosen, and all of them with their versions.
    """
    wanted: dict[str, Any] | None = options.get("python_spec")
    if options.get("container"):
        return wanted
    version = next((str(v) for path, v in data["pythons"] if path == data["python"]), "")
    return python_request.for_node(wanted, version)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
