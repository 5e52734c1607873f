"""What the rendezvous says: every message, every event, every phase and outcome, in one place.

A message is a JSON object with `type`, `task` and `epoch`, plus the fields in message_check.py, where every message is
checked before anybody acts on it; `chunk` has bytes beside it.

What the leader says to its supervisor has "steady" beside that, the leader's steady clock when it was said, or when the
event happened: so the supervisor knows how long ago that was, however late it hears of it (`SupervisorLink`).

Events are what the supervisor learns, as dictionaries `{"seq": n, "time": unix of the leader, "kind": ..., ...}`,
numbered from 1 without gaps, always in this order of fields. Kinds, with what they carry:

    joined        instance, rank, address, facts          a node is there
    back          instance, rank                          a suspected node answers again
    warning       text [, instance, rank]                 clock off, disk nearly full, a second claimant of an id,
                                                          a notice of a node (a bucket that does not answer)
    checkpoint    text, instance, rank                    what of the checkpoints was copied, in the end
    unkept        text, instance, rank                    files that its task wrote there and nobody keeps
    preempting    text, seconds, instance, rank           a node will be taken away in so many seconds
    should_stop   text, call                              from this call on it is True on all ranks
    preparing     master_addr, master_port                all are there and agree; nodes prepare
    ready         instance, rank, facts                   a node has prepared
    go            addresses, master_addr, master_port     the barrier has opened
    started       instance, rank                          the workers of a node run
    worker        the body the node reported (below)      a worker has ended
    first_failure the same body, and reason               the failure that stops the gang
    suspect       instance, rank, why                     probe it through its connection; answer `lost` if it is gone
    lost          instance, rank, why                     given up; it may be reused only after it was killed
    stopping      outcome, reason                         stop was sent to every node
    stopped       instance, rank                          no worker of the node is left
    ended         outcome, reason, first_failure (body or None), missing [instances], unstopped [instances]

`ended` is the last event and there is exactly one. `unstopped` names nodes that did not confirm: their workers may live
on until the node is killed or has fenced itself (`fence_after` + `grace` seconds after the end).

The body of a worker that ended: rank, local_rank, node, code (int | None), signal (int | None), failure (None or
{"kind": "exception"|"signal"|"exit"|"load"|"result", "type", "message"}), tail [last lines], sizes {"out", "err",
"result"} and, of a node's first rank, {"setup"} (final, in bytes), started, ended (unix of the node). It failed unless
code is 0 and failure is None.
"""

from __future__ import annotations

import binascii
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..config import ranks
from ..config.fencing import FENCE_AFTER

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
ERROR = "error"
OUTCOMES = (DONE, FAILED, STOPPED, DEADLINE, CHECKS, MISSING, LOST, PREEMPTED, ERROR)

STOP_OUTCOMES = {
    "cancel": STOPPED,
    "deadline": DEADLINE,
    "preempted": PREEMPTED,
    "error": ERROR,
    "fenced": LOST,
    "lost": LOST,
}
"""What a stop asked for by the supervisor (or a node) ends the gang with."""

STREAMS = ("out", "err", "setup", "result")
"""The files of each rank that are followed; a stream is named "<rank>.<stream>". "setup" is what `setup=` says on a
node; it belongs to the first rank there."""


class MessageError(ValueError):
    """A message that is not one of ours: unknown type, a field missing or of the wrong kind."""


