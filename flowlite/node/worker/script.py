"""A worker that runs a script in a process that was forked from the fork server.

The process is a Python that was held before its script (`forkserver/paused_python.py`). `become` sets what differs
between such a process and one that was started anew: session, streams, directory, environment, arguments, and the
values that modules have computed from these when the fork server imported them. The interpreter then runs the script.

At the end, Python destroys the objects of the script as always. Modules that were imported ahead are left as they are,
which takes torch's second from every exit. An exit that waits for a process or thread although the script died of an
exception ends after `worker.FAILED_EXIT_SECONDS`, since the gang would wait for ever.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys

from ..system import process_title, stack_dump
from . import interpreter_target, renewed_modules, torch_store, torch_teardown, worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType
    from typing import Any

HOST_LEAVES_SECONDS = 3.0
"""How long a script on rank 0 waits at its end for ranks that may still need its store."""
_HIGH_DESCRIPTOR = 500
_preloaded: dict[str, ModuleType] = {}
_main: ModuleType | None = None
_main_references = 0
_holding_main: list[dict[Any, Any]] = []


class Begin(BaseException):
    """Takes a forked worker out of the fork server's code, so that the interpreter goes on to the script.

    Attributes:
        order: The worker's order (`worker.main`), with "script": the command line of a fresh Python.
        reaper: Process id of the reaper.
        changes: Variables of the environment that imports have set (None: removed).
        preloaded: Names of the modules that were imported ahead.
    """

    def __init__(
        self,
        order: Mapping[str, Any],
        reaper: int,
        changes: Mapping[str, str | None],
        preloaded: Sequence[str],
    ) -> None:
        super().__init__()
        self.order, self.reaper = order, reaper
        self.changes, self.preloaded = changes, preloaded


def get_ready() -> None:
    """Prepares the fork server. Call it before anything is imported, so that `_leave` is the last exit handler."""
    import ctypes
    import faulthandler
    import threading

    _ = ctypes, faulthandler, torch_store
    global _main, _main_references
    _main = sys.modules["__main__"]
    _main_references = sys.getrefcount(_main)
    atexit.register(_leave)
    shutdown = threading._shutdown  # type: ignore[attr-defined]

    def limited_shutdown() -> None:
        if os.getpid() in _scripts and _has_died():
            faulthandler.dump_traceback_later(worker.FAILED_EXIT_SECONDS, exit=True, file=2)
        shutdown()

    threading._shutdown = limited_shutdown  # type: ignore[attr-defined]


_scripts: set[int] = set()


def note_what_holds_main() -> None:
    """Notes the dictionaries that refer to `__main__` because of an import. Call it before they are frozen.

    They are those of modules that import it (`rlcompleter`), and copies of `sys.modules`: `inspect` makes one for
    `unittest.mock`, and thus for torch, which the garbage collector would soon find.
    """
    global _main_references
    references = sys.getrefcount(_main)
    if references > _main_references:
        import gc

        for each in gc.get_referrers(_main):
            if type(each) is dict and each is not sys.modules and each is not globals():
                _holding_main.append(each)
    _main_references = references


def become(begin: Begin, target: interpreter_target.InterpreterTarget) -> None:
    """Makes this forked process the one that a fresh Python would be just before it runs its script.

    Args:
        begin: What to run, and as what.
        target: Where the interpreter has the name of what it will run.
    """
    order = begin.order
    try:
        worker.settle(order, begin.reaper, forked=True)
        worker.enter_directory(order)
        environment = dict(order["environment"])
        command = list(order["script"]["command"])
        process_title.become(order["script"]["name"], command, environment)
        interpreter_target.tell_command(command)
        _set_environment(begin.changes)
        named = order["script"]["target"]
        target.set(named if order["script"]["module"] else _absolute(named), named)
        sys.orig_argv[:] = command
        sys.argv[:] = order["script"]["argv"]
        for number in (signal.SIGPIPE, getattr(signal, "SIGXFSZ", signal.SIGPIPE)):
            signal.signal(number, signal.SIG_IGN)
        renewed_modules.renew()
        stack_dump.answer_for_stacks(order, _HIGH_DESCRIPTOR)
        torch_teardown.settle_loaded()
        _preloaded.update({name: sys.modules[name] for name in begin.preloaded})
        _scripts.add(os.getpid())
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(worker.EXIT_FAILED)


def _absolute(path: str) -> str:
    """Returns a path as Python makes the one of its script absolute."""
    return path if path.startswith("/") else f"{os.getcwd()}/{path}"


def _set_environment(changes: Mapping[str, str | None]) -> None:
    """Repeats what imports have done to the environment."""
    for name, value in changes.items():
        if value is not None:
            os.environ[name] = value
        else:
            os.environ.pop(name, None)


def _has_died() -> bool:
    """Whether the script died of an exception.

    Python leaves the exception in `sys`. Test runners and debuggers leave theirs there, too, but only what ends the
    script has passed the outermost frame of the process. An error of syntax has no frames.
    """
    if getattr(sys, "last_value", None) is None:
        return False
    trace = getattr(sys, "last_traceback", None)
    return trace is not None and trace.tb_frame.f_back is None


def _leave() -> None:
    """The last exit handler of a script, but for those of Python itself."""
    if os.getpid() not in _scripts:
        return
    if torch_teardown.has_groups():
        if not _has_died():
            # Only the host of the store waits.
            torch_teardown.leave_together(HOST_LEAVES_SECONDS, 0.0)
        _skip_destructors()
    import ctypes

    # The collector does not see what is frozen. If that held the main module, none of the script's globals could be
    # collected: Python would set them to None, and destructors would run after that, or not at all.
    global _main
    for names in _holding_main:
        for name in [name for name, value in names.items() if value is _main]:
            del names[name]
    _main = None
    package = __name__.partition(".")[0]
    ours = [name for name in sys.modules if name.partition(".")[0] == package]
    for name in (*_preloaded, *ours):
        installed = name.partition(".")[0] not in sys.stdlib_module_names
        if installed and (module := sys.modules.pop(name, None)) is not None:
            # Held for ever, so that Python does not take it apart.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(module))


def _skip_destructors() -> None:
    """Makes exit() leave out the destructors of C++, which may abort while threads of gloo or NCCL still run."""
    import ctypes

    library = ctypes.CDLL(None)
    # Both are called with the exit status, the last one first.
    library.on_exit(library._exit, None)
    library.on_exit(library.fcloseall, None)
