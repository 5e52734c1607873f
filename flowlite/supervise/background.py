"""Starts background processes, without terminal or output, that no command waits for."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

import flowlite


def run_detached(home: Path, module: str, *arguments: str, given: str = "") -> int | None:
    """Runs `main()` of a module in a detached process, which outlives this one.

    Args:
        home: The FLOW_HOME.
        module: Name of the module.
        arguments: Passed to the process as `sys.argv[2:]`.
        given: What it reads from its standard input, which nobody else can.

    Returns:
        The id of the process; None if it cannot be started.
    """
    root = str(Path(flowlite.__file__).resolve().parent.parent)
    # A caller may ignore the ends of its children, and Python would then take every command that fails for one that
    # succeeds.
    program = (
        "import signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_DFL); sys.path.insert(0, sys.argv[1]); "
        f"from {module} import main; main()"
    )
    with suppress(OSError), ExitStack() as stack:
        stdin = stack.enter_context(tempfile.TemporaryFile()) if given else None
        if stdin is not None:
            stdin.write(given.encode())
            stdin.seek(0)
        child = subprocess.Popen(
            [sys.executable, "-P", "-c", program, root, *arguments],
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
