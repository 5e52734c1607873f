"""The Python of the workers on this machine: the one that submits if it is suitable, else one that uv installs."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from flowlite import python_request
from flowlite.errors import ConfigError

if TYPE_CHECKING:
    from flowlite.spec import TaskConfig


def choose_python(
    config: TaskConfig, inside: bool = False
) -> tuple[dict[str, Any] | None, list[str]]:
    """The Python environment to find or create, None if this Python is suitable, and notes for the user.

    Args:
        inside: Whether the task runs in a container, so that this Python does not matter.

    Raises:
        ConfigError: The Python is not here, and there is no uv to install it.
    """
    order = python_request.order(config)
    if order is None:
        return None, [] if inside else _note_of_another_environment(config)
    same = python_request.version_here().split(".") == order["python"].split(".")[:2]
    missing = missing_requirements((order["requirements"] or "").splitlines()) if same else []
    if same and not missing and not inside:
        return None, []
    from flowlite.connect.uv import uv_here

    tool = uv_here()
    if inside:
        return {**order, "uv": str(tool) if tool else ""}, []
    if tool is not None:
        return {**order, "uv": str(tool)}, _notes(order, missing)
    if missing:
        raise ConfigError(
            f"dependencies: missing in this Python: {'; '.join(missing)}; and uv, which makes such an "
            f"environment, is not installed. Install uv (`{sys.executable} -m pip install uv`), or what is missing"
        )
    from flowlite.node.python_env import interpreters

    if order["requirements"] is None and interpreters.find(order["python"]) is not None:
        return order, _notes(order, missing)
    raise ConfigError(
        f"python: {order['python']} was asked for, this Python is {interpreters.version_here()} ({sys.executable}), "
        f"and uv, which installs others, is not installed. Install it (`{sys.executable} -m pip install uv`), or leave "
        "the option out"
    )


def note_of_one_command() -> list[str]:
    """A note if the Python that the nodes run with is removed when this command ends."""
    if not python_request.is_of_one_command():
        return []
    return [
        "python: `uv run` removes this environment when the command ends (--with, --isolated), and a task that is not "
        "over by then fails; to leave it alone, install flowlite in an environment that stays, as with `uv add`"
    ]


def _note_of_another_environment(config: TaskConfig) -> list[str]:
    """A note if flowlite is not installed in the active environment, and the command does not name its Python."""
    found = python_request.of_active_environment()
    given = config.command or ()
    words = [given] if isinstance(given, str) else given
    if found is None or any(os.path.dirname(found) in word for word in words):
        return []
    return [
        f"python: the task finds flowlite's own Python ({sys.executable}) as `python`, not that of the active "
        f"environment; to use its packages, write {found} in the command, or install flowlite there"
    ]


def _notes(order: dict[str, Any], missing: list[str]) -> list[str]:
    if missing:
        return [
            f"dependencies: missing in this Python: {'; '.join(missing)}; the task runs in an environment that has the "
            "listed dependencies and nothing else"
        ]
    what = "an environment of" if order["requirements"] else "a"
    return [
        f"python: the task runs in {what} Python {order['python']}, without what is installed here"
    ]


def missing_requirements(lines: Iterable[str]) -> list[str]:
    """Requirements that this Python environment does not meet, each with what was found. Options are skipped."""
    return [problem for line in lines if line[:1] not in ("-", "") and (problem := _problem(line))]


def _problem(line: str) -> str:
    # Imported here, since most tasks request no packages.
    from flowlite.node.python_env.uv import without_credentials

    requirement = python_request.without_options(line)
    if python_request.is_address(requirement):
        # Which package it leads to is known when it has been fetched.
        return f"{without_credentials(requirement)} (an address)"
    try:
        from packaging.requirements import InvalidRequirement, Requirement
    except ImportError:
        return _rough_problem(requirement)
    try:
        wanted = Requirement(requirement)
    except InvalidRequirement as error:
        why = without_credentials(f"{requirement!r} is not a requirement: {error}")
        raise ConfigError(f"dependencies: {why}") from None
    if wanted.marker is not None and not wanted.marker.evaluate():
        return ""
    have = _installed(wanted.name)
    if have is None:
        return f"{wanted.name} (not installed)"
    if not wanted.specifier.contains(have, prereleases=True):
        return f"{requirement} (installed: {have})"
    return ""


def _rough_problem(requirement: str) -> str:
    """Checks without `packaging`: the name must be installed, and a version pinned with `==` must match."""
    match = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*([^;@]*)", requirement)
    if match is None:
        raise ConfigError(f"dependencies: {requirement!r} is not a requirement")
    name, versions = match[1], match[2].strip()
    have = _installed(name)
    if have is None:
        return f"{name} (not installed)"
    pins = [
        part.strip()[2:].strip() for part in versions.split(",") if part.strip().startswith("==")
    ]
    exact = [pin for pin in pins if "*" not in pin]
    return f"{requirement} (installed: {have})" if any(pin != have for pin in exact) else ""


def _installed(name: str) -> str | None:
    import importlib.metadata

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
