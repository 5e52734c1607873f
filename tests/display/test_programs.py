"""What a program that waits for its task shows of it, on a terminal and away from one."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowlite import Flow, TaskConfig
from tests.display.programs import CONTROLS, environment, ran, unlabelled
from tests.helpers import eventually
from tests.terminals import Terminal

TALK = """
import os, time
from flowlite import FlowApp
app = FlowApp()

@app.function(num_instances=2)
def talk(word):
    print("saying", word, os.environ["RANK"])
    return word.upper()

@app.function
def until(path, word="waiting"):
    print(word, flush=True)
    while not os.path.exists(path):
        time.sleep(0.01)
    print("seen")

@app.function
def fail():
    print("so far")
    raise ValueError("no good")
"""


@pytest.fixture
def folder(tmp_path: Path, flow_home: Path) -> Path:
    return tmp_path


@pytest.fixture
def terminals(folder: Path) -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


def only_task() -> str:
    (task,) = Flow().list_tasks()
    return task.id


@pytest.mark.parametrize("wait", ["talk.remote('a')", "talk.spawn('a').result()"])
def test_a_call_shows_its_task_away_from_a_terminal(folder: Path, wait: str) -> None:
    """Id and name, phases, the workers' output and the end on standard error; standard output is the program's."""
    done = ran(f"{TALK}\nif __name__ == '__main__': print({wait})", folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "A\n"
    lines = unlabelled(done.stderr)
    task = only_task()
    assert lines[0] == f"task talk ({task}): talk"
    assert any(line.startswith("· running") for line in lines), lines
    assert sorted(line for line in lines if line.startswith("saying")) == [
        "saying a 0",
        "saying a 1",
    ]
    assert re.fullmatch(rf"task talk \({task}\) completed in \S+, cost \S+", lines[-1])
    assert CONTROLS.search(done.stderr) is None


def test_never_shows_nothing(folder: Path) -> None:
    program = f"{TALK}\nif __name__ == '__main__': print(talk.remote('a'))"
    done = ran(program, folder, FLOW_SHOW_LOGS="never")
    assert (done.returncode, done.stdout, done.stderr) == (0, "A\n", "")


def test_wait_tells_a_failure_and_result_leaves_it_to_the_exception(folder: Path) -> None:
    waited = ran(f"{TALK}\nif __name__ == '__main__': fail.spawn().wait()", folder)
    assert waited.returncode == 0
    last = unlabelled(waited.stderr)[-1]
    assert re.fullmatch(r"task fail \(\S+\) failed: first failure: .*ValueError: no good", last)
    raised = ran(f"{TALK}\nif __name__ == '__main__': fail.spawn().result()", folder)
    assert raised.returncode == 1
    assert ") failed" not in raised.stderr
    assert "\nValueError: no good\nraised on node 0, rank 0 of task fail" in raised.stderr


ONCE = """
import asyncio
from flowlite import Flow, TaskConfig
def command():
    Flow().run(TaskConfig(command=["sh", "-c", "echo no good; exit 3"])).result()
async def aio():
    await fail.remote.aio()
if __name__ == '__main__':
"""


@pytest.mark.parametrize("call", ["fail.remote()", "fail.spawn().result()", "asyncio.run(aio())"])
def test_a_failure_is_told_once(folder: Path, call: str) -> None:
    """The worker's traceback is in its output; the exception has it, too, but does not print it again."""
    told = ran(f"{TALK}{ONCE}    {call}", folder)
    assert told.returncode == 1
    assert told.stderr.count('raise ValueError("no good")') == 1, told.stderr
    # The worker's own last line, and the program's.
    assert told.stderr.count("ValueError: no good") == 2
    assert told.stderr.count("first failure") == 0
    again = re.findall(
        r"shown above, in the output of rank 0; again: flow (logs \S+ --rank 0)", told.stderr
    )
    assert [words.split()[1] for words in again] == [only_task()]
    if call == "fail.remote()":
        assert "flowlite/api" not in told.stderr, "frames of flowlite say nothing of the failure"


def test_the_exception_tells_what_was_not_shown(folder: Path) -> None:
    told = ran(f"{TALK}{ONCE}    fail.remote()", folder, FLOW_SHOW_LOGS="never")
    assert told.returncode == 1
    assert told.stderr.count('raise ValueError("no good")') == 1, told.stderr
    assert told.stderr.count("ValueError: no good") == 2
    assert "shown above" not in told.stderr


