"""A pool of test hosts, and `flow` on the laptop beside them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowlite.state.store import Store
from tests.flow_commands.run import flow
from tests.helpers import eventually

if TYPE_CHECKING:
    from flowlite.testing.hosts import Cluster, Host

ROOT = Path(__file__).resolve().parent.parent.parent
SECONDS = 90.0
_ASKS_EVERY = 5.0


class Lab:
    """One user's FLOW_HOME with a pool of some hosts, named `lab`."""

    def __init__(
        self,
        cluster: Cluster,
        home: Path,
        hosts: Sequence[Host] | None = None,
        settings: str | None = None,
        config: str | None = None,
    ) -> None:
        """
        Args:
            hosts: Those of the pool; all.
            settings: Lines of the pool's table, besides its hosts.
            config: The whole configuration instead.
        """
        self.cluster = cluster
        self.home = home
        self.hosts = list(cluster) if hosts is None else list(hosts)
        names = [host.name for host in self.hosts]
        settings = f'python = "{sys.executable}"' if settings is None else settings
        text = f'provider = "ssh"\n[ssh.pools.lab]\nhosts = {json.dumps(names)}\n{settings}\n'
        (home / "config.toml").write_text(text if config is None else config)
        # The tests' own process reads the same files.
        self.environment = {
            **cluster.client_environment(),
            "FLOW_HOME": str(home),
            "PYTHONPATH": str(ROOT),
        }

    def flow(
        self,
        *arguments: str,
        code: int | None = 0,
        cwd: Path | None = None,
        seconds: float = SECONDS,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command of `flow` on the laptop; its exit code must be that one."""
        with self.cluster.enter_laptop():
            done = flow(arguments, env=self.environment, cwd=cwd or self.home, timeout=seconds)
        said = f"flow {' '.join(arguments)}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert code is None or done.returncode == code, f"{said}\n{self.supervisor_logs()}"
        return done

    def json(self, *arguments: str, code: int | None = 0) -> Any:
        """What a command says with `--json`."""
        words = list(arguments)
        words.insert(words.index("--") if "--" in words else len(words), "--json")
        return json.loads(self.flow(*words, code=code).stdout)["data"]

    def submit(self, *arguments: str) -> str:
        """Submits a command and gives the task's id."""
        return self.flow("run", "--detach", *arguments).stdout.split()[-1]

    def task(self, name: str) -> dict[str, Any]:
        """How a task is."""
        found: dict[str, Any] = self.json("status", name)
        return found

    def wait(self, task: str, *states: str, timeout: float = 90.0) -> dict[str, Any]:
        """Waits until a task is in one of these states."""
        try:
            return self._until(task, lambda state, _: state in states, timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.task(task)}\n{self.supervisor_logs()}") from None

    def waits(self, task: str) -> str:
        """Waits until a task waits for hosts, and gives the reason."""
        found = self._until(
            task, lambda state, why: state == "provisioning" and "waiting for" in why, 90.0
        )
        return str(found["reason"])

    def _until(self, task: str, fits: Callable[[str, str], bool], timeout: float) -> dict[str, Any]:
        """Waits until state and reason of a task fit, and gives what `flow status` says then.

        The store says when. `flow status` is asked now and then before, too: it starts supervisors that are gone.
        """
        store = Store(self.home / "state.db")
        asked = 0.0

        def look() -> dict[str, Any]:
            nonlocal asked
            record = store.find_task(task)
            if not fits(record.state, record.reason) and time.monotonic() < asked + _ASKS_EVERY:
                return {}
            found = self.task(task)
            asked = time.monotonic()
            return found if fits(found["status"], str(found["reason"])) else {}

        return eventually(look, timeout=timeout, every=0.2, what=f"{task} to be as it should")

    def supervisor(self, task: str) -> int:
        """Process id of the task's supervisor."""
        noted = json.loads((self.home / "tasks" / task / "supervisor.json").read_bytes())
        return int(noted["pid"])

    def supervisor_logs(self) -> str:
        """What supervisors said, for the message of a failed assertion."""
        logs = sorted(self.home.glob("tasks/*/supervisor.log"))
        return "\n".join(f"{log.parent.name}: {log.read_text()[-2000:]}" for log in logs)

    def given(self, task: str) -> set[str]:
        """Hosts that a task has, as the store has it; `held` asks each of them, with a login and programs there."""
        rows = Store(self.home / "state.db").instances(task)
        return {str(row.data["data"]["host"]) for row in rows if row.ended_at is None}

    def held(self) -> dict[str, str]:
        """Hosts that are not free, each with the task or state."""
        rows = self.json("hosts", "list")
        return {r["name"]: str(r.get("task") or r["state"]) for r in rows if r["state"] != "free"}


def left_on(host: Host, marker: str = "FLOW_LEASE=") -> list[str]:
    """Command lines of processes on a host that belong to a lease; they must be none when no task runs."""
    found = []
    for pid in host.pids():
        with suppress(OSError):
            if marker.encode() in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(
                    Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                )
    return found