@dataclass(frozen=True)
class GangSettings:
    """What leader and members must know of their gang. Durations are seconds.

    Attributes:
        task: Task id.
        epoch: Number of the attempt; rises with every restart. Older epochs are refused everywhere.
        roster: Instance ids by node rank (`roster.assign_ranks`).
        processes_per_node: Workers per node.
        leader_address: What other nodes reach node 0 by; becomes MASTER_ADDR.
        beat: How often both sides show that they live.
        lost_after: Silence after which a node is suspected.
        fence_after: Silence of the leader after which a node stops its own workers, and of a node after which the
            leader gives it up.
        join_timeout: How long the leader waits for all nodes to join, and a node for its leader.
        prepare_timeout: How long all nodes may take to prepare.
        linger: How long a finished gang waits to be collected.
        grace: From the stop signal to SIGKILL.
        after_stop: How long a node may take once its workers have ended, for a last copy of checkpoints.
    """

    task: str
    epoch: int
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
        object.__setattr__(self, "roster", tuple(self.roster))
        ranks.check(self.roster)
        if self.epoch < 1 or self.processes_per_node < 1:
            raise ValueError(
                f"epoch and processes_per_node count from 1; got {self.epoch} and {self.processes_per_node}"
            )
        object.__setattr__(self, "digest", ranks.digest(self.roster))
        by_instance = {instance: rank for rank, instance in enumerate(self.roster)}
        object.__setattr__(self, "_ranks", by_instance)

    @property
    def nodes(self) -> int:
        """How many nodes the gang has."""
        return len(self.roster)

    @property
    def world_size(self) -> int:
        """How many workers the gang has."""
        return len(self.roster) * self.processes_per_node

    def rank_of(self, instance: str) -> int:
        """The node rank of an instance. Raises KeyError if it is not in the gang."""
        return self._ranks[instance]

    def name(self, rank: int) -> str:
        """How a node is called in messages to people."""
        return f"node {rank} ({self.roster[rank]})"

    @property
    def heartbeat(self) -> float:
        """Seconds between beats: `beat`, stretched for gangs of thousands so that beats do not become the load."""
        return max(self.beat, min(self.lost_after / 5, self.nodes / 1000))

    @property
    def window(self) -> int:
        """Bytes of log and result a node may have under way before the supervisor has acknowledged them."""
        return max(256 * 1024, 16 * 1024 * 1024 // self.nodes)


NOTICES = ("warning", "checkpoint", "unkept")
"""The kinds of events that a node may have recorded with a notice."""


def failed(body: Mapping[str, Any]) -> bool:
    """Whether a worker that ended failed."""
    return body.get("code") != 0 or body.get("failure") is not None


def describe_failure(body: Mapping[str, Any]) -> str:
    """One line for people: `node 2, rank 17: ValueError: no such layer`."""
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
"""Most characters of a text that people wrote or programs made (an exception's message may hold a whole array)."""

_TAIL_LINES, _TAIL_LIMIT = 20, 8 * 1024


def shorten(text: Any, limit: int = TEXT_LIMIT) -> str:
    """A text that fits into a message, with its beginning and its end."""
    whole = str(text)
    if len(whole) <= limit:
        return whole
    half = limit // 2
    return f"{whole[:half]} [… {len(whole) - 2 * half} characters …] {whole[-half:]}"


def shorten_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a worker that ended, so that no message or last line is too long to be sent."""
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


_PLAIN_ADDRESSES = 64


def pack_addresses(addresses: Sequence[str]) -> dict[str, Any]:
    """Fields of `go` that carry all addresses; packed for large gangs, where every node gets every address."""
    if len(addresses) <= _PLAIN_ADDRESSES:
        return {"addresses": list(addresses)}
    return {
        "packed": binascii.b2a_base64(zlib.compress(json.dumps(addresses).encode(), 1)).decode()
    }


def pack_places(addresses: Sequence[str], ports: Sequence[Any]) -> dict[str, Any]:
    """As `pack_addresses`, for the check before GO (preflight/connectivity.py); port 0 where a node does not listen."""
    pairs = zip(addresses, ports, strict=True)
    return pack_addresses([f"{at} {port if isinstance(port, int) else 0}" for at, port in pairs])


def unpack_addresses(message: Mapping[str, Any]) -> list[str]:
    """The addresses by rank of a `go` message. Raises `MessageError` if it has none."""
    try:
        if "packed" in message:
            inflate = zlib.decompressobj()
            text = inflate.decompress(binascii.a2b_base64(message["packed"]), 64 * 1024 * 1024)
            addresses = json.loads(text)
        else:
            addresses = message["addresses"]
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise MessageError(f"go carries no addresses that can be read: {error}") from None
    if not isinstance(addresses, list) or not all(isinstance(one, str) for one in addresses):
        raise MessageError("go carries no list of addresses")
    return addresses
