"""Profiles each thread of a supervisor that finds this directory in PYTHONPATH, by processor time of the thread.

At its end the supervisor leaves one file of statistics for each thread in the directory PROFILE_DIRECTORY.
"""

import contextlib
import cProfile
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
    _ended: list[cProfile.Profile] = []
    _main = cProfile.Profile(time.thread_time)

    def _profiled(self: threading.Thread) -> None:
        profile = cProfile.Profile(time.thread_time)
        profile.enable()
        try:
            _start(self)
        finally:
            profile.disable()
            _ended.append(profile)

    def _leave(code: int) -> None:
        _main.disable()
        for number, profile in enumerate([_main, *_ended]):
            with contextlib.suppress(TypeError):
                profile.dump_stats(os.path.join(_directory, f"{os.getpid()}-{number}.prof"))
        _exit(code)

    _thread._bootstrap_inner = _profiled
    os._exit = _leave  # type: ignore[assignment]
    _main.enable()
