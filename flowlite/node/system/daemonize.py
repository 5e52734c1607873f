"""Starts a command that outlives its caller: in its own session, with a log, and with nothing inherited."""

from __future__ import annotations

import errno
import os
import signal
import sys

from . import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def spawn(
    argv: Sequence[str], log: str, environment: Mapping[str, str], *, ours: bool = False
) -> int:
    """Starts a command and returns its process id.

    Args:
        ours: The command becomes a child that the caller reaps, and gets SIGTERM when the caller dies. Otherwise it is
            detached by a double fork.

    Raises:
        OSError: The command cannot be started.
    """
    reading, writing = os.pipe()
    os.set_inheritable(writing, False)
    caller = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            if not ours and os.fork():
                os._exit(0)
            os.write(writing, b"%d\n" % os.getpid())
            if ours:
                processes.die_with_parent(caller, signal.SIGTERM)
                signal.signal(signal.SIGUSR2, signal.SIG_IGN)
            else:
                for number in (signal.SIGUSR1, signal.SIGUSR2):
                    signal.signal(number, signal.SIG_DFL)
            _become(argv, log, environment)
        except OSError as error:
            os.write(writing, f"{error.errno or errno.EIO} {error.strerror}".encode())
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)
        finally:
            os._exit(127)
    os.close(writing)
    with open(reading, "rb") as pipe:
        said, _, failed = pipe.read().partition(b"\n")
    if not ours or failed:
        _wait(pid)
    if failed:
        code, _, text = failed.decode(errors="replace").partition(" ")
        raise OSError(int(code), f"{argv[0]}: {text}")
    return int(said)


def _become(argv: Sequence[str], log: str, environment: Mapping[str, str]) -> None:
    for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.chdir("/")
    processes.stand_alone(log)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.execvpe(argv[0], list(argv), {**os.environ, **environment})


def _wait(pid: int) -> None:
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        return
