"""Both clouds of the box in this process, on a simulated clock, with machines on paper.

What is real: the supervisor with its store, the adapters with their ledgers, `flow gc`, botocore and httpx with their
retries, and the APIs of the box. What is not: the network to the APIs (`wire`), the time (`timeline`), the machines
(they have a watchdog, and whoever reaches them renews its lease), and the gang that runs on them.
"""

from __future__ import annotations

import asyncio
import functools
import io
import json
import os
import random
import re
import shutil
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stderr, suppress
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from flowlite.node.protocol import messages
from flowlite.state import clock
from flowlite.supervise import background, gang_growth
from flowlite.supervise.attempt.outcome import End
from flowlite.supervise.cleanup import reconcile
from flowlite.supervise.process import growth, main, supervisor, task_lease
from flowlite.supervise.process import launch as start
from flowlite.supervise.process.machines_without_rank import MachinesWithoutRank
from flowlite.supervise.record import process_identity
from flowlite.supervise.record.paths import TaskPaths
from flowlite.supervise.record.process_identity import Process
from flowlite.supervise.record.task_view import TaskView
from flowlite.testing.cloud.ec2 import __main__ as ec2
from flowlite.testing.cloud.ec2.box import AwsBox
from flowlite.testing.cloud.machines import Machine
from flowlite.testing.cloud.mithril.box import MithrilBox
from flowlite.testing.cloud.mithril.service import Mithril
from flowlite.testing.cloud.mithril.world import Rules
from flowlite.testing.cloud.orders import Orders
from flowlite.testing.cloud.serving import Gate, obey
from provider_adapters.aws import every_region
from provider_adapters.aws.session import Clients
from provider_adapters.mithril import nodekey
from provider_adapters.rented.first_contact import Contact, MachineAccess, NotYet, ReadyMachine
from tests.crash import wire
from tests.crash.timeline import RESOLUTION, AtOnce, Background, Loop, Timeline
from tests.plugins.hosts import REGIONS

assert ec2  # It sets the variables that moto reads when it is imported.

MACHINES = 1000
# Of a machine that nobody has reached yet, and of one that somebody has: seconds until it ends itself.
BOOT_LEASE, LEASE = 2400.0, 60.0
DAY = 86_400.0
GOES = 100.0
"""Seconds after which nothing may be left of what was given back."""
LATEST_INTERFACES = 120.0
"""Seconds for which EC2 keeps interfaces of ended machines, at its unkindest."""
_RENEWS = 20.0
_RUNS = 2.0
# Seconds that a gang runs at most that may grow.
_LONGEST_WAIT = 1500
# A sixth of the time for which ranks are asked to stop: hundreds of calls in it are all the same look at a bid.
_ASKS = gang_growth.GIVE_UP_SECONDS / 6
_MITHRIL = "https://mithril.test"
_make = Clients._make
# No process has this id, so whoever asks finds it dead.
_NOBODY = Process(2**30, "simulated")


class Crash(BaseException):
    """The process that made a call is killed. Nothing catches it, as nothing catches SIGKILL."""


class SimulatedHost:
    """One machine: it runs after a while, and ends itself when nobody renews its lease."""

    def __init__(self, world: Simulation, machine: Machine, on_end: Callable[[], None] | None):
        self._world = world
        self.machine = machine
        self.on_end = on_end
        self.running = False
        self.until = 0.0
        self.ends_bids: dict[str, str] = {}

    def start(self) -> None:
        """It runs from now on."""
        self.running = True
        self.renew(BOOT_LEASE)
        self.watch()

    def renew(self, seconds: float) -> None:
        """It lives on for so long."""
        self.until = self._world.timeline.now + seconds

    def watch(self) -> None:
        """Ends it if its lease is over."""
        if not self.running:
            return
        if (left := self.until - self._world.timeline.now) > RESOLUTION:
            self._world.timeline.after(left, self.watch)
            return
        self._world.machines.power_off(self)


