"""One crash, from a task that is submitted to a cloud that holds nothing of it any more."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowlite.state.store import Store, TaskRecord
from flowlite.supervise.process import launch
from tests.crash.cases import AFTER, BEFORE, BOOT, END, MACHINE, RUN, Case, Fault
from tests.crash.clouds import CLOUDS, QUICK, SLOW
from tests.helpers import eventually, kill_processes_of_home, put_agent

if TYPE_CHECKING:
    from flowlite import TaskConfig
    from flowlite.provider import Plan
    from flowlite.testing.cloud import CloudInABox
    from tests.crash.clouds import Cloud

COMMAND = ["sh", "-c", "echo done"]
# What a task says while its machines boot, or are not there yet.
_WAITS = ("starting", "auction", "no room", "capacity", "again")
LOOKS = ("DescribeInstances", "get_bid", "get_instances")
# Seconds for which a call may still come, once there is something: of those that look, and of those that make it.
PATIENCE, SETTLES = 12.0, 3.0
# Of the kills at random: how many are at a call, up to which one, for how long a supervisor lives at most, and how many
# tasks are cancelled afterwards.
_AT_A_CALL, _CALLS, _LONGEST_LIFE, _CANCELS = 0.7, 30, 20.0, 0.3
# How much work the end of a task may take: seconds without any, calls of its cloud, clean-ups for what costs nothing.
_IDLE, _MOST_CALLS, _CLEAN_UPS = 90.0, 1000, 20
_DAY_LATER = (
    "read u r < /proc/uptime; echo $((${u%.*} + 90000)).00 $r > /run/later && "
    "mount --bind /run/later /proc/uptime"
)


@dataclass
class Home:
    """A FLOW_HOME on the client's machine, with one task."""

    directory: Path
    task: str = ""

    @functools.cached_property
    def store(self) -> Store:
        """Its store."""
        return Store(self.directory / "state.db")

    @property
    def record(self) -> TaskRecord:
        return self.store.get_task(self.task)

    def story(self) -> str:
        """What became of the task, for the message of a failed test."""
        if not self.directory.exists():
            return "its home is gone"
        log = self.directory / "tasks" / self.task / "supervisor.log"
        record = self.record
        text = log.read_text()[-2000:] if log.exists() else ""
        return f"{record.state}: {record.reason}\n{text}"

    def record_task(self, provider: str, config: TaskConfig, plan: Plan) -> None:
        """Records the task of this home; nobody supervises it yet."""
        from flowlite.supervise.cleanup import background_gc

        background_gc.remember_paid(self.directory, provider)
        with launch.draft_task(self.directory) as draft:
            record = launch.submit(
                self.store,
                draft,
                name="crash",
                function="true",
                config=config.to_dict(),
                plan=plan,
                call={"kind": "command", "argv": COMMAND},
                supervise=False,
            )
        self.task = record.id


