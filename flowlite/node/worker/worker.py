"""The main program of a worker process, from the fork to its exit."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import sys

from ..system import atomic_files, processes, stack_dump, trace
from . import renewed_modules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, NoReturn

EXIT_FAILED = 1
EXIT_CANNOT_RUN = 126
EXIT_NOT_FOUND = 127
FAILED_EXIT_SECONDS = 10.0
"""How long the exit handlers of a failed worker may take. Without a limit, a child process or thread that never ends
would delay the report of the failure."""


def preload() -> None:
    """Imports the modules that run a function, so that workers forked later do not have to."""
    import atexit
    import contextlib
    import faulthandler
    import importlib
    import pickle
    import random
    import threading
    import traceback

    from ..serialization import main_module, result_file
    from . import load_call, torch_store, torch_teardown

    with contextlib.suppress(ImportError):
        importlib.import_module("cloudpickle")
    _ = atexit, faulthandler, pickle, random, threading, traceback
    _ = load_call, main_module, result_file, torch_teardown, torch_store


def main(order: Mapping[str, Any], parent: int, *, forked: bool) -> NoReturn:
    """Runs the worker of an order. Never returns.

    Args:
        order: {"rank", "local_rank", "node", "name", "environment", "workdir", "out", "err", "result", "failure"} and
            "argv" for a command or "call" for a function.
        parent: Process id of the reaper. The worker does not outlive it.
        forked: Whether this process was forked with everything imported, rather than spawned.
    """
    code = EXIT_FAILED
    try:
        with trace.span("settle"):
            settle(order, parent, forked=forked)
        enter_directory(order)
        if "gang" in order:
            order = _begin(order)
        if "batch" in order:
            from ..sbatch import worker

            code = worker.main(order)
        elif "argv" in order:
            _run_command(order)
        else:
            code = run_function(order, forked=forked)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        leave(code)


def main_of_spawned(arguments: list[str]) -> NoReturn:
    """`worker ORDER.json PARENT`: runs a worker in a spawned process."""
    began = trace.started_at()
    with open(arguments[0], encoding="utf-8") as file:
        order = json.load(file)
    os.unlink(arguments[0])
    if order["trace"]:
        trace.begin(f"rank {order['rank']}", order["trace"])
        trace.add_start(began)
    main(order, int(arguments[1]), forked=False)


# Signals that the parent processes may handle or ignore.
_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def enter_directory(order: Mapping[str, Any]) -> None:
    """Changes to the working directory of the worker, or ends this process."""
    try:
        if order["workdir"] is not None:
            os.chdir(order["workdir"])
    except OSError as error:
        _cannot_start(
            order, error, f"in the working directory {order['workdir']}: {error.strerror}"
        )


def settle(order: Mapping[str, Any], parent: int, *, forked: bool) -> None:
    """Sets up session, death with the reaper, signals, streams and environment."""
    if os.getsid(0) != os.getpid():
        os.setsid()
    if not processes.die_with_parent(parent) and "call" in order:
        processes.watch_parent(parent)
    signal.set_wakeup_fd(-1)
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if forked:
        redirect(order)
        os.environ.clear()
        os.environ.update(order["environment"])
    stack_dump.note_worker(order)


def redirect(order: Mapping[str, Any]) -> None:
    processes.redirect(os.devnull, 0)
    processes.redirect(order["out"], 1)
    processes.redirect(order["err"], 2)


def _run_command(order: Mapping[str, Any]) -> NoReturn:
    for number in (signal.SIGPIPE, signal.SIGINT, getattr(signal, "SIGXFSZ", signal.SIGPIPE)):
        signal.signal(number, signal.SIG_DFL)
    argv = order["argv"]
    trace.mark("exec")
    try:
        os.execvpe(argv[0], argv, order["environment"])
    except OSError as error:
        absent = error.errno == errno.ENOENT
        hint = _what_is_absent(argv[0], order["environment"]) if absent else ""
        _cannot_start(order, error, f"the command {argv[0]!r}: {error.strerror}{hint}")
    raise AssertionError("not reached")


def _what_is_absent(program: str, environment: Mapping[str, str]) -> str:
    """What is not there where a program cannot be started for that, as a clause. Often it is not the program itself."""
    from shutil import which

    path = program if "/" in program else which(program, path=environment.get("PATH"))
    try:
        with open(path or "", "rb") as file:
            first = file.readline(4096)
    except OSError:
        return "" if "/" in program else "; it is not on this node's PATH"
    if not first.startswith(b"#!"):
        return f"; {path} is there, and the loader that it was built for is not"
    interpreter = first[2:].strip(b" \t\n").split(b" ")[0]
    if interpreter.endswith(b"\r"):
        return f"; its lines end as on Windows (CR LF), which no shell reads: dos2unix {path}"
    return f"; {path} is there, and {os.fsdecode(interpreter)}, which its first line names, is not"


def _cannot_start(order: Mapping[str, Any], error: OSError, what: str) -> NoReturn:
    code = EXIT_NOT_FOUND if error.errno == errno.ENOENT else EXIT_CANNOT_RUN
    _give_up(order, type(error).__name__, f"cannot start {what}", code)


def _give_up(order: Mapping[str, Any], kind: str, message: str, code: int) -> NoReturn:
    note_failure(order, {"kind": "load", "type": kind, "message": message})
    os.write(2, f"flowlite: {message}\n".encode())
    os._exit(code)


def _begin(order: Mapping[str, Any]) -> Mapping[str, Any]:
    """Prepares the call on node 0 if it leads the gang; on other nodes, replaces this process by the follower."""
    from . import leader_run

    try:
        return leader_run.begin(order)
    except (leader_run.NotReady, OSError) as error:
        _give_up(order, "", str(error), EXIT_CANNOT_RUN)


def run_function(order: Mapping[str, Any], *, forked: bool = False) -> int:
    """Loads and calls the function. Returns the exit code."""
    import faulthandler

    from ..serialization import main_module
    from . import load_call, torch_teardown

    _open_standard_streams()
    dump = 2
    if "out" in order:
        dump = stack_dump.open_crash_file(order)
        stack_dump.answer_for_stacks(order)
    faulthandler.enable(dump, all_threads=True)
    # The call determines what is in it.
    main_module.fresh_main()
    sys.argv = [str(order.get("name") or "flowlite")]
    if forked:
        renewed_modules.renew()
    torch_teardown.settle()
    process = os.getpid()
    try:
        failure = load_call.run_call(
            order["call"], order["result"], node=order["node"], rank=order["rank"]
        )
    except BaseException as error:
        if os.getpid() != process:
            return _end_child(error)
        if not isinstance(error, SystemExit):
            raise
        code = _note_exit(order, error)
        if code == 0:
            torch_teardown.leave_together()
        return code
    if failure is None:
        torch_teardown.leave_together()
        return 0
    note_failure(order, failure)
    faulthandler.dump_traceback_later(FAILED_EXIT_SECONDS, exit=True, file=dump)
    if not _told_by_hook():
        _show_traceback(order, failure)
    return EXIT_FAILED


def _told_by_hook() -> bool:
    """Calls the hook for uncaught exceptions, if a library has set one: wandb marks its run as failed in it."""
    error = sys.last_value
    if error is None or sys.excepthook is sys.__excepthook__:
        return False
    try:
        sys.excepthook(type(error), error, sys.last_traceback)
    except BaseException:
        sys.stderr.write("Error in sys.excepthook:\n")
        sys.__excepthook__(*sys.exc_info())
        return False
    return True


def _show_traceback(order: Mapping[str, Any], failure: Mapping[str, Any]) -> None:
    """Prints the traceback that Python would have printed. It is read from the result."""
    from ..serialization import result_file

    try:
        text = result_file.read_outcome(order["result"], allow_pickle=False).traceback
    except (OSError, result_file.OutcomeError):
        text = ""
    sys.stderr.write(text or f"{failure['type']}: {failure['message']}\n")


def _end_child(error: BaseException) -> int:
    """Ends a child process that the function has forked as Python would. Returns its exit code."""
    from ..serialization import remote_exception

    if isinstance(error, SystemExit):
        return _exit_code(error)
    sys.stderr.write(remote_exception.summarise(error).traceback)
    return EXIT_FAILED


def _exit_code(error: SystemExit) -> int:
    """Returns the exit code that Python itself would use, and prints what is no number, as Python does."""
    if error.code is None or isinstance(error.code, int):
        # The system keeps the lowest byte, so that 256 counts as 0.
        return (error.code or 0) & 0xFF
    sys.stderr.write(f"{error.code}\n")
    return EXIT_FAILED


def _note_exit(order: Mapping[str, Any], error: SystemExit) -> int:
    """Writes the outcome of a function that has ended its process. Returns the exit code."""
    from ..protocol.messages import shorten
    from ..serialization import result_file

    code = _exit_code(error)
    if code == 0:
        result_file.write_value(order["result"], None, node=order["node"], rank=order["rank"])
    elif not isinstance(error.code, int):
        message = shorten(error.code, 4096)
        note_failure(order, {"kind": "exit", "type": "SystemExit", "message": message})
    return code


def note_failure(order: Mapping[str, Any], failure: Mapping[str, Any]) -> None:
    """Writes the failure for the agent. An error here, such as a full disk, must not hide the failure itself."""
    try:
        atomic_files.place(json.dumps(dict(failure)).encode(), str(order["failure"]), 0o600)
    except OSError as error:
        os.write(2, f"flowlite: cannot write {order['failure']}: {error}\n".encode())


def _open_standard_streams() -> None:
    """Opens unbuffered standard streams, so that no output is lost if the worker is killed."""
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    for number, name in ((1, "stdout"), (2, "stderr")):
        raw = io.FileIO(number, "w", closefd=False)
        raw.name = f"<{name}>"
        stream = io.TextIOWrapper(
            raw,
            encoding="utf-8",
            errors="backslashreplace",
            newline="\n",
            write_through=True,
        )
        stream.mode = "w"  # type: ignore[misc]
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    _line_buffer_c_streams()


def _line_buffer_c_streams() -> None:
    # Libraries such as NCCL print through C, which fully buffers files: that output would be lost with a kill.
    try:
        import ctypes

        library = ctypes.CDLL(None)
        library.setvbuf(ctypes.c_void_p.in_dll(library, "stdout"), None, 1, 0)
    except (ImportError, OSError, ValueError, AttributeError):
        return


def leave(code: int) -> NoReturn:
    """Exits as Python does, but without finalising the interpreter.

    Threads are joined, exit handlers run, and buffers are flushed, also those of files that were left open.
    Finalisation would take torch a second, and aborts at random with gloo.
    """
    trace.mark("exit", code=code)
    try:
        import threading

        shutdown = getattr(threading, "_shutdown", None)
        if shutdown is not None:
            shutdown()
        import atexit

        atexit._run_exitfuncs()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = code or EXIT_FAILED
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            continue
    _write_out_files()
    try:
        import ctypes

        ctypes.CDLL(None).fflush(None)
    except (ImportError, OSError):
        pass
    os._exit(code)


def _write_out_files() -> None:
    """Writes out what files that were left open still hold. Python does so when it takes the modules apart.

    What the fork server has opened is not looked at: its objects are frozen.
    """
    import gc

    places: dict[type, int] = {}
    found: list[tuple[int, Any]] = []
    for each in gc.get_objects():
        kind = type(each)
        place = places.get(kind)
        if place is None:
            place = places[kind] = _place_of(kind)
        if place:
            found.append((place, each))
    for place, each in sorted(found, key=lambda pair: pair[0]):
        try:
            if each.closed or not each.writable():
                continue
            # A compressed file needs its end.
            each.close() if place == 2 else each.flush()
        except Exception:
            continue


def _place_of(kind: type) -> int:
    """Returns when files of a type are written out; 0 for a type of anything else.

    What a file of text holds goes through the one that compresses, such as `gzip.GzipFile`, into the one below.
    """
    if kind is io.TextIOWrapper:
        return 1
    if kind in (io.BufferedWriter, io.BufferedRandom):
        return 3
    # The base of `io.IOBase`, which is an abstract class: `isinstance` would run code of the object.
    base = io.IOBase.__mro__[1]
    return 2 if base in kind.__mro__ and kind.__module__ != base.__module__ else 0