def test_the_exception_has_the_whole_traceback_in_any_case(folder: Path) -> None:
    told = ran(
        f"""{TALK}{ONCE}
    try:
        fail.remote()
    except ValueError as error:
        print(error.__cause__.text)
""",
        folder,
    )
    assert told.stdout.count('raise ValueError("no good")') == 1, told.stderr


@pytest.mark.parametrize("shown", ["always", "never"])
def test_the_output_of_a_command_is_told_once(folder: Path, shown: str) -> None:
    told = ran(f"{TALK}{ONCE}    command()", folder, FLOW_SHOW_LOGS=shown)
    assert told.returncode == 1
    assert told.stderr.count("no good\n") == 1, told.stderr
    assert "exited with 3" in told.stderr


def test_waiting_again_goes_on_where_the_last_time_ended(folder: Path) -> None:
    done = ran(
        f"""{TALK}
if __name__ == '__main__':
    from flowlite import TaskTimeout
    task = until.spawn("go")
    while not (task.logs().__str__()):
        try:
            task.wait(0.2)
        except TaskTimeout:
            pass
    try:
        task.wait(0.5)
    except TaskTimeout:
        pass
    open("go", "w").close()
    task.wait()
    task.wait()
""",
        folder,
    )
    assert done.returncode == 0, done.stderr
    lines = unlabelled(done.stderr)
    assert [line for line in lines if line in {"waiting", "seen"}] == ["waiting", "seen"]
    assert sum(line.endswith(": until") for line in lines) == 1
    assert sum("completed in" in line for line in lines) == 1


def test_a_task_that_waits_for_a_place_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOW_LOCAL_TASKS", "1")
    flow = Flow()
    holder = flow.run(TaskConfig(command=["sleep", "600"]))
    eventually(lambda: holder.status == "running")
    before = flow.run(TaskConfig(command=["true"]))
    eventually(lambda: "waiting for a place" in before.reason)
    (folder / "program.py").write_text(f"{TALK}\nif __name__ == '__main__': talk.remote('a')")
    errors = folder / "errors"
    with errors.open("wb") as file:
        program = subprocess.Popen(
            [sys.executable, "program.py"], cwd=folder, env=environment(), stderr=file
        )
    try:
        said = r"· provisioning: waiting for a place.*\b1 before"
        eventually(lambda: re.search(said, errors.read_text()))
    finally:
        holder.cancel()
        program.wait(90)
    assert "saying a 0" in errors.read_text()


def test_a_progress_bar_moves_on_a_terminal(folder: Path, terminals: list[Terminal]) -> None:
    """tqdm's bar is seen while it is at work, and does not stay in the way of whole lines."""
    (folder / "program.py").write_text(
        f"""{TALK}
@app.function
def bar(path):
    import sys
    print("first", flush=True)
    sys.stderr.write("\\r 10%|#         |")
    sys.stderr.flush()
    while not os.path.exists(path):
        time.sleep(0.01)
    sys.stderr.write("\\r100%|##########|\\n")
if __name__ == '__main__':
    bar.remote("go")
    print("result here")
"""
    )
    terminal = Terminal([sys.executable, "program.py"], folder)
    terminals.append(terminal)
    terminal.read(until=" 10%|#         |")
    (folder / "go").touch()
    terminal.read()
    assert terminal.end() == 0
    rows = [CONTROLS.sub("", row.rpartition("\r")[2]) for row in terminal.seen.split("\r\n")]
    assert "result here" in rows
    assert [row for row in unlabelled("\n".join(rows)) if "%" in row] == ["100%|##########|"]


