"""The sidecar that mounts the buckets of one node, watches them, and unmounts them.

`buckets ATTEMPT_DIR`, started by the agent (`agent_side.py`). Its standard input is a pipe that only the agent holds:
when it ends, for any reason, the buckets are unmounted. The programs that mount them are its children and die with it.
As root it has its own mount namespace, so no mount can be left on the machine even if all processes are killed at once.
It reports lines of JSON on standard output:

    {"event": "mounted", "pid": own, "private": bool, "mounts": [{"path", "url", "source", "tool", "credential"}, …]}
    {"event": "failed", "why": text}                       and it ends
    {"event": "trouble", "text": text}                     a bucket does not answer, answers again, or is lost
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

from ..config.agent_config import AgentConfig, AttemptPaths
from ..mount_namespace import mount_readiness, namespace, unmount
from ..quick_dataclass import dataclass
from ..s3.client import S3Error, Store, read_storage
from ..s3.readable import explain, find
from ..sidecar.process_side import SidecarFailed, ending, report
from ..system import processes
from . import fuse_programs

MOUNT_SECONDS = 30.0
"""For a program to show the bucket's content, after a request of our own has succeeded."""
WATCH_SECONDS = 20.0
ANSWER_SECONDS = 15.0
STOP_SECONDS = 5.0


@dataclass
class Bucket:
    """One bucket at one path."""

    path: str
    store: Store
    source: Path
    files: Path
    program: subprocess.Popen[bytes] | None = None
    tool: str = ""
    empty: bool = False
    silent: bool = False
    lost: bool = False


class MountSidecar:
    """Mounts the buckets of an attempt until its standard input ends."""

    def __init__(self, config: AgentConfig, paths: AttemptPaths) -> None:
        storage = read_storage(paths.storage)
        directory = paths.directory / "buckets"
        self._path = fuse_programs.search_path(os.environ, config.python)
        self._tool = fuse_programs.chosen(config.environment)
        self._over = threading.Event()
        self._private = False
        self._buckets = [
            Bucket(
                path=str(mount["path"]),
                store=Store.of(storage.get(str(mount["path"]), mount)),
                source=directory / str(number) / "data",
                files=directory / str(number) / "tool",
            )
            for number, mount in enumerate(config.mounts)
        ]

    def run(self) -> int:
        """Mounts the buckets, watches them until the agent closes the pipe, and cleans up. Returns the exit status."""
        self._over = ending()
        try:
            self._private = os.geteuid() == 0 and not namespace.enter_private()
            self._mount_all()
        except SidecarFailed as error:
            report("failed", why=str(error))
            return 1
        else:
            if not self._over.is_set():
                report(
                    "mounted",
                    pid=os.getpid(),
                    private=self._private,
                    mounts=[_described(each) for each in self._buckets],
                )
            self._watch()
            return 0
        finally:
            self._unmount_all()

    # Mounting

    def _mount_all(self) -> None:
        problem = fuse_programs.problem(self._path, self._tool)
        if problem:
            first = self._buckets[0]
            raise SidecarFailed(f"{first.store.url} cannot be shown at {first.path}: {problem}")
        self._look()
        for each in self._buckets:
            self._mount(each)

    def _look(self) -> None:
        """Lists every bucket by requests of our own, in parallel.

        Their errors are clearer than those of the programs.
        """
        answers: queue.Queue[tuple[Bucket, Store | None, bool, Exception | None]] = queue.Queue()

        def look(bucket: Bucket) -> None:
            try:
                store, empty = find(bucket.store, self._over)
                answers.put((bucket, store, empty, None))
            except Exception as error:
                answers.put((bucket, None, False, error))

        for each in self._buckets:
            threading.Thread(target=look, args=(each,), daemon=True).start()
        waiting = len(self._buckets)
        while waiting and not self._over.is_set():
            try:
                bucket, store, empty, error = answers.get(timeout=0.1)
            except queue.Empty:
                continue
            waiting -= 1
            if store is None:
                raise SidecarFailed(explain(bucket.path, bucket.store, error))
            bucket.store, bucket.empty = store, empty

    def _mount(self, bucket: Bucket) -> None:
        """Mounts one bucket at its staging directory with the best program that succeeds."""
        tried = []
        for tool, program in fuse_programs.available(self._path, self._tool):
            if self._over.is_set():
                return
            bucket.source.mkdir(mode=0o700, parents=True, exist_ok=True)
            fuse_programs.write_files(bucket.store, bucket.files)
            arguments = tool.command(bucket.store, bucket.files, str(bucket.source))
            log = bucket.files / "log"
            parent = os.getpid()
            with open(log, "wb") as said:
                # Started from the main thread, since the parent-death signal is sent when the starting thread ends.
                bucket.program = subprocess.Popen(
                    [program, *arguments[1:]],
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    env=fuse_programs.environment(
                        bucket.store, bucket.files, os.environ, self._path
                    ),
                    cwd="/",
                    start_new_session=True,
                    preexec_fn=partial(processes.die_with_parent, parent, signal.SIGTERM),
                )
            wrong = self._await_mount(bucket)
            if not wrong:
                bucket.tool = tool.name
                return
            tried.append(f"{program}: {wrong}; {_last_words(log, bucket.store)}".rstrip("; "))
            self._take_away(bucket)
        raise SidecarFailed(
            f"{bucket.store.url} cannot be shown at {bucket.path}, though it can be read (at "
            f"{bucket.store.place}, with {bucket.store.source}). Tried: {' | '.join(tried)}. Install another of "
            f"{', '.join(each.name for each in fuse_programs.TOOLS)}, or copy the data to a volume"
        )

    def _await_mount(self, bucket: Bucket) -> str:
        """Waits until the bucket can be listed. Returns "" or the error."""
        assert bucket.program is not None
        until = time.monotonic() + MOUNT_SECONDS
        if why := mount_readiness.await_mount(
            bucket.program, bucket.source, MOUNT_SECONDS, self._over
        ):
            return why
        while not self._over.is_set():
            listed = mount_readiness.listed(bucket.source, max(1.0, until - time.monotonic()))
            if isinstance(listed, OSError):
                return f"it cannot be listed: {listed.strerror or listed}"
            if listed or bucket.empty:
                return ""
            if listed is None or time.monotonic() > until:
                return "it was mounted and shows nothing"
            self._over.wait(0.1)
        return ""

    # While workers run

    def _watch(self) -> None:
        next_look = time.monotonic() + WATCH_SECONDS
        while not self._over.wait(0.2):
            for each in self._buckets:
                self._look_after_program(each)
            if time.monotonic() >= next_look:
                for each in self._buckets:
                    threading.Thread(target=ask, args=(each,), daemon=True).start()
                next_look = time.monotonic() + WATCH_SECONDS

    def _look_after_program(self, bucket: Bucket) -> None:
        assert bucket.program is not None
        if bucket.lost or bucket.program.poll() is None:
            return
        bucket.lost = True
        code = bucket.program.returncode
        how = f"exit status {code}" if code >= 0 else f"signal {-code}"
        text = (
            f"{bucket.path} ({bucket.store.url}) is lost: {bucket.tool} ended ({how}); reading it fails from now on "
            f"({_last_words(bucket.files / 'log', bucket.store) or 'it said nothing'})"
        )
        report("trouble", text=text)

    # The end

    def _unmount_all(self) -> None:
        for each in self._buckets:
            if each.program is not None and each.program.poll() is None:
                each.program.terminate()
        for each in self._buckets:
            self._take_away(each)

    def _take_away(self, bucket: Bucket) -> None:
        if bucket.program is not None:
            if bucket.program.poll() is None:
                bucket.program.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                bucket.program.wait(STOP_SECONDS)
            if bucket.program.poll() is None:
                bucket.program.kill()
        unmount.unmount(bucket.source)
        if bucket.program is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                bucket.program.wait(STOP_SECONDS)
        fuse_programs.remove_files(bucket.files)
        with contextlib.suppress(OSError):
            bucket.source.rmdir()


