"""Runs the commands of `setup=` once on a node, after its volumes are mounted and before the workers' Python starts.

They have the working directory of the workers, and their environment as far as it is known. Each command runs in a
shell that exits at the first failure.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from typing import Any

from ..config.agent_config import AgentConfig, AttemptPaths
from ..forkserver import client
from ..forkserver.worker_group import Workers
from ..log_stream.output_tail import sizes, tail
from ..python_env import uv
from ..worker.environment import setup_environment
from ..worker.worker_spec import place_before_go, read_secrets
from . import done

SHELL = "/bin/sh"
_LOOK_AGAIN = 0.1
_PIP = {
    "UV_DEFAULT_INDEX": "PIP_INDEX_URL",
    "UV_INDEX_URL": "PIP_INDEX_URL",
    "UV_EXTRA_INDEX_URL": "PIP_EXTRA_INDEX_URL",
    "UV_FIND_LINKS": "PIP_FIND_LINKS",
    "UV_NO_INDEX": "PIP_NO_INDEX",
}
_LINES_TOLD = 5


class SetupFailed(OSError):
    """The commands did not succeed; the text names the one that failed, how it ended, and its last lines."""


class Setup:
    """The setup of one node in one attempt.

    Attributes:
        workers: The processes of the commands, and of volume probes before them.
        run_id: The name of the run after which the workers start (`Done.run`); "" before it, and in a container.
    """

    def __init__(self, config: AgentConfig, paths: AttemptPaths) -> None:
        self._config = config
        self._paths = paths
        self._rank = config.ranks[0]
        self._stream = paths.stream(self._rank, "setup")
        self._ended: asyncio.Future[dict[str, Any]] | None = None
        self._record: done.Record | None = None
        self._state: dict[str, Any] = {}
        self._said_before = 0
        self.run_id = ""
        self.workers = Workers(
            self._spec(),
            paths,
            node=config.node_rank,
            task=config.task,
            attempt=config.attempt,
            stop_signal=15,
            grace=config.grace,
            report=self._on_end,
            workdir=config.workdir,
        )

    async def get_ready(self, scene: Awaitable[Mapping[str, Any]]) -> dict[str, Any]:
        """Start the processes below which the commands run. Returns their state, as `Workers.connect` does.

        Args:
            scene: What the commands see of volumes and buckets (node/mount_namespace/worker_view.py).
        """
        self._state = await self.workers.connect(scene)
        return self._state

    async def run(self) -> None:
        """Run the commands, unless a valid run of them is recorded on this machine.

        Raises:
            SetupFailed: A command failed, or they took too long.
            WorkersLost: The setup was stopped.
        """
        until = time.monotonic() + self._config.setup_seconds
        record = self._record = done.Record(self._config, self._paths)
        with record.lock() as lock:
            while not done.take(lock):
                if time.monotonic() > until:
                    raise SetupFailed(f"setup waited {self._limit} for another node of its machine")
                await asyncio.sleep(_LOOK_AGAIN)
            if self._config.container is not None:
                # What is installed in a container does not outlast the attempt, and is not on the node itself.
                await self._run_all(until)
                return
            found = record.find()
            if found is not None:
                self.run_id = found.run
                whose = "this task" if found.ours else "an earlier task on this warm node"
                self._say(f"setup was done for {whose}; it is not run again")
                return
            before = await asyncio.to_thread(record.listing)
            await self._run_all(until)
            self.run_id = await asyncio.to_thread(record.note, before)

    async def close(self) -> None:
        """Disconnect from the processes, which then end."""
        if self._config.container is None:
            self.workers.dismiss()
        await self.workers.close()

    def note_end(self) -> None:
        """Note that the task has ended on this node, which may be kept warm from now on."""
        if self._record is not None:
            self._record.still_used()

    # The commands

    async def _run_all(self, until: float) -> None:
        environment = self._environment()
        for command in self._config.setup:
            await self._run(command, environment, until)

    async def _run(self, command: str, environment: Mapping[str, str], until: float) -> None:
        self._say(f"$ {command.strip()}")
        self._said_before = sizes({"setup": self._stream})["setup"]
        self._ended = asyncio.get_running_loop().create_future()
        self.workers.start([self._order(command, environment)])
        try:
            async with asyncio.timeout(until - time.monotonic()):
                ended = await asyncio.shield(self._ended)
        except TimeoutError:
            await self.workers.stop()
            longer = "setup_timeout= gives it more"
            raise SetupFailed(
                f"setup failed: {_named(command)} did not end within {self._limit} ({longer}){self._words()}"
            ) from None
        if ended["code"] != 0 or ended["failure"]:
            how = (ended["failure"] or {}).get("message") or "was stopped"
            raise SetupFailed(f"setup failed: {_named(command)} {how}{self._words()}")

    def _on_end(self, body: dict[str, Any]) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(body)

    def _order(self, command: str, environment: Mapping[str, str]) -> dict[str, Any]:
        config, paths = self._config, self._paths
        stream = str(self._stream)
        return {
            "rank": self._rank,
            "local_rank": 0,
            "node": config.node_rank,
            "name": config.name,
            "environment": dict(environment),
            "workdir": config.workdir or str(paths.home),
            "out": stream,
            "err": stream,
            "result": str(paths.directory / "setup.result"),
            "failure": str(paths.directory / "setup.failure"),
            "argv": [SHELL, "-e", "-c", command],
        }

    def _environment(self) -> dict[str, str]:
        config, inside = self._config, self._state.get("environment")
        environment = setup_environment(
            os.environ if inside is None else inside,
            place_before_go(config, inside),
            config.environment,
            read_secrets(self._paths.secrets),
        )
        if inside is None:
            given = {**_for_installers(config.python), **self._sources()}
            environment = {**given, **environment}
        return environment

    def _sources(self) -> dict[str, str]:
        """The variables of package indexes: the settings of uv that were sent with the task, and the same for pip."""
        found = uv.settings(self._paths.packages, self._config.environment)
        return {**found, **{_PIP[name]: value for name, value in found.items() if name in _PIP}}

    def _spec(self) -> dict[str, Any]:
        config, paths = self._config, self._paths
        return client.make_spec(
            task=config.task,
            socket=client.socket_path(f"{paths.home}/setup"),
            python=config.python or sys.executable,
            log=str(paths.directory / "setup.log"),
            function=False,
            idle=0.0,
        )

    # Texts

    def _say(self, text: str) -> None:
        with suppress(OSError), open(self._stream, "a", encoding="utf-8") as file:
            file.write(f"{text}\n")

    def _words(self) -> str:
        """The last lines of the command that failed, as a clause for the error message."""
        lines = [line for line in tail(self._stream, self._said_before) if line.strip()]
        told = lines[-_LINES_TOLD:]
        return f"; its last lines: {' | '.join(told)}" if told else "; it said nothing"

    @property
    def _limit(self) -> str:
        return f"{self._config.setup_seconds:.4g} s"


def _for_installers(python: str) -> dict[str, str]:
    """Variables that make uv, and a pip from outside this environment, install into this environment."""
    directory = os.path.dirname(python)
    root = os.path.dirname(directory)
    if not os.path.isfile(os.path.join(root, "pyvenv.cfg")):
        return {}
    own_pip = os.path.exists(os.path.join(directory, "pip"))
    return {"VIRTUAL_ENV": root, **({} if own_pip else {"PIP_PYTHON": python})}


def _named(command: str) -> str:
    """The command, or the first line of a script, for error messages."""
    lines = command.strip().splitlines()
    return f"`{lines[0]}`" if len(lines) == 1 else f"the script that begins with `{lines[0]}`"
