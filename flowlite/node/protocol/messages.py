"""The rendezvous' messages, events, phases and outcomes.

A message is a JSON object with `type`, `task` and `attempt`, plus the fields listed in `message_check.py`, which
validates every message before it is used. A `chunk` has a blob.

The leader's messages to the supervisor also have "steady", the leader's monotonic clock when the message was sent or
the event happened. From it the supervisor knows how long ago that was, however late the message arrives
(`SupervisorClient`).

Events are what the supervisor learns. They are dictionaries `{"seq": n, "time": unix of the leader, "kind": ..., ...}`,
numbered from 1 without gaps, always with the fields in this order. The kinds, with their fields:

    joined        instance, rank, address, facts          a node has joined
    back          instance, rank                          a suspected node answers again
    warning       text [, instance, rank]                 clock off, disk nearly full, a second claimant of an id,
                                                          a node's notice (a bucket that does not answer)
    checkpoint    text, instance, rank                    the final state of the copies of checkpoints
    unkept        text, instance, rank                    files that the task wrote and that are not kept
    start         text, instance, rank                    why ranks are not forked from the fork server
    preflight     text                                    what `preflight=` has measured
    sick          text, instance, rank                    why the node's machine must not be used again
    preempting    text, seconds, instance, rank           a node will be taken away in that many seconds
    should_stop   text, call                              from this call on `should_stop()` is True on all ranks
    stoppable                                             a worker has called `should_stop()` or listens for SIGUSR2;
                                                          only in gangs that grow at checkpoints
    preparing     master_addr, master_port                all nodes have joined and agree; they prepare
    ready         instance, rank, facts                   a node has prepared
    go            addresses, master_addr, master_port     the barrier has opened
    started       instance, rank                          the workers of a node run
    worker        the body that the node sent (below)     a worker has ended
    first_failure the same body, and reason               the failure that stops the gang
    suspect       instance, rank, why                     probe it through its connection; answer `lost` if it is gone
    lost          instance, rank, why                     given up; reuse it only after it was killed
    stopping      outcome, reason                         stop was sent to every node
    stopped       instance, rank                          no worker of the node is left
    ended         outcome, reason, first_failure (body or None), missing [instances], unstopped [instances]

`ended` is the last event and there is exactly one. `unstopped` names nodes that did not confirm the stop: their workers
may run until the node is killed or has fenced itself (`fence_after` + `grace` seconds after the end).

The body of a worker that ended: rank, local_rank, node, code (int | None), signal (int | None), failure (None or
{"kind": "exception"|"signal"|"exit"|"load"|"result", "type", "message"}), tail [last lines], sizes {"out", "err",
"result"} and, of a node's first rank, {"setup"} (final, in bytes), started, ended (unix of the node). The worker failed
unless code is 0 and failure is None.
"""

from __future__ import annotations

import binascii
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from ..config import ranks
from ..config.fencing import FENCE_AFTER
from ..quick_dataclass import dataclass

Message = dict[str, Any]

GATHERING = "gathering"
PREPARING = "preparing"
RUNNING = "running"
STOPPING = "stopping"
ENDED = "ended"
PHASES = (GATHERING, PREPARING, RUNNING, STOPPING, ENDED)

DONE = "done"
FAILED = "failed"
STOPPED = "stopped"
DEADLINE = "deadline"
CHECKS = "checks"
MISSING = "missing"
LOST = "lost"
PREEMPTED = "preempted"
SICK = "sick"
GROWING = "growing"
ERROR = "error"
OUTCOMES = (
    *(DONE, FAILED, STOPPED, DEADLINE, CHECKS, MISSING, LOST, PREEMPTED, SICK, GROWING, ERROR),
)

STOP_OUTCOMES = {
    "cancel": STOPPED,
    "deadline": DEADLINE,
    "preempted": PREEMPTED,
    "error": ERROR,
    "fenced": LOST,
    "lost": LOST,
}
"""The gang's outcome for each kind of stop that the supervisor or a node asks for."""

