"""Validation of what other machines send: messages of the rendezvous, events, and an agent's files.

This is the only place where it is done. A value that passes has all fields that are read anywhere, each of its type,
and no number that is not finite or exceeds our limits. Whether a rank is in the gang, and whether a message is expected
in the current phase, is checked by the code that knows these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .json_shapes import (
    Shape,
    anything,
    count,
    fields,
    flag,
    integer,
    listing,
    mapping,
    maybe,
    moment,
    number,
    one_of,
    pair,
    text,
)
from .messages import NOTICES, OUTCOMES, PHASES, STREAMS, MessageError

_FAILURE = fields({"kind": text}, {"type": maybe(text), "message": maybe(text), "why": maybe(text)})
_SIZES = fields({}, dict.fromkeys(STREAMS, count))
_ENDED: dict[str, Shape] = {
    "local_rank": count,
    "node": count,
    "code": maybe(integer),
    "signal": maybe(integer),
    "failure": maybe(_FAILURE),
    "stopped": flag,
    "tail": listing(text),
    "started": maybe(moment),
    "ended": maybe(moment),
}
_WORKER = fields({"rank": count, "sizes": _SIZES}, _ENDED)
"""The body of a worker that ended."""
_FACTS = fields(
    {},
    {
        "hostname": text,
        "python_minor": text,
        "code": maybe(text),
        "agent": maybe(text),
        "gpus": maybe(fields({}, {"count": maybe(count), "kind": maybe(text)})),
        "clock": moment,
        "disk_free_bytes": number,
        "disk_total_bytes": number,
        "shm_bytes": integer,
        # None: without a limit.
        "memlock_bytes": maybe(integer),
        "connectivity": maybe(count),
    },
)
"""What a node reports of itself when it joins."""
_PREPARED = fields(
    {},
    {
        "packages": maybe(listing(text)),
        "versions": maybe(mapping(text)),
        "gpu_memory": maybe(listing(pair(count))),
        "doubt": maybe(text),
        "unit": text,
        "speeds": mapping(number),
        "links": mapping(number),
        "skipped": text,
    },
)
"""What a node reports when it is ready."""
_OFFSETS = mapping(count)
_ADDRESSES: dict[str, Shape] = {"addresses": listing(text), "packed": text}
_CHUNK: dict[str, Shape] = {
    "gen": count,
    "rank": count,
    "stream": one_of(STREAMS),
    "offset": count,
    "time": moment,
}

# In more than one direction.
_BEAT = fields({}, {"steady": number})
_REFUSE = fields({"reason": text})
_STOP = fields({"reason": text}, {"kind": text, "grace": number})
_RELEASE = fields({})
# "packed": the offsets, from a supervisor that has very many streams (`messages.pack_offsets`).
_PULL = fields(
    {"offsets": _OFFSETS},
    {"gen": count, "window": count, "streams": listing(one_of(STREAMS)), "packed": text},
)
_ACK = fields({"offsets": _OFFSETS})

Messages = Mapping[str, Shape]
"""The messages of one direction, each with its fields apart from type, task and attempt."""

FROM_MEMBER: Messages = {
    "join": fields({"instance": text, "incarnation": text, "facts": _FACTS}),
    "ready": fields({"facts": _PREPARED}),
    # "passing": whether another attempt may succeed; "sick": whether it needs another machine for that.
    "unready": fields({"error": text}, {"passing": flag, "sick": flag}),
    "started": fields({}),
    "worker": _WORKER,
    "halt": fields({"kind": text, "reason": text}),
    "notice": fields({"number": count, "kind": text, "text": text}),
    "stopped": fields({}),
    "vanish": fields({"kind": text, "reason": text, "seconds": number}),
    "calls": fields(
        {"callers": count, "waiting": listing(count)}, {"listeners": count, "round": count}
    ),
    "stoppable": fields({}),
    "beat": _BEAT,
    "chunk": fields(_CHUNK),
}
TO_MEMBER: Messages = {
    "welcome": fields({"rank": count, "roster": text}),
    "refuse": _REFUSE,
    "prepare": fields(
        {"master_addr": text, "master_port": count, "volume_token": text},
        {"connectivity": fields({}, _ADDRESSES)},
    ),
    "go": fields({"roster": text, "master_addr": text, "master_port": count}, _ADDRESSES),
    # "round": how many holds there were before, in a gang that is asked several times.
    "hold": fields({"seconds": number}, {"round": count, "growing": flag}),
    "resume": fields({"call": count}),
    "stop": _STOP,
    "ended": fields({"outcome": text, "reason": text}),
    "release": _RELEASE,
    "pull": _PULL,
    "ack": _ACK,
    "beat": _BEAT,
}
FROM_SUPERVISOR: Messages = {
    "attach": fields({"after": count}),
    "pull": _PULL,
    "ack": _ACK,
    "stop": _STOP,
    "lost": fields({"instance": text, "why": text}, {"answers": flag}),
    # Ask the workers to stop so that the gang may grow, or, with an empty reason, do not ask them any more.
    "grow": fields({"reason": text}),
    "release": _RELEASE,
    "beat": _BEAT,
}
TO_SUPERVISOR: Messages = {
    "state": fields({"phase": one_of(PHASES), "joined": count, "ready": count}),
    "event": fields({"event": lambda value: _event(value)}),
    # As the leader forwards it, with the node that it comes from.
    "chunk": fields({**_CHUNK, "node": count}),
    "release": _RELEASE,
    "beat": _BEAT,
    "refuse": _REFUSE,
}

_NODE: dict[str, Shape] = {"instance": text, "rank": count}
EVENTS: dict[str, Shape] = {
    "joined": fields({**_NODE, "address": text, "facts": _FACTS}),
    "back": fields(_NODE),
    **dict.fromkeys(NOTICES, fields({"text": text}, _NODE)),
    "preempting": fields({**_NODE, "text": text, "seconds": number}),
    "should_stop": fields({"text": text, "call": count}),
    "stoppable": fields({}),
    "preparing": fields({"master_addr": text, "master_port": count}),
    "ready": fields({**_NODE, "facts": anything}),
    # "copies_for_all": whether a gang ends well only after the event "copied".
    "go": fields(
        {"addresses": listing(text), "master_addr": text, "master_port": count},
        {"copies_for_all": flag},
    ),
    "copied": fields({}),
    "started": fields(_NODE),
    "worker": fields({"rank": count, "node": count, "sizes": _SIZES}, _ENDED),
    "first_failure": fields(
        {"rank": count, "node": count, "sizes": _SIZES, "reason": text}, _ENDED
    ),
    "suspect": fields({**_NODE, "why": text}),
    "lost": fields({**_NODE, "why": text}),
    "stopping": fields({"outcome": one_of(OUTCOMES), "reason": text}),
    "stopped": fields(_NODE),
    "ended": fields(
        {"outcome": one_of(OUTCOMES), "reason": text},
        {
            "first_failure": maybe(_WORKER),
            "missing": listing(text),
            "unstopped": listing(text),
        },
    ),
}
"""The fields of every kind of event apart from seq, time and kind."""
_EVENT = fields({"seq": count, "time": moment, "kind": one_of(tuple(EVENTS))})

_PROCESS = fields({"pid": count}, {"start": anything})
FILES: dict[str, Shape] = {
    "leader.json": fields({"address": text, "port": count}),
    "agent.pid": _PROCESS,
    "env.json": fields({}, {"reaper": maybe(_PROCESS)}),
    "report.json": fields(
        {},
        {
            "outcome": maybe(text),
            "reason": maybe(text),
            "first_failure": maybe(_WORKER),
            "workers": listing(_WORKER),
        },
    ),
}
"""The files that an agent leaves in the directory of its attempt for the supervisor."""

_STAMP = fields({"attempt": integer}, {"steady": number})


def check(message: Mapping[str, Any], allowed: Messages, task: str) -> str:
    """Returns a message's type, after checking that it is one of `allowed`, belongs to this task, and is complete.

    Raises:
        MessageError: The message is not valid. The text says what is wrong, without repeating the message.
    """
    kind = message.get("type")
    if not isinstance(kind, str) or kind not in allowed:
        raise MessageError(f"a message of type {str(kind)[:40]!r} is not expected from this peer")
    if message.get("task") != task:
        raise MessageError(f"a {kind} message bears another task")
    try:
        _STAMP(message)
        allowed[kind](message)
    except ValueError as error:
        raise MessageError(f"{kind}{error}") from None
    return kind


def check_event(event: Mapping[str, Any]) -> None:
    """Checks an event that was shortened to what can be stored. Raises MessageError."""
    try:
        _event(event)
    except ValueError as error:
        raise MessageError(f"event{error}") from None


def check_file(name: str, value: Mapping[str, Any]) -> None:
    """Checks the content of a file that an agent wrote. Raises MessageError."""
    try:
        FILES[name](value)
    except ValueError as error:
        raise MessageError(f"{name}{error}") from None


def _event(value: Any) -> None:
    _EVENT(value)
    EVENTS[value["kind"]](value)
