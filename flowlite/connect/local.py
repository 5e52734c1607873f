"""This machine as a node: the connection of the local provider."""

from __future__ import annotations

import hashlib
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from flowlite.connect import local_courier
from flowlite.connect.base import Connection
from flowlite.connect.bounded import MOST_OUTPUT, Output
from flowlite.connect.pipe import Pipe
from flowlite.connect.values import Completed, File
from flowlite.node.system import atomic_files, processes
from flowlite.node.system.atomic_files import open_regular
from flowlite.output import printing

if TYPE_CHECKING:
    import asyncio

_BLOCK = 1024 * 1024
# Below this size a copy costs as little as a link, and the original cannot be changed through it.
_LINK_FROM = 1024 * 1024


class LocalConnection(Connection):
    """Runs commands and copies files on this machine. Large files are hard-linked where the disk allows it."""

    def run(
        self,
        argv: Sequence[str],
        *,
        input: bytes | None = None,
        timeout: float | None = None,
        most: int = MOST_OUTPUT,
    ) -> Completed:
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            child = _with_pipes(argv, subprocess.PIPE if input else subprocess.DEVNULL)
        except OSError as error:
            return _refused(argv, error)
        output = Output(f"the output of {argv[0]}", most)
        with child:
            try:
                _feed(child, input)
                _hear(child, output.add, deadline)
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                code = child.wait(left)
            except (TimeoutError, subprocess.TimeoutExpired):
                child.kill()
                raise TimeoutError(f"{argv[0]} did not end within {timeout} s") from None
            except BaseException:
                child.kill()
                raise
        return Completed(code, output.take("out"), output.take("err"))

    def pipe(self, argv: Sequence[str], seconds: float) -> Pipe:
        from flowlite.connect.local_pipe import LocalPipe

        return LocalPipe(argv)

    def start(self, argv: Sequence[str], *, log: str, environment: Mapping[str, str]) -> int:
        forked = local_courier.start_agent(argv, log, environment)
        if forked is not None:
            return forked
        processes.reap_let_go()
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            child = subprocess.Popen(
                list(argv),
                cwd="/",
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                start_new_session=True,
            )
        finally:
            os.close(descriptor)
        return processes.let_go(child)

    def put_many(self, files: Sequence[File]) -> None:
        for file in files:
            file.check()
            source, target, sha256 = file.content, Path(file.target), file.sha256
            if sha256 is not None and isinstance(source, Path):
                if _has_content(target, source, sha256):
                    continue
                if file.cache is not None:
                    kept = Path(file.cache) / sha256
                    if not _has_content(kept, source, sha256):
                        _write(source, kept, file.mode)
                    source = kept
            _write(source, target, file.mode)

    def get(self, source: str, target: Path, *, size: int | None = None) -> None:
        with _partial_of(target) as partial:
            linked = _link(Path(source), partial, 0o600)
        if not linked:
            super().get(source, target, size=size)

    def read(self, path: str, offset: int = 0) -> Iterator[bytes]:
        with open_regular(path) as file:
            file.seek(offset)
            while block := file.read(_BLOCK):
                yield block

    def read_at_once(self, path: str) -> bytes | None:
        return self.read_all(path)

    def follow(self, argv: Sequence[str], take: Callable[[str, bytes], None]) -> int:
        try:
            child = _with_pipes(argv, subprocess.DEVNULL)
        except OSError as error:
            refused = _refused(argv, error)
            take("err", refused.stderr)
            return refused.code
        with child:
            _hear(child, take)
            return child.wait()

    def stream(self, argv: Sequence[str], *, terminal: bool) -> int:
        if terminal and not (sys.stdin.isatty() and sys.stdout.isatty()):
            return _on_terminal(argv)
        return stream_here(argv)

    async def open_tcp(
        self, address: str, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        # Imported here: it takes long, and a client that plans and submits does not need it.
        import asyncio

        return await asyncio.open_connection(address, port)


@contextmanager
def _partial_of(target: Path) -> Iterator[Path]:
    """Yields the path of a file that is renamed to its target at the end, if there is one. Makes directories, 0700."""
    partial = Path(atomic_files.beside(os.path.abspath(target)))
    try:
        yield partial
        if partial.exists():
            os.replace(partial, target)
    except OSError as error:
        # A write that finds the disk full does not say which one.
        error.filename = error.filename or str(target)
        raise
    finally:
        # Also after success: renaming one hard link onto another of the same file leaves both.
        partial.unlink(missing_ok=True)


def _link(source: Path, target: Path, mode: int) -> bool:
    """Hard-links a large file if readers cannot tell the link from a copy. Returns whether it did."""
    facts = source.stat()
    if facts.st_size < _LINK_FROM or facts.st_mode & 0o777 != mode:
        return False
    try:
        os.link(source, target)
    except OSError:
        return False
    return True


def _write(source: bytes | Path, target: Path, mode: int) -> None:
    with _partial_of(target) as partial:
        if isinstance(source, bytes):
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with open(descriptor, "wb") as file:
                file.write(source)
        elif not _link(source, partial, mode):
            # Imported here, as it is seldom needed: large files are linked.
            import shutil

            # Before it has any content: copyfile() would create it with the rights of the umask.
            os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            shutil.copyfile(source, partial)
        if partial.stat().st_mode & 0o777 != mode:
            partial.chmod(mode)


def _has_content(target: Path, source: Path, sha256: str) -> bool:
    try:
        if os.path.samefile(target, source):
            return True
        if target.stat().st_size != source.stat().st_size:
            return False
        with open(target, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except FileNotFoundError:
        return False


def stream_here(argv: Sequence[str]) -> int:
    """Runs a command of this machine on our own stdin, stdout and stderr. Returns its exit status as a shell does."""
    # Ctrl-C on our terminal reaches the command itself, which decides what to do; we only wait.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        child = subprocess.Popen(list(argv), preexec_fn=_default_interrupt)
        return _shell_code(child.wait())
    except FileNotFoundError as error:
        printing.write(sys.stderr, f"{argv[0]}: {error.strerror}")
        return 127
    finally:
        signal.signal(signal.SIGINT, before)


def _with_pipes(argv: Sequence[str], stdin: int) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen(list(argv), stdin=stdin, stdout=pipe, stderr=pipe, bufsize=0)


def _feed(child: subprocess.Popen[bytes], content: bytes | None) -> None:
    """Sends all input, then EOF, in a thread, since the command may write before it has read."""
    if not content:
        return
    stdin = child.stdin
    assert stdin is not None

    def all_of_it() -> None:
        # The command may read only part of its input, or have been killed.
        with suppress(OSError, ValueError):
            view = memoryview(content)
            while view:
                view = view[stdin.write(view) :]
        with suppress(OSError):
            stdin.close()

    threading.Thread(target=all_of_it, name="flowlite-feed", daemon=True).start()


def _hear(
    child: subprocess.Popen[bytes],
    take: Callable[[str, bytes], None],
    deadline: float | None = None,
) -> None:
    """Passes on both outputs as they arrive, to their end. Raises TimeoutError."""
    with selectors.DefaultSelector() as selector:
        for pipe, stream in ((child.stdout, "out"), (child.stderr, "err")):
            assert pipe is not None
            selector.register(pipe, selectors.EVENT_READ, stream)
        while selector.get_map():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            for key, _ in selector.select(left):
                if block := os.read(key.fd, _BLOCK):
                    take(key.data, block)
                else:
                    selector.unregister(key.fileobj)


def _refused(argv: Sequence[str], error: OSError) -> Completed:
    """The result that a shell reports for a command that it cannot start."""
    code = 127 if isinstance(error, FileNotFoundError) else 126
    return Completed(code, b"", f"{argv[0]}: {error.strerror}\n".encode(errors="surrogateescape"))


def _on_terminal(argv: Sequence[str]) -> int:
    import pty

    return os.waitstatus_to_exitcode(pty.spawn(list(argv)))


def _default_interrupt() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _shell_code(code: int) -> int:
    return 128 - code if code < 0 else code
