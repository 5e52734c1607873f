"""Children of a fork, as of a web server or multiprocessing, use tasks while threads of the parent do."""

from __future__ import annotations

from pathlib import Path

from flowlite import Flow
from tests.display.programs import ran

PROGRAM = """
import multiprocessing, os, threading, time
from flowlite import Flow, FlowApp
app = FlowApp()

@app.function
def until(path):
    while not os.path.exists(path):
        time.sleep(0.01)
    return "seen"

def look(task, told):
    told.put((task.status, task.nodes[0].rank, task.done, len(Flow().list_tasks())))

def end(task, told):
    open("go", "w").close()
    told.put(task.result())

def poll(task, over):
    while not over.is_set():
        task.nodes, task.estimated_cost, task.done

if __name__ == "__main__":
    forks = multiprocessing.get_context("fork")
    told, over = forks.SimpleQueue(), threading.Event()
    task = until.spawn(os.path.abspath("go"))
    while task.status != "running":
        time.sleep(0.01)
    polls = [threading.Thread(target=poll, args=(task, over), daemon=True) for _ in range(3)]
    waits = threading.Thread(target=task.wait, daemon=True)
    for each in [*polls, waits]:
        each.start()
    for target in [*[look] * 10, end]:
        child = forks.Process(target=target, args=(task, told))
        child.start()
        child.join(30)
        if child.is_alive():
            child.kill()
            print("stuck", flush=True)
            break
        print(told.get(), flush=True)
    over.set()
    open("go", "w").close()
    print(task.result())
"""


def test_children_of_a_fork_use_tasks(flow_home: Path, tmp_path: Path) -> None:
    """They had the connection to the store and locks of the parent, which its threads may have held for ever."""
    done = ran(PROGRAM, tmp_path)
    looked = ["('running', 0, False, 1)"] * 10
    assert done.stdout.splitlines() == [*looked, "seen", "seen"], done.stderr
    (task,) = Flow().list_tasks()
    assert task.status == "completed"