class Harness:
    """Runs cases against the clouds of one box, one after the other."""

    def __init__(self, box: CloudInABox, root: Path) -> None:
        self.box = box
        self._root = root
        self._clouds: dict[str, Cloud] = {}
        self._plans: dict[str, Any] = {}
        self._count = 0

    def cloud(self, name: str) -> Cloud:
        """One of the box's clouds."""
        if name not in self._clouds:
            self._clouds[name] = CLOUDS[name](self.box)
        return self._clouds[name]

    # A task

    def submit(self, cloud: Cloud) -> Home:
        """Records a task; nobody supervises it yet. It is planned once."""
        from flowlite.api.client import Flow

        self._count += 1
        home = Home(self._root / f"home{self._count}")
        home.directory.mkdir()
        put_agent(home.directory)
        (home.directory / "config.toml").write_text(cloud.settings())
        with self.on(home):
            if cloud.name not in self._plans:
                self._plans[cloud.name] = Flow().plan(config_of(cloud.name))
            config, plan = self._plans[cloud.name]
            home.record_task(cloud.name, config, plan)
        return home

    @contextlib.contextmanager
    def on(self, home: Home) -> Iterator[None]:
        """On the client's machine, with this FLOW_HOME."""
        with _variables({"FLOW_HOME": str(home.directory)}), self.box.enter():
            yield

    # A case

    def crash(self, cloud: Cloud, case: Case) -> tuple[Home, bool]:
        """Takes a task to its crash; gives its home, and whether it was hit where it should be.

        What does not come that far is killed where it waits, which is a crash as well.
        """
        home = self.submit(cloud)
        control = cloud.control
        boot = QUICK if case.phase == RUN else SLOW[case.lost]
        cloud.suffer(cloud.points.faults[case.fault], boot)
        if case.phase == END:
            with self.on(home):
                pid = launch.start_supervisor(home.directory, home.task)
            # As soon as something is asked for, there is something to end.
            eventually(
                lambda: cloud.existing(home.task) or waits(home) or not _alive(pid),
                timeout=90,
                every=0.1,
                what=home.story(),
            )
            control.kill_client(case.action, case.when, skip=case.nth)
            Store(home.directory / "state.db").request_cancel(home.task)
        else:
            control.kill_client(case.action, case.when, skip=case.nth)
            with self.on(home):
                pid = launch.start_supervisor(home.directory, home.task)
        hit = self._wait_for_hit(cloud, home, pid, case)
        if case.lost == MACHINE:
            kill_processes_of_home(home.directory)
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        eventually(lambda: not _alive(pid))
        cloud.soothe()
        return home, hit

    def _wait_for_hit(self, cloud: Cloud, home: Home, pid: int, case: Case) -> bool:
        waiting = 0.0
        until = time.monotonic() + 90
        while time.monotonic() < until:
            if not _alive(pid):
                return not home.record.final
            if home.record.final:
                return False
            if case.phase == BOOT and (waits(home) or cloud.existing(home.task)):
                waiting += 0.05
                if waiting > (PATIENCE if case.action in LOOKS else SETTLES):
                    return False
            time.sleep(0.05)
        return False

    def uneventful(self, cloud: Cloud) -> tuple[set[str], Home]:
        """A task to which nothing happens: the calls that it makes from its intent to its end."""
        home = self.submit(cloud)
        cloud.suffer(Fault(), QUICK)
        before = len(cloud.control.calls)
        with self.on(home):
            launch.start_supervisor(home.directory, home.task)
        eventually(lambda: home.record.final, timeout=90, every=0.1, what=home.story())
        assert home.record.state == "completed", home.story()
        return {action for action, _ in cloud.control.calls[before:]}, home

    # Kills at any moment

    def kill_at_random(self, seed: int) -> None:
        """A task in a cloud at its unkindest, killed up to three times, and one `flow gc` after that.

        Nothing that costs money is left then, and `flow gc` has launched nothing. What costs nothing may take more of
        them, as long as EC2 refuses to delete it.
        """
        chance = random.Random(seed)
        cloud = self.cloud(chance.choice(list(CLOUDS)))
        home = self.submit(cloud)
        try:
            cloud.suffer(Fault(), chance.choice((QUICK, 2.0, 8.0)))
            self.box.unkind(seed)
            for _ in range(chance.choice((1, 1, 2, 3))):
                self._kill_once(cloud, home, chance)
                if home.record.final:
                    break
            if chance.random() < _CANCELS:
                home.store.request_cancel(home.task)
            launches = cloud.launches()
            self._gc(home)
            self.box.unkind(None)
            _while_it_moves(cloud, home, lambda: not cloud.existing(home.task))
            assert cloud.launches() == launches, f"`flow gc` launched something {home.story()}"
            with self.on(home):
                launch.cancel(home.store, home.directory, home.task)
            for _ in range(_CLEAN_UPS):
                if not (left := cloud.left_over(home.task)):
                    break
                self._gc(home)
                time.sleep(0.5)
            else:
                raise AssertionError(f"{left} {home.story()}")
        except BaseException as error:
            error.add_note(f"FLOW_CRASH_SEED={seed}, {cloud.name}: {home.story()}")
            raise
        finally:
            self.forget(home)
            self.box.unkind(None)
            cloud.soothe()

    def _kill_once(self, cloud: Cloud, home: Home, chance: random.Random) -> None:
        if chance.random() < _AT_A_CALL:
            when = chance.choice((BEFORE, AFTER))
            cloud.control.kill_client("*", when, skip=chance.randrange(_CALLS))
        with self.on(home):
            pid = launch.start_supervisor(home.directory, home.task)
        until = time.monotonic() + chance.uniform(0.0, _LONGEST_LIFE)
        while time.monotonic() < until and _alive(pid) and not home.record.final:
            time.sleep(0.05)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: not _alive(pid))
        cloud.control.clear_faults()
        time.sleep(chance.choice((0.0, 0.0, 3.0)))

    def _gc(self, home: Home) -> None:
        from flowlite.cli import main

        with self.on(home), contextlib.suppress(SystemExit):
            main(["gc"])

    # What comes after

    def recover(self, cloud: Cloud, case: Case, home: Home) -> None:
        """The next `flow` command, which is all that the task needs to come to its end."""
        from flowlite.cli import main

        what = "cancel" if case.phase == BOOT else "status"
        with self.on(home), contextlib.suppress(SystemExit):
            main([what, home.task])
        final = time.monotonic() + 90
        while not home.record.final:
            assert time.monotonic() < final, home.story()
            # A client that watches looks after the supervisor, too; the machines of a test are slow.
            with self.on(home):
                launch.ensure_supervisors(
                    Store(home.directory / "state.db"), home.directory, only=home.task
                )
            time.sleep(0.1)
        eventually(lambda: not cloud.existing(home.task), every=0.2, what=home.story())
        # What costs nothing is left to the tidying up that every command starts now and then.
        until = time.monotonic() + 40
        while (left := cloud.left_over(home.task)) and time.monotonic() < until:
            self._gc(home)
            time.sleep(0.5)
        assert not left, f"{left} {home.story()}"

    def be_gone(self, cloud: Cloud, home: Home) -> str:
        """The client's machine never comes back. Gives who ended what there was: "itself", or "gc" from elsewhere.

        Time passes on the task's machine, if it has one. What no machine can end by itself (a cloud says of itself
        when that is so, and so do the docs) is ended by `flow gc` on another machine of the same account.
        """
        shutil.rmtree(home.directory)
        until = time.monotonic() + 90
        able, hastened = False, ""
        while left := cloud.existing(home.task):
            machine = cloud.machine_of(home.task)
            if machine is not None and hastened != machine["id"] and self._let_time_pass(machine):
                able, hastened = cloud.can_end(self.box.host(machine)), str(machine["id"])
            if not able and (hastened or machine is None) and cloud.needs_gc:
                self._tidy_up_elsewhere(cloud)
                eventually(lambda: not cloud.existing(home.task), every=0.2)
                return "gc"
            assert time.monotonic() < until, left
            time.sleep(0.1)
        return "itself"

    def _tidy_up_elsewhere(self, cloud: Cloud) -> None:
        """`flow gc` in a FLOW_HOME that has never heard of the task."""
        from flowlite.cli import main

        self._count += 1
        other = Home(self._root / f"home{self._count}")
        other.directory.mkdir()
        (other.directory / "config.toml").write_text(cloud.settings())
        with self.on(other), contextlib.suppress(SystemExit):
            main(["gc", "--all-homes", "--yes"])

    def _let_time_pass(self, machine: Mapping[str, Any]) -> bool:
        """A day goes by on a machine, whose agent has given up by then. False if it has no watchdog yet."""
        host = self.box.host(machine)
        try:
            commands = {pid: _command(pid) for pid in host.pids()}
            # Between two looks of the watchdog: by then it knows when it began.
            if not {b"sh /var/lib/flowlite/watchdog", b"sleep 2"} <= set(commands.values()):
                return False
            for pid in (pid for pid, command in commands.items() if b"agent.pyz" in command):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return host.exec(["sh", "-c", _DAY_LATER]).returncode == 0
        except (OSError, RuntimeError):
            return False

    def forget(self, home: Home) -> None:
        """Ends what a test may have left on the client's machine."""
        kill_processes_of_home(home.directory)
        shutil.rmtree(home.directory, ignore_errors=True)


def _while_it_moves(cloud: Cloud, home: Home, probe: Callable[[], bool]) -> None:
    """Polls until `probe` is true, as long as the task's supervisor calls its cloud or changes the task.

    The limits are of work, since what a minute is enough for depends on the load of the machine.
    """
    seen: tuple[Any, ...] = ()
    first, since = len(cloud.control.calls), time.monotonic()
    while not probe():
        record = home.record
        now = (len(cloud.control.calls), record.state, record.reason)
        if now != seen:
            seen, since = now, time.monotonic()
        assert now[0] - first < _MOST_CALLS, f"{now[0] - first} calls: {home.story()}"
        assert time.monotonic() - since < _IDLE, f"nothing for {_IDLE:g} s: {home.story()}"
        time.sleep(0.2)


def config_of(provider: str) -> Any:
    from flowlite import TaskConfig

    return TaskConfig(
        command=COMMAND, provider=provider, name="crash", max_run_time_hours=1, grace_seconds=1
    )


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ")
    return b""


def waits(home: Home) -> bool:
    """Whether a task waits for its machines, and will for long."""
    record = home.record
    waits = record.state == "provisioning" and any(word in record.reason for word in _WAITS)
    return waits or record.final


def _alive(pid: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@contextlib.contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
