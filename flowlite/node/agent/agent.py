"""The agent: one process per node, from the start of an attempt to its end.

The agent joins the rendezvous (and serves it, on the leader), prepares the node, starts the workers at GO and reports
how each ended. It stops its workers when the leader orders it, when the leader is silent for too long, when the longest
run time is over, or when the agent itself gets SIGTERM or SIGINT.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..config import distributed_modes
from ..config.agent_config import AgentConfig, AttemptPaths
from ..config.python_command import STARTED_ANEW
from ..forkserver.worker_group import Workers, WorkersLost
from ..host_lease import secret_files
from ..leader_run.agent_side import LeaderRun
from ..preemption.stop_watch import StopWatch
from ..preflight.master_port import PREFERRED, MasterPort
from ..preflight.readiness import Readiness
from ..protocol.messages import GangSettings, failed
from ..rendezvous.member_client import Fenced, MemberClient, PrepareError, Refused
from ..system import addresses, processes, trace
from ..system.atomic_files import write_atomically
from ..system.retrying import RetryWindow
from ..worker.worker_spec import beyond_inherited, call_with_paths, worker_orders
from . import go_checks
from .forkserver_spec import Needs
from .storage import Storage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..containers.container import Container
    from ..python_env.environments import Ready
    from ..rendezvous.server import RendezvousServer
    from ..sbatch.router import Router
    from ..setup.run import Setup

log = logging.getLogger("flowlite.agent")

SHORTEST_PAUSE, LONGEST_PAUSE, SHARE_OF_PAUSE = 0.002, 0.01, 0.1
"""Seconds between two looks for the leader's address. The pause is a share of the time that it has taken already."""
PREPARE_SECONDS, LOADING_SECONDS = 900.0, 4 * 3600.0
"""Time limits for everything before GO. The second one holds where much may have to be loaded, such as terabytes of
checkpoints (`Needs.loads_much`)."""
GOODBYE_SECONDS = 0.5
"""Time for the last messages to reach the leader, when this agent is asked to end."""


