"""Processes of this machine: finding them, telling them apart, and ending them with all their descendants.

The information comes from /proc on Linux, and from `ps` elsewhere. Since pids are reused, a process is identified by
its pid together with its start time.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from .atomic_files import content_of, place

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    import subprocess
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Any

LINUX = sys.platform == "linux"
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_DYING_SECONDS = 5.0


class Row:
    """One process as the kernel lists it."""

    __slots__ = ("group", "parent", "pid", "session", "start", "state", "threads")

    def __init__(
        self,
        pid: int,
        parent: int,
        group: int,
        session: int,
        start: str,
        state: str,
        threads: int = 1,
    ) -> None:
        self.pid = pid
        self.parent = parent
        self.group = group
        self.session = session
        self.start = start
        self.state = state
        self.threads = threads

    @property
    def dead(self) -> bool:
        """Whether the process has ended, and only waits to be reaped by its parent.

        The state is that of its main thread, which may end before others do (`pthread_exit`).
        """
        return self.state in "ZX" and self.threads <= 1


def row(pid: int) -> Row | None:
    """Returns a process, or None if there is none with this pid."""
    if not LINUX:
        return _ps_rows(["-p", str(pid)]).get(pid)
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # The name in parentheses may contain blanks and parentheses.
    rest = text[text.rindex(b")") + 2 :].split()
    parent, group, session, threads = (int(rest[at]) for at in (1, 2, 3, 17))
    return Row(pid, parent, group, session, rest[19].decode(), rest[0].decode(), threads)


def table() -> dict[int, Row]:
    """Returns all processes, by pid."""
    if not LINUX:
        return _ps_rows(["-A"])
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            each = row(int(name))
            if each is not None:
                found[each.pid] = each
    return found


def _ps(arguments: list[str]) -> list[str]:
    import subprocess

    # The start of a process must be the same text for a laptop that has travelled.
    environment = {**os.environ, "LC_ALL": "C", "TZ": "UTC0"}
    listed = subprocess.run(
        ["ps", *arguments], capture_output=True, text=True, env=environment, check=False
    )
    return listed.stdout.splitlines()


def parse_ps(lines: Iterable[str]) -> dict[int, Row]:
    """Returns the rows for the lines of `ps -o pid=,ppid=,pgid=,stat=,lstart=`.

    Outside Linux, `ps` shows no sessions; the process group is used in their place.
    """
    found = {}
    for line in lines:
        parts = line.split(None, 4)
        if len(parts) == 5 and parts[0].isdigit():
            pid, parent, group = (int(part) for part in parts[:3])
            found[pid] = Row(pid, parent, group, group, " ".join(parts[4].split()), parts[3][0])
    return found


def _ps_rows(which: list[str]) -> dict[int, Row]:
    return parse_ps(_ps([*which, "-o", "pid=,ppid=,pgid=,stat=,lstart="]))


def start_of(pid: int) -> str | None:
    """Returns the start time of a process, as text for comparisons only; None if the process does not exist."""
    each = row(pid)
    return each.start if each is not None else None


def identity(pid: int) -> dict[str, Any]:
    """Returns a process's identity in the form that is written to files: {"pid", "start"}."""
    return {"pid": pid, "start": start_of(pid)}


