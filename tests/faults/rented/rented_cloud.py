"""A cloud that costs money, for supervisors: nodes of the local provider with prices, a boot time, and an account book.

Found through its entry point wherever this directory is on PYTHONPATH. The cloud's side lies in the directory that the
variable RENTED_CLOUD names: `book.json` has every machine there ever was, `calls` every call, and `mood.json` says how
the cloud behaves just now:

    price, rises_to        dollars per hour at launch, and from now on
    spot                   its machines may be taken away
    boot                   seconds from launch to the first sign of life
    lingers                seconds for which a machine is listed as running after it was asked to end
    refuses                {"launch" | "list" | "terminate": [how often, error, words]}
    dies_at_boot           how many launches lose a machine while they boot
    kills                  ["launch" | "list" | "terminate", "before" | "after"]: the supervisor dies there, once
"""

from __future__ import annotations

import builtins
import dataclasses
import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flowlite import errors
from flowlite.errors import ProviderError
from flowlite.node.system import processes
from flowlite.provider import (
    Finding,
    Instance,
    LaunchIntent,
    LaunchPending,
    NodeSettings,
    Offer,
    Plan,
    Provider,
)
from flowlite.settings import settings as settings_of
from flowlite.settings.provider_settings import ProviderSettings
from provider_adapters.local import LocalProvider

# Of another FLOW_HOME, by whoever made the entry in the book.
MINE = "mine"
_SUPERVISOR = "flowlite.supervise.process.main"


