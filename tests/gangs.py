"""Gangs of commands on the local provider, without the client: for tests of what happens behind it."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flowlite.provider import Plan
from flowlite.state.store import Store, TaskRecord
from flowlite.supervise.process import launch
from flowlite.supervise.record.paths import TaskPaths
from tests.helpers import (
    SUPERVISOR,
    assert_no_process_left,
    eventually,
    process_alive,
    processes_of,
    whole_lines,
)

PYTHON = sys.executable


class Gang:
    """One submitted task, with what a test wants to know of it and do to it."""

    def __init__(self, home: Path, store: Store, record: TaskRecord) -> None:
        self.home = home
        self.store = store
        self.id = record.id
        self.paths = TaskPaths(home, record.id)

    @property
    def record(self) -> TaskRecord:
        return self.store.get_task(self.id)

    @property
    def events(self) -> list[tuple[str, str]]:
        return [(event.kind, event.text) for event in self.store.events(self.id)]

    def wait(self, *states: str, timeout: float = 90.0) -> TaskRecord:
        """Waits for one of these states, or for the end, as a client does: an abandoned task is taken up again."""
        looked = 0.0

        def reached() -> TaskRecord | None:
            nonlocal looked
            if time.monotonic() - looked > 0.3:
                looked = time.monotonic()
                launch.ensure_supervisors(self.store, self.home, only=self.id)
            record = self.record
            return record if record.final or record.state in states else None

        try:
            return eventually(reached, timeout=timeout)
        except AssertionError:
            raise AssertionError(
                f"not {states or 'final'} in {timeout} s: {self.story()}"
            ) from None

    def story(self) -> str:
        """All that is known, for the message of a failed test."""
        log = self.paths.supervisor_log
        said = log.read_text()[-2000:] if log.exists() else ""
        wrote = [
            f"{each.name}: {each.read_text(errors='replace')[-600:]}"
            for each in self._outputs()
            if each.stat().st_size
        ]
        return "\n".join(
            [f"{self.record.state}: {self.record.reason}", str(self.events), said, *wrote]
        )

    def end(self, state: str = "completed", timeout: float = 90.0) -> TaskRecord:
        """Waits for the end; nothing may be left of the task then."""
        record = self.wait(timeout=timeout)
        assert record.state == state, self.story()
        assert_no_process_left(self.id)
        assert all(instance.ended_at for instance in self.store.instances(self.id))
        return record

    def _outputs(self) -> list[Path]:
        return (
            sorted(self.paths.logs.glob("a*.n*.r*.[oe][ur][tr]"))
            if self.paths.logs.exists()
            else []
        )

    def output(self, rank: int, attempt: int = 1, stream: str = "out") -> str:
        """What a rank wrote, as collected here."""
        (found,) = self.paths.logs.glob(f"a{attempt}.n*.r{rank}.{stream}")
        return found.read_text()

    def supervisor(self) -> int | None:
        """Process id of the living supervisor."""
        for pid in processes_of(self.id):
            if SUPERVISOR in _command(pid):
                return pid
        return None

    def kill_supervisor(self) -> None:
        """SIGKILL, and waits until it is gone."""
        pid = eventually(self.supervisor, what="a supervisor")
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not process_alive(pid))

    def agent(self, node: int, attempt: int = 1) -> int:
        """Process id of an agent."""
        name = eventually(lambda: self.record.roster)[node]
        note = self.paths.directory / "nodes" / name / f"a{attempt}" / "agent.pid"
        return int(json.loads(eventually(lambda: note.exists() and note.read_bytes()))["pid"])

    def worker(self, rank: int, attempt: int = 1) -> int:
        """Process id of a worker that printed it as its first line of output."""
        found = list(self.paths.directory.glob(f"nodes/*/a{attempt}/r{rank}.out"))
        return int(whole_lines(found[0])[0])


def submit(
    home: Path,
    argv: Sequence[str],
    *,
    nodes: int = 1,
    fewest: int = 0,
    processes: int = 1,
    name: str = "gang",
    price: float = 0.0,
    spot: bool = False,
    max_run_seconds: float | None = None,
    max_tasks: int = 64,
    workdir: str | None = None,
    supervise: bool = True,
    **config: Any,
) -> Gang:
    """Submits a command. `config` as in `TaskConfig`."""
    home.mkdir(parents=True, exist_ok=True)
    store = Store(home / "state.db")
    plan = Plan(
        provider="local",
        instance_type="this machine",
        num_instances=nodes,
        min_instances=fewest,
        processes_per_node=processes,
        price_per_hour=price,
        spot=spot,
        max_run_seconds=max_run_seconds,
        max_cost=config.get("max_cost"),
        slots=({"slots": [f"local place {n}" for n in range(max_tasks)], "count": 1},),
        options={"max_tasks": max_tasks, "workdir": workdir},
    )
    with launch.draft_task(home) as draft:
        record = launch.submit(
            store,
            draft,
            name=name,
            function=" ".join(argv)[:60],
            config={"grace_seconds": 1.0, **config},
            plan=plan,
            call={"kind": "command", "argv": list(argv)},
            supervise=supervise,
        )
    return Gang(home, store, record)


def shell(text: str) -> list[str]:
    """A command for `submit`; `$RANK` and the like are there."""
    return ["sh", "-c", text]


def waiting(then: str = "exit 0") -> list[str]:
    """Prints its process id, waits for the file `$FLOW_HOME/go`, and goes on."""
    return shell(f'echo $$; while [ ! -e "$FLOW_HOME/go" ]; do sleep 0.02; done; {then}')


def let_go(home: Path) -> None:
    """Lets those that are `waiting` go on."""
    (home / "go").touch()


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