class SimulatedMachines:
    """The machines of both clouds; as `flowlite.testing.cloud.machines.Machines`, and as Mithril's `Ground`."""

    def __init__(self, world: Simulation) -> None:
        self._world = world
        self._count = 0
        self._hosts: dict[str, SimulatedHost] = {}

    def boot(
        self,
        name: str,
        *,
        delay: float = 0.0,
        on_up: Callable[[], None] | None = None,
        on_end: Callable[[], None] | None = None,
        script: str | bytes = "",
        **_: Any,
    ) -> Machine:
        """Has an address at once, and runs after the delay."""
        self._count += 1
        place = f"{self._count // 250 % 250}.{self._count % 250 + 1}"
        machine = Machine(name, f"paper{self._count}", f"127.98.{place}", f"127.99.{place}")
        host = self._hosts[name] = SimulatedHost(self._world, machine, on_end)
        if isinstance(script, str):
            host.ends_bids = _constants(script)

        def up() -> None:
            if self._hosts.get(name) is host:
                host.start()
                if on_up is not None:
                    on_up()

        if delay != float("inf"):
            self._world.timeline.after(delay, up)
        return machine

    def power_off(self, host: SimulatedHost) -> None:
        """It ends by itself, after it has ended its bid if it can."""
        host.running = False
        if host.ends_bids:
            self._end_bids(**host.ends_bids)
        if host.on_end is not None:
            host.on_end()

    def _end_bids(self, bids: str, which: str, key: str) -> None:
        """As the program of `nodekey` does."""
        gate, headers = self._world.mithril.gate, {"Authorization": f"Bearer {key}"}
        found = json.loads(wire.call(gate, "GET", bids + which, headers, b"").body)
        for bid in found.get("data", [found]):
            if bid.get("status", "Terminated") != "Terminated":
                wire.call(gate, "DELETE", f"{bids}/{bid['fid']}", headers, b"")

    def end(self, name: str) -> None:
        """It does not run any more."""
        if host := self._hosts.pop(name, None):
            host.running = False

    power_cut = end
    halt = end

    def restart(self, name: str) -> None:
        """Nobody asks for that here."""

    def end_all(self) -> None:
        """None runs any more."""
        for name in list(self._hosts):
            self.end(name)

    def free(self) -> int:
        """There is always room."""
        return MACHINES

    def find(self, name: str) -> Machine | None:
        """The machine of that name."""
        host = self._hosts.get(name)
        return host.machine if host else None

    def host(self, name: str) -> SimulatedHost | None:
        """The same, if it runs."""
        host = self._hosts.get(name)
        return host if host is not None and host.running else None

    def place(self, name: str) -> str:
        """It is made of nothing else."""
        return name if name in self._hosts else ""

    def console(self, name: str) -> str:
        """It said nothing."""
        return ""

    def guard(self, name: str, admitted: list[str]) -> None:
        """Nobody comes in anyway."""

    def write(self, name: str, path: str, text: str | None) -> None:
        """There is no disk."""

    def listen(self, name: str, address: str, port: int) -> None:
        """Nobody could ask."""

    def laptop_connections(self) -> str:
        """There are none."""
        return ""


class SimulatedAws(AwsBox):
    """EC2, in this process."""

    def __init__(self, world: Simulation) -> None:
        from flowlite.testing.cloud.ec2.service import Ec2Service

        self._orders = Orders()
        machines: Any = world.machines
        self.service = Ec2Service(machines, self._orders, world.timeline)
        self.gate = Gate(self.service, self._orders, world.machines, world.kill)
        self.port = 1

    def forget_calls(self) -> None:
        """None has been made, and no fault is on order."""
        self._orders.forget()

    def ask(self, what: str, **arguments: Any) -> Any:
        """Does it here."""
        return obey(what, arguments, self.service, self._orders)


class SimulatedMithril(MithrilBox):
    """Mithril, in this process."""

    def __init__(self, world: Simulation) -> None:
        self._orders = Orders()
        ground: Any = world.machines
        self.service = Mithril(
            ground, 100, Rules(auction_seconds=120.0), background=Background(world.timeline)
        )
        self.gate = Gate(self.service, self._orders, world.machines, world.kill)
        self.port = 1

    @property
    def url(self) -> str:
        return _MITHRIL

    def ask(self, what: str, **arguments: Any) -> Any:
        """Does it here."""
        return obey(what, arguments, self.service, self._orders)


class InlineThreads:
    """Calls in place of threads."""

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """As `Crew.run`."""
        await asyncio.sleep(0)
        return function(*arguments)

    async def each(self, items: Sequence[Any], do: Callable[[Any], Any]) -> list[Any]:
        """As `Crew.each`."""
        return [await self.run(do, item) for item in items]

    def close(self) -> None:
        """Nothing is left."""


