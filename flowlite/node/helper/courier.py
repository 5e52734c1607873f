"""The courier: one process that does for a client what would else take a shell, or a Python, for each thing to do.

`agent.pyz courier` runs at the far end of an SSH channel and ends with it. A request is a line of JSON, followed by as
many bytes as its "size" says; so is the answer. Everything here can be done without a courier, too, so whoever is told
"unfit", or finds it gone or busy, takes the other way.

    {"do": "lease", "what", "request", "name"?}     -> {"lease": what lease.py answers}
    {"do": "put", "files": [...]}, contents follow  -> {}, or {"unfit"} where one is lacking whose content was not sent
    {"do": "read", "path", "offset"}                -> {}, content follows; or {"errno", "text"}
    {"do": "start", "argv", "log", "environment"}   -> {"pid"}; only an agent, which is forked from here
    {"do": "hello"}                                 -> {}; it gets ready for an agent to come
    {"do": "beat", "within": seconds}               no answer; the next word comes within so many seconds

sshd learns of a network that is gone only when it has something to send, which may be never. So a client that sends
beats and falls silent is taken for gone: the courier ends, and with it the session of sshd that it belongs to.

An agent that is forked costs a tenth of one that is started: all that it imports is there already.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import select
import signal
import stat
import sys

from ..host_lease import client
from ..system import atomic_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

LARGEST_READ = 1 << 20
_BLOCK = 1 << 20
ROOM = "." * 300
"""A last argument that means nothing: the command line of what is forked from here is written over it."""


def main(arguments: list[str]) -> int:
    """`courier [ROOM]`: answers until nobody asks any more."""
    # It makes hardly any garbage, and importing without a collector is faster.
    gc.disable()
    requests, answers = Requests(0), os.dup(1)
    # Whatever prints must not get between the answers.
    os.dup2(2, 1)
    os.chdir("/")
    signal.signal(signal.SIGCHLD, _reap)
    courier = Courier((0, answers))
    while line := requests.line():
        request = json.loads(line)
        if request["do"] == "beat":
            requests.expect(float(request["within"]))
            continue
        content = requests.exactly(int(request.get("size", 0)))
        try:
            answer, back = courier.do(request, content)
        except OSError as error:
            answer, back = _error(error), b""
        try:
            atomic_files.write(
                answers, json.dumps({**answer, "size": len(back)}).encode() + b"\n" + back
            )
        except OSError:
            break
        if request["do"] == "hello" or answer.get("lease", {}).get("lease"):
            # While the client sees to what the agent needs.
            get_ready()
    if requests.silent:
        end_session()
    return 0


class Requests:
    """What a client sends, until it hangs up or is silent for longer than it said.

    Attributes:
        silent: Whether it was.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._received = b""
        self._within: float | None = None
        self.silent = False

    def expect(self, seconds: float) -> None:
        """From now on, a word comes every so many seconds."""
        self._within = seconds

    def line(self) -> bytes:
        """The next line; b"" when there are no more."""
        while b"\n" not in self._received:
            if not self._read():
                return b""
        line, _, self._received = self._received.partition(b"\n")
        return line + b"\n"

    def exactly(self, size: int) -> bytes:
        """So many bytes; fewer when there are no more."""
        parts = [self._received]
        missing = size - len(self._received)
        while missing > 0:
            self._received = b""
            if not self._read():
                break
            parts.append(self._received)
            missing -= len(self._received)
        whole = b"".join(parts)
        self._received = whole[size:]
        return whole[:size]

    def _read(self) -> bool:
        if not select.select([self._descriptor], [], [], self._within)[0]:
            self.silent = True
            return False
        block = os.read(self._descriptor, _BLOCK)
        self._received += block
        return block != b""


def end_session() -> None:
    """Ends the session of sshd that this process belongs to, if it is one: its client is gone."""
    parent = os.getppid()
    try:
        with open(f"/proc/{parent}/comm", encoding="ascii", errors="replace") as file:
            name = file.read().strip()
        # Newer versions have a program of its own for it.
        if name in ("sshd", "sshd-session"):
            os.kill(parent, signal.SIGTERM)
    except OSError:
        return


def get_ready() -> None:
    """Import what an agent will need, for those that are forked from here."""
    if "ssl" not in sys.modules:
        # As for an agent that is started (__main__.py); what encrypts lets it in again.
        sys.modules["ssl"] = None  # type: ignore[assignment]
    from ..agent import main as beginning
    from ..protocol import tls

    _ = beginning, tls
    # What is imported is never garbage; looking at it would cost every child a copy of it.
    gc.freeze()


