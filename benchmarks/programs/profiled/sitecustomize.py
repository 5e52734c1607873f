"""Profiles each thread of a supervisor that finds this directory in PYTHONPATH, by processor time of the thread.

At its end the supervisor leaves one file of statistics for each thread in the directory PROFILE_DIRECTORY.
"""

import cProfile
import marshal
import os
import sys
import threading
import time
from typing import Any

_directory = os.environ.get("PROFILE_DIRECTORY", "")
if _directory and any("flowlite.supervise" in word for word in sys.orig_argv):
    # The one method that all threads go through, also those that do not call `Thread.run`.
    _thread: Any = threading.Thread
    _exit, _start = os._exit, _thread._bootstrap_inner
    _begun: list[cProfile.Profile] = []
    _main = cProfile.Profile(time.thread_time)

    def _profiled(self: threading.Thread) -> None:
        profile = cProfile.Profile(time.thread_time)
        # Some threads wait for more work when the supervisor exits.
        _begun.append(profile)
        profile.enable()
        try:
            _start(self)
        finally:
            profile.disable()

    def _leave(code: int) -> None:
        _main.disable()
        for number, profile in enumerate([_main, *_begun]):
            # As `dump_stats`, which would count the wait of a thread that still lives by this thread's clock.
            profile.snapshot_stats()
            if profile.stats:
                with open(os.path.join(_directory, f"{os.getpid()}-{number}.prof"), "wb") as file:
                    marshal.dump(profile.stats, file)
        _exit(code)

    _thread._bootstrap_inner = _profiled
    os._exit = _leave  # type: ignore[assignment]
    _main.enable()