class Agent:
    """One node's part in one attempt. Implements `NodeActions` (node/rendezvous/member_client.py)."""

    def __init__(self, config: AgentConfig, paths: AttemptPaths, secret: bytes) -> None:
        self._config = config
        self._paths = paths
        self._secret = secret
        self._call = call_with_paths(config.call, paths)
        if config.setup and config.container is not None and self._call.get("start") == "auto":
            # The container's first process starts before the setup, so it would not see packages that the setup adds.
            self._call["start"] = "spawn"
        self._link: MemberClient | None = None
        self._server: RendezvousServer | None = None
        self._master: MasterPort | None = None
        self._router: Router | None = None
        self._address: str | None = None
        self._bodies: list[dict[str, Any]] = []
        self._warming: asyncio.Task[dict[str, Any]] | None = None
        self._ended: tuple[str, str] | None = None
        self._began = time.monotonic()
        self._background: set[asyncio.Task[None]] = set()
        self._volume_token = ""
        self._python: Ready | None = None
        self._container: Container | None = None
        self._scene: Mapping[str, Any] | None = None
        self._needs = Needs(config, paths, self._call)
        self._setup: Setup | None = None
        if config.setup:
            from ..setup.run import Setup

            self._setup = Setup(config, paths)
        self._storage = Storage(config, paths, self._tell, self._find_leader)
        self._stop_watch = StopWatch(
            config,
            paths,
            lambda: self._workers.listeners(signal.SIGUSR2),
            self._find_listening_ranks,
        )
        self._leader_run = LeaderRun(config, paths)
        self._readiness = Readiness(config, secret, self._silence_of)
        self._held_back: list[dict[str, Any]] = []
        self._unkept: asyncio.Task[None] | None = None
        self._workers = Workers(
            self._needs.warm_spec(),
            paths,
            node=config.node_rank,
            task=config.task,
            attempt=config.attempt,
            stop_signal=signal.Signals[config.stop_signal],
            grace=config.grace,
            report=self._on_worker,
            workdir=config.workdir,
            not_forked=self._tell_start,
        )
        self._streams = {
            f"{rank}.{stream}": paths.stream(rank, stream)
            for rank in config.ranks
            for stream in ("out", "err", "result")
        }
        if config.setup:
            first = config.ranks[0]
            self._streams[f"{first}.setup"] = paths.stream(first, "setup")

    @property
    def needs(self) -> Needs:
        """What the workers of this node need before they can start."""
        return self._needs

    async def run(self) -> int:
        """Take part in the attempt until the gang is released. Returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_ending, signal.Signals(number).name)
        self._stop_watch.begin()
        outcome, reason = "error", ""
        try:
            part = self._stand_by if self._config.spare else self._take_part
            outcome, reason = await part()
        except Refused as error:
            outcome, reason = "refused", str(error)
        except Fenced as error:
            outcome, reason = "fenced", str(error)
        except Exception as error:
            log.exception("the agent failed")
            reason = f"the agent failed: {type(error).__name__}: {error}"
        finally:
            await self._leave(*(self._ended or (outcome, reason)))
        return 0 if outcome != "error" else 1

    async def _stand_by(self) -> tuple[str, str]:
        """Get everything ready that needs no rank, and wait until an agent with a rank takes over this machine."""
        from . import spare

        self._make_working_directory()
        if self._config.container is None:
            await self._make_environment()
            if self._setup is None and self._needs.keeps_warm:
                self._workers.use(self._needs.kept_spec())
                await self._workers.connect()
        return "stopped", await spare.wait(self._paths)

    async def _take_part(self) -> tuple[str, str]:
        config = self._config
        self._warming = asyncio.create_task(self._get_ready())
        # `prepare` raises the error. If it is never called, asyncio must not warn that the exception was not retrieved.
        self._warming.add_done_callback(lambda task: task.cancelled() or task.exception())
        settings = GangSettings(
            task=config.task,
            attempt=config.attempt,
            roster=tuple(config.roster),
            processes_per_node=config.workers_per_node,
            leader_address=config.leader_address,
            beat=config.beat,
            lost_after=config.lost_after,
            fence_after=config.fence_after,
            join_timeout=config.join_timeout,
            linger=config.linger,
            grace=config.grace,
            prepare_timeout=(LOADING_SECONDS if self._needs.loads_much else PREPARE_SECONDS)
            + (config.setup_seconds if config.setup else 0.0),
            after_stop=float((config.checkpoint or {}).get("final_seconds", 0.0)),
        )
        serving: asyncio.Task[str] | None = None
        self._note_silence(True)
        if config.is_leader:
            with trace.span("serve the rendezvous"):
                leader = await self._lead(settings)
            assert self._server is not None
            serving = asyncio.create_task(self._server.run())
        else:
            with trace.span("wait for the leader's address"):
                leader = await self._find_leader()
        self._address = addresses.address_towards(leader[0])
        await self._readiness.begin(self._address)
        incarnation = os.urandom(8).hex()
        new_tls = None
        if config.tls:
            from ..protocol import tls

            new_tls = tls.client(self._paths.certificate)
        link = MemberClient(
            settings,
            self._secret,
            config.instance,
            incarnation,
            leader,
            self,
            new_tls,
            self._note_silence,
            self._stop_watch,
        )
        self._link = link
        self._stop_watch.join(link)
        try:
            await link.run()
            if serving is not None:
                await serving
        finally:
            if serving is not None:
                serving.cancel()
        source = self._server or link
        return source.outcome or "error", source.reason

    async def _lead(self, settings: GangSettings) -> tuple[str, int]:
        """Start the rendezvous, and write its address and port to `leader.json`. Returns where to dial it."""
        # Imported here, because other nodes do not need the server.
        from ..rendezvous.server import RendezvousServer

        config = self._config
        locks = Path(config.ports_dir) if config.ports_dir else None
        self._master = MasterPort(config.leader_address, locks, config.master_port or PREFERRED)
        new_tls = None
        if config.tls:
            from ..protocol import tls

            new_tls = tls.server(self._paths.certificate, self._paths.certificate_key)
        self._server = RendezvousServer(
            settings,
            self._secret,
            bind=config.bind,
            master=self._master,
            new_tls=new_tls,
            copies=self._storage.checkpoints if self._copies_for_all else None,
        )
        port = await self._server.start()
        place: dict[str, Any] = {"address": config.leader_address, "port": port}
        place |= await self._leader_run.serve()
        if self._storage.sharing is not None:
            place["share"] = await self._storage.sharing.serve()
        if "batch" in self._call:
            from ..sbatch.router import Router

            self._router = Router(config, self._secret, new_tls)
            place["steps"] = self._router.start()
        write_atomically(self._paths.leader, json.dumps(place))
        return config.own_address, port

    async def _find_leader(self) -> tuple[str, int]:
        """Wait for `leader.json`. Returns the leader's address and port."""
        began = time.monotonic()
        while (waited := time.monotonic() - began) < self._config.join_timeout:
            try:
                place = json.loads(self._paths.leader.read_bytes())
                return str(place["address"]), int(place["port"])
            except (OSError, ValueError, KeyError, TypeError):
                pause = max(SHORTEST_PAUSE, SHARE_OF_PAUSE * waited)
                await asyncio.sleep(min(pause, LONGEST_PAUSE))
        raise Fenced(
            f"nobody said where the leader is within {self._config.join_timeout:g} s "
            f"({self._paths.leader} did not come)"
        )

    # NodeActions

    def facts(self) -> dict[str, Any]:
        return self._readiness.facts(self._paths.home, self._address)

    async def prepare(self, order: Mapping[str, Any]) -> dict[str, Any]:
        with trace.span("prepare"):
            return await self._prepare(order)

    async def _prepare(self, order: Mapping[str, Any]) -> dict[str, Any]:
        began = time.monotonic()
        await self._readiness.check_gpus()
        assert self._warming is not None
        try:
            state = await asyncio.shield(self._warming)
            if state["volumes_error"]:
                raise PrepareError(state["volumes_error"])
            if state["workdir_error"]:
                raise PrepareError(
                    f"workers cannot start in the working directory {state['workdir_error']}. An absolute workdir= "
                    "must be on every node; without it they start in a copy of the project"
                )
            if self._setup is not None:
                # The setup may take long, so first make sure that the nodes of the gang can reach each other.
                await self._prove(order, self._setup.workers)
                state = await self._set_up(self._setup)
            if self._call.get("start") == "fork" and state["hazard"]:
                raise PrepareError(f'workers cannot be forked: {state["hazard"]}; use start="auto"')
            if lacking := await self._leader_run.missing():
                raise PrepareError(lacking)
            if self._call["kind"] == "function":
                wrong = await self._workers.prepare(self._call)
                if wrong:
                    raise PrepareError(wrong)
            if self._setup is None:
                await self._prove(order, self._workers)
            measured = await self._readiness.measure(order, self._config.python or sys.executable)
            restored = await self._storage.restore(order)
        except (OSError, WorkersLost) as error:
            passing = getattr(error, "passing", False)
            raise PrepareError(str(error), passing=passing) from error
        return {
            "warm_seconds": round(state["prepare_seconds"], 3),
            "prepare_seconds": round(time.monotonic() - began, 3),
            "failed_imports": state["failed_imports"],
            "fork_hazard": state["hazard"],
            "volumes": state["volumes"],
            **await self._readiness.report(self._python),
            **measured,
            **self._storage.facts(),
            "checkpoint": restored,
        }

    async def start(self, go: Mapping[str, Any]) -> None:
        trace.mark("GO")
        self._readiness.close()
        if self._ended is not None:
            raise WorkersLost("this agent was asked to end")
        if self._volume_token and self._config.is_leader:
            self._workers.forget_probe(self._needs.shared_paths, self._volume_token)
        inside = self._workers.warm.get("environment")
        orders = worker_orders(self._config, self._paths, self._call, go, inside)
        self._leader_run.order(orders, go)
        environment = orders[0]["environment"]
        entry = {
            "container": self._container.entry() if self._container is not None else None,
            "environment": beyond_inherited(environment) if inside is None else environment,
            "workdir": orders[0]["workdir"],
            "reaper": processes.identity(int(self._workers.warm["reaper"])),
            "warm": self._workers.warm["socket"] if self._needs.keeps_warm else None,
        }
        write_atomically(self._paths.environment, json.dumps(entry))
        if (longest := self._longest_run()) is not None:
            asyncio.get_running_loop().call_later(longest, self._on_deadline, longest)
        self._stop_watch.workers_start()
        if self._storage.checkpoints is not None:
            await self._storage.checkpoints.start(int(self._workers.warm["reaper"]))
        self._workers.start(orders)

    async def stop(self, reason: str, grace: float) -> None:
        log.info("stopping %d workers: %s", self._workers.running, reason)
        _, sickness = await asyncio.gather(self._stop_and_copy(grace), self._readiness.sickness())
        if sickness:
            self._tell("sick", sickness)

    def streams(self) -> Mapping[str, Path]:
        return self._streams

    # Preparing

    async def _get_ready(self) -> dict[str, Any]:
        """Do everything that takes time and needs no other node: the Python environment, then the fork server in it.

        Returns the state of the fork server, as `Workers.connect` does.
        """
        with trace.span("get ready: packages, mounts, fork server"):
            self._make_working_directory()
            if self._config.container is not None:
                return await self._get_ready_inside()
            await self._make_environment()
            if self._setup is not None:
                self._setup.workers.use_python(self._config.python)
                return await self._setup.get_ready(self._shown())
            if self._needs.keeps_warm:
                self._workers.use(self._needs.kept_spec())
            return await self._workers.connect(self._storage.ready())

    async def _make_environment(self) -> None:
        if self._config.python_spec is not None:
            from ..python_env import environments

            self._python = await environments.ready(self._config, self._paths)
            self._config.python = self._python.python
            self._workers.use_python(self._python.python)

    async def _shown(self) -> Mapping[str, Any]:
        """What the workers see of volumes and buckets (node/mount_namespace/worker_view.py). Prepares storage once."""
        if self._scene is None:
            self._scene = await self._storage.ready()
        return self._scene

    async def _set_up(self, setup: Setup) -> dict[str, Any]:
        """Run the commands of `setup=`, then start the fork server, so that it sees what they installed."""
        await setup.run()
        if self._config.container is not None:
            state = await self._connect_inside(await self._shown())
        else:
            if self._needs.keeps_warm:
                self._workers.use(self._needs.kept_spec(setup.run_id))
            state = await self._workers.connect(self._shown())
        await setup.close()
        return state

    def _make_working_directory(self) -> None:
        """Make the working directory if it is below the node's directory.

        It does not exist yet where no project file is sent, or none below the directory in which the workers start.
        """
        wanted = self._config.workdir
        if wanted is not None and Path(wanted).is_relative_to(self._paths.home):
            os.makedirs(wanted, mode=0o700, exist_ok=True)

    async def _get_ready_inside(self) -> dict[str, Any]:
        """The same as `_get_ready` for a task with a container, which mounts the volumes itself."""
        from ..containers.container import Container

        shown = await self._shown()
        self._container = Container(self._config, self._paths)
        if self._setup is not None:
            # The commands may change packages, so nothing is imported before they have run.
            bare = {**self._spec_inside(), "imports": []}
            await self._container.start(bare, shown)
            self._setup.workers.use(bare)
            return await self._setup.get_ready(_nothing_more(shown))
        await self._container.start(self._spec_inside(), shown)
        return await self._connect_inside(shown)

    async def _connect_inside(self, shown: Mapping[str, Any]) -> dict[str, Any]:
        """Connects to the fork server in the container. Returns its state."""
        self._workers.use(self._spec_inside())
        state = await self._workers.connect(_nothing_more(shown))
        return {**state, "volumes": [{**each, "how": "container"} for each in shown["volumes"]]}

    def _spec_inside(self) -> dict[str, Any]:
        return {**self._needs.warm_spec(), "inside": True}

    async def _prove(self, order: Mapping[str, Any], workers: Workers) -> None:
        """Check the connections to other nodes and the shared volumes, which are probed through `workers`."""
        await asyncio.gather(
            go_checks.reach_master(
                order, RetryWindow(lambda: self._silence_of(0), self._config.join_timeout)
            ),
            self._probe_volumes(order, workers),
            self._readiness.prove(order),
        )

    async def _probe_volumes(self, order: Mapping[str, Any], workers: Workers) -> None:
        token = self._volume_token = str(order["volume_token"])
        paths = self._needs.shared_paths
        if paths and token and self._config.num_nodes > 1:
            await go_checks.volumes(
                workers,
                paths,
                token,
                write=self._config.is_leader,
                longest=self._config.join_timeout,
            )

    def _silence_of(self, rank: int) -> float:
        """Seconds since the last message of a node. Nodes other than the leader only know the silence of the leader."""
        if self._server is not None:
            return self._server.silence_of(rank)
        return self._link.silence if self._link is not None else 0.0

    # While workers run

    def _tell(self, kind: str, text: str) -> None:
        log.info("%s", text)
        # On the leader, the end of the gang must not overtake it.
        if self._server is not None:
            self._server.notice(self._config.node_rank, kind, text)
        elif self._link is not None:
            self._link.notice(text, kind)

    def _find_listening_ranks(self) -> list[int]:
        if self._config.mode == distributed_modes.MPI:
            # `mpirun` always has a handler, to pass the signal on to processes that may have none.
            return []
        return self._workers.listening_ranks(signal.SIGUSR2)

    def _tell_start(self, why: str) -> None:
        self._tell("start", f"{STARTED_ANEW}: {why}")

    def _note_silence(self, silent: bool) -> None:
        """Create or remove the file `leader.silent`, which tells other programs whether this node hears its leader."""
        with contextlib.suppress(OSError):
            if silent:
                self._paths.leader_silent.touch(mode=0o600)
            else:
                self._paths.leader_silent.unlink()

    def _on_worker(self, body: dict[str, Any]) -> None:
        trace.mark("worker ended", rank=body["rank"])
        self._leader_run.worker_ended()
        self._bodies.append(body)
        checkpoints = self._storage.checkpoints
        if checkpoints is not None:
            checkpoints.worker_ended(body)
        last = not self._workers.running
        if last:
            self._storage.workers_ended()
        if last and self._loses_files:
            self._unkept = asyncio.create_task(self._tell_unkept())
        waits = checkpoints is not None or self._unkept is not None
        if last and waits and not any(map(failed, self._bodies)):
            # The leader ends the gang at the last report, so checkpoints must be copied and notices sent before it.
            self._held_back.append(body)
            self._soon(self._stop_and_copy())
            return
        self._report(body)

    @property
    def _copies_for_all(self) -> bool:
        """Whether this node copies checkpoints that other nodes may write, too."""
        checkpoints = self._storage.checkpoints
        return checkpoints is not None and checkpoints.for_all

    @property
    def _loses_files(self) -> bool:
        """Whether the workers' directory is removed with the node."""
        workdir = Path(self._config.workdir or self._paths.home)
        return workdir.is_relative_to(self._paths.home)

    async def _tell_unkept(self) -> None:
        """Send a notice that names the files which no pattern of `outputs=` keeps. Never raises."""
        workdir, home = self._config.workdir or str(self._paths.home), str(self._paths.home)
        begin = str(self._paths.environment)
        try:
            # Not there any more where somebody has removed the node's directory, with our program in it.
            from ..outputs import listing

            found = await asyncio.to_thread(
                listing.unkept, workdir, home, self._config.outputs, begin
            )
        except (OSError, ImportError) as error:
            log.warning("the working directory cannot be looked through: %s", error)
            return
        if text := listing.sentence(found):
            self._tell("unkept", text)

    def _report(self, body: Mapping[str, Any]) -> None:
        if self._link is not None:
            self._link.report_worker(body)

    async def _stop_and_copy(self, grace: float | None = None) -> None:
        """Stop the workers, make the last copy of the checkpoints, and report workers that were held back for it.

        A copy for all nodes waits for the workers of other nodes. It holds no report back, since a report says which
        worker still runs: the leader waits for that copy itself.
        """
        checkpoints = self._storage.checkpoints
        if checkpoints is not None and self._workers.running:
            checkpoints.hurry()
        try:
            if self._setup is not None:
                await self._setup.workers.stop(grace)
            await self._workers.stop(grace)
            if checkpoints is not None and not checkpoints.for_all:
                await checkpoints.finish()
            if self._unkept is not None:
                await asyncio.shield(self._unkept)
        finally:
            # Without these reports, the gang would never end.
            while self._held_back:
                self._report(self._held_back.pop())
        if checkpoints is not None and checkpoints.for_all:
            try:
                await checkpoints.finish()
            finally:
                if self._server is not None:
                    self._server.copied()

    def _longest_run(self) -> float | None:
        """How many seconds from now the workers may run; None for no limit."""
        bounds = [each for each in (self._config.max_run_seconds,) if each is not None]
        if self._config.paid_seconds is not None:
            # The time before GO was charged, too.
            bounds.append(self._config.paid_seconds - (time.monotonic() - self._began))
        return max(0.0, min(bounds)) if bounds else None

    def _on_deadline(self, longest: float) -> None:
        if not self._workers.running:
            return
        reason = f"the longest run of {longest:.4g} s is over"
        log.info("%s", reason)
        if self._link is not None:
            self._link.halt("deadline", reason)
        self._soon(self._stop_and_copy())

    @property
    def _end_of_gang(self) -> tuple[str, str] | None:
        """Outcome and reason of the gang, once it has ended."""
        link = self._link
        return None if link is None or link.outcome is None else (link.outcome, link.reason)

    def _on_ending(self, name: str) -> None:
        # Once the gang has ended, no worker needs the time that a notice leaves. The agent has to end before the job.
        is_over = self._end_of_gang is not None
        waits = not is_over and self._stop_watch.awaits_reason(lambda: self._end_on(name))
        if not waits:
            self._end_on(name)

    def _end_on(self, name: str) -> None:
        if self._ended is None:
            why = f"the agent of node {self._config.node_rank} got {name}"
            log.info("%s", why)
            # A gang that has ended has not ended because of this signal.
            self._ended = self._end_of_gang or ("preempted", why)
            self._stop_watch.asked_to_end()
            self._soon(self._end())

    async def _end(self) -> None:
        """End because of a signal: tell the leader, stop the workers, and exit."""
        assert self._ended is not None
        if self._link is not None and self._end_of_gang is None:
            self._link.halt(*self._ended)
        if self._storage.checkpoints is not None:
            # The leader says so, unless its order to stop does not arrive.
            late = self._config.grace + self._config.lost_after
            asyncio.get_running_loop().call_later(late, self._storage.checkpoints.others_ended)
        await self._stop_and_copy()
        if self._bodies:
            await asyncio.sleep(GOODBYE_SECONDS)
        await self._leave(*self._ended)
        os._exit(0)

    def _soon(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # The end

    async def _leave(self, outcome: str, reason: str) -> None:
        """End every process and mount of this attempt on the node, then write the report. May be called again."""
        with trace.span("leave"):
            await self._end_all(outcome, reason)

    async def _end_all(self, outcome: str, reason: str) -> None:
        self._readiness.close()
        if self._warming is not None:
            # Now and by itself: `asyncio.run` cancels all tasks at once, also asyncio's own that start a process, and
            # then waits for ever for the end of that process.
            self._warming.cancel()
            await asyncio.gather(self._warming, return_exceptions=True)
        if self._storage.checkpoints is not None:
            # The gang has ended, or this node is no part of it any more.
            self._storage.checkpoints.others_ended()
        await self._stop_and_copy()
        if self._storage.checkpoints is not None:
            await self._storage.checkpoints.end()
        if self._needs.shared_socket is None and not self._needs.keeps_warm:
            self._workers.dismiss()
        await self._workers.close()
        if self._setup is not None:
            await self._setup.close()
            self._setup.note_end()
        if self._container is not None:
            await self._container.close()
        await self._leader_run.end()
        await self._storage.end()
        if self._server is not None:
            await self._server.close()
        if self._router is not None:
            self._router.close()
        if self._master is not None:
            self._master.release()
        if not self._paths.has_later_attempt:
            # There may be no later clean-up. A further attempt is sent secrets of its own.
            secret_files.forget(str(self._paths.home))
        report: dict[str, Any] = {"outcome": outcome, "reason": reason, "workers": self._bodies}
        if self._server is not None:
            report["first_failure"] = self._server.first_failure
        try:
            write_atomically(self._paths.report, json.dumps(report))
        except OSError as error:
            # The disk is full, or somebody has removed the directory. This agent has to end all the same.
            log.error("the report cannot be written: %s", error)
        log.info("ended: %s %s", outcome, reason)


async def _nothing_more(shown: Mapping[str, Any]) -> dict[str, Any]:
    """The view for a reaper in a container, which has mounted the volumes already."""
    return {**shown, "volumes": []}