class Simulation:
    """Two clouds, their machines, and the processes of one client. As much of a box as `tests.crash.clouds` needs.

    Attributes:
        started: Tasks for which a supervisor was asked for, and nobody was found to lead them yet.
        refuses: Whether gangs that are asked to stop so that they grow go on.
        given_up_at: When one was asked no more, if it went on. It ends some time later.
        before_each_call: Done before each call of a live process to one of the clouds.
    """

    def __init__(self) -> None:
        self.timeline = Timeline()
        self.machines = SimulatedMachines(self)
        self.dead = False
        self.started: list[tuple[Path, str, bool]] = []
        self.said = io.StringIO()
        self.before_each_call: Callable[[], None] | None = None
        self.refuses = False
        self.given_up_at: float | None = None
        self._died: asyncio.Event | None = None
        self._disk: Path | None = None
        self._clients: dict[tuple[str, str, bool], Any] = {}
        with clock.running_on(self.timeline):
            self.aws = SimulatedAws(self)
            # All but two are empty, and each look at all of them takes a call to each.
            self.aws.regions(*REGIONS[:3])
            self.mithril = SimulatedMithril(self)

    def environment(self) -> dict[str, str]:
        """Variables that lead a client here."""
        return {**self.aws.environment(), **self.mithril.environment()}

    @contextmanager
    def enter(self) -> Iterator[None]:
        """The client is in this process anyway."""
        yield

    @contextmanager
    def running(self) -> Iterator[None]:
        """Everything in this process is in the simulation meanwhile."""
        import botocore.endpoint
        import httpx
        import moto.backends
        import moto.core.responses
        from botocore.retries.quota import RetryQuota

        times = SimpleNamespace(sleep=self.timeline.sleep, time=self.timeline.wall)
        began = self.timeline.wall() - self.timeline.since_boot()

        def start_supervisor(
            home: Path, task: str, *, spare: bool = False, launches: bool = True
        ) -> int:
            self.started.append((home, task, launches))
            return _NOBODY.pid

        def connect(contact: Contact, data: Mapping[str, Any]) -> Any:
            return nullcontext(str(data["place"]["id"]))

        def make(clients: Clients, service: str, region: str, once: bool) -> Any:
            # Every process would load the same descriptions of services, for half a second each.
            key = (service, region, once)
            if key not in self._clients:
                self._clients[key] = _make(clients, service, region, once)
            return self._clients[key]

        modules = list(moto.backends.list_of_moto_modules())
        names_of_methods = functools.cache(moto.core.responses.method_names_from_class)
        with ExitStack() as stack:
            stack.enter_context(clock.running_on(self.timeline))
            stack.enter_context(mock.patch.dict(os.environ, self.environment()))
            stack.enter_context(wire.botocore_through(self.aws.gate, self.check_alive))
            stack.enter_context(wire.httpx_through(self.mithril.gate, self.check_alive))
            stack.enter_context(redirect_stderr(self.said))
            for where, name, what in (
                (botocore.endpoint, "time", times),
                (Clients, "_make", make),
                # It is full when a process begins; these clients outlive theirs.
                (RetryQuota, "acquire", lambda quota, amount: True),
                # What only costs time: looks at a directory and a class for every call, certificates for every client.
                (moto.backends, "list_of_moto_modules", lambda: modules),
                (moto.core.responses, "method_names_from_class", names_of_methods),
                (httpx.HTTPTransport, "__init__", lambda transport, **_: None),
                (httpx.HTTPTransport, "close", lambda transport: None),
                (Contact, "reach", self._reach()),
                (Contact, "connect", connect),
                (nodekey, "bring", self._bring),
                (supervisor, "Threads", InlineThreads),
                (every_region, "ThreadPoolExecutor", lambda threads: AtOnce()),
                # Nothing is brought to these machines.
                (supervisor, "_agent_zip", lambda home: (home / "agent.pyz", "")),
                (supervisor, "Attempt", self._attempt),
                (MachinesWithoutRank, "_bring_up_or_probe", self._ready_at_once()),
                (start, "start_supervisor", start_supervisor),
                (reconcile, "start_supervisor", start_supervisor),
                (background, "run_detached", lambda home, module: True),
                # Homes come and go: the time of a simulation is the same in all.
                (clock, "_offset", lambda home: began),
                # A fortieth of its looks: a cancellation is noticed within two seconds.
                (task_lease, "_LOOK_EVERY", 2.0),
                (gang_growth, "GIVE_UP_SECONDS", _ASKS),
                (growth, "GIVE_UP_SECONDS", _ASKS),
            ):
                stack.enter_context(mock.patch.object(where, name, what))
            yield

    def forget(self) -> None:
        """What has ended is not listed any more, and nobody asks for the calls of before."""
        self.aws.forget_ended()
        self.aws.forget_calls()
        self.aws.timing(stop=0.1, unknown=0.3, counted=1.0, late=0.0)
        self.mithril.reset()

    def be_unkind(self, seed: int, chance: random.Random) -> None:
        """Both clouds go wrong by chance from now on."""
        self.aws.unkind(seed)
        self.mithril.unkind(seed)
        self.aws.timing(
            stop=chance.choice((0.1, 30.0)),
            unknown=chance.choice((0.3, 20.0)),
            counted=chance.choice((1.0, 120.0)),
            late=chance.choice((0.0, LATEST_INTERFACES)),
        )
        odd = chance.choice(("", "", "", "", "never", "dies"))
        if odd:
            self.aws.boots(odd)
            self.mithril.odd_boots(odd)

    def be_kind(self) -> None:
        """Nothing goes wrong by itself any more; what has not gone yet takes its time."""
        self.aws.unkind(None)
        self.mithril.unkind(None)

    # Killing

    def kill(self, *_: object) -> None:
        """Kills the client's process, as `orders.kill` does: what is on its disk is what was there at this moment."""
        self.die()
        raise Crash

    def die(self) -> None:
        """From now on the process does nothing, in the cloud or on its disk."""
        if not self.dead and self._disk is not None:
            self.dead = True
            shutil.copytree(self._disk, _kept(self._disk))
            if self._died is not None:
                self._died.set()

    @property
    def leads(self) -> bool:
        """Whether a supervisor runs, or has just been killed."""
        return self._disk is not None

    def check_alive(self) -> None:
        """What a dead process would still do is not done."""
        if self.dead:
            raise Crash
        if self.before_each_call is not None:
            self.before_each_call()

    # Processes

    def lead(
        self,
        home: Path,
        task: str,
        beside: Callable[[], Coroutine[Any, Any, None]] | None = None,
        *,
        launches: bool = True,
    ) -> bool:
        """A supervisor, until it ends, or is killed; whether it came to its end.

        Args:
            beside: What happens meanwhile. When that is over, the supervisor is killed.
            launches: Whether it may launch machines for a task that has none.
        """
        self.dead, self._disk = False, home
        log = TaskPaths(home, task).supervisor
        log.write_text(f'{{"pid": {_NOBODY.pid}, "start": "{_NOBODY.start}"}}')

        async def both(life: Coroutine[Any, Any, None]) -> None:
            # What is killed in the background of an attempt must not let the attempt go on until its next call.
            self._died = asyncio.Event()
            tasks: list[asyncio.Future[Any]] = [
                asyncio.ensure_future(life),
                asyncio.ensure_future(self._died.wait()),
            ]
            if beside is not None:
                tasks.append(asyncio.ensure_future(beside()))
            done, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[0] not in done:
                self.die()
            for each in left:
                each.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            if self.dead:
                raise Crash
            for each in done:
                each.result()

        def run(life: Coroutine[Any, Any, None]) -> None:
            loop = Loop(self.timeline)
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(both(life))

        try:
            owner = process_identity.owner(_NOBODY)
            main.lead(task, home, owner=owner, launches=launches, run=run)
        except Crash:
            self._find_disk(home)
            return False
        finally:
            self._disk = None
        return True

    def command(self, home: Path, do: Callable[[], Any]) -> Any:
        """A command of the client, and the supervisors that it starts, to their ends."""
        with mock.patch.dict(os.environ, {"FLOW_HOME": str(home)}):
            found = do()
        while self.started:
            where, task, launches = self.started.pop(0)
            self.lead(where, task, launches=launches)
        return found

    def _find_disk(self, home: Path) -> None:
        """The disk as it was at the crash."""
        self.dead = False
        shutil.rmtree(home)
        _kept(home).rename(home)

    # Machines, as the client meets them

    def _reach(self) -> Callable[..., list[ReadyMachine | NotYet]]:
        def reach(
            contact: Contact, places: Sequence[MachineAccess], *, task: str, **_: object
        ) -> list[ReadyMachine | NotYet]:
            return [self._meet(place, task) for place in places]

        return reach

    def _meet(self, place: MachineAccess, task: str) -> ReadyMachine | NotYet:
        if self.machines.host(place.id) is None:
            return NotYet(place.id, "silent", f"nothing answers at {place.address}")
        about = {
            "home": f"/root/tasks/{task}-{place.id}",
            "root": "/root",
            "python": "python3",
            "pythons": [["python3", "3.11.2"]],
            "private_address": place.address,
        }
        return ReadyMachine(place.id, {"place": asdict(place), **about})

    def _bring(self, name: str, python: str, text: str) -> None:
        if (host := self.machines.host(name)) is not None:
            host.ends_bids = _constants(text)

    def _ready_at_once(self) -> Callable[[MachinesWithoutRank, Any], Awaitable[str]]:
        async def look_after(machines: MachinesWithoutRank, instance: Any) -> str:
            if (host := self.machines.host(instance.id)) is None:
                return ""
            host.renew(LEASE)
            is_new = instance.id not in machines.ready
            machines.ready.add(instance.id)
            return str(instance.id) if is_new else ""

        return look_after

    def _attempt(self, **given: Any) -> SimulatedAttempt:
        return SimulatedAttempt(self, **given)


