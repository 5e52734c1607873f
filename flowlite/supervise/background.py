"""Starts background processes, without terminal or output, that no command waits for.

Also says how any other Python process imports the flowlite of this one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import flowlite


def place() -> str:
    """The directory that this process has imported flowlite from: a checkout, or one of installed packages."""
    return str(Path(flowlite.__file__).resolve().parent.parent)


def importing(place: str) -> str:
    """Statements on one line with which a Python that was started with `-P -c` can import this flowlite.

    A checkout need not be installed, so its directory comes first in `sys.path`. A Python that finds this flowlite by
    itself keeps its path: in front of the standard library, the directory of installed packages would hide modules of
    it, since the package index has an `asyncio`, a `pathlib` and a `typing` of its own. PYTHONPATH is not used, since
    workers would inherit it.

    Args:
        place: An expression that gives `place()` in that process.
    """
    return (
        f"import os, sys; from importlib.machinery import PathFinder; place = {place}; "
        "found = PathFinder.find_spec('flowlite'); own = os.path.join(place, 'flowlite', '__init__.py'); "
        "os.path.realpath(found and found.origin or '') == own or sys.path.insert(0, place); "
    )


def run_detached(home: Path, module: str, *arguments: str, given: str = "") -> int | None:
    """Runs `main()` of a module in a detached process, which outlives this one.

    Args:
        arguments: Passed to the process as `sys.argv[2:]`.
        given: What it reads from its standard input, which nobody else can.

    Returns:
        The id of the process; None if it cannot be started.
    """
    # A caller may ignore the ends of its children, and Python would then take every command that fails for one that
    # succeeds.
    program = (
        f"{importing('sys.argv[1]')}import signal; signal.signal(signal.SIGCHLD, signal.SIG_DFL); "
        f"from {module} import main; main()"
    )
    # Imported here, since supervisors import this module.
    import tempfile

    with suppress(OSError), ExitStack() as stack:
        stdin = stack.enter_context(tempfile.TemporaryFile()) if given else None
        if stdin is not None:
            stdin.write(given.encode())
            stdin.seek(0)
        child = subprocess.Popen(
            [sys.executable, "-P", "-c", program, place(), *arguments],
            cwd="/",
            env={**os.environ, "FLOW_HOME": str(home)},
            stdin=stdin or subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        # The process is never waited for. Without a return code Popen would warn.
        child.returncode = 0
        return child.pid
    return None
