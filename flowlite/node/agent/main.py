"""The entry point of an agent: it locks its directory, opens its log, writes its process id, and runs."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ..config.agent_config import AgentConfig, AttemptPaths, ConfigFault
from ..forkserver import client
from ..system import processes, trace
from ..system.atomic_files import write_atomically
from .agent import Agent

log = logging.getLogger("flowlite.agent")

# New objects after which an agent's garbage collector looks for some to free. It finds little, and on the leader of
# thousands of nodes it would look many times through what is kept for each of them.
_NEW_OBJECTS = 10_000


def main(arguments: Sequence[str]) -> int:
    """`agent DIR` runs an agent. `agent --detach DIR...` forks one for each directory and returns."""
    began = trace.started_at()
    if arguments[0] != "--detach":
        return run_agent(Path(arguments[0]), began)
    for directory in arguments[1:]:
        if os.fork() == 0:
            os._exit(run_agent(Path(directory), began))
    return 0


def run_agent(directory: Path, began: float | None = None) -> int:
    """Run the agent of an attempt directory. Returns the exit code; a second agent of the directory exits at once.

    `began` is when this program was started.
    """
    paths = AttemptPaths(directory.resolve())
    if not is_alone(paths):
        sys.stderr.write(f"flowlite: an agent of {directory} already runs\n")
        return 0
    processes.stand_alone(str(paths.log))
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", stream=sys.stderr
    )
    noted = {**processes.identity(os.getpid()), "host": os.uname().nodename}
    write_atomically(paths.pid, json.dumps(noted))
    try:
        config = AgentConfig.from_json(paths.config.read_bytes())
        config.workdir = _without_links(config.workdir, directory.parent, paths.home)
        if config.trace:
            trace.begin(f"agent of node {config.node_rank}", paths.trace)
            trace.add_start(began)
        if config.visible_gpus:
            _keep_note_of_gpus()
        agent = Agent(config, paths, paths.secret.read_bytes())
        if agent.needs.imports_nothing:
            # Fork before the event loop exists, which must not be forked. An error is reported later by `Workers`.
            with contextlib.suppress(OSError):
                client.fork(agent.needs.warm_spec())
    except (ConfigFault, OSError, KeyError) as error:
        log.error("%s", error)
        report = {"outcome": "error", "reason": f"the agent cannot start: {error}", "workers": []}
        write_atomically(paths.report, json.dumps(report))
        return 2
    # After the fork server has been forked: the collector of workers is as Python sets it.
    collect_seldom()
    code = asyncio.run(agent.run())
    os._exit(code)


def is_alone(paths: AttemptPaths) -> bool:
    """Whether no other agent of the directory runs. If so, this process counts as its agent from now on."""
    import fcntl

    lock = os.open(paths.directory / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return False
    except OSError:
        os.close(lock)
        # Some network file systems have no locks. An agent is never started again, so its mark may stay.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            os.close(os.open(paths.directory / "agent.started", flags, 0o600))
        except FileExistsError:
            return False
    return True


def _keep_note_of_gpus() -> None:
    """Keeps the directory of /tmp in which the GPUs of this machine's tasks are noted from being cleaned by age."""
    from ..host_lease import tmpfiles_lock
    from ..system import runtime_dir

    # Without it, the fork server cannot be started either, and says why.
    with contextlib.suppress(OSError):
        tmpfiles_lock.keep_from_cleaners(runtime_dir.find())


def _without_links(workdir: str | None, written: Path, home: Path) -> str | None:
    """Returns the working directory, below the real path of the node's directory if it is below the written one.

    Homes are often reached through a link (`/home` leads to `/data/home`), and the agent compares the two paths.
    """
    if workdir is None or not Path(workdir).is_relative_to(written):
        return workdir
    return str(home / Path(workdir).relative_to(written))


def collect_seldom() -> None:
    """Sets the garbage collector of an agent: it leaves out what is imported, and seldom looks through the rest."""
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS)
    gc.enable()
