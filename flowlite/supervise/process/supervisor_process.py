"""Starts the process of a supervisor: for a recorded task, or ahead of it, while the task is still being prepared."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import IO

from flowlite.node.system import processes
from flowlite.supervise.background import importing, place

AHEAD = "ahead"
"""In place of a task's id on the command line of a supervisor: the id comes on its standard input."""
NO_LAUNCH = "no-launch"
"""After a task's id on the command line of a supervisor: a task without machines is handed back."""
_IMPORT_SECONDS = 60.0
# Variables of a surrounding task, which do not apply to the task of the new supervisor.
_NOT_INHERITED = frozenset({"FLOW_TASK_ID", "FLOW_TASK_NAME", "FLOW_NODE_RANK", "FLOW_ATTEMPT"})

# New objects after which a supervisor's garbage collector looks for some to free. It finds little, and would look many
# times through what is kept for each node of a large gang.
_NEW_OBJECTS = 10_000
# asyncio imports ssl, which takes long and is not needed here; adapters that need it can still import it. The garbage
# collector does not run meanwhile: it would look through what is imported again and again, and find nothing.
_PROGRAM = (
    f"import gc; gc.disable(); {importing('sys.argv.pop()')}"
    "sys.modules['ssl'] = None; import asyncio; del sys.modules['ssl']; "
    "from flowlite.supervise.process.early import begin; begin(); "
    "from flowlite.supervise.process.main import main; "
    f"gc.freeze(); gc.set_threshold({_NEW_OBJECTS}); gc.enable(); main()"
)


def start(home: Path, arguments: Sequence[str], stdin: int, output: int | IO[bytes]) -> int:
    """Starts a supervisor as a detached process, which outlives this one and its terminal. Returns its process id.

    Args:
        arguments: The id of its task, perhaps with `NO_LAUNCH`; or `AHEAD` and the provider that the task will probably
            have.
    """
    return processes.let_go(
        subprocess.Popen(
            command(arguments),
            cwd="/",
            env=environment(home),
            stdin=stdin,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    )


def command(arguments: Sequence[str]) -> list[str]:
    """The command of a supervisor, with the arguments as for `start`."""
    return [sys.executable, "-P", "-c", _PROGRAM, *arguments, place()]


def can_be_imported(home: Path) -> bool:
    """Whether a supervisor can be imported as it is on disk now: not while it is replaced, or once it was removed."""
    program = f"{importing('sys.argv.pop()')}import flowlite.supervise.process.main"
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", program, place()],
            cwd="/",
            env=environment(home),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_IMPORT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def environment(home: Path) -> dict[str, str]:
    """The environment of a supervisor that this process starts."""
    found = {name: text for name, text in os.environ.items() if name not in _NOT_INHERITED}
    found["FLOW_HOME"] = str(home.absolute())
    return found


class SupervisorAhead:
    """The process of a supervisor that is started before its task is recorded, and imports meanwhile.

    It does nothing else until it reads the id of its task, and exits if this process ends before that.
    """

    def __init__(self, home: Path, provider: str) -> None:
        self.home = home
        reading, self._pipe = os.pipe()
        try:
            self.pid = start(home, (AHEAD, provider), reading, subprocess.DEVNULL)
        except BaseException:
            # Also when Ctrl-C has interrupted it: the process then ends by itself.
            os.close(self._pipe)
            raise
        finally:
            os.close(reading)
        self.free = True

    def lead(self, task_id: str) -> bool:
        """Gives it its task. False if it has died."""
        self.free = False
        try:
            os.write(self._pipe, f"{task_id}\n".encode())
        except OSError:
            return False
        finally:
            os.close(self._pipe)
        return True

    def dismiss(self) -> None:
        """Ends it, unless it has a task."""
        if self.free:
            self.free = False
            os.close(self._pipe)
            with suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)


_ahead: ContextVar[SupervisorAhead | None] = ContextVar("supervisor_ahead", default=None)
# The FLOW_HOMEs in which the last task of this process has to wait for long.
_with_queue: set[Path] = set()


def note_start(home: Path, *, sleeping: bool) -> None:
    """Notes whether a supervisor was started asleep. If so, the next one, as of a sweep, is not started ahead."""
    if sleeping:
        _with_queue.add(home)
    else:
        _with_queue.discard(home)


@contextmanager
def started_ahead(home: Path, provider: str) -> Iterator[None]:
    """Starts a supervisor's process for the task that is submitted in this block, so that nobody waits for its imports.

    None is started if the supervisor will probably sleep at first.

    Args:
        provider: The provider that the task will probably have. Another one is imported later.
    """
    if home in _with_queue:
        yield
        return
    try:
        ahead = SupervisorAhead(home, provider)
    except OSError:
        # The supervisor is started when the task is recorded, or the error is reported then.
        yield
        return
    before = _ahead.get()
    try:
        _ahead.set(ahead)
        yield
    finally:
        _ahead.set(before)
        ahead.dismiss()


def ahead(home: Path | None = None) -> SupervisorAhead | None:
    """The process that was started ahead for the task that is being submitted; None if there is none.

    Args:
        home: The FLOW_HOME of the task, for which the process must have been started. None for any.
    """
    found = _ahead.get()
    if found is None or not found.free or home not in (None, found.home):
        return None
    return found
