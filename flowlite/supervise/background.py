"""Work that no command waits for: a process of its own, without terminal or output."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import flowlite


def run_detached(home: Path, module: str, *arguments: str) -> bool:
    """Runs `main()` of a module for a FLOW_HOME. It outlives this process. False if it cannot be started.

    Args:
        home: The FLOW_HOME.
        module: Name of the module.
        arguments: What it finds in `sys.argv[2:]`.
    """
    root = str(Path(flowlite.__file__).resolve().parent.parent)
    program = f"import sys; sys.path.insert(0, sys.argv[1]); from {module} import main; main()"
    with suppress(OSError):
        child = subprocess.Popen(
            [sys.executable, "-P", "-c", program, root, *arguments],
            cwd="/",
            env={**os.environ, "FLOW_HOME": str(home)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        # It outlives us, so nobody waits for it; Popen would warn.
        child.returncode = 0
        return True
    return False
