"""Files to and from a node, and processes started there, through a mux server."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from flowlite.connect.bounded import HASHED_PER_SECOND, MOST_JSON, Tail, parse_object, too_long
from flowlite.connect.ssh.quoting import readable
from flowlite.connect.step.stream import Stream
from flowlite.connect.values import File
from flowlite.errors import NodeUnreachable

Ask = Callable[[Mapping[str, Any]], Stream]

# A file operation in which nothing moves for this long counts as hung; hashing existing files gets longer.
_STALL_SECONDS = 60.0


def put_files(ask: Ask, label: str, files: Sequence[File]) -> None:
    """Writes files atomically. Those with a hash are sent only if they are missing.

    Raises:
        NodeUnreachable: The node or its disk does not answer.
        OSError: A file cannot be read here, or not be written on the node.
    """
    listed = [_listed(file) for file in files]
    hashed = sum(each["size"] for each in listed if each["sha256"])
    stall = _STALL_SECONDS + hashed / HASHED_PER_SECOND
    named = ", ".join(file.target for file in files[:3]) + (", …" if len(files) > 3 else "")
    with ask({"do": "put", "files": listed}) as stream:
        said = _LastOutput(f"{label}: what our program there says")
        wanted = _wanted(stream, said, stall)
        for number in wanted:
            if not all(map(stream.send, files[number].blocks(listed[number]["size"]))):
                break
        stream.end_input()
        said.hear_all(stream, label, stall)
        _check(stream, said, f"{label}: cannot write {named}")


def _listed(file: File) -> dict[str, Any]:
    known = {"sha256": file.sha256, "cache": file.cache}
    return {"target": file.target, "mode": file.mode, "size": file.check(), **known}


def _wanted(stream: Stream, said: _LastOutput, stall: float) -> list[int]:
    """The numbers of the files that the node lacks."""
    line = b""
    for name, block in stream.pieces(stall=stall):
        if name == "err":
            said.err.add(block)
            continue
        line += block
        if len(line) > MOST_JSON:
            raise too_long("which files the node needs", MOST_JSON)
        if line.endswith(b"\n"):
            return [int(number) for number in line.split()[1:]]
    return []


def read_file(ask: Ask, label: str, path: str, offset: int) -> Iterator[bytes]:
    """Yields the bytes of a file from `offset` to its end. Ends without an error only if all of them arrived.

    Raises:
        FileNotFoundError: The file does not exist.
        OSError: It cannot be read.
        NodeUnreachable: The connection broke.
    """
    with ask({"do": "read", "path": path, "offset": offset}) as stream:
        stream.end_input()
        said = _LastOutput(f"{label}: what our program there says")
        try:
            for name, block in stream.pieces(stall=_STALL_SECONDS):
                if name == "out":
                    yield block
                else:
                    said.err.add(block)
        except TimeoutError:
            raise _stands_still(label, _STALL_SECONDS) from None
        _check(stream, said, f"{label}: cannot read {path}")


def answer(stream: Stream, what: str) -> dict[str, Any]:
    """The line of JSON that answers a request.

    Raises:
        OSError: The request failed; the message begins with `what`.
        NodeUnreachable: The connection broke, or the node does not answer.
    """
    said = _LastOutput(f"{what}: what our program there says")
    said.hear_all(stream, what, _STALL_SECONDS)
    _check(stream, said, what)
    try:
        return parse_object(bytes(said.out))
    except ValueError as error:
        raise NodeUnreachable(f"{what}: our program there answers nonsense ({error})") from None


class _LastOutput:
    """The last output on both streams of a request, for short answers and errors."""

    def __init__(self, whose: str) -> None:
        self.out = Tail(whose)
        self.err = Tail(whose)

    def hear_all(self, stream: Stream, label: str, stall: float) -> None:
        """Reads the stream to its end."""
        try:
            for name, block in stream.pieces(stall=stall):
                (self.out if name == "out" else self.err).add(block)
        except TimeoutError:
            raise _stands_still(label, stall) from None


def _check(stream: Stream, said: _LastOutput, what: str) -> None:
    """Raises OSError if the request failed, of the type that the same operation would raise locally."""
    end = stream.end
    if end.get("code") == 0:
        return
    try:
        told = parse_object(bytes(said.err).splitlines()[-1])
        number, text = int(told["errno"]), str(told["text"])
    except (ValueError, IndexError, KeyError, TypeError):
        number = int(end.get("errno", errno.EIO))
        text = str(end.get("text") or readable(bytes(said.err)) or f"exit status {end.get('code')}")
    if number == errno.ECONNREFUSED:
        raise NodeUnreachable(f"{what}: {text}")
    raise OSError(number, f"{what}: {text}")


def _stands_still(label: str, stall: float) -> NodeUnreachable:
    return NodeUnreachable(
        f"{label}: it answers, but a command on its files stood still for {stall:.0f} s; a disk or a shared file "
        "system there may hang"
    )
