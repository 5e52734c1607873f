"""The adapter against a Slurm on paper: its commands answer as the real ones print, and nodes answer as they are told.

What they print was recorded from Slurm 22.05 (tests/providers/slurm_recorded); tests/conformance/test_slurm.py holds
the adapter to a real one.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flowlite.api.adapters import settings_here
from flowlite.connect.base import Connection
from flowlite.connect.values import Completed, File
from flowlite.provider import Instance, LaunchIntent, LaunchPending, Plan
from flowlite.spec import TaskConfig
from provider_adapters.slurm import SlurmProvider, nodes
from provider_adapters.slurm.queries.parse import QUEUE_FORMAT

RECORDED = Path(__file__).with_name("slurm_recorded")
TASK = "tabcdefghij"
USER = "ada"
SINFO = """\
main|main*|up|infinite|1:00:00|4|8|16000|gpu:a100:4|idle
short|short|up|10:00|n/a|4|8|16000|gpu:a100:4|idle
big|big|up|1-00:00:00|n/a|64|128|2000000|gpu:nvidia_h100_80gb_hbm3:8(S:0-1)|mixed
hour|hour|up|1:00:00|n/a|4|8|16000|(null)|idle
cpu|cpu|up|infinite|n/a|10|64|256000|(null)|idle
"""
_WIDTHS = [int(each.partition(":")[2]) for each in QUEUE_FORMAT.split(",")]


class Killed(BaseException):
    """The process dies here."""


@dataclass
class Job:
    """A job on paper."""

    id: str
    comment: str
    nodes: int
    script: str
    state: str = "PENDING"
    reason: str = "None"
    restarts: int = 0
    code: int = 0
    exclude: tuple[str, ...] = ()
    lost: set[str] = field(default_factory=set)
    start: float = 0.0
    end: float = 0.0
    requeue: bool = True
    name: str = f"flow-{TASK}"

    @property
    def hosts_at_start(self) -> list[str]:
        """The first hosts that it may have."""
        names = [f"node{number:02d}" for number in range(1, 10)]
        return [name for name in names if name not in self.exclude][: self.nodes]

    @property
    def hosts(self) -> list[str]:
        """Those that it has not lost."""
        return [name for name in self.hosts_at_start if name not in self.lost]

    def line(self) -> str:
        """As `squeue -O` prints it."""
        shown = f"({self.reason})" if self.state in ("PENDING", "SPECIAL_EXIT") else "node[01-09]"
        times = [f"{at:.0f}" if at else "N/A" for at in (self.start, self.end)]
        values = [self.id, self.state, str(self.restarts), shown, *times, self.comment, "N/A"]
        values.append(str(len(self.hosts)))
        return "".join(v.ljust(w)[:w] for v, w in zip(values, _WIDTHS, strict=True))

    def shown(self) -> str:
        """As `scontrol -o show job` prints it."""
        return (
            f"JobId={self.id} JobName={self.name} UserId={USER}(1000) JobState={self.state} Reason={self.reason} "
            f"Dependency=(null) Requeue=1 Restarts={self.restarts} ExitCode={self.code}:0 StartTime=1795300365 "
            f"EndTime=Unknown NodeList={','.join(self.hosts)} BatchHost={self.hosts_at_start[0]} "
            f"Comment={self.comment} StdErr=/dev/null "
        )


@dataclass
class PaperSlurm(Connection):
    """A login node, and the cluster behind it.

    Attributes:
        listed: Whether `squeue` names jobs that have come since; False is a Slurm that lags, or was started anew.
        down: Whether slurmctld does not answer.
        calls: Every command of Slurm, without its environment.
        crash: Called before and after each command with its name and "before" or "after".
        refuse: What `sbatch` says instead of taking a job.
        most: How many jobs, or elements of arrays, the user may submit at a time; None for any number.
        printed: What it prints for a job that it has taken, with `{}` for its number.
        remarks: What it tells the user besides that.
        accounts: Whether `sacct` knows anything.
        accounting_down: Whether slurmdbd does not answer `sacct`, while slurmctld answers everything else.
        dead: Nodes that are down.
        drained: Nodes that get no other job.
        nameless: Nodes whose names, which are their addresses, are not known on the login node.
        asked: The variables of `sbatch` that are set for every login.
        private: Whether only administrators are shown nodes and partitions (`PrivateData=nodes`).
        idle: How many nodes a job may have at most.
        fail: What the next call of a command comes to, after it was carried out: an error, or what it says instead.
    """

    jobs: list[Job] = field(default_factory=list)
    listed: bool = True
    known: bool = True
    down: bool = False
    calls: list[list[str]] = field(default_factory=list)
    crash: Callable[[str, str], None] | None = None
    refuse: str = ""
    most: int | None = None
    printed: str = "{}\n"
    remarks: str = ""
    accounts: bool = True
    accounting_down: bool = False
    sinfo: str = SINFO
    dead: set[str] = field(default_factory=set)
    drained: set[str] = field(default_factory=set)
    nameless: set[str] = field(default_factory=set)
    asked: str = ""
    private: bool = False
    idle: int = 9
    put_there: list[File] = field(default_factory=list)
    fail: dict[str, BaseException | str] = field(default_factory=dict)
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(7))

    def job(self) -> Job:
        """The one job there is."""
        (found,) = self.jobs
        return found

    def live(self) -> list[Job]:
        """Jobs that have not ended."""
        return [each for each in self.jobs if each.state in ("PENDING", "RUNNING", "COMPLETING")]

    def run(
        self, argv: Sequence[str], *, input: bytes | None = None, timeout: float | None = None
    ) -> Completed:
        words = list(argv)
        if words[:2] == ["sh", "-c"]:
            if "say sbatch" in words[2]:
                return _ok(f"{_LOGIN}flowlite:asked:{self.asked}\n")
            return _ok("node01 10.0.0.1\n" + ("node02 10.0.0.2\n" if self.private else ""))
        if words[0] != "env":
            return _ok("")
        words = words[2 + next(i for i, w in enumerate(words[2:]) if "=" not in w) :]
        tool = words[0].rpartition("/")[2]
        self.calls.append([tool, *words[1:]])
        if self.crash:
            self.crash(tool, "before")
        if self.down:
            text = f"{tool}: error: Unable to contact slurm controller (connect failure)\n"
            return Completed(1, b"", text.encode())
        done: Completed = getattr(self, f"_{tool}")(words[1:], (input or b"").decode())
        if self.crash:
            self.crash(tool, "after")
        if isinstance(failed := self.fail.pop(tool, None), BaseException):
            raise failed
        if failed:
            return Completed(1, b"", f"{failed}\n".encode())
        return done

    def put_many(self, files: Sequence[File]) -> None:
        self.put_there += files

    # The commands

    def _sbatch(self, words: list[str], script: str) -> Completed:
        if "--version" in words:
            return _ok("slurm-wlm 22.05.8\n")
        if "--test-only" in words:
            return Completed(
                0, b"", b"sbatch: Job 3 to start at 2026-11-21T22:00:00 using 1 processors\n"
            )
        if self.refuse:
            return Completed(1, b"", self.refuse.encode())
        array = re.search(r"^#SBATCH --array=0-(\d+)", script, re.MULTILINE)
        wanted = int(array[1]) + 1 if array else 1
        if self.most is not None and len(self.live()) + wanted > self.most:
            return Completed(1, b"", _TOO_MANY)
        options = [
            each.removeprefix("#SBATCH ") for each in script.splitlines() if "#SBATCH" in each
        ]
        told = dict(each.removeprefix("--").partition("=")[::2] for each in options)
        most = int(told["nodes"].rpartition("-")[2])
        job = Job(str(next(self.numbers)), told["comment"], min(most, self.idle), script)
        job.exclude = tuple(filter(None, told.get("exclude", "").split(",")))
        self.jobs.append(job)
        return Completed(0, self.printed.format(job.id).encode(), self.remarks.encode())

    def _squeue(self, words: list[str], _: str) -> Completed:
        if "%T" in words:
            asked = words[words.index("-j") + 1].split(",")
            return _ok("".join(f"{job.state}\n" for job in self.jobs if job.id in asked))
        assert words[words.index("-O") + 1] == QUEUE_FORMAT
        return _ok("".join(f"{job.line()}\n" for job in self.jobs if self.listed))

    def _scontrol(self, words: list[str], _: str) -> Completed:
        if words == ["ping"]:
            return _ok("Slurmctld(primary) at head is UP\n")
        if words[0] == "release":
            for job in self.jobs:
                if job.id == words[1]:
                    job.reason = "None"
            return _ok("")
        if words[0] == "update":
            told = dict(word.partition("=")[::2] for word in words[1:])
            for job in self.jobs:
                if job.id == told["jobid"] and "requeue" in told:
                    job.requeue = told["requeue"] == "1"
            return _ok("")
        if words[1:3] == ["show", "node"] and self.private:
            return Completed(1, b"", b"slurm_load_node error: Access/permission denied\n")
        if words[1:3] == ["show", "node"]:
            return _ok("".join(f"{self._node(number)}\n" for number in range(1, 10)))
        found = [job for job in self.jobs if job.id == words[-1] and self.known]
        if not found:
            return Completed(1, b"", b"slurm_load_jobs error: Invalid job id specified\n")
        return _ok(f"{found[0].shown()}\n")

    def _node(self, number: int) -> str:
        name = f"node{number:02d}"
        state = "DOWN+NOT_RESPONDING" if name in self.dead else "IDLE"
        state += "+DRAIN" if name in self.drained else ""
        address = name if name in self.nameless else f"10.0.0.{number}"
        return f"NodeName={name} NodeAddr={address} Port=1 State={state} ThreadsPerCore=1"

    def _sacct(self, words: list[str], _: str) -> Completed:
        if self.accounting_down:
            return Completed(1, b"", _NO_SLURMDBD)
        if not self.accounts:
            return Completed(1, b"", b"Slurm accounting storage is disabled\n")
        lines = [
            f"{job.id}|{job.state}|0:0|Unknown||/usr/bin/sbatch --parsable --comment={job.comment}\n"
            for job in self.jobs
            if "-j" not in words or words[words.index("-j") + 1] == job.id
        ]
        return _ok("".join(lines))

    def _scancel(self, words: list[str], _: str) -> Completed:
        for job in self.jobs:
            if job.id in words and job in self.live():
                gentle = "--signal=HUP" in words
                job.state = "COMPLETED" if gentle else "CANCELLED"
        return _ok("")

    def _sinfo(self, words: list[str], _: str) -> Completed:
        if self.private:
            return Completed(1, b"", b"slurm_load_node: Access/permission denied\n")
        return _ok(self.sinfo)

    # Not needed on paper

    def start(self, *_: Any, **__: Any) -> int:
        raise NotImplementedError

    put = put_cached = get = read = stream = open_tcp = start  # type: ignore[assignment]


_TOO_MANY = b"""\
sbatch: error: AssocMaxSubmitJobLimit
sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or \
time limits)
"""
_NO_SLURMDBD = b"""\
sacct: error: Sending PersistInit msg: Connection refused
sacct: error: Problem talking to the database: Connection refused
"""
_LOGIN = (
    "Welcome!\nflowlite:sbatch:/opt/slurm/bin/sbatch\nflowlite:path:/usr/bin:/bin\nflowlite:conf:\n"
    f"flowlite:home:/users/{USER}\nflowlite:user:{USER}\nflowlite:uid:1000\nflowlite:host:login1\n"
    "flowlite:python:/usr/bin/python3\n"
)


def _ok(text: str) -> Completed:
    return Completed(0, text.encode(), b"")


class Paper:
    """One client of one cluster. `silent` are reasons by host of nodes that do not answer."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.slurm = PaperSlurm()
        self.silent: dict[str, str] = {}
        self.blind: set[str] = set()
        home.mkdir(parents=True, exist_ok=True)
        self.agent = home / "agents" / f"{'a' * 64}.pyz"
        self.agent.parent.mkdir(exist_ok=True)
        self.agent.write_bytes(b"the program")
        self.configure(signal_seconds=120)

    def configure(self, **settings: Any) -> None:
        """Writes `[slurm]`."""
        lines = [f"{k} = {json.dumps(v)}" for k, v in settings.items()]
        (self.home / "config.toml").write_text("\n".join(["[slurm]", *lines, ""]))
        self.provider = self.make()

    def make(self) -> SlurmProvider:
        """What another process has: the same files, and nothing else."""
        return SlurmProvider(self.home, settings_here("slurm"), self.slurm)

    def meet(self, login: Any, places: Sequence[Any], data: Any) -> list[dict[str, Any] | str]:
        """In the place of `nodes.meet`."""
        return [self._meet_one(place, data) for place in places]

    def _meet_one(self, place: Any, data: Any) -> dict[str, Any] | str:
        if place.host in self.silent:
            return f"{place.host}: {self.silent[place.host]}"
        job = next((each for each in self.slurm.jobs if each.id == place.job), None)
        if job is not None and job.hosts_at_start[place.nodeid] != place.host:
            return f"{place.host} has another number in the job"
        about = {
            k: getattr(place, k) for k in ("job", "restart", "nodeid", "host", "home", "program")
        }
        shared = "" if place.host in self.blind else data["shared"]
        return {
            **data,
            **about,
            "python": "/usr/bin/python3",
            "version": "3.11.7",
            "shared": shared,
            nodes.AT_START: ",".join(job.hosts_at_start if job is not None else ()),
        }

    def plan(self, **options: Any) -> Plan:
        """The plan of a command on two nodes."""
        given = {"command": "true", "num_instances": 2, "cpu": 1, **options}
        return self.provider.plan(TaskConfig(**given))

    def intend(
        self, token: str = f"{TASK}-launch-1", task: str = TASK, **options: Any
    ) -> LaunchIntent:
        """A launch of that plan."""
        plan = self.plan(**options)
        preload = {"agent": str(self.agent)}
        return LaunchIntent(token, task, plan.num_instances, plan.to_json(), preload)

    def launch(self, intent: LaunchIntent, tries: int = 50) -> list[Instance]:
        """As the supervisor does, with a job that begins when it is looked at."""
        for _ in range(tries):
            try:
                return self.provider.launch(intent)
            except LaunchPending:
                for job in self.slurm.jobs:
                    if job.state == "PENDING":
                        job.state = "RUNNING"
        raise AssertionError("the launch did not come to anything")
