"""Prepares a node to create the workers' Python environment: asks its agent, and sends `uv` if it is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flowlite.connect import uv
from flowlite.errors import NodeUnreachable, ProviderError
from flowlite.supervise.attempt.node_handle import Node, ask_program

_LOOK_SECONDS = 120.0


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
    to, settings = node.connection, node.settings
    if packages.exists():
        to.put(packages.read_bytes(), f"{settings.home}/packages.json")
    inside = settings.container is not None
    if spec.get("uv") or (inside and spec.get("requirements") is None):
        return spec
    to.put_cached(agent[0], node.agent, agent[1], mode=0o700, cache=settings.cache)
    asked = {"spec": spec, "cache": settings.cache}
    wrong = f"{settings.python} does not run there"
    found = ask_program(node, "pythons", asked, _LOOK_SECONDS, wrong)
    if found["ready"] and not inside:
        return spec
    try:
        return {**spec, "uv": _send(node, found["platform"], home)}
    except NodeUnreachable:
        raise
    except (ProviderError, OSError) as error:
        # The node may have its own uv. If not, its agent reports what is missing, with this reason.
        return {**spec, "why_no_uv": str(error)}


def _send(node: Node, platform: str, home: Path) -> str:
    """Puts uv where all tasks of the node find it and checks that it runs. Returns its path there."""
    place = node.settings.cache or node.settings.home
    said = ""
    for program in uv.programs_for(platform, home):
        target = f"{place}/{program.sha256}"
        node.connection.put_cached(program.path, target, program.sha256, mode=0o700)
        tried = node.connection.run([target, "--version"], timeout=_LOOK_SECONDS)
        if tried.code == 0:
            return target
        # Perhaps it was built for a newer C library. The program from the package index runs with any.
        said = tried.stderr.decode(errors="replace").strip()[:200]
    raise ProviderError(f"the uv for {platform} does not run there: {said}")