def test_tasks_of_several_threads_keep_their_lines_apart(folder: Path) -> None:
    done = ran(
        f"""{TALK}
import threading
@app.function
def many(word, path):
    open(path + word, "w").close()
    while len([n for n in os.listdir(".") if n.startswith(path)]) < 3:
        time.sleep(0.01)
    for n in range(300):
        print(word * 20, n, flush=True)
if __name__ == '__main__':
    threads = [threading.Thread(target=many.remote, args=(w, "here-")) for w in "abc"]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
""",
        folder,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    named: dict[str, set[str]] = {"a": set(), "b": set(), "c": set()}
    for line in done.stderr.splitlines():
        match = re.fullmatch(
            r"(?:many \((\w+)\) )?\[Node 0\] \[[\d:]+\] (a{20}|b{20}|c{20}) (\d+)", line
        )
        if match is None:
            assert re.match(r"· |task many \(", line), line
            continue
        found[match[2][0]].append(int(match[3]))
        named[match[2][0]].add(match[1])
    assert found == {word: list(range(300)) for word in "abc"}
    assert len(set().union(*named.values()) - {None}) > 1


def test_a_program_without_standard_error_runs_all_the_same(folder: Path) -> None:
    """As under pythonw, or with `2>&-`."""
    done = ran(
        f"""{TALK}
import sys
if __name__ == '__main__':
    sys.stderr = None
    print(talk.remote('a'))
    sys.stderr = open(os.devnull, "w")
    sys.stderr.close()
    print(talk.remote('b'))
""",
        folder,
    )
    assert done.stdout == "A\nB\n", done.stderr


def test_a_program_that_logs_its_standard_error_runs_all_the_same(folder: Path) -> None:
    """The usual class for it has two methods."""
    done = ran(
        f"""{TALK}
import sys
class Logger:
    def write(self, text):
        print("logged", text, end="")
    def flush(self):
        pass
if __name__ == '__main__':
    sys.stderr = Logger()
    print(talk.remote('a'))
""",
        folder,
    )
    assert done.stdout.endswith("\nA\n"), done.stderr
    assert "saying a 1\n" in done.stdout


# map

SWEEP = f"""{TALK}
@app.function
def part(x):
    print("working on", x)
    if x == 20:
        raise ValueError("no 20")
    return x
"""


def test_a_map_shows_its_progress_and_names_what_failed(folder: Path) -> None:
    """Away from a terminal: a line for each step, and one for the input that failed; no output of the tasks."""
    done = ran(
        f"{SWEEP}\nif __name__ == '__main__':\n"
        "    print(len(list(part.map(range(10, 31, 10), return_exceptions=True, max_concurrent=1))))",
        folder,
    )
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr
    lines = done.stderr.splitlines()
    assert [line for line in lines if line.startswith("part: ")] == [
        "part: 1 of 3 done",
        "part: 2 of 3 done, 1 failed",
        "part: 3 of 3 done, 1 failed",
    ], done.stderr
    (failure,) = [line for line in lines if "no 20" in line]
    assert re.fullmatch(
        r"input 1, part\(20\): task part \(\S+\) failed: first failure: node 0, rank 0: ValueError: no 20",
        failure,
    )
    assert "working on" not in done.stderr


def test_the_exception_of_a_map_names_its_input(folder: Path) -> None:
    done = ran(f"{SWEEP}\nif __name__ == '__main__': list(part.map([20]))", folder)
    assert done.returncode == 1
    assert done.stderr.endswith("\nthis is input 0, part(20)\n"), done.stderr
    assert (
        done.stderr.count("ValueError: no 20") == 2
    )  # of the worker's traceback, and of the program's
    assert "first failure" not in done.stderr


def test_a_map_has_one_bar_on_a_terminal(folder: Path, terminals: list[Terminal]) -> None:
    (folder / "program.py").write_text(
        f"{SWEEP}\nif __name__ == '__main__':\n"
        "    for value in until.map(['go', 'go']): print('value', value)\n"
        "    print('result here')\n"
    )
    terminal = Terminal([sys.executable, "program.py"], folder)
    terminals.append(terminal)
    terminal.read(until="until [....................] 0 of 2 done, 2 started")
    (folder / "go").touch()
    terminal.read()
    assert terminal.end() == 0
    rows = [CONTROLS.sub("", row.rpartition("\r")[2]) for row in terminal.seen.split("\r\n")]
    assert [row for row in rows if row] == [
        "value None",
        "value None",
        "until: 2 of 2 done",
        "result here",
    ]


def test_a_map_that_is_to_show_nothing(folder: Path) -> None:
    done = ran(
        f"{SWEEP}\nif __name__ == '__main__': print(list(part.map([1])))",
        folder,
        FLOW_SHOW_LOGS="never",
    )
    assert (done.stdout, done.stderr) == ("[1]\n", "")
