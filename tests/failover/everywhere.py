"""AWS and Mithril, SSH hosts and a Slurm, all up at the same time, and one user on the laptop who can use them all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from flowlite.state.store import Store, TaskRecord
from flowlite.supervise.record import process_identity
from flowlite.testing.cloud import CloudInABox
from flowlite.testing.hosts import Cluster
from flowlite.testing.hosts.root import USER
from flowlite.testing.slurm import SlurmCluster
from tests.flow_commands.run import flow
from tests.helpers import eventually, kill_processes_of_home, whole_lines
from tests.plugins.hosts import seen
from tests.slurm.traces import jobs_of, left_of, processes_of

ROOT = Path(__file__).resolve().parent.parent.parent
HURRIED = Path(__file__).parent / "hurried"
JOBS_RUN_ON, HOSTS, MACHINES = 2, 2, 4
# Long enough for a machine that is busy with other tests.
PATIENCE = 240.0
# A day in which no auction is held, unless the test holds one.
NO_AUCTION = 86400.0
_ALIVE = ("pending", "running", "stopping")
_ZONES = "abcdef"


class Everywhere:
    """The places."""

    def __init__(self) -> None:
        with ExitStack() as stack:
            self.cluster = stack.enter_context(
                Cluster(1 + JOBS_RUN_ON + HOSTS, user=USER, slots=MACHINES, keep=seen())
            )
            self.slurm = SlurmCluster(JOBS_RUN_ON, cluster=self.cluster)
            self.box = stack.enter_context(CloudInABox(boot_seconds=0.3, cluster=self.cluster))
            self._open = stack.pop_all()
        self.hosts = list(self.cluster)[1 + JOBS_RUN_ON : 1 + JOBS_RUN_ON + HOSTS]

    def close(self) -> None:
        """Removes all of them."""
        self._open.close()

    def reset(self) -> None:
        """Returns them to their first state."""
        self.box.aws.reset()
        self.box.mithril.reset()
        self.box.aws.timing(boot=0.3, stop=0.1)
        self.slurm.reset()
        for host in self.hosts:
            host.kill()
            host.start(fresh=True)

    def settings(self) -> str:
        """The configuration file of a user who has set all of them up."""
        names = json.dumps([f"root@{host.name}" for host in self.hosts])
        return (
            '[aws]\nregion = "us-east-1"\nlease = "10m"\nlisting_lag = "2s"\n'
            '[mithril]\nlease = "10m"\nlisting_lag = "2s"\n'
            f'[slurm]\nlogin = "{self.slurm.login}"\npython = "{sys.executable}"\n'
            f'shared_dir = "{self.slurm.shared}/flowlite"\n'
            f'[ssh.pools.lab]\nhosts = {names}\npython = "{sys.executable}"\n'
        )

    def holds(self, task: str) -> set[tuple[str, str]]:
        """What there is of a task at each place, by the place's own books."""
        aws, mithril = self.box.aws.instances(), self.box.mithril.live_bids()
        found = {
            ("aws", str(each["id"]))
            for each in aws
            if each["state"] in _ALIVE and each["tags"].get("flowlite:task") == task
        }
        found |= {("mithril", str(each["id"])) for each in mithril if f"-{task}-" in each["name"]}
        found |= {("slurm", line.split()[0]) for line in jobs_of(self.slurm, task)}
        for host in self.hosts:
            found |= {("ssh", said) for said in processes_of(host, task)}
        return found

    def charged(self) -> dict[str, list[tuple[float, float | None]]]:
        """When each cloud has charged for a machine since the reset, as Unix times; None for until now."""
        bills = {"aws": self.box.aws.bill(), "mithril": self.box.mithril.bill()}
        return {
            name: [(each["since"], each["until"]) for each in bill if each["since"]]
            for name, bill in bills.items()
        }