def boot_id() -> str:
    """Returns the kernel's id of the present boot of this machine; "" if it has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def is_alive(pid: int, start: str | None = None) -> bool:
    """Whether a process with this pid runs and, if `start` is given, has this start time."""
    each = row(pid)
    return each is not None and not each.dead and (start is None or each.start == start)


def descendants(ancestors: Iterable[int], rows: Mapping[int, Row] | None = None) -> set[int]:
    """Returns the living descendants of some processes, without the processes themselves."""
    rows = table() if rows is None else rows
    children: dict[int, list[int]] = {}
    for each in rows.values():
        children.setdefault(each.parent, []).append(each.pid)
    found: set[int] = set()
    todo = list(ancestors)
    while todo:
        for child in children.get(todo.pop(), ()):
            if child not in found:
                found.add(child)
                todo.append(child)
    return {pid for pid in found if not rows[pid].dead}


def ended_children() -> Iterator[tuple[int, int]]:
    """Reaps all children of this process that have ended; yields pid and wait status of each."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def children_of_mine() -> set[int] | None:
    """Returns the direct children of the calling single-threaded process, or None if the kernel does not tell."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            return {int(pid) for pid in file.read().split()}
    except OSError:
        return None


def orphans(children: set[int]) -> set[int]:
    """Returns the living descendants of this single-threaded process but for these children and what is below them."""
    present = children_of_mine()
    if present is not None and present <= children:
        return set()
    rows = table()
    roots = {each.pid for each in rows.values() if each.parent == os.getpid()} - children
    return {pid for pid in roots | descendants(roots, rows) if not rows[pid].dead}


def environment_of(pid: int) -> dict[str, str]:
    """Returns the environment that a process was started with (after a fork, its parent's); {} if it is unreadable."""
    if not LINUX:
        words = " ".join(_ps(["-Eww", "-o", "command=", "-p", str(pid)])).split()
        pairs = [word.encode() for word in words]
    else:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                pairs = file.read().split(b"\0")
        except OSError:
            return {}
    split = (pair.partition(b"=") for pair in pairs if b"=" in pair)
    return {
        name.decode("utf-8", "replace"): value.decode("utf-8", "replace")
        for name, _, value in split
    }


def marked(markers: Mapping[str, str]) -> set[int]:
    """Returns the processes that were started with all of these environment variables, except the calling one."""
    if not LINUX:
        return {
            pid
            for pid, each in table().items()
            if not (each.dead or pid == os.getpid())
            and environment_of(pid).items() >= markers.items()
        }
    needed = {os.fsencode(f"{name}={value}") for name, value in markers.items()}
    found = set()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                # That of a dead process is empty.
                environment = content_of(f"/proc/{name}/environ")
            except OSError:
                continue
            if all(each in environment for each in needed) and needed <= set(
                environment.split(b"\0")
            ):
                found.add(int(name))
    return found


def writers(paths: Iterable[str], among: Iterable[int] | None = None) -> set[int]:
    """Returns the processes (of `among`, else all) that have one of these files open for writing, except this one.

    Empty where the kernel does not tell. Readers do not count, since a supervisor may be collecting the files.
    """
    wanted = {os.path.realpath(path) for path in paths}
    found = set()
    for pid in table() if among is None else among:
        if LINUX and pid != os.getpid() and _writes(pid, wanted):
            found.add(pid)
    return found


def _writes(pid: int, wanted: set[str]) -> bool:
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            if os.readlink(f"/proc/{pid}/fd/{name}") in wanted and can_write(pid, name):
                return True
    except OSError:
        return False
    return False


def can_write(pid: int, descriptor: str) -> bool:
    """Whether a process has opened one of its descriptors for writing. Raises OSError."""
    with open(f"/proc/{pid}/fdinfo/{descriptor}", "rb") as file:
        flags = next((line for line in file if line.startswith(b"flags:")), b"flags: 0")
    return int(flags.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY


def send(pid: int, number: int) -> bool:
    """Sends a signal to one process. False if it is gone, or may not be signalled."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def send_group(leader: int, number: int) -> bool:
    """Sends a signal to a process group. False if the group is empty, or was not created yet."""
    try:
        os.killpg(leader, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        return send(leader, number)
    return True


def kill_all(find: Callable[[], set[int]], give_up: float = 10.0) -> set[int]:
    """Sends SIGKILL to all processes that `find` returns, until it returns none.

    Returns:
        The processes that did not end within `give_up` seconds: they wait for a device or a file system.
    """
    until = time.monotonic() + give_up
    while found := find():
        for pid in found:
            send(pid, signal.SIGKILL)
        # To list all processes of the machine takes longer than most processes need to die.
        for pid in found:
            if not _has_ended(pid, until):
                return found
    return set()


def run_within(
    seconds: float, argv: Sequence[str], **options: Any
) -> subprocess.CompletedProcess[bytes]:
    """Runs a program without input to its end, as `subprocess.run` does with a time limit, but keeps to that.

    A process within a driver or a file system that hangs is not ended by SIGKILL. It is left behind.

    Raises:
        OSError: It cannot be started.
        subprocess.TimeoutExpired: It is late, and was killed if that was possible.
    """
    import subprocess
    from contextlib import suppress

    piped = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    child = subprocess.Popen(argv, **{**piped, **options})
    try:
        out, err = child.communicate(timeout=seconds)
    except BaseException:
        child.kill()
        with suppress(subprocess.TimeoutExpired):
            child.wait(_DYING_SECONDS)
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()
        raise
    return subprocess.CompletedProcess(argv, child.returncode, out, err)


async def run_group(*argv: str, **options: Any) -> tuple[int, bytes, bytes]:
    """Runs a program without input in a session of its own. All processes of it are killed if this is cancelled.

    Args:
        options: As for `subprocess.Popen`.

    Returns:
        Its return code, its output and its error output.

    Raises:
        OSError: It cannot be started.
    """
    import asyncio

    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd="/",
            start_new_session=True,
            **options,
        )
    )
    try:
        child = await asyncio.shield(starting)
        out, err = await child.communicate()
    except BaseException:
        # If the start itself were cancelled, asyncio would kill the program alone, and wait for what that has started.
        child = await starting
        send_group(child.pid, signal.SIGKILL)
        await reap(child)
        raise
    assert child.returncode is not None
    return child.returncode, out, err


async def reap(killed: asyncio.subprocess.Process) -> None:
    """Waits for the end of a child that was killed.

    Not for long: it may be within a driver or a file system that hangs. Up to Python 3.12.4, `wait` also waits for all
    that hold its pipes.
    """
    import asyncio

    try:
        async with asyncio.timeout(_DYING_SECONDS):
            await killed.wait()
    except TimeoutError:
        return


def _has_ended(pid: int, until: float) -> bool:
    """Waits for the end of a process that is no child of this one. False if it lives at `until`."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    except (OSError, AttributeError):
        # The kernel is old, or this is not Linux.
        while is_alive(pid):
            if time.monotonic() > until:
                return False
            time.sleep(0.001)
        return True
    try:
        import select

        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(max(0.0, until - time.monotonic()) * 1000))
    finally:
        os.close(descriptor)


def _prctl(option: int, value: int) -> bool:
    if not LINUX:
        return False
    import ctypes

    return bool(ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) == 0)


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> bool:
    """Makes the kernel send this process a signal when its parent dies, or has died. False if that is unsupported."""
    if not _prctl(_PR_SET_PDEATHSIG, number):
        return False
    if os.getppid() != parent:
        os.kill(os.getpid(), number)
    return True