class SimulatedAttempt:
    """A gang that runs for a moment, and ends well. In the place of `supervise.attempt.attempt.Attempt`."""

    def __init__(
        self,
        world: Simulation,
        *,
        asked: TaskView,
        nodes: Sequence[Any],
        on_event: Callable[[dict[str, Any]], None],
        **_: Any,
    ) -> None:
        self._world = world
        self.nodes = list(nodes)
        self._on_event = on_event
        self._stopped = asyncio.Event()
        self._why = ("", "")
        self._asked: TaskView = asked
        self._growth = ""
        self.out_of_reach: set[str] = set()
        self.sick: dict[str, str] = {}
        self.sending = ""

    def stop(self, kind: str, reason: str) -> None:
        """As `Attempt.stop`."""
        self._why = self._why if self._stopped.is_set() else (kind, reason)
        self._stopped.set()

    def give_up_collecting(self) -> None:
        """There is nothing to collect."""

    def ask_to_grow(self, reason: str) -> None:
        """As `Attempt.ask_to_grow`."""
        if self._growth and not reason and self._world.refuses:
            self._world.given_up_at = self._world.timeline.now
        self._growth = reason

    async def run(self) -> End:
        """As `Attempt.run`. A gang that may grow runs until it does, and calls `should_stop()`."""
        grows = self._asked.grows_at_checkpoints
        lacks = grows and len(self.nodes) < self._asked.plan.num_instances
        stubborn = lacks and self._world.refuses
        waits = [1.0] * (2 * _LONGEST_WAIT if stubborn else _LONGEST_WAIT)
        for left in waits if lacks else (_RUNS / 2, _RUNS / 2):
            gone = [node.instance.id for node in self.nodes if not self._renew(node)]
            if gone:
                return End(messages.LOST, f"{gone[0]} does not answer", replace=tuple(gone))
            self._on_event({"kind": "go", "age": 0.0})
            if lacks:
                self._on_event({"kind": "stoppable"})
            if stubborn and self._has_gone_on():
                break
            if self._growth and not stubborn:
                return End(messages.GROWING, self._growth)
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._stopped.wait()
                kind, reason = self._why
                return End(messages.STOP_OUTCOMES.get(kind, messages.ERROR), reason)
        return End(messages.DONE, "")

    def _has_gone_on(self) -> bool:
        """Whether it has run for some time after it was asked no more."""
        since = self._world.given_up_at
        return since is not None and self._world.timeline.now > since + 2 * GOES

    def _renew(self, node: Any) -> bool:
        host = self._world.machines.host(node.instance.id)
        if host is not None:
            host.renew(LEASE)
        return host is not None

    async def clear(self) -> list[str]:
        """As `Attempt.clear`."""
        return []

    async def close(self) -> None:
        """As `Attempt.close`."""


def _constants(text: str) -> dict[str, str]:
    """Which bids a program of `nodekey` ends, and with what; {} for a text without one."""
    names = ("BIDS", "WHICH", "KEY")
    found = [re.search(rf"^{name} = '(.*)'$", text, re.M) for name in names]
    values = [match[1] for match in found if match is not None]
    return dict(zip(("bids", "which", "key"), values, strict=True)) if len(values) == 3 else {}


def _kept(home: Path) -> Path:
    return home.with_name(f"{home.name}-at-the-crash")
