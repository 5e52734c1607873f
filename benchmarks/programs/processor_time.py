"""Runs a command and waits for all that it leaves behind; notes the seconds of processor time of all these processes.

processor_time.py MARKS COMMAND...
"""

import ctypes
import os
import resource
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36

if __name__ == "__main__":
    # Processes that detach themselves, such as supervisors, become children of this one.
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        sys.exit("this kernel does not let a process adopt orphans")
    code = subprocess.run(sys.argv[2:], check=False).returncode
    with suppress(ChildProcessError):
        while True:
            os.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    Path(sys.argv[1], "seconds").write_text(repr(used.ru_utime + used.ru_stime))
    sys.exit(code)