def watch_parent(parent: int, every: float = 0.5) -> None:
    """Does the work of `die_with_parent` with a thread that polls for the death, and then kills this process group."""
    import threading

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(every)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name="flowlite-parent").start()


# Children that outlive this process. They are reaped now and then, so that they do not stay zombies.
_let_go: set[int] = set()


def let_go(child: subprocess.Popen[bytes]) -> int:
    """Lets a child outlive this process, which never waits for it. Returns its process id."""
    # Without a return code Popen would warn.
    child.returncode = 0
    _let_go.add(child.pid)
    return child.pid


def reap_let_go() -> None:
    """Reaps the children of `let_go` that have ended."""
    for pid in tuple(_let_go):
        try:
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                continue
        except ChildProcessError:
            pass
        _let_go.discard(pid)


def adopt_orphans() -> bool:
    """Becomes the parent of every descendant whose own parent dies. False if the kernel does not support that."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def stand_alone(log: str) -> None:
    """Detaches this process from its parent: own session, no terminal, and output to a log."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # A group leader, such as a job of a shell, cannot create a session.
    if os.getpgrp() != os.getpid():
        os.setsid()
    redirect(os.devnull, 0)
    redirect(log, 1, 2)


def redirect(path: str | os.PathLike[str], *streams: int) -> None:
    """Lets the standard input of this process (0), or its outputs (1, 2), be a file.

    Outputs create the file, and are appended to it, so that what other writers have written stays.
    """
    flags = os.O_RDONLY if streams == (0,) else os.O_WRONLY | os.O_CREAT | os.O_APPEND
    opened = os.open(path, flags, 0o600)
    for number in streams:
        os.dup2(opened, number)
    if opened in streams:
        # The stream was closed, so that it is the file itself. Processes that are started get copies only.
        os.set_inheritable(opened, True)
    else:
        os.close(opened)


def close_others(*kept: int) -> None:
    """Closes all descriptors of this process but the standard streams and these.

    Not by `os.closerange` up to their limit, which many containers set to a billion: without close_range(2) in the
    kernel and in Python's C library, that takes a minute.
    """
    for name in os.listdir("/proc/self/fd" if LINUX else "/dev/fd"):
        descriptor = int(name)
        if descriptor > 2 and descriptor not in kept:
            try:
                os.close(descriptor)
            except OSError:
                # That of the list itself, which is closed already.
                continue


def own_place() -> tuple[str, str]:
    """Returns the directory or zipapp that this package is imported from, and the package's name."""
    package = __name__.rsplit(".", 2)[0]
    above = __file__
    for _ in range(package.count(".") + 3):
        above = os.path.dirname(above)
    return above, package


def own_command(
    python: str, *arguments: str, flags: Iterable[str] = (), program: str = ""
) -> list[str]:
    """Returns the command that runs a subcommand of this package, from the zipapp or from the source tree.

    `program` is a zipapp of the same code, to be run in place of the source tree.
    """
    above, package = own_place()
    above = program or above
    if os.path.isfile(above):
        return [python, *flags, above, *arguments]
    start = f"import sys; sys.path.insert(0, {above!r}); from {package}.__main__ import main; sys.exit(main())"
    return [python, *flags, "-c", start, *arguments]


def write_program(path: Path, command: Sequence[str]) -> None:
    """Writes a shell script that runs a command and appends its own arguments to it."""
    import shlex

    text = f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n'
    place(text.encode(), str(path), 0o700)
