"""What becomes of the tasks of a sweep when its program ends before the sweep does."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowlite import Flow
from tests.display.programs import ran

PROGRAM = """
import asyncio, os, sys, time
from flowlite import FlowApp
app = FlowApp()

@app.function
def part(seconds):
    time.sleep(seconds)
    return seconds
"""
HOLDS = """
if __name__ == "__main__":
    results = part.map([0, 60, 61])
    print(next(results))
"""
HOLDS_ASYNC = """
if __name__ == "__main__":
    loop = asyncio.new_event_loop()
    results = part.map.aio([0, 60, 61])
    print(loop.run_until_complete(anext(results)))
"""
IN_A_THREAD = """
import threading

def take():
    for result in part.map([0, 60, 61]):
        print(result, flush=True)
        first.set()

if __name__ == "__main__":
    first = threading.Event()
    threading.Thread(target=take, daemon=True).start()
    first.wait(60)
    time.sleep(0.5)  # the thread waits for the next result
"""
FORKS = """
if __name__ == "__main__":
    for result in part.map([0, 3, 3]):
        if result == 0:
            if os.fork() == 0:
                sys.exit(0)
            os.wait()
        print(result)
"""
FORKS_AND_HOLDS = """
if __name__ == "__main__":
    results = part.map([0, 3, 3])
    print(next(results), flush=True)
    if os.fork() == 0:
        sys.exit(0)
    os.wait()
    print(*results, sep="\\n")
"""


@pytest.mark.parametrize("end", [HOLDS, HOLDS_ASYNC, IN_A_THREAD], ids=["plain", "async", "thread"])
def test_a_program_that_ends_leaves_its_sweep(end: str, flow_home: Path, tmp_path: Path) -> None:
    """A variable of the program's own file holds the results until Python can import nothing any more."""
    done = ran(f"{PROGRAM}{end}", tmp_path)
    assert done.stdout == "0\n", done.stderr
    assert "ignored" not in done.stderr
    ends = [task.wait(60, show_logs=False).status for task in Flow().list_tasks()]
    assert sorted(ends) == ["cancelled", "cancelled", "completed"]


@pytest.mark.parametrize("end", [FORKS, FORKS_AND_HOLDS], ids=["in the loop", "held"])
def test_a_child_process_that_ends_leaves_it_alone(
    end: str, flow_home: Path, tmp_path: Path
) -> None:
    done = ran(f"{PROGRAM}{end}", tmp_path)
    assert done.stdout == "0\n3\n3\n", done.stderr
