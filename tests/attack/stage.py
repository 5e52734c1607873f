"""Where a case happens: test hosts, a FLOW_HOME on the laptop, and one task of which every phase can be held."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowlite.state.store import Store, TaskRecord
from flowlite.supervise.process import launch
from flowlite.supervise.record.paths import TaskPaths
from flowlite.testing.hosts import clock
from tests.attack.cases import NODES, Case
from tests.helpers import kill_processes_of_home, put_agent

if TYPE_CHECKING:
    from flowlite.api.task import Task
    from flowlite.testing.hosts import Cluster, Host

PROGRAM = Path(__file__).parent / "program"
HOLD_IMPORT, HOLD_FINISH = "tmp/attack-import", "tmp/attack-finish"
HOSTILE = "tmp/attack-hostile"
SECRET = "hunter2-of-the-attack"
NODE_HOME = "root/.flowlite-node"
CLOCK = "ATTACK_CLOCK"
"""Variable with the file by which the clock of this process and of all it starts can be moved."""


class Ground:
    """Hosts for many cases, one after the other. Everything of this process is on their laptop."""

    def __init__(self, cluster: Cluster, scratch: Path) -> None:
        self.cluster = cluster
        self.scratch = scratch
        project = scratch / "project"
        shutil.copytree(PROGRAM, project)
        sys.path.insert(0, str(project))
        self.program: Any = importlib.import_module("attacked")

    @classmethod
    @contextmanager
    def lay_out(cls) -> Iterator[Ground]:
        """Hosts that are gone at the end."""
        from flowlite.testing.hosts import Cluster

        scratch = Path(tempfile.mkdtemp(prefix="flow-attack-"))
        try:
            with Cluster(NODES + 1) as cluster, cluster.enter_laptop():
                yield cls(cluster, scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    @contextmanager
    def stage(self, case: Case) -> Iterator[Stage]:
        """A fresh FLOW_HOME, and hosts as on their first day."""
        home = Path(tempfile.mkdtemp(prefix="flow-"))
        put_agent(home)
        names = json.dumps([host.name for host in self.cluster])
        (home / "config.toml").write_text(
            f'provider = "ssh"\n[ssh.pools.lab]\nhosts = {names}\npython = "{sys.executable}"\n'
        )
        (self.cluster.shared / "life").mkdir()
        before = dict(os.environ)
        for name in [name for name in os.environ if name.startswith("FLOW_")]:
            del os.environ[name]
        os.environ.update(self.cluster.client_environment())
        os.environ.update(FLOW_HOME=str(home), FLOW_SYNC="false", ATTACK_TOKEN=SECRET)
        try:
            yield Stage(self, home, case)
        finally:
            os.environ.clear()
            os.environ.update(before)
            kill_processes_of_home(home)
            home.with_name(f"{home.name}-poisoned").unlink(missing_ok=True)
            shutil.rmtree(home, ignore_errors=True)
            self.cluster.reset()


class Stage:
    """One case under way."""

    def __init__(self, ground: Ground, home: Path, case: Case) -> None:
        self.case = case
        self.cluster = ground.cluster
        self.program = ground.program
        self.home = home
        self.task: Task[Any] | None = None
        self._looked = 0.0
        self.cancelled_in: tuple[str, str, float] | None = None
        self.healed_at = 0.0

    def submit(self) -> None:
        """Starts the task. Its nodes prepare until `open_import`, its workers count until `finish`."""
        for host in self.cluster:
            (host.root / HOLD_IMPORT).touch()
        function = self.program.count.options(
            retries=self.case.retries,
            secrets=["ATTACK_TOKEN"],
            name="attacked",
            max_run_time_hours=0.5,
        )
        self.task = function.spawn()
        self.store = Store(self.home / "state.db")
        self.paths = TaskPaths(self.home, self.task.id)

    @property
    def id(self) -> str:
        """The task's."""
        assert self.task is not None
        return self.task.id

    @property
    def record(self) -> TaskRecord:
        """Its row in the store; somebody looks after its supervisor meanwhile, as users do."""
        if time.monotonic() - self._looked > 1.0:
            self._looked = time.monotonic()
            with suppress(Exception):
                launch.ensure_supervisors(self.store, self.home, only=self.id)
        return self.store.get_task(self.id)

    @property
    def poisoned(self) -> Path:
        """A file that is there once something that a node sent has been executed here."""
        return self.home.with_name(f"{self.home.name}-poisoned")

    @property
    def events(self) -> list[tuple[str, str]]:
        """What its journal says."""
        return [(event.kind, event.text) for event in self.store.events(self.id)]

    def host_of(self, node: int) -> Host:
        """The host that is node so-and-so, or will be."""
        roster = self.record.roster if self.task is not None else ()
        named = next(
            (host for host in self.cluster if roster and f"-{host.name}" in roster[node]), None
        )
        return named or self.cluster[node]

    def move_own_clock(self, seconds: float) -> None:
        """Moves the clock of the client, of this process too; the others of this machine keep theirs."""
        clock.move(Path(os.environ[CLOCK]), seconds)

    def directories(self, node: int) -> list[Path]:
        """Directories of an attempt on the host of a node, once they are there."""
        with suppress(RuntimeError):
            return list((self.host_of(node).root / NODE_HOME / "tasks").glob(f"{self.id}-*/a*"))
        return []

    def on_all(self, name: str) -> bool:
        """Whether every node has a file of that name for its attempt."""
        return all(
            any((each / name.format(node=node)).exists() for each in self.directories(node))
            for node in range(NODES)
        )

    def open_import(self, *nodes: int) -> None:
        """Lets nodes be done with their preparations; all of them, where none are named."""
        hosts = [self.host_of(node) for node in nodes] or list(self.cluster)
        for host in hosts:
            if host.alive:
                (host.root / HOLD_IMPORT).unlink(missing_ok=True)

    def finish(self) -> None:
        """Lets the workers return."""
        for host in self.cluster:
            if host.alive:
                (host.root / HOLD_FINISH).touch()

    def lives(self) -> list[Life]:
        """The signs that workers have left."""
        return [Life.read(path, self.program) for path in (self.cluster.shared / "life").iterdir()]

    def until(self, condition: Callable[[], object], seconds: float = 90.0) -> bool:
        """Waits for a moment that does not last; False if the task is final before it."""
        deadline = time.monotonic() + seconds
        while not condition():
            if self.record.final or time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True


class Life:
    """What one worker left: when it was there, and how far it came."""

    def __init__(self, name: str, content: bytes, program: Any) -> None:
        attempt, rank, self.host, self.pid = name.split(".")
        self.attempt, self.rank = int(attempt[1:]), int(rank[1:])
        content = content.ljust(program.LIFE.size, b"\0")
        self.first, self.last, self.lines, returned = program.LIFE.unpack(content)
        self.returned = bool(returned)

    @classmethod
    def read(cls, path: Path, program: Any) -> Life:
        """From its file."""
        return cls(path.name, path.read_bytes(), program)

    def __str__(self) -> str:
        return f"rank {self.rank} of attempt {self.attempt} on {self.host} ({self.first:.1f} to {self.last:.1f})"
