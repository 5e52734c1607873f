"""File and process requests of a mux server's client, carried out by a forked child. Answers go to standard output.

    {"do": "put", "files": [{"target", "mode", "size", "sha256", "cache"}]}    -> "need 0 2\\n": files to send
    {"do": "read", "path", "offset"}                                           -> the bytes
    {"do": "start", "argv", "log", "environment"}                              -> {"pid"}; by the step daemon, if any
    {"do": "daemon", "request"}                                                -> the answer of the step daemon

An error is one line of JSON on standard error, {"errno", "text"}, and the exit status `FAILED`.
"""

from __future__ import annotations

import errno
import json
import os

from ..system import atomic_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

FAILED = 74
_BLOCK = 256 * 1024


def obey(request: Mapping[str, Any], daemon: str | None) -> int:
    """Carries out one request. Returns the exit status."""
    try:
        what = request["do"]
        if what == "put":
            _put(request["files"])
        elif what == "read":
            _read(request["path"], int(request["offset"]))
        elif what == "start":
            _say(_start(request, daemon))
        elif what == "daemon" and daemon is not None:
            _say(_ask_daemon(daemon, request["request"]))
        else:
            raise OSError(errno.EINVAL, f"{what!r} is not known")
    except OSError as error:
        told = {"errno": error.errno or errno.EIO, "text": error.strerror or str(error)}
        atomic_files.write(2, json.dumps(told).encode() + b"\n")
        return FAILED
    return 0


def _say(answer: Mapping[str, Any]) -> None:
    atomic_files.write(1, json.dumps(answer).encode() + b"\n")


# Files


def _put(files: list[dict[str, Any]]) -> None:
    needed = []
    for number, each in enumerate(files):
        each["place"] = f"{each['cache']}/{each['sha256']}" if each["cache"] else each["target"]
        if each["sha256"] is None or not _has(each["place"], each["sha256"], each["size"]):
            needed.append(number)
    atomic_files.write(1, f"need {' '.join(map(str, needed))}\n".encode())
    for number, each in enumerate(files):
        if number in needed:
            _take(each)
        if each["place"] != each["target"]:
            atomic_files.link(each["place"], each["target"], each["mode"])


def _take(file: Mapping[str, Any]) -> None:
    """Reads the content of one file from standard input, and puts it in its place."""
    place = file["place"]
    if os.path.isdir(place):
        raise IsADirectoryError(errno.EISDIR, f"{place} is a directory")
    atomic_files.make(os.path.dirname(place))
    with atomic_files.new(place, file["mode"]) as descriptor:
        left = int(file["size"])
        while left:
            data = os.read(0, min(left, _BLOCK))
            if not data:
                raise OSError(errno.EIO, "only a part of it arrived")
            atomic_files.write(descriptor, data)
            left -= len(data)


def _has(path: str, sha256: str, size: int) -> bool:
    try:
        with open(path, "rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_size != size:
                return False
            import hashlib

            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except OSError:
        return False


def _read(path: str, offset: int) -> None:
    with atomic_files.open_regular(path) as file:
        file.seek(offset)
        while data := file.read(_BLOCK):
            atomic_files.write(1, data)


# Processes


def _start(request: Mapping[str, Any], daemon: str | None) -> dict[str, Any]:
    log = request["log"]
    directory = os.path.dirname(log) or "/"
    if not os.path.isdir(directory):
        raise FileNotFoundError(errno.ENOENT, f"{directory} is not there")
    if daemon is not None:
        return _ask_daemon(daemon, {**request, "do": "start"})
    from ..system import daemonize

    return {"pid": daemonize.spawn(request["argv"], log, request["environment"])}


def _ask_daemon(home: str, request: Mapping[str, Any]) -> dict[str, Any]:
    from . import daemon_client

    answer = daemon_client.Line(home).ask(request)
    if "errno" in answer:
        raise OSError(int(answer["errno"]), answer["text"])
    return answer
