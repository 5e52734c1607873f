"""The courier: a process on a node that handles a client's requests over one SSH channel.

Without it, each request would take a shell or a Python process of its own. `agent.pyz courier` runs at the far end of
an SSH channel and ends with it. A request is a line of JSON, followed by "size" bytes of content; an answer has the
same form. Every request can also be done without a courier. A client that gets the answer "unfit", or finds the courier
gone or busy, uses the other way.

    {"do": "lease", "what", "request", "name"?}     -> {"lease": the answer of host_lease/client.py}
    {"do": "put", "files": [...]}, contents follow  -> {}, or {"unfit"} if a file is missing and was not sent
    {"do": "read", "path", "offset"}                -> {}, content follows; or {"errno", "text"}
    {"do": "run", "argv"}, its input follows        -> {}, its output follows; subcommands of this program only (`RUN`)
    {"do": "start", "argv", "log", "environment"}   -> {"pid"}; agents only
    {"do": "hello"}                                 -> {}; then imports what an agent needs that encrypts nothing
    {"do": "beat", "within": seconds}               no answer; the next request is due within this time

sshd notices a lost network only when it has data to send, which may never happen. A client that sends heartbeats and
then misses one is therefore taken for gone: the courier ends, and ends the sshd session that it belongs to.

Agents and subcommands are forked from this process, which costs a tenth of starting a Python: most of their modules are
imported already.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import select
import signal
import sys

from ..host_lease import client
from ..system import atomic_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

LARGEST_CONTENT = 2 << 20
"""The largest content of an answer, in bytes. The list of 20,000 files that a node lacks takes 1.6 MB."""
RUN = {"project": "project_files.make", "pythons": "python_env.environments"}
"""The modules of the subcommands that may be run: each reads a question and prints an answer."""
_BLOCK = 1 << 20
ROOM = "." * 300
"""An unused last argument: a forked agent's command line is written over it."""


def main(arguments: list[str]) -> int:
    """`courier [ROOM]`: answers requests until the channel ends."""
    # This process makes hardly any garbage, and imports are faster without the collector.
    gc.disable()
    requests, answers = Requests(0), os.dup(1)
    # Stray output must not get between the answers.
    os.dup2(2, 1)
    os.chdir("/")
    # The kernel collects children. A handler could miss one that ends between two reads, until the next request.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    courier = Courier((0, answers))
    while line := requests.line():
        request = json.loads(line)
        if request["do"] == "beat":
            requests.expect(float(request["within"]))
            continue
        size = int(request.get("size", 0))
        content = requests.exactly(size)
        if len(content) < size:
            # The channel ended within the content. A part of a file must not be put in the place of the whole.
            break
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
            # The client prepares other things that the agent needs meanwhile.
            get_ready(encrypts=request["do"] != "hello")
            courier.hash_program()
    if requests.silent:
        end_session()
    return 0