class User:
    """A user of all of them: a FLOW_HOME on the laptop, and the commands that are run there."""

    def __init__(self, places: Everywhere, home: Path, variables: Mapping[str, str]) -> None:
        self.places = places
        self.home = home
        (home / "config.toml").write_text(places.settings())
        self.environment = {
            **places.cluster.client_environment(),
            **places.box.environment(),
            "FLOW_HOME": str(home),
            "FLOW_SYNC": "false",
            "PYTHONPATH": f"{HURRIED}:{ROOT}",
            **variables,
        }

    @property
    def store(self) -> Store:
        return Store(self.home / "state.db")

    def client(self, *words: str) -> subprocess.Popen[bytes]:
        """A command of `flow` that runs on."""
        with self.places.cluster.enter_laptop(), open(self.home / "client.log", "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "flowlite.cli", *words],
                env=self.environment,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def flow(self, *words: str) -> str:
        """What a command of `flow` prints; it must succeed."""
        with self.places.cluster.enter_laptop():
            done = flow(words, env=self.environment, cwd=self.home, timeout=PATIENCE)
        assert done.returncode == 0, f"flow {words}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def write(self, **options: Any) -> str:
        """A task file with these options."""
        path = self.home / f"{options['name']}.yaml"
        # JSON is YAML.
        path.write_text(json.dumps(options))
        return str(path)

    def task(self, name: str) -> Followed:
        """The task of that name, once it is recorded."""
        found = eventually(
            lambda: [each for each in self._tasks() if each.name == name],
            every=0.1,
            timeout=PATIENCE,
            what=f"the task {name} to be recorded: {self.said()}",
        )
        return Followed(self, found[0].id)

    def _tasks(self) -> list[TaskRecord]:
        return self.store.list_tasks() if (self.home / "state.db").exists() else []

    def names(self) -> list[str]:
        """The names of all tasks that were recorded."""
        return [each.name for each in self._tasks()]

    def said(self) -> str:
        """What the clients have printed."""
        log = self.home / "client.log"
        return log.read_text()[-3000:] if log.exists() else ""


class Followed:
    """One task of a user, with the client that follows it at the moment."""

    def __init__(self, user: User, task_id: str) -> None:
        self.user = user
        self.id = task_id

    @property
    def record(self) -> TaskRecord:
        return self.user.store.get_task(self.id)

    @property
    def left_for(self) -> list[tuple[str, str]]:
        """Which places were left, and why."""
        record = self.record
        places = [str(each["plan"]["provider"]) for each in record.candidates]
        return [(places[each["candidate"]], each["kind"]) for each in record.tried]

    def story(self) -> str:
        """All that is known, for the message of a failed test."""
        record, log = self.record, self.user.home / "tasks" / self.id / "supervisor.log"
        said = log.read_text()[-3000:] if log.exists() else ""
        tried = json.dumps(record.tried, indent=1)
        return f"{record.state}: {record.reason}\n{tried}\n{said}\n{self.user.said()}"

    def until(self, probe: Any, what: str) -> Any:
        """Waits for something to be so, as long as the task has not ended."""

        def look() -> Any:
            found = probe()
            assert found or not self.record.final, f"{what}: {self.story()}"
            return found

        try:
            return eventually(look, timeout=PATIENCE, every=0.1)
        except AssertionError as error:
            raise AssertionError(f"{what}: {error}\n{self.story()}") from None

    def follow(self) -> subprocess.Popen[bytes]:
        """A client that watches the task, and looks after its supervisor."""
        return self.user.client("logs", "--follow", self.id)

    def kill_supervisor(self) -> None:
        """Kills it, if there is one."""
        noted = process_identity.noted_supervisor(self.user.home, self.id)
        if noted is not None and noted.alive:
            with suppress(ProcessLookupError):
                os.kill(noted.pid, signal.SIGKILL)
            self.until(lambda: not noted.alive, "the supervisor to be gone")

    def is_led(self) -> bool:
        """Whether it has a supervisor."""
        noted = process_identity.noted_supervisor(self.user.home, self.id)
        return noted is not None and noted.alive

    def end(self, state: str = "completed") -> TaskRecord:
        """Waits for the end."""
        try:
            eventually(lambda: self.record.final, timeout=PATIENCE, every=0.2)
        except AssertionError:
            raise AssertionError(f"it does not end: {self.story()}") from None
        record = self.record
        assert record.state == state, self.story()
        return record

    def output(self, attempt: int = 1) -> list[str]:
        """What its ranks have printed in an attempt, line by line."""
        files = (self.user.home / "tasks" / self.id / "logs").glob(f"a{attempt}.n*.r*.out")
        return sorted(line for file in files for line in whole_lines(file))

    def check_nothing_is_left(self) -> None:
        """Nothing of the task is left at any place, once `flow gc` has had its turns."""
        places = self.user.places
        eventually(lambda: not places.holds(self.id), every=0.2, what=f"{places.holds(self.id)}")

        def left() -> list[str]:
            self.user.flow("gc", "--yes")
            tagged = places.box.aws.tagged("flowlite:task", self.id)
            keys = [each["name"] for each in places.box.mithril.api_keys() if each["good"]]
            found = [f"aws: {kind} {ids}" for kind, ids in tagged.items()]
            found += [f"mithril: the key {name}" for name in keys if f"-{self.id}-" in name]
            return found + left_of(places.slurm, self.id, files=False)

        eventually(lambda: not left(), every=0.5, what=str(left()))
        rows = self.user.store.instances(self.id)
        assert all(row.ended_at for row in rows)


class Watch:
    """Looks all the time at what each place has of a task.

    What is found by two looks in a row was there in the moment between them. So what is at two places then was at both
    at the same time, however long a look takes.

    Attributes:
        found: What was at two places at the same time.
        seen: The places that had something.
    """

    def __init__(self, places: Everywhere, task: str) -> None:
        self.found: list[set[tuple[str, str]]] = []
        self.seen: set[str] = set()
        self._places, self._task = places, task
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        before: set[tuple[str, str]] = set()
        try:
            while not self._over.wait(0.1):
                now = self._places.holds(self._task)
                both = before & now
                self.seen |= {place for place, _ in now}
                if len({place for place, _ in both}) > 1:
                    self.found.append(both)
                before = now
        except BaseException as error:
            self._error = error

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._over.set()
        self._thread.join()
        if self._error is not None and failure[0] is None:
            raise self._error

    def check(self) -> None:
        """Never was anything at two places, and never were two clouds charged at the same time."""
        assert self.found == []
        spans = self._places.charged()
        for one in spans["aws"]:
            for other in spans["mithril"]:
                assert one[1] is not None, "still charged"
                assert other[1] is not None, "still charged"
                assert one[1] <= other[0] or other[1] <= one[0], spans


@contextmanager
def running(*clients: subprocess.Popen[bytes]) -> Iterator[None]:
    """Ends clients that still run at the end."""
    try:
        yield
    finally:
        for each in clients:
            kill(each)


def kill(client: subprocess.Popen[bytes]) -> None:
    """Kills a client as `kill -9` does."""
    client.kill()
    client.wait()


def user_of(
    places: Everywhere, home: Path, variables: Mapping[str, str] | None = None
) -> Iterator[User]:
    """A user; what is left of their processes is killed at the end, and the places are as they were."""
    try:
        yield User(places, home, variables or {})
    finally:
        kill_processes_of_home(home)
        places.reset()


def shell(text: str) -> Sequence[str]:
    """A command; `$RANK` and the like are there."""
    return ["sh", "-c", text]


def fill_zones(places: Everywhere, kind: str, room: int | None) -> None:
    """Sets how many more machines of a type each zone of EC2 has."""
    for zone in _ZONES:
        places.box.aws.capacity(kind, f"us-east-1{zone}", room)