class RentedProvider(Provider):
    """Machines for rent, in a test."""

    name = "rented"
    # Long enough that a pause of this machine does not break a cap.
    teardown_seconds = 15.0

    def __init__(self, home: Path, settings: ProviderSettings) -> None:
        super().__init__(home, settings)
        here = {"local_tasks": 8, "local_warm": 3}
        self._local = LocalProvider(home, ProviderSettings("local", here))
        self._cloud = Path(os.environ["RENTED_CLOUD"])

    def plan(self, config: Any) -> Plan:
        from provider_adapters.local.planning import make_plan

        mood = self._mood()
        return dataclasses.replace(
            make_plan(config.replace(spot=None), self._local.settings),
            provider=self.name,
            instance_type="small",
            region="here-1",
            price_per_hour=float(mood.get("price", 3600.0)),
            spot=bool(mood.get("spot")),
            max_run_seconds=config.max_run_seconds,
        )

    def launch(self, intent: LaunchIntent) -> list[Instance]:
        self._called("launch", intent.token)
        mood, plan = self._mood(), Plan.from_json(intent.plan)
        with self._book() as book:
            mine = {name: e for name, e in book.items() if e["token"] == intent.token}
            for index in range(intent.count if not mine else 0):
                name = f"r-{intent.token}-{index}"
                book[name] = mine[name] = {
                    "token": intent.token,
                    "task": intent.task_id,
                    "home": str(self.home),
                    "price": plan.price_per_hour,
                    "launched_at": time.time(),
                    "ended_at": 0.0,
                }
        began = min(entry["launched_at"] for entry in mine.values())
        if left := int(mood.get("dies_at_boot", 0)):
            self.behave(dies_at_boot=left - 1)
            self._end(list(mine))
            raise ProviderError(f"{min(mine)} died while it booted")
        if time.time() < began + float(mood.get("boot", 0.0)):
            raise LaunchPending(f"0 of {intent.count} nodes have started", 0.1)
        nodes = self._local.launch(intent)
        with self._book() as book:
            for (name, entry), node in zip(sorted(mine.items()), nodes, strict=True):
                book[name] = {**entry, "node": node.to_json()}
        self._kill("launch", "after")
        return [self._instance(name, entry) for name, entry in book.items() if name in mine]

    def list_instances(self, task_id: str | None = None) -> list[Instance]:
        self._called("list", task_id or "all")
        with self._book() as book:
            found = [self._instance(name, e) for name, e in book.items() if _is_mine(e)]
        self._kill("list", "after")
        return [each for each in found if task_id in (None, each.task_id)]

    def others(self) -> list[Instance]:
        self._called("others", "")
        with self._book() as book:
            return [self._instance(name, e) for name, e in book.items() if not _is_mine(e)]

    def terminate(self, instances: Sequence[Instance]) -> None:
        self._called("terminate", " ".join(each.id for each in instances))
        self._end([each.id for each in instances])
        self._kill("terminate", "after")

    def connect(self, instance: Instance) -> Any:
        return self._local.connect(Instance.from_json(instance.data["node"]))

    def node_settings(self, plan: Plan, instance: Instance) -> NodeSettings:
        return self._local.node_settings(plan, Instance.from_json(instance.data["node"]))

    def check(self) -> list[Finding]:
        mood = self._mood()
        return [
            Finding("credentials", True, "of a test"),
            Finding("permissions", not mood.get("denies"), str(mood.get("denies", ""))),
        ]

    def offers(
        self,
        gpu: str | None = None,
        num_instances: int = 1,
        *,
        spot: bool | None = None,
        region: str | None = None,
    ) -> list[Offer]:
        kinds = [kind for kind in (False, True) if spot in (None, kind)]
        fits = gpu in (None, "h100:8")
        note = "" if fits else f"has 8 × h100, and {gpu} was asked for"
        return [
            Offer("rented", "big", "here-1", "h100", 8, 20.0 if s else 50.0, s, note, s, fits)
            for s in kinds
            if region in (None, "here-1")
        ]

    # The cloud's own side

    def behave(self, **mood: Any) -> None:
        """Changes the mood."""
        with self._changing():
            self._change(mood)

    def machines(self) -> dict[str, dict[str, Any]]:
        """The account book."""
        with self._book() as book:
            return dict(book)

    def add(self, name: str, **entry: Any) -> None:
        """A machine out of nowhere."""
        blank = {"token": "", "task": "t0", "home": MINE, "price": 1.0, "ended_at": 0.0}
        with self._book() as book:
            book[name] = {**blank, "launched_at": time.time(), **entry}

    def calls(self, what: str) -> list[str]:
        """What was asked of it."""
        path = self._cloud / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.partition(" ")[2] for line in lines if line.startswith(f"{what} ")]

    def _instance(self, name: str, entry: dict[str, Any]) -> Instance:
        mood = self._mood()
        asked, lingers = float(entry["ended_at"]), float(mood.get("lingers", 0.0))
        over = bool(asked) and time.time() >= asked + lingers
        node = entry.get("node", {})
        return Instance(
            id=name,
            task_id=entry["task"],
            state="ended" if over else "running" if node else "starting",
            address=str(node.get("address", "")),
            price_per_hour=float(mood.get("rises_to") or entry["price"]),
            launched_at=entry["launched_at"],
            ended_at=asked + lingers if over else 0.0,
            data={
                "node": node,
                "home": entry["home"],
                "owner": entry.get("owner", "me@here"),
                "deadline": entry.get("deadline"),
                "stays": entry.get("stays"),
            },
            cost_at_most=entry.get("cost_at_most", False),
        )

    def _end(self, names: Sequence[str]) -> None:
        with self._book() as book:
            ending = [book[name] for name in names if name in book and not book[name]["ended_at"]]
            for entry in ending:
                entry["ended_at"] = time.time()
        nodes = [Instance.from_json(entry["node"]) for entry in ending if "node" in entry]
        for node in nodes:
            _cut_off(self.home / "tasks" / node.task_id / "nodes" / node.id)
        self._local.terminate(nodes)

    def _called(self, what: str, about: str) -> None:
        with open(self._cloud / "calls", "a") as file:
            file.write(f"{what} {about}\n")
        self._kill(what, "before")
        with self._changing():
            refuses = self._mood().get("refuses", {})
            left, kind, words = refuses.get(what, (0, "", ""))
            if left:
                self._change({"refuses": {**refuses, what: [left - 1, kind, words]}})
        if left:
            raise _error(kind, words)

    def _kill(self, what: str, when: str) -> None:
        if self._mood().get("kills") == [what, when] and _SUPERVISOR in " ".join(sys.orig_argv):
            self.behave(kills=None)
            os.kill(os.getpid(), signal.SIGKILL)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """A test and a supervisor may change the mood at the same time."""
        with open(self._cloud / "mood.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _change(self, mood: dict[str, Any]) -> None:
        path = self._cloud / "mood.json"
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps({**self._mood(), **mood}))
        os.replace(partial, path)

    def _mood(self) -> dict[str, Any]:
        path = self._cloud / "mood.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    @contextmanager
    def _book(self) -> Iterator[dict[str, Any]]:
        path = self._cloud / "book.json"
        with open(self._cloud / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            book = json.loads(path.read_text()) if path.exists() else {}
            yield book
            partial = path.with_suffix(".part")
            partial.write_text(json.dumps(book))
            os.replace(partial, path)


def _error(kind: str, words: str) -> Exception:
    made: Exception = (getattr(errors, kind, None) or getattr(builtins, kind))(words)
    return made


def _cut_off(home: Path) -> None:
    """Stops a node's agent: on a machine without power, it does not live to tell how its workers have ended."""
    for note in home.glob("a*/agent.pid"):
        noted = json.loads(note.read_bytes())
        if processes.is_alive(int(noted["pid"]), str(noted["start"])):
            os.kill(int(noted["pid"]), signal.SIGSTOP)


def _is_mine(entry: dict[str, Any]) -> bool:
    return entry["home"] in (MINE, str(settings_of.home()))
