"""Checks before GO that a node has what a mode needs."""

from __future__ import annotations

import asyncio
import os
import sys
from shutil import which

from ..config import distributed_modes, launcher_programs
from ..config.agent_config import AgentConfig
from ..system import processes
from ..worker.environment import path_with, without_launchers

_FIND = "import importlib.util as u, sys; sys.exit(0 if u.find_spec('ray') else 9)"
_LOOK_SECONDS = 60.0


async def missing(config: AgentConfig) -> str:
    """Returns what this node lacks, and what to do; "" if nothing, or if it cannot be determined."""
    if config.mode == distributed_modes.RAY:
        return await _missing_ray(config)
    if config.mode == distributed_modes.MPI:
        return missing_mpi(config)
    return ""


def python_on(path: str | None) -> str | None:
    """Returns the Python that a worker with this PATH uses."""
    return which("python3", path=path) or which("python", path=path)


async def _missing_ray(config: AgentConfig) -> str:
    path = config.environment.get("PATH") or path_with(config.python, os.environ.get("PATH"))
    python = python_on(path) or config.python or sys.executable
    environment = {**without_launchers(os.environ), **config.environment}
    try:
        async with asyncio.timeout(_LOOK_SECONDS):
            code, _, _ = await processes.run_group(python, "-c", _FIND, env=environment)
    except (OSError, TimeoutError):
        return ""
    if code != 9:
        return ""
    return (
        f'distributed_mode="ray" needs Ray, and the Python of this node ({python}) does not have it. Add it to the '
        'task: dependencies=["ray[train]"], or install it there'
    )


def missing_mpi(config: AgentConfig) -> str:
    """The same for MPI, whose programs are not Python packages."""
    path = config.environment.get("PATH") or path_with(config.python, os.environ.get("PATH"))
    program = launcher_programs.program(config.call)
    name = launcher_programs.name(program)
    if not config.is_leader:
        # The kind of MPI is known on node 0 only; each kind needs another daemon on the nodes.
        found = any(which(each, path=path) for each in launcher_programs.DAEMONS)
        return (
            ""
            if found or name not in launcher_programs.MPI
            else _install("no MPI is installed here")
        )
    if name not in launcher_programs.ALL or which(program, path=path) is not None:
        return ""
    where = "node 0" if name != program else "the PATH of node 0"
    what = f"there is no {program} on {where}"
    if name in launcher_programs.MPI:
        return _install(what)
    return (
        f'{what}, which the command of distributed_mode="mpi" begins with. Install it there, give its whole path, or '
        "set PATH in environment="
    )


def _install(what: str) -> str:
    return (
        f'distributed_mode="mpi" needs an MPI on every node, and {what}. Install one: `apt-get install openmpi-bin` on '
        "Debian and Ubuntu; or name an image= that has it; or set PATH in environment= where it lies elsewhere"
    )