class Requests:
    """Reads a client's requests, until the client closes the channel or misses a heartbeat.

    Attributes:
        silent: Whether the client missed a heartbeat.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._received = b""
        self._within: float | None = None
        self.silent = False

    def expect(self, seconds: float) -> None:
        """Sets the longest time between two reads from the client."""
        self._within = seconds

    def line(self) -> bytes:
        """Returns the next line; b"" when there are no more."""
        while b"\n" not in self._received:
            if not self._read():
                return b""
        line, _, self._received = self._received.partition(b"\n")
        return line + b"\n"

    def exactly(self, size: int) -> bytes:
        """Returns `size` bytes; fewer when there are no more."""
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
    """Ends the sshd session that this process belongs to, if there is one: its client is gone."""
    parent = os.getppid()
    try:
        with open(f"/proc/{parent}/comm", encoding="ascii", errors="replace") as file:
            name = file.read().strip()
        # Newer versions of sshd use a program of its own for a session.
        if name in ("sshd", "sshd-session"):
            os.kill(parent, signal.SIGTERM)
    except OSError:
        return


def get_ready(*, encrypts: bool) -> None:
    """Imports the modules of an agent, so that agents forked from this process do not have to.

    Args:
        encrypts: Whether its gang will probably have several hosts. To import ssl takes 5 ms and 5 MB.
    """
    if "ssl" not in sys.modules:
        # As for a started agent (__main__.py); the modules that encrypt remove this block.
        sys.modules["ssl"] = None  # type: ignore[assignment]
    from ..agent import main as beginning

    _ = beginning
    if encrypts:
        from ..protocol import tls

        _ = tls
    # Imported objects are never garbage. If the collector visited them, every child would copy their memory pages.
    gc.freeze()


class Courier:
    """Carries out requests. `channel` are the descriptors that forked processes must close."""

    def __init__(self, channel: tuple[int, ...]) -> None:
        self._channel = channel
        self._program = sys.argv[0]
        # The file is named by its hash.
        self._sha256 = os.path.basename(self._program).partition(".")[0]
        self._hashes: dict[tuple[int, ...], str] = {}

    def do(self, request: Mapping[str, Any], content: bytes) -> tuple[dict[str, Any], bytes]:
        """Carries out one request. Returns the answer and the content that follows it."""
        what = request["do"]
        if what == "lease":
            name = request.get("name", client.NAME)
            return {"lease": client.obey(request["what"], request["request"], name)}, b""
        if what == "put":
            return self._put(request["files"], content), b""
        if what == "read":
            return _read(request["path"], int(request["offset"]))
        if what == "run":
            return self._run(request["argv"], content)
        if what == "start":
            return self._start(request["argv"], request["log"], request["environment"]), b""
        return ({} if what == "hello" else {"unfit": True}), b""

    # Files

    def _put(self, files: list[dict[str, Any]], content: bytes) -> dict[str, Any]:
        """Puts files in their places, one after the other; none if one is missing."""
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

    # Subcommands

    def _run(self, argv: list[str], content: bytes) -> tuple[dict[str, Any], bytes]:
        """Forks a subcommand, if the command is this program, run by this Python. Returns its output.

        One that prints nothing has failed. The client runs it again by itself, which also shows why.
        """
        if not self._is_ours(argv) or len(argv) != 5 or argv[4] not in RUN:
            return {"unfit": True}, b""
        reading, writing = os.pipe()

        def answer() -> int:
            os.close(reading)
            return _answer(RUN[argv[4]], content, writing)

        _fork(answer)
        os.close(writing)
        with open(reading, "rb") as pipe:
            output = pipe.read(LARGEST_CONTENT + 1)
        if not 0 < len(output) <= LARGEST_CONTENT:
            return {"unfit": True}, b""
        return {}, output

    def _is_ours(self, argv: list[str]) -> bool:
        """Whether a command is a subcommand of this program, run by this Python."""
        return argv[:3] == [sys.executable, "-I", "-S"] and len(argv) > 4 and self._is_us(argv[3])

    # The agent

    def _start(self, argv: list[str], log: str, environment: dict[str, str]) -> dict[str, Any]:
        """Forks the agents of a command, if it is this program, run by this Python."""
        if not self._is_ours(argv) or argv[4:5] != ["agent"]:
            return {"unfit": True}
        directory = os.path.dirname(log)
        if not os.path.isdir(directory):
            return {"errno": errno.ENOENT, "text": f"{directory} is not there"}
        get_ready(encrypts=False)
        self._note_digest()

        def lead() -> int:
            self._become(argv, log, environment)
            from ..agent import main as beginning

            return beginning.main(argv[5:])

        return {"pid": _fork(lead)}

    def hash_program(self) -> None:
        """Hashes this program, so that neither its agents have to, nor this process when it is put in its place."""
        self._has(self._program, self._sha256)

    def _note_digest(self) -> None:
        """Spares the agents hashing the program again."""
        from ..system import node_facts

        if self._sha256 in self._hashes.values():
            node_facts.note_digest(self._sha256)

    def _become(self, argv: list[str], log: str, environment: dict[str, str]) -> None:
        """Detaches the forked process from the courier, including its environment and command line in /proc."""
        from ..system import process_title, processes

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
            return self._has(program, self._sha256)
        except OSError:
            return False


def _error(error: OSError) -> dict[str, Any]:
    return {"errno": error.errno or errno.EIO, "text": error.strerror or str(error)}


def _fork(do: Callable[[], int]) -> int:
    """Returns the id of a forked process, which exits with what the function returns."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        # Otherwise the statuses of its own children would be lost.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        gc.enable()
        code = do()
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        os._exit(code)


def _answer(module: str, content: bytes, output: int) -> int:
    """Runs the function `main` of a module in this forked process. Returns its exit status."""
    import io
    from importlib import import_module

    sys.stdin = io.TextIOWrapper(io.BytesIO(content))
    with open(output, "w", encoding="utf-8") as sys.stdout:
        main: Callable[[list[str]], int] = import_module(f"..{module}", __package__).main
        return main([])


def _read(path: str, offset: int) -> tuple[dict[str, Any], bytes]:
    with atomic_files.open_regular(path) as file:
        if os.fstat(file.fileno()).st_size - offset > LARGEST_CONTENT:
            return {"unfit": True}, b""
        file.seek(offset)
        return {}, file.read(LARGEST_CONTENT)