STREAMS = ("out", "err", "setup", "result")
"""The files of each rank that are followed; a stream is named "<rank>.<stream>". "setup" is the output of `setup=` on a
node; it belongs to the first rank there.
"""


class MessageError(ValueError):
    """A message is not valid: its type is unknown, or a field is missing or of the wrong type."""


@dataclass(frozen=True)
class GangSettings:
    """The settings of a gang that leader and members share. Durations are seconds.

    Attributes:
        task: Task id.
        attempt: Number of the attempt; rises with every restart. Older ones are refused everywhere.
        roster: Instance ids by node rank (`node/config/ranks.py`).
        processes_per_node: Workers per node.
        leader_address: The address at which other nodes reach node 0; becomes MASTER_ADDR.
        beat: Interval of the heartbeats of both sides.
        lost_after: Silence after which a node is suspected.
        fence_after: Silence of the leader after which a node stops its own workers, and of a node after which the
            leader gives it up.
        join_timeout: How long the leader waits for all nodes to join, and a node for its leader.
        prepare_timeout: How long all nodes may take to prepare.
        linger: How long the agents of a finished gang stay to be collected.
        grace: Grace period from the stop signal to SIGKILL.
        after_stop: How long a node may take after its workers have ended, for a last copy of checkpoints.
    """

    task: str
    attempt: int
    roster: tuple[str, ...]
    processes_per_node: int = 1
    leader_address: str = "127.0.0.1"
    beat: float = 1.0
    lost_after: float = 8.0
    fence_after: float = FENCE_AFTER
    join_timeout: float = 300.0
    prepare_timeout: float = 900.0
    linger: float = 600.0
    grace: float = 10.0
    after_stop: float = 0.0
    digest: str = field(init=False, repr=False)
    _ranks: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        ranks.check(self.roster)
        if self.attempt < 1 or self.processes_per_node < 1:
            raise ValueError(
                f"attempt and processes_per_node count from 1; got {self.attempt} and {self.processes_per_node}"
            )
        object.__setattr__(self, "digest", ranks.digest(self.roster))
        by_instance = {instance: rank for rank, instance in enumerate(self.roster)}
        object.__setattr__(self, "_ranks", by_instance)

    @property
    def nodes(self) -> int:
        """The number of nodes in the gang."""
        return len(self.roster)

    @property
    def world_size(self) -> int:
        """The number of workers in the gang."""
        return len(self.roster) * self.processes_per_node

    def rank_of(self, instance: str) -> int:
        """Returns the node rank of an instance. Raises KeyError if it is not in the gang."""
        return self._ranks[instance]

    def name(self, rank: int) -> str:
        """Returns a node's name for messages to people."""
        return f"node {rank} ({self.roster[rank]})"

    @property
    def heartbeat(self) -> float:
        """Seconds between heartbeats: `beat`, or more in gangs of thousands, to limit the load."""
        return max(self.beat, min(self.lost_after / 5, self.nodes / 1000))

    @property
    def window(self) -> int:
        """The most bytes of logs and results that a node may have in flight, not yet acknowledged by the supervisor."""
        return max(256 * 1024, 16 * 1024 * 1024 // self.nodes)


NOTICES = ("warning", "checkpoint", "unkept", "start", "sick", "preflight")
"""The kinds of events that a node can record by sending a notice."""


def body_of(message: Message) -> dict[str, Any]:
    """Returns a message without its type, task and attempt."""
    return {name: message[name] for name in message if name not in ("type", "task", "attempt")}


def failed(body: Mapping[str, Any]) -> bool:
    """Whether a worker that ended has failed."""
    return body.get("code") != 0 or body.get("failure") is not None


def describe_failure(body: Mapping[str, Any]) -> str:
    """Describes a failure in one line: `node 2, rank 17: ValueError: no such layer`."""
    where = f"node {body.get('node')}, rank {body.get('rank')}"
    failure = body.get("failure") or {}
    if failure.get("kind") == "signal" or (body.get("signal") and not failure.get("message")):
        return f"{where}: killed by signal {body.get('signal')}"
    if failure.get("message") or failure.get("type"):
        text = ": ".join(
            str(part) for part in (failure.get("type"), failure.get("message")) if part
        )
        return f"{where}: {text}"
    return f"{where}: exited with {body.get('code')}"


TEXT_LIMIT = 16 * 1024
"""The most characters of a text from a user or a program (an exception's message may hold a whole array)."""

_TAIL_LINES, _TAIL_LIMIT = 20, 8 * 1024


def shorten(text: Any, limit: int = TEXT_LIMIT) -> str:
    """Returns a text that fits into a message and can be stored, with its beginning and its end.

    Lone surrogates, as in the names of files that are not UTF-8, are written as escapes: SQLite takes none. A secret
    that is cut here is found by the words in the middle (`output/redact.py`).
    """
    whole = str(text)
    if not whole.isascii():
        whole = whole.encode("utf-8", "backslashreplace").decode()
    if len(whole) <= limit:
        return whole
    half = limit // 2
    return f"{whole[:half]} [… {len(whole) - 2 * half} characters …] {whole[-half:]}"


def shorten_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """Shortens the texts in the body of a worker that ended, so that the message is not too long to be sent."""
    short = dict(body)
    if isinstance(failure := body.get("failure"), Mapping):
        short["failure"] = {
            name: shorten(value) if isinstance(value, str) else value
            for name, value in failure.items()
        }
    if isinstance(tail := body.get("tail"), (list, tuple)):
        short["tail"] = [
            shorten(line, _TAIL_LIMIT // _TAIL_LINES * 2) for line in tail[-_TAIL_LINES:]
        ]
    return short


_PLAIN_ADDRESSES, _PLAIN_OFFSETS = 64, 4096


def pack_addresses(addresses: Sequence[str]) -> dict[str, Any]:
    """Returns the fields of `go` that carry the addresses of all nodes, compressed for large gangs."""
    if len(addresses) <= _PLAIN_ADDRESSES:
        return {"addresses": list(addresses)}
    return {"packed": _packed(addresses)}


def pack_places(addresses: Sequence[str], ports: Sequence[Any]) -> dict[str, Any]:
    """Like `pack_addresses`, with ports, for the check before GO (`node/preflight/connectivity.py`).

    The port is 0 where a node does not listen.
    """
    pairs = zip(addresses, ports, strict=True)
    return pack_addresses([f"{at} {port if isinstance(port, int) else 0}" for at, port in pairs])


def unpack_addresses(message: Mapping[str, Any]) -> list[str]:
    """Returns the addresses by rank in a `go` message. Raises `MessageError` if it has none."""
    addresses = _unpacked(message["packed"]) if "packed" in message else message.get("addresses")
    if not isinstance(addresses, list) or not all(isinstance(one, str) for one in addresses):
        raise MessageError("go carries no list of addresses")
    return addresses


def pack_offsets(offsets: Mapping[str, int]) -> dict[str, Any]:
    """Returns the fields of the supervisor's `pull` that carry the offsets of streams, compressed if they are many."""
    if len(offsets) <= _PLAIN_OFFSETS:
        return {"offsets": dict(offsets)}
    return {"offsets": {}, "packed": _packed(dict(offsets))}


def unpack_offsets(message: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the offsets in the supervisor's `pull`, not checked. Raises `MessageError` if it has none."""
    offsets = _unpacked(message["packed"]) if "packed" in message else message["offsets"]
    if not isinstance(offsets, dict):
        raise MessageError("pull carries no offsets")
    return offsets


def _packed(value: Any) -> str:
    return binascii.b2a_base64(zlib.compress(json.dumps(value).encode(), 1)).decode()


def _unpacked(text: Any) -> Any:
    try:
        inflate = zlib.decompressobj()
        return json.loads(inflate.decompress(binascii.a2b_base64(text), 64 * 1024 * 1024))
    except (TypeError, ValueError, RecursionError, zlib.error) as error:
        raise MessageError(f"what is packed cannot be read: {error}") from None
