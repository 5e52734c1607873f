"""One node of an attempt, used through its connection: equipping it, starting, probing and stopping its agent.

All calls block and are made in threads. The node needs a shell and the task's Python, nothing else.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from flowlite.connect.base import Connection
from flowlite.connect.bounded import MOST_JSON, parse_object
from flowlite.connect.values import Completed, File
from flowlite.errors import AnswerTooLong, NodeUnreachable, ProviderError
from flowlite.node.config.agent_config import AgentConfig
from flowlite.node.protocol.message_check import check_file
from flowlite.node.quick_dataclass import dataclass
from flowlite.node.system.atomic_files import write_atomically
from flowlite.output.redact import Mask
from flowlite.provider import Instance, NodeSettings, Provider
from flowlite.supervise.attempt.node_verdict import PATIENCE, ProbeAnswer
from flowlite.supervise.attempt.shared_listing import SharedListing

# An agent ends itself otherwise. The kernel kills it for memory where it kills a control group as a whole.
_GONE_WHY = "its agent process is gone (killed from outside, or out of memory?)"
# Prints the /proc stat line of process $1, with its state and start time. Fails if the process is gone.
_LOOK = 'kill -0 "$1" 2>/dev/null || exit 3; cat "/proc/$1/stat" 2>/dev/null || exit 0'
_GONE = 3
# One command for a whole probe. $1 is the directory of the attempt. Prints what the agent wrote in agent.pid, whether
# it hears its leader, and its /proc stat line.
# A task can write anything to that file. The command therefore opens it only if it is a regular file, and reads at most
# 4,096 bytes. The shell parses them itself, since each program that it starts takes a millisecond.
_PROBE = """cd "$1" 2>/dev/null && { [ -e agent.pid ] || [ -L agent.pid ]; } || exit 4
[ -f agent.pid ] && [ ! -L agent.pid ] || exit 5
noted=$(head -c 4096 agent.pid)
noted=${noted%%
*}
printf '%s\\n' "$noted"
if [ -e leader.silent ]; then echo silent; else echo heard; fi
pid=${noted##*'"pid":'}
pid=${pid#"${pid%%[! ]*}"}
pid=${pid%%[!0-9]*}
[ "$pid" ] || exit 5
""" + _LOOK.replace("$1", "$pid")
_NOT_STARTED = 4
_NO_AGENT_FILE = 5
_COMMAND_SECONDS = 30.0
_LAST_BYTES = 4096
# Bytes kept of the end of an agent's log.
_MOST_LOG = 1 << 20
_PROBE_SECONDS = 10.0
# Pauses between looks at a gang that was released: a released agent exits at once.
_SOON = (0.003, 0.006, 0.012)


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of a probe, with words for people.

    Attributes:
        life: What the node answered.
        why: Explanation for people.
        hears_leader: Whether a running agent hears its leader, or one that is gone heard it until its end.
        refused: Whether the node answers and does not let us in, which only a user can change.
    """

    life: ProbeAnswer
    why: str = ""
    hears_leader: bool = False
    refused: bool = False


class Node:
    """One node in one attempt. `name` is its name for people: `node 2 (i-0abc)`. `program` runs its agent's zipapp."""

    def __init__(
        self,
        provider: Provider,
        instance: Instance,
        settings: NodeSettings,
        rank: int,
        attempt: int,
        *,
        listed: bool = True,
        listing: SharedListing | None = None,
    ) -> None:
        """
        Args:
            listed: Whether the provider has listed it.
            listing: What lists the task's instances for all of its nodes.
        """
        self.listed = listed
        self._listing = listing or SharedListing(lambda: provider.list_instances(instance.task_id))
        self.instance = instance
        self.settings = settings
        self.rank = rank
        self.attempt = attempt
        self.name = f"node {rank} ({instance.id})"
        self.directory = f"{settings.home}/a{attempt}"
        self.agent = f"{settings.home}/agent.pyz"
        self.program = (settings.python, "-I", "-S", self.agent)
        self.has_run = False
        self.report_seen: dict[str, Any] | None = None
        self._provider = provider
        self._connection: Connection | None = None

    @property
    def connection(self) -> Connection:
        """The connection, made on first use. Raises NodeUnreachable."""
        if self._connection is None:
            self._connection = self._provider.connect(self.instance)
        return self._connection

    def close(self) -> None:
        """Closes the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # Before the start

    def equip(
        self,
        config: AgentConfig,
        files: list[tuple[Path, str, str]],
        agent: tuple[Path, str],
        secret: bytes,
        secrets: bytes,
        storage: bytes,
        attempt: Mapping[str, bytes],
    ) -> None:
        """Puts everything the agent needs on the node. Files that are there already, by their hash, are not sent again.

        Args:
            config: Written as agent.json.
            files: Further files of the task: path here, name on the node, hash.
            agent: The agent's zipapp on this machine, and its hash.
            secrets: Secret variables, as JSON.
            storage: Credentials of buckets, as JSON.
            attempt: Further files of the attempt, by name.
        """
        home, cache = self.settings.home, self.settings.cache
        put = [File(self.agent, agent[0], 0o700, agent[1], cache)]
        put += [File(f"{home}/{name}", path, 0o600, sha256, cache) for path, name, sha256 in files]
        put += [
            File(f"{home}/secrets.json", secrets),
            File(f"{home}/storage.json", storage),
            File(f"{self.directory}/secret", secret),
            *(File(f"{self.directory}/{name}", content) for name, content in attempt.items()),
            # Written last: an agent that finds it finds all other files.
            File(f"{self.directory}/agent.json", config.to_json().encode()),
        ]
        self.connection.put_many(put)

    def put_leader(self, leader: Mapping[str, Any]) -> None:
        """Tells the node the address of its leader."""
        self.connection.put(json.dumps(dict(leader)).encode(), f"{self.directory}/leader.json")

    # Probing

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Returns a JSON file of the attempt, or None if it does not exist or was not written by an agent."""
        try:
            found = parse_object(self.read_all(name, MOST_JSON))
            check_file(name, found)
        except (FileNotFoundError, ValueError, AnswerTooLong):
            return None
        return found

    def report(self) -> dict[str, Any] | None:
        """Returns the agent's final report, or None if there is none yet."""
        return self.read_json("report.json")

    def started(self) -> bool:
        """Whether an agent of this attempt has ever run here. Raises NodeUnreachable."""
        return self.read_json("agent.pid") is not None

    def look_for_agent(self) -> None:
        """Notes whether an agent of this attempt has ever run here, and its report. Raises NodeUnreachable."""
        # An agent writes `agent.pid` before anything else. The report that is not there is not asked for: the first
        # attempt looks at many nodes on which no agent has run.
        try:
            with suppress(AnswerTooLong):
                self.read_all("agent.pid", MOST_JSON)
        except FileNotFoundError:
            self.report_seen, self.has_run = None, False
            return
        self.report_seen = self.report()
        self.has_run = self.started()

    def want(self) -> bool:
        """Tells the agent of a spare machine that it is wanted (node/agent/spare.py). Returns whether it is ready."""
        script = 'cd "$1" && : > wanted && [ -e ready ]'
        done = self.connection.run(["sh", "-c", script, "sh", self.directory], timeout=10.0)
        return done.code == 0

    def probe(self) -> Finding:
        """Checks whether the agent's process exists. Never raises."""
        return self._told(self._probe())

    def probe_afresh(self) -> Finding:
        """Same as `probe`, but over a new connection.

        An existing connection may not have recovered yet from an outage that is over.
        """
        return self._told(self._probe(afresh=True))

    def received(self) -> int:
        """How many bytes of data have come from the node so far; 0 where that is not known."""
        return self.connection.received()

    def _probe(self, *, afresh: bool = False) -> Finding:
        try:
            argv = ["sh", "-c", _PROBE, "sh", self.directory]
            run = self.connection.run_afresh if afresh else self.connection.run
            finding = _found(run(argv, timeout=_PROBE_SECONDS))
            if finding.life in (ProbeAnswer.ALIVE, ProbeAnswer.DEAD):
                return finding
        except (ProviderError, OSError) as error:
            refused = isinstance(error, NodeUnreachable) and error.patience is not None
            why = str(error) or type(error).__name__
            finding = Finding(ProbeAnswer.UNREACHABLE, why, refused=refused)
        if self._delisted():
            return Finding(ProbeAnswer.GONE, "the provider does not list it any more")
        return finding

    def _told(self, finding: Finding) -> Finding:
        """Returns the finding of a probe, with what the agent said last if it does not run."""
        if finding.life not in (ProbeAnswer.DEAD, ProbeAnswer.ABSENT):
            return finding
        return replace(finding, why=finding.why + self._last_words())

    def probe_workers(self) -> Finding:
        """Checks whether the reaper of the node's workers exists. It ends with the last of them."""
        try:
            reaper = (self.read_json("env.json") or {}).get("reaper")
            if reaper and self._runs(reaper):
                return Finding(ProbeAnswer.ALIVE, "its workers are being stopped")
            return Finding(ProbeAnswer.DEAD)
        except (ProviderError, OSError) as error:
            return Finding(ProbeAnswer.UNREACHABLE, str(error) or type(error).__name__)

    def _runs(self, process: dict[str, Any]) -> bool:
        pid, start = str(process["pid"]), str(process.get("start") or "")
        looked = self.connection.run(["sh", "-c", _LOOK, "sh", pid], timeout=_COMMAND_SECONDS)
        return _lives(looked, looked.stdout, start)

    def read(self, name: str, offset: int) -> Iterator[bytes]:
        """Reads a file of the attempt from `offset` on. Raises FileNotFoundError, NodeUnreachable."""
        return self.connection.read(f"{self.directory}/{name}", offset)

    def read_all(self, name: str, most: int) -> bytes:
        """Reads a whole file of the attempt. Raises FileNotFoundError, NodeUnreachable, AnswerTooLong."""
        return self.connection.read_all(f"{self.directory}/{name}", most)

    def get_log(self, name: str, target: Path, mask: Mask) -> None:
        """Fetches the end of a log, with the values of secrets masked. Does nothing if the log does not exist."""
        end = self._end_of(name, _MOST_LOG)
        if end:
            cut = f"… the end of it: {_MOST_LOG:,} bytes\n" if len(end) == _MOST_LOG else ""
            # Its first line may begin in the middle of a secret.
            end = end.partition(b"\n")[2] if cut else end
            said = mask(end.decode("utf-8", "surrogateescape"))
            write_atomically(target, (cut + said).encode("utf-8", "surrogateescape"))

    def get(self, name: str, target: Path, size: int | None = None) -> bool:
        """Fetches a file of the attempt. `size` as for `Connection.get`. False if the file does not exist."""
        try:
            self.connection.get(f"{self.directory}/{name}", target, size=size)
        except FileNotFoundError:
            return False
        return True

    # Ending

    def stop(self, grace: float) -> bool:
        """Ends the agent and its workers: SIGTERM first, SIGKILL later. True once all are known to be gone.

        Time in which the node does not answer is added to the deadline, up to the time after which a silent node
        counts as lost.
        """
        if self._leaves_soon():
            return True
        asked = looked = time.monotonic()
        signals = {0.0: "TERM", grace + 5.0: "KILL"}
        pause, silent = 0.01, 0.0
        while True:
            waited = time.monotonic() - asked
            agent = self._probe()
            now = time.monotonic()
            if agent.life is ProbeAnswer.UNREACHABLE:
                silent += now - looked
            looked = now
            if agent.life is ProbeAnswer.GONE or (
                agent.life is ProbeAnswer.ABSENT and self._withdraw()
            ):
                return True
            if agent.life is ProbeAnswer.DEAD and self.probe_workers().life is ProbeAnswer.DEAD:
                return True
            if agent.life is ProbeAnswer.ALIVE:
                for after in [after for after in signals if waited >= after]:
                    self._signal(signals.pop(after))
            # An agent that was killed also leaves its workers the grace period.
            if waited > 2 * grace + 15.0 + min(silent, PATIENCE):
                return False
            time.sleep(pause)
            pause = min(0.5, pause * 1.5)

    def _leaves_soon(self) -> bool:
        """Whether agent and workers are gone within milliseconds, as those of a gang that has been released are.

        Found out without a command on the node. Where that is not possible, and wherever it is unclear, this is False.
        """
        try:
            for pause in (0.0, *_SOON):
                time.sleep(pause)
                # Without /proc, no process is found there.
                if self.connection.read_at_once("/proc/self/stat") is None:
                    return False
                if self._is_gone("agent.pid", None) and self._is_gone("env.json", "reaper"):
                    return True
        except (ProviderError, OSError, ValueError):
            pass
        return False

    def _is_gone(self, name: str, part: str | None) -> bool:
        """Whether the process is gone that is noted in a file of the attempt. Raises ValueError if that is unclear.

        Args:
            part: The name of the object in it that describes the process. None if the whole file does. If there is no
                such object, the process was never started.
        """
        content = self.connection.read_at_once(f"{self.directory}/{name}")
        if content is None:
            raise ValueError(name)
        noted = parse_object(content)
        check_file(name, noted)
        process = noted if part is None else noted.get(part)
        if process is None:
            return True
        try:
            stat = self.connection.read_at_once(f"/proc/{int(process['pid'])}/stat")
        except FileNotFoundError:
            return True
        if stat is None:
            raise ValueError(name)
        return not _is_that_process(stat, str(process.get("start") or ""))

    def _withdraw(self) -> bool:
        """Deletes the agent's configuration in case the agent is about to start. True if it has not read it."""
        try:
            orders = f"{self.directory}/agent.json"
            self.connection.run(["rm", "-f", orders], timeout=_COMMAND_SECONDS)
            # An agent writes agent.pid before it reads its configuration.
            return not self.started()
        except (ProviderError, OSError):
            return False

    def _signal(self, name: str) -> None:
        with suppress(ProviderError, OSError):
            noted = self.read_json("agent.pid")
            if noted is not None:
                argv = ["sh", "-c", f'kill -{name} "$1"', "sh", str(noted["pid"])]
                self.connection.run(argv, timeout=_COMMAND_SECONDS)

    def _delisted(self) -> bool:
        with suppress(ProviderError, OSError):
            found = self._listing.get()
            return all(i.id != self.instance.id or i.state == "ended" for i in found)
        return False

    def _last_words(self) -> str:
        """Returns the last line of the agent's log as a clause, or ""."""
        with suppress(ProviderError, OSError):
            lines = self._end_of("agent.log", _LAST_BYTES).decode(errors="replace").splitlines()
            said = [line.strip() for line in lines if line.strip()]
            if said:
                return f"; the last line of its log: {said[-1][:300]}"
        return ""

    def _end_of(self, name: str, most: int) -> bytes:
        """Returns the last bytes of a file of the attempt; empty if it does not exist."""
        argv = ["tail", "-c", str(most), f"{self.directory}/{name}"]
        return self.connection.run(argv, timeout=_COMMAND_SECONDS).stdout[-most:]


def ask_program(node: Node, what: str, asked: object, seconds: float, wrong: str) -> dict[str, Any]:
    """Returns the answer of a subcommand of the node's program to a question.

    Args:
        wrong: How the error begins if there is no answer.

    Raises:
        ProviderError: There is none.
        NodeUnreachable: The node cannot be reached.
    """
    question = json.dumps(asked).encode()
    done = node.connection.run_program([*node.program, what], input=question, timeout=seconds)
    try:
        return parse_object(done.stdout)
    except ValueError as error:
        raise ProviderError(f"{wrong}: {done.last_words}") from error


def start_agents(nodes: Sequence[Node]) -> None:
    """Starts the agents of nodes that share a machine, with one command.

    A second agent of the same attempt exits at once.
    """
    first = nodes[0]
    directories = [node.directory for node in nodes]
    how = ["agent", "--detach", *directories] if len(nodes) > 1 else ["agent", *directories]
    first.connection.start(
        [*first.program, *how],
        log=f"{first.directory}/agent.log",
        environment=first.settings.environment,
    )


def _found(looked: Completed) -> Finding:
    """Returns the finding of a probe that reached the node. Raises NodeUnreachable if the answer proves nothing."""
    if looked.code == _NOT_STARTED:
        return Finding(ProbeAnswer.ABSENT, "its agent has not started")
    if looked.code not in (0, _GONE, _NO_AGENT_FILE):
        raise _unable(looked)
    lines = looked.stdout.split(b"\n", 2)
    try:
        if looked.code == _NO_AGENT_FILE:
            raise ValueError
        start = str(parse_object(lines[0]).get("start") or "")
        hears, stat = lines[1] == b"heard", lines[2]
    except (ValueError, IndexError):
        raise NodeUnreachable(
            "whether its agent runs is not known: agent.pid there is not as an agent writes it"
        ) from None
    if _lives(looked, stat, start):
        return Finding(ProbeAnswer.ALIVE, "its agent runs", hears)
    return Finding(ProbeAnswer.DEAD, _GONE_WHY, hears)


def _lives(looked: Completed, stat: bytes, start: str) -> bool:
    """Whether a process lives. Raises NodeUnreachable if the command did not finish, which proves nothing."""
    if looked.code not in (0, _GONE):
        raise _unable(looked)
    return looked.code == 0 and _is_that_process(stat, start)


def _unable(looked: Completed) -> NodeUnreachable:
    said = looked.stderr.decode(errors="replace").strip()[-200:]
    return NodeUnreachable(f"it runs no commands (status {looked.code}): {said}")


def _is_that_process(stat: bytes, start: str) -> bool:
    """Whether the contents of a /proc stat file belong to the living process that started at `start`."""
    fields = stat.rpartition(b")")[2].split()
    if len(fields) < 20:
        # Without /proc, only the use of the process id is known.
        return True
    return fields[0] not in (b"Z", b"X") and (not start or fields[19].decode() == start)
