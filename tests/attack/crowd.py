"""Many cases side by side: each worker process has hosts of its own, and most of its time it waits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from flowlite.testing.hosts import clock
from tests.attack.cases import Case
from tests.attack.playing import Finding, of
from tests.attack.stage import CLOCK

ROOT = Path(__file__).resolve().parent.parent.parent


def play_all(cases: Iterable[Case], jobs: int, tell: Callable[[Finding], None]) -> list[Finding]:
    """Plays them, `jobs` at a time, and gives what was found, in the order of their ends."""
    waiting, found, lock = iter(cases), [], threading.Lock()

    def work() -> None:
        while True:
            with _worker() as worker:
                while True:
                    with lock:
                        case = next(waiting, None)
                    if case is None:
                        return
                    finding = _ask(worker, case)
                    with lock:
                        found.append(finding)
                        tell(finding)
                    if worker.poll() is not None:
                        break

    threads = [threading.Thread(target=work, daemon=True) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def _ask(worker: subprocess.Popen[str], case: Case) -> Finding:
    assert worker.stdin is not None
    assert worker.stdout is not None
    answer = ""
    try:
        worker.stdin.write(json.dumps(asdict(case)) + "\n")
        worker.stdin.flush()
        answer = worker.stdout.readline()
    except OSError:
        pass
    if not answer:
        worker.wait()
        return replace(of(case), wrong=["the process that played it ended"])
    return Finding(**json.loads(answer))


@contextmanager
def _worker() -> Iterator[subprocess.Popen[str]]:
    """A process with a clock of its own, which a case may move."""
    with tempfile.TemporaryDirectory(prefix="flow-clock-") as directory:
        setting = Path(directory) / clock.SETTING
        library = clock.build(Path(directory), setting)
        clock.move(setting, 0)
        worker = subprocess.Popen(
            [sys.executable, "-m", "tests.attack.worker"],
            cwd=ROOT,
            env={**os.environ, "LD_PRELOAD": str(library), CLOCK: str(setting)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            yield worker
        finally:
            assert worker.stdin is not None
            worker.stdin.close()
            try:
                worker.wait(60)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
