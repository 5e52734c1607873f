"""Runs a command and waits for all that it leaves behind; notes the seconds of processor time of all these processes.

processor_time.py MARKS COMMAND...

The file `seconds` gets those of all processes, `own` those of the command and the children that it waited for.
"""

import ctypes
import os
import resource
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


def _used() -> float:
    """The seconds of all processes that were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    # Processes that detach themselves, such as supervisors, become children of this one.
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        sys.exit("this kernel does not let a process adopt orphans")
    marks = Path(sys.argv[1])
    code = subprocess.run(sys.argv[2:], check=False).returncode
    (marks / "own").write_text(repr(_used()))
    with suppress(ChildProcessError):
        while True:
            os.wait()
    (marks / "seconds").write_text(repr(_used()))
    sys.exit(code)
