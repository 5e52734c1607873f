"""Prepares a node to create the workers' Python environment: asks its agent, and sends `uv` if it is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flowlite.connect import uv
from flowlite.errors import NodeUnreachable, ProviderError
from flowlite.supervise.attempt.node_handle import Node, ask_program

_LOOK_SECONDS = 120.0
# The exit status of a shell for a program that is there and may not run.
_NOT_ALLOWED = 126


def bring(
    node: Node, spec: dict[str, Any], agent: tuple[Path, str], packages: Path, home: Path
) -> dict[str, Any]:
    """Sends what the node needs to create the environment of `spec`. Does nothing if the environment exists.

    Args:
        node: A node that can be reached.
        spec: The Python environment, as in `NodeSettings.python_spec`.
        agent: The agent's zipapp on this machine, and its hash.
        packages: The file with the package indexes and their credentials.
        home: FLOW_HOME, where uv is kept.

    Returns:
        The spec as it is passed to the agent.

    Raises:
        NodeUnreachable: The node cannot be reached.
    """
    if packages.exists():
        node.connection.put(packages.read_bytes(), f"{node.settings.home}/packages.json")
    platform = platform_without_uv(node, spec, agent)
    if platform is None:
        return spec
    try:
        return {**spec, "uv": _send(node, platform, home)}
    except NodeUnreachable:
        raise
    except (ProviderError, OSError) as error:
        # The node may have its own uv. If not, its agent reports what is missing, with this reason.
        return {**spec, "why_no_uv": str(error)}


def platform_without_uv(node: Node, spec: dict[str, Any], agent: tuple[Path, str]) -> str | None:
    """Returns the platform of a node that needs uv to create the environment of `spec`; None if it needs none.

    Raises:
        NodeUnreachable: The node cannot be reached.
        ProviderError: Its Python does not run.
    """
    settings, inside = node.settings, node.settings.container is not None
    if spec.get("uv") or (inside and spec.get("requirements") is None):
        return None
    node.connection.put_cached(agent[0], node.agent, agent[1], mode=0o700, cache=settings.cache)
    asked = {"spec": spec, "cache": settings.cache}
    wrong = f"{settings.python} does not run there"
    found = ask_program(node, "pythons", asked, _LOOK_SECONDS, wrong)
    return None if found["ready"] and not inside else str(found["platform"])


def put_uv(node: Node, program: uv.Program) -> str:
    """Puts a uv where all tasks of the node find it, unless it is there. Returns its path."""
    target = f"{node.settings.cache or node.settings.home}/{program.sha256}"
    node.connection.put_cached(program.path, target, program.sha256, mode=0o700)
    return target


def _send(node: Node, platform: str, home: Path) -> str:
    """Puts a uv on a node that runs there. Returns its path."""
    said = ""
    for program in uv.programs_for(platform, home):
        target = put_uv(node, program)
        # What a node got from another one has no mode yet.
        script = 'chmod 700 "$1" && exec "$1" --version'
        tried = node.connection.run(["sh", "-c", script, "sh", target], timeout=_LOOK_SECONDS)
        if tried.code == 0:
            return target
        said = tried.stderr.decode(errors="replace").strip()[:200]
        if tried.code == _NOT_ALLOWED:
            raise ProviderError(
                f"programs cannot run where {target} is, perhaps because it is mounted noexec ({said}); an environment "
                "for dependencies= or python= needs a directory where they can (`node_dir` of a host)"
            )
        # Perhaps it was built for a newer C library. The program from the package index runs with any.
    raise ProviderError(f"the uv for {platform} does not run there: {said}")