class Courier:
    """What it can do. `channel` are the descriptors that what is forked from here must not keep."""

    def __init__(self, channel: tuple[int, ...]) -> None:
        self._channel = channel
        self._program = sys.argv[0]
        self._hashes: dict[tuple[int, ...], str] = {}

    def do(self, request: Mapping[str, Any], content: bytes) -> tuple[dict[str, Any], bytes]:
        """Obeys one request."""
        what = request["do"]
        if what == "lease":
            name = request.get("name", client.NAME)
            return {"lease": client.obey(request["what"], request["request"], name)}, b""
        if what == "put":
            return self._put(request["files"], content), b""
        if what == "read":
            return _read(request["path"], int(request["offset"]))
        if what == "start":
            return self._start(request["argv"], request["log"], request["environment"]), b""
        return ({} if what == "hello" else {"unfit": True}), b""

    # Files

    def _put(self, files: list[dict[str, Any]], content: bytes) -> dict[str, Any]:
        """Puts files in their places, one after the other; none if one of them is lacking."""
        for each in files:
            each["place"] = f"{each['cache']}/{each['sha256']}" if each["cache"] else each["target"]
            if each["size"] is None and not self._has(each["place"], each["sha256"]):
                return {"unfit": True}
        begin = 0
        for each in files:
            if each["size"] is not None:
                end = begin + each["size"]
                atomic_files.place(content[begin:end], each["place"], each["mode"])
                begin = end
            if each["place"] != each["target"]:
                atomic_files.link(each["place"], each["target"], each["mode"])
        return {}

    def _has(self, path: str, sha256: str) -> bool:
        try:
            with open(path, "rb", buffering=0) as file:
                facts = os.fstat(file.fileno())
                key = (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns)
                if key not in self._hashes:
                    import hashlib

                    self._hashes[key] = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError:
            return False
        return self._hashes[key] == sha256

    # The agent

    def _start(self, argv: list[str], log: str, environment: dict[str, str]) -> dict[str, Any]:
        """Forks an agent, if it is our own program that is to be started, with our own Python."""
        ours = [sys.executable, "-I", "-S"]
        if argv[:3] != ours or argv[4:5] != ["agent"] or len(argv) != 6 or not self._is_us(argv[3]):
            return {"unfit": True}
        directory = os.path.dirname(log)
        if not os.path.isdir(directory):
            return {"errno": errno.ENOENT, "text": f"{directory} is not there"}
        get_ready()
        self._note_digest()
        pid = os.fork()
        if pid:
            return {"pid": pid}
        code = 1
        try:
            self._become(argv, log, environment)
            from ..agent import main as beginning

            code = beginning.main(argv[5:])
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)
        finally:
            os._exit(code)

    def _note_digest(self) -> None:
        """Spares the agent from hashing the program once more, which was hashed here before it was put in its place."""
        from ..system import node_facts

        for sha256 in self._hashes.values():
            if sha256 == os.path.basename(self._program):
                node_facts.note_digest(sha256)

    def _become(self, argv: list[str], log: str, environment: dict[str, str]) -> None:
        """Leaves nothing of the courier in this process, for those who look at it from outside either."""
        from ..system import process_title, processes

        gc.enable()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        processes.stand_alone(log)
        for each in self._channel:
            if each > 2:
                os.close(each)
        os.environ.update(environment)
        if not process_title.mark(environment, argv):
            os.execv(argv[0], argv)

    def _is_us(self, program: str) -> bool:
        try:
            if os.path.samefile(program, self._program):
                return True
            return self._has(program, os.path.basename(self._program))
        except OSError:
            return False


def _reap(*_: object) -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _error(error: OSError) -> dict[str, Any]:
    return {"errno": error.errno or errno.EIO, "text": error.strerror or str(error)}


def _read(path: str, offset: int) -> tuple[dict[str, Any], bytes]:
    # Whatever it is, opening it must not block.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb", buffering=0) as file:
        facts = os.fstat(descriptor)
        if stat.S_ISDIR(facts.st_mode):
            return {"errno": errno.EISDIR, "text": ""}, b""
        if not stat.S_ISREG(facts.st_mode) or facts.st_size - offset > LARGEST_READ:
            return {"unfit": True}, b""
        file.seek(offset)
        return {}, file.read(LARGEST_READ)
