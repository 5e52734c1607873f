"""A worker of a batch task. It waits for tasks from `srun`; on rank 0 it also runs the script.

A task's output is written to the files of its worker, unless the output of srun was redirected.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..config.agent_config import AgentConfig, AttemptPaths
from ..protocol.channel import Channel
from ..protocol.framing import Frame, encode
from ..system import atomic_files, caught_signals, node_facts, processes
from ..system.signals import signal_name
from . import hostlist, process_limits, shell_startup, slurm_environment
from .rendezvous_file import JobFacts, dial, programs, write_programs
from .srun_options import signal_number
from .task_runner import Runner

EXIT_STOPPED = 143
_LEADER_GONE = "the agent of node 0, which runs the batch script, does not answer any more"
_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
_OF_CLUSTER = (
    *("SLURM_ARRAY_JOB_ID", "SLURM_CLUSTER_NAME", "SLURM_CPUS_ON_NODE", "SLURM_GPUS_ON_NODE"),
    *("SLURM_JOB_CPUS_PER_NODE", "SLURM_JOB_ACCOUNT", "SLURM_JOB_PARTITION", "SLURM_JOB_QOS"),
)
"""Variables for which Slurm's values are better than those derived from the script."""


def main(order: Mapping[str, Any]) -> int:
    """Runs the worker of an order with "batch". Returns its exit code."""
    worker = _GangWorker(order)
    code = asyncio.new_event_loop().run_until_complete(worker.run())
    for number in (*_PASSED_ON, *worker.stops):
        # The outcome is known: a stop signal must not change it any more.
        signal.signal(number, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    return code


class _GangWorker:
    """One worker of the gang.

    Attributes:
        stops: Signals by which the gang is stopped.
        lost: Whether the connection to the router is gone.
    """

    def __init__(self, order: Mapping[str, Any]) -> None:
        self._order = order
        self._batch: dict[str, Any] = order["batch"]
        self._paths = AttemptPaths(Path(self._batch["directory"]))
        self._config = AgentConfig.from_json(self._paths.config.read_bytes())
        self._local = int(order["local_rank"])
        self._ground = self._survey()
        self._over = asyncio.Event()
        self._stopped = False
        self._script: asyncio.subprocess.Process | None = None
        self._runner: Runner | None = None
        self.stops = {signal.SIGTERM, signal.SIGINT, signal.Signals[self._config.stop_signal]}
        self.lost = False

    @property
    def _leads(self) -> bool:
        return self._config.is_leader and self._local == 0

    async def run(self) -> int:
        """Runs until the script has ended, and returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in self.stops:
            loop.add_signal_handler(number, self._on_stop)
        for number in set(_PASSED_ON) - self.stops:
            loop.add_signal_handler(number, self._pass_on, number)
        if self._local == 0:
            self._ground.write(self._paths.directory)
            write_programs(
                self._paths.directory, processes.own_command(sys.executable, flags=("-I", "-S"))
            )
            shell_startup.write_bash_env(self._paths.directory, self._their_bash_env)
        connected, session, tls_session = dial(self._config, self._paths, "worker")
        link = _Link(session, tls_session, self)
        self._runner = Runner(self._config, self._paths, self._ground, link.tell)
        link.begin(connected)
        link.tell({"type": "worker", "node": self._config.node_rank, "local": self._local})
        if self._leads:
            return await self._lead(link)
        await self._over.wait()
        await self._runner.end(asked=self._stopped)
        if self.lost and not self._stopped:
            sys.stderr.write(f"flowlite: {_LEADER_GONE}\n")
            return 1
        return EXIT_STOPPED if self._stopped else 0

    def received(self, message: dict[str, Any], blob: bytes) -> None:
        """Handles a message of the router for this worker."""
        assert self._runner is not None
        if message["type"] == "over":
            self._over.set()
        elif not self._stopped:
            self._runner.received(message, blob)

    def on_lost(self) -> None:
        """Handles the loss of the router, and of the script with it."""
        self.lost = True
        self._over.set()

    # The script

    async def _lead(self, link: _Link) -> int:
        assert self._runner is not None
        try:
            self._script = await self._start_script()
        except OSError as error:
            sys.stderr.write(f"flowlite: the script cannot be started: {error}\n")
            code = 127 if isinstance(error, FileNotFoundError) else 126
        else:
            warning = self._warn_before_the_end()
            code = await self._script.wait()
            if warning is not None:
                warning.cancel()
        await self._runner.end(asked=self._stopped)
        link.tell({"type": "over"})
        link.close()
        await asyncio.sleep(0)
        if code < 0:
            sys.stderr.write(f"flowlite: the batch script was ended by {signal_name(-code)}\n")
            return 128 - code
        return code

    async def _start_script(self) -> asyncio.subprocess.Process:
        path = programs(self._paths.directory) / "slurm_script"
        atomic_files.place(self._batch["script"].encode(), str(path), 0o700)
        return await asyncio.create_subprocess_exec(
            *shell_startup.command(self._batch["script"], path),
            *self._batch.get("arguments", ()),
            stdin=asyncio.subprocess.DEVNULL,
            cwd=self._ground.directory,
            env={**self._ground.environment, "SLURM_TASK_PID": str(os.getpid())},
        )

    def _warn_before_the_end(self) -> asyncio.TimerHandle | None:
        """Schedules the signal of `#SBATCH --signal`, sent some time before the longest run is over."""
        asked, longest = self._batch.get("signal"), self._config.max_run_seconds
        if not asked or longest is None:
            return None
        after = max(0.0, longest - float(asked["seconds"]))
        number = signal_number(str(asked["signal"]))
        return asyncio.get_running_loop().call_later(
            after, self._send_warning, number, asked["script"]
        )

    def _send_warning(self, number: int, script: bool) -> None:
        assert self._script is not None
        if not script:
            self._tell_all(number)
        elif self._script.returncode is None:
            self._script.send_signal(number)

    def _tell_all(self, number: int) -> None:
        """Sends a signal to the tasks of every step, through their srun processes."""
        for pid in processes.descendants([os.getpid()]):
            if _runs_srun(pid, str(self._paths.directory)) and caught_signals.catches(pid, number):
                processes.send(pid, number)

    # Signals

    def _on_stop(self) -> None:
        """Handles the gang's stop signal. Script and tasks are in this process group and have received it too."""
        if self._stopped:
            return
        self._stopped = True
        if self._runner is not None:
            self._runner.tell({"type": "stopping"})
        if not self._leads:
            self._over.set()

    def _pass_on(self, number: signal.Signals) -> None:
        """Forwards a notice to the processes that handle its signal; it would kill the others."""
        pids = self._runner.pids() if self._runner is not None else []
        if self._script is not None and self._script.returncode is None:
            pids = [*pids, self._script.pid]
        for pid in pids:
            if caught_signals.listens(pid, number):
                processes.send(pid, number)

    # Facts about this node

    def _survey(self) -> JobFacts:
        environment = dict(self._order["environment"])
        addresses = [str(each) for each in self._batch["addresses"]]
        names, job = (
            slurm_environment.node_names(addresses),
            slurm_environment.job_number(self._config.task),
        )
        if self._batch.get("cluster"):
            # If Slurm provided the nodes, its names and its number are used.
            names, job = _of_cluster(environment, names, job)
            environment = slurm_environment.of_cluster(
                environment, self._batch, self._config.environment
            )
        counts = [int(each) for each in self._batch["counts"]]
        directory = str(self._order["workdir"])
        cluster = bool(self._batch.get("cluster"))
        own = {
            name: value
            for name, value in environment.items()
            if name not in slurm_environment.RANKS and (cluster or not name.startswith("SLURM_"))
        }
        own |= slurm_environment.of_script(
            self._batch,
            job=job,
            names=names,
            counts=counts,
            directory=directory,
            cores=node_facts.cores(),
            attempt=self._config.attempt,
            pid=os.getpid(),
        )
        own |= _of_user()
        if cluster:
            own |= {name: environment[name] for name in _OF_CLUSTER if name in environment}
        self._their_bash_env = own.get("BASH_ENV", "")
        own |= shell_startup.variables(self._paths.directory, own)
        rank, limits = self._config.node_rank, process_limits.own()
        return JobFacts(job, names, counts, rank, directory, own, cluster, limits)


class _Link(Channel):
    """The connection of a worker to the router."""

    def __init__(self, session: Any, tls_session: Any, worker: _GangWorker) -> None:
        super().__init__(session, tls_session)
        self._worker = worker
        self._early: list[tuple[dict[str, Any], bytes]] | None = []

    def tell(self, message: dict[str, Any], blob: bytes = b"") -> None:
        """Sends a message, once the connection is authenticated."""
        if self._early is not None:
            self._early.append((message, blob))
        else:
            self.send(encode(message), blob)

    def on_opened(self) -> None:
        early, self._early = self._early or [], None
        for message, blob in early:
            self.send(encode(message), blob)

    def on_frame(self, frame: Frame) -> None:
        self._worker.received(frame.message, frame.blob)

    def on_closed(self, error: Exception | None) -> None:
        self._worker.on_lost()


def _of_cluster(
    environment: Mapping[str, str], names: list[str], job: str
) -> tuple[list[str], str]:
    """Returns the names and the job number of Slurm itself, if the gang is a job of a cluster."""
    with contextlib.suppress(hostlist.HostlistError):
        found = hostlist.expand(environment.get("SLURM_JOB_NODELIST", ""))
        if len(found) == len(names):
            names = found
    return names, environment.get("SLURM_JOB_ID", job)


def _of_user() -> dict[str, str]:
    uid = os.getuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        # An account of its own is not needed, as with `docker run --user`.
        name = str(uid)
    return {"SLURM_JOB_UID": str(uid), "SLURM_JOB_USER": name}


def _runs_srun(pid: int, directory: str) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return False
    return any(words[i : i + 2] == [b"srun", directory.encode()] for i in range(len(words)))