def ask(bucket: Bucket) -> None:
    """Asks the server, and reports when it stops or resumes answering; a mount program only blocks for minutes."""
    if bucket.lost or bucket.store.own_role:
        return
    try:
        next(bucket.store.list(bucket.store.below, most=1, timeout=ANSWER_SECONDS), None)
        problem = ""
    except S3Error as error:
        problem = str(error)
    if bool(problem) != bucket.silent:
        bucket.silent = bool(problem)
        what = f"cannot be read: {problem}" if problem else "can be read again"
        report("trouble", text=f"{bucket.path} ({bucket.store.url}) {what}")


def _described(bucket: Bucket) -> dict[str, str]:
    return {
        "path": bucket.path,
        "url": bucket.store.url,
        "source": str(bucket.source),
        "tool": bucket.tool,
        "credential": bucket.store.source,
    }


def _last_words(log: Path, store: Store) -> str:
    """Returns the end of a program's output, with the credential masked in case the program printed it."""
    try:
        text = log.read_bytes()[-4096:].decode(errors="replace")
    except OSError:
        return ""
    given = store.credential
    for secret in (given.secret_key, given.session_token) if given else ():
        text = text.replace(secret, "***") if secret else text
    lines = [line.strip() for line in text.splitlines()]
    return " / ".join(line[:300] for line in lines[-3:] if line)


def main(arguments: list[str]) -> int:
    """`buckets ATTEMPT_DIR`: runs the sidecar."""
    paths = AttemptPaths(Path(arguments[0]))
    try:
        sidecar = MountSidecar(AgentConfig.from_json(paths.config.read_bytes()), paths)
        code = sidecar.run()
    except (OSError, ValueError, KeyError, TypeError) as error:
        report("failed", why=f"the buckets cannot be mounted: {error}")
        code = 2
    sys.stderr.flush()
    # Does not wait for threads that are blocked by a server or a hung file system.
    os._exit(code)
