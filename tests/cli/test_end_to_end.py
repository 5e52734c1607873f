"""The `flow` command as people use it: real processes, real gangs on this machine."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowlite.api.client import Flow
from flowlite.api.task import Task
from flowlite.cli import main
from flowlite.errors import ProviderError, TaskFailed
from tests.helpers import KILLED, assert_no_process_left, eventually
from tests.tasks_made_by_hand import HandMade
from tests.terminals import Terminal

ROOT = Path(__file__).parent.parent.parent
FLOW = [sys.executable, "-m", "flowlite.cli"]
PYTHON = sys.executable

EXAMPLE = """
import os
import sys
import time
from flowlite import FlowApp

app = FlowApp()


@app.function(num_instances=2, processes_per_node=2)
def train(lr: float = 1e-4, fail: int = -1, how: str = "raise") -> dict[str, float]:
    rank = int(os.environ["RANK"])
    print(f"rank {rank} with lr {lr}")
    if rank == fail:
        if how == "raise":
            raise ValueError(f"rank {rank} diverged")
        if how == "kill":
            os.kill(os.getpid(), 9)
        print("last words", flush=True)
        os._exit(42)
    if fail >= 0:
        time.sleep(60)
    return {"lr": lr, "rank": rank}
"""


@pytest.fixture
def folder(tmp_path: Path, flow_home: Path) -> Path:
    (tmp_path / "train.py").write_text(EXAMPLE)
    return tmp_path


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def flow(
    *words: str, cwd: Path | None = None, timeout: float = 90
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*FLOW, *words],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def start(*words: str, cwd: Path | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*FLOW, *words],
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def texts(output: str) -> list[str]:
    """Lines without their labels."""
    return [
        re.sub(r"^\[Node \d+(?:, rank \d+)?\] \[\d\d:\d\d:\d\d\] ", "", line)
        for line in output.splitlines()
    ]


def the_task() -> Task[Any]:
    (task,) = Flow().list_tasks()
    return task


def submitted() -> Task[Any]:
    """The only task, as soon as there is one."""
    tasks = eventually(lambda: Flow().list_tasks())
    return tasks[0]


# Running


def test_a_function_runs_with_its_options_and_prints_its_result(folder: Path) -> None:
    ran = flow("run", "train.py::train", "--lr", "5e-5", cwd=folder)
    assert ran.returncode == 0, ran.stderr
    *lines, result = ran.stdout.splitlines()
    assert sorted(texts("\n".join(lines))) == [f"rank {rank} with lr 5e-05" for rank in range(4)]
    assert result == "{'lr': 5e-05, 'rank': 0}"
    assert "completed in" in ran.stderr
    task = the_task()
    assert [value["rank"] for value in task.results()] == [0, 1, 2, 3]
    assert_no_process_left(task.id)


def test_a_command_runs_once_per_worker(folder: Path) -> None:
    (folder / "script.py").write_text(
        "import os\nprint(os.environ['RANK'], os.environ['WORLD_SIZE'], os.path.basename(os.getcwd()))\n"
    )
    ran = flow(
        *("run", "-N", "2", "--processes-per-node", "2", "--", PYTHON, "script.py"), cwd=folder
    )
    assert ran.returncode == 0, ran.stderr
    assert sorted(texts(ran.stdout)) == [f"{rank} 4 {folder.name}" for rank in range(4)]


def test_manual_runs_once_per_node(folder: Path) -> None:
    ran = flow("run", "-N", "2", "--manual", "--", "sh", "-c", "echo $FLOW_NODE_RANK ${RANK-none}")
    assert sorted(texts(ran.stdout)) == ["0 none", "1 none"]


def test_a_task_file_runs(folder: Path) -> None:
    (folder / "task.yaml").write_text("command: echo hello from $RANK\nnum_instances: 2\n")
    ran = flow("run", "task.yaml", cwd=folder)
    assert sorted(texts(ran.stdout)) == ["hello from 0", "hello from 1"]


def test_json_is_one_document_with_the_result(folder: Path) -> None:
    ran = flow("run", "--json", "train.py", cwd=folder)
    document = json.loads(ran.stdout)
    assert (document["schema"], document["kind"]) == (1, "result")
    assert document["data"]["status"] == "completed"
    assert document["data"]["result"] == {"lr": 0.0001, "rank": 0}
    assert document["data"]["error"] is None
    failed = flow("run", "--json", "train.py", "--fail", "2", cwd=folder)
    assert failed.returncode == 1
    data = json.loads(failed.stdout)["data"]
    assert (data["status"], data["result"], data["error"]["type"]) == ("failed", None, "ValueError")


# Failing


def test_an_exception_ends_the_run_with_its_name_and_place(folder: Path) -> None:
    ran = flow("run", "train.py", "--fail", "3", cwd=folder)
    assert ran.returncode == 1
    # Told twice: by the worker's own traceback in the output, and in the last line.
    assert (ran.stdout + ran.stderr).count("rank 3 diverged") == 2
    assert re.search(
        r"^\[Node 1, rank 3\] \S+ ValueError: rank 3 diverged$", ran.stdout, re.MULTILINE
    )
    assert "error: ValueError: rank 3 diverged" in ran.stderr
    assert "node 1, rank 3 of task train" in ran.stderr
    with pytest.raises(ValueError, match="rank 3 diverged"):
        the_task().result()
    assert_no_process_left(the_task().id)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("kill", f"rank 1 on node 0 was {KILLED}"),
        ("exit", "rank 1 on node 0 exited with 42"),
    ],
)
def test_signals_and_exit_codes_are_named(folder: Path, how: str, said: str) -> None:
    ran = flow("run", "train.py", "--fail", "1", "--how", how, cwd=folder)
    assert ran.returncode == 1
    title = re.escape(f"error: task train ({the_task().id}): ")
    assert re.search(title + said, ran.stderr)
    with pytest.raises(TaskFailed) as caught:
        the_task().result()
    assert re.search(said, str(caught.value))
    if how == "exit":
        assert "  last words" in str(caught.value)


# Detached, and what reaches it then


def test_a_detached_task_is_reached_by_every_command(folder: Path) -> None:
    script = "echo started $RANK; while [ ! -e done ]; do sleep 0.02; done; echo over"
    ran = flow("run", "-d", "-N", "2", "--name", "long", "--", "sh", "-c", script, cwd=folder)
    assert ran.returncode == 0
    task_id = ran.stdout.strip()
    assert f"flow logs {task_id} -f" in ran.stderr
    task = Flow().get_task(task_id)
    eventually(lambda: str(task.logs()).count("started") == 2)

    shown = json.loads(flow("status", "long", "--json").stdout)["data"]
    assert (shown["id"], shown["status"]) == (task_id, "running")

    on_one = flow(
        "ssh", "long", "--node", "1", "--command", "echo node $FLOW_NODE_RANK $RANK; exit 9"
    )
    assert (on_one.returncode, on_one.stdout, on_one.stderr) == (9, "node 1 1\n", "")
    program = flow("ssh", "long", "--", "sh", "-c", 'echo "$1-$RANK"; exit 8', "sh", "a  b")
    assert (program.returncode, program.stdout) == (8, "a  b-0\n")
    assert flow("ssh", "long", "-c", "true", "--", "true").returncode == 2
    on_all = flow("ssh", "long", "--node", "all", "-c", "echo I am $FLOW_NODE_RANK; kill -TERM $$")
    assert on_all.returncode == 143
    assert sorted(texts(on_all.stdout)) == ["I am 0", "I am 1"]
    assert re.search(r"^\[Node 1\] \[\d\d:\d\d:\d\d\] I am 1$", on_all.stdout, re.MULTILINE)
    assert flow("ssh", "long", "--node", "7", "-c", "true").returncode == 3
    assert flow("ssh", "long", "--node", "one", "-c", "true").returncode == 2
    assert task.exec(["printenv", "RANK"], node=1).stdout == b"1\n"

    follower = start("logs", "long", "-f")
    (folder / "done").write_text("")
    out, _ = follower.communicate(timeout=90)
    assert sorted(texts(out)) == ["over", "over", "started 0", "started 1"]
    assert flow("result", "long").returncode == 0

    after = flow("ssh", "long", "--node", "1", "--command", "echo node $FLOW_NODE_RANK")
    assert (after.returncode, after.stdout) == (0, "node 1\n")
    assert "has ended (completed)" in after.stderr
    assert_no_process_left(task_id)


def test_a_shell_after_the_end_has_the_bounds_of_the_gang(folder: Path) -> None:
    ran = flow("run", "-N", "2:3", "--name", "short", "--", "true", cwd=folder)
    assert ran.returncode == 0
    words = "echo $FLOW_NUM_NODES, $FLOW_NUM_NODES_MIN to $FLOW_NUM_NODES_MAX"
    assert flow("ssh", "short", "--node", "0", "-c", words).stdout == "3, 2 to 3\n"


def test_cancel_ends_a_task_and_run_says_so(folder: Path) -> None:
    running = start("run", "-N", "2", "--name", "long", "--", "sh", "-c", "echo on; exec sleep 600")
    task = submitted()
    eventually(lambda: str(task.logs()).count("on") == 2)
    assert flow("cancel", "long", "--wait").stdout == f"long ({task.id}): cancelled\n"
    _, err = running.communicate(timeout=90)
    assert running.returncode == 1
    assert f"error: task long ({task.id}) was cancelled" in err
    assert_no_process_left(task.id)


def test_a_task_of_an_array_that_cannot_be_submitted_stops_no_other(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "job.sbatch").write_text("#!/bin/sh\n#SBATCH --array=1-3%2\nsleep 1\n")
    monkeypatch.chdir(folder)
    submit = Flow.submit

    def fails_at_second(self: Flow, config: Any, **options: Any) -> Any:
        if config.name.endswith("-2"):
            raise ProviderError("no answer from EC2")
        return submit(self, config, **options)

    monkeypatch.setattr(Flow, "submit", fails_at_second)
    assert main(["run", "--json", "job.sbatch"]) == 1
    told = capsys.readouterr()
    ends = {task["name"]: task["status"] for task in json.loads(told.out)["data"]}
    assert ends == {"job-1": "completed", "job-3": "completed"}
    assert "task 2 of 3 could not be submitted: no answer from EC2" in told.err
    assert "2 of 3 tasks completed" in told.err


# Ctrl-C


def interrupted(process: subprocess.Popen[str]) -> tuple[int, str]:
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=180)
    return process.returncode, err


def test_ctrl_c_cancels_the_task_and_says_so(folder: Path) -> None:
    running = start("run", "-N", "2", "--name", "long", "--", "sh", "-c", "echo on; exec sleep 600")
    task = submitted()
    eventually(lambda: str(task.logs()).count("on") == 2)
    code, err = interrupted(running)
    assert code == 130
    assert f"interrupted; task long ({task.id}) is being cancelled" in err
    assert "Traceback" not in err
    assert task.status == "cancelled"
    assert_no_process_left(task.id)


def test_sigterm_ends_the_command_which_says_that_the_task_goes_on(folder: Path) -> None:
    running = start("run", "--name", "long", "--", "sh", "-c", "echo on; exec sleep 600")
    task = submitted()
    eventually(lambda: "on" in str(task.logs()))
    running.terminate()
    _, err = running.communicate(timeout=90)
    assert running.returncode == -signal.SIGTERM
    assert f"terminated; task long ({task.id}) keeps running without this command" in err
    assert f"flow cancel {task.id}" in err
    assert task.status == "running"
    task.cancel()
    task.wait(90)


def test_sigterm_ends_the_command_of_an_array_which_says_what_goes_on(folder: Path) -> None:
    (folder / "job.sbatch").write_text("#!/bin/sh\n#SBATCH --array=1-3%2\necho on; sleep 600\n")
    running = start("run", "job.sbatch", cwd=folder)
    eventually(lambda: len(Flow().list_tasks()) == 2)
    tasks = Flow().list_tasks()
    eventually(lambda: all("on" in str(task.logs()) for task in tasks))
    running.terminate()
    _, err = running.communicate(timeout=90)
    assert running.returncode == -signal.SIGTERM
    assert "terminated; 2 of 3 tasks are submitted, and those that have not ended go on" in err
    for task in tasks:
        assert task.status == "running"
        task.cancel()
    for task in tasks:
        task.wait(90)


def test_ctrl_c_ends_the_following_of_logs_and_not_the_task(folder: Path) -> None:
    flow("run", "-d", "--name", "long", "--", "sh", "-c", "echo on; exec sleep 600")
    task = submitted()
    following = start("logs", "long", "-f")
    assert following.stdout is not None
    assert "on" in following.stdout.readline()
    assert interrupted(following) == (
        130,
        f"\nstopped following; task long ({task.id}) continues\n",
    )
    assert task.status == "running"
    task.cancel()
    task.wait(90)


def moments() -> list[Any]:
    """From the start of Python to well after the submission; a few of them are enough for the quick tests."""
    later = [
        pytest.param(n / 20, marks=[pytest.mark.slow, *([pytest.mark.hours] if n % 3 else [])])
        for n in range(1, 25)
        if n not in (4, 8, 12)
    ]
    return [0.2, 0.4, 0.6, *later]


def interrupted_early(process: subprocess.Popen[str]) -> tuple[int, str]:
    """As `interrupted`, of a process that may not have come to our first line: until then Python drops some signals.

    They fall into a callback of its imports (`flowlite/cli/interrupts.py`). People press again, and so does this.
    """
    process.send_signal(signal.SIGINT)
    try:
        _, err = process.communicate(timeout=90)
    except subprocess.TimeoutExpired:
        return interrupted(process)
    return process.returncode, err


@pytest.mark.timeout(400)
@pytest.mark.parametrize("after", moments())
def test_ctrl_c_at_any_moment_leaves_no_unknown_task(folder: Path, after: float) -> None:
    running = start("run", "-N", "2", "--name", "early", "--", "sh", "-c", "exec sleep 600")
    time.sleep(after)
    _, err = interrupted_early(running)
    tasks = Flow().list_tasks()
    if tasks:
        (task,) = tasks
        assert running.returncode == 130, err
        assert task.id in err
        assert "Traceback" not in err
        assert task.wait(120).status == "cancelled"
        assert_no_process_left(task.id)
    else:
        # Before Python has come to our first line, the signal is its own affair.
        assert running.returncode in (130, -signal.SIGINT, 1), err
    assert not [
        path
        for path in (Flow()._session.home / "tasks").glob("*")
        if path.name not in {t.id for t in tasks}
    ]


def test_a_second_ctrl_c_leaves_at_once(folder: Path) -> None:
    (folder / "stubborn.yaml").write_text(
        "command: trap '' TERM; echo on; while :; do sleep 0.1; done\ngrace_seconds: 15\n"
    )
    running = start("run", "--name", "stubborn", "stubborn.yaml", cwd=folder)
    task = submitted()
    eventually(lambda: "on" in str(task.logs()))
    running.send_signal(signal.SIGINT)
    eventually(lambda: task.record.cancel_requested_at)
    time.sleep(0.2)
    code, err = interrupted(running)
    assert code == 130
    assert f"and is being cancelled; its end: flow status {task.id}" in err
    assert task.wait(90).status == "cancelled"


def test_a_killed_client_changes_nothing(folder: Path) -> None:
    running = start("run", "-N", "2", "--name", "alone", "--", "sh", "-c", "sleep 1; echo over")
    task = submitted()
    running.kill()
    running.communicate()
    assert task.wait(90).status == "completed"
    assert texts(str(task.logs())) == ["over", "over"]


# Pipes and terminals


def test_a_reader_that_leaves_is_no_error(folder: Path) -> None:
    made = HandMade()
    made.write(0, b"".join(b"line %d\n" % n for n in range(200_000)))
    for words in (["logs", made.id], ["logs", made.id, "--json"], ["status"], ["--help"]):
        ran = subprocess.run(
            f"{PYTHON} -m flowlite.cli {' '.join(words)} | head -n 1; echo ${{PIPESTATUS[0]}}",
            shell=True,
            executable="/bin/bash",
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.stderr == ""
        assert ran.stdout.splitlines()[1] == "0"


def test_a_run_whose_reader_leaves_goes_on(folder: Path) -> None:
    script = "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done; echo over > finished"
    ran = subprocess.run(
        f"{PYTHON} -m flowlite.cli run -- sh -c '{script}' | head -n 1; echo ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )
    assert ran.stdout.splitlines()[1] == "0"
    assert "Traceback" not in ran.stderr
    assert (folder / "finished").exists()
    assert the_task().status == "completed"


@pytest.fixture
def terminals(folder: Path) -> Iterator[Any]:
    opened: list[Terminal] = []

    def open_terminal(*words: str) -> Terminal:
        opened.append(Terminal([*FLOW, *words], folder))
        return opened[-1]

    yield open_terminal
    for terminal in opened:
        terminal.close()


def test_on_a_terminal_progress_bars_move_in_place(folder: Path, terminals: Any) -> None:
    (folder / "bar.py").write_text(
        "import os, sys, time\n"
        "for n in range(8):\n"
        "    sys.stderr.write(f'\\r{n}/7 done'); sys.stderr.flush()\n"
        "    while not os.path.exists(f'seen{n}'): time.sleep(0.02)\n"
        "print('\\x1b[31mred'); sys.stderr.write('\\n')\n"
    )
    terminal = terminals("run", "--", PYTHON, "bar.py")
    for n in range(8):
        terminal.read(f"] {n}/7 done")
        (folder / f"seen{n}").touch()
    assert terminal.end() == 0
    assert terminal.seen.count("\r\x1b[K[Node 0] [") >= 8
    assert re.search(r"\] 7/7 done\r\n", terminal.seen)
    # A colour that is left on ends with its line.
    assert re.search(r"\] \x1b\[31mred\x1b\[0m\r\n", terminal.seen)
    assert "· running" in terminal.seen


def test_on_a_terminal_ctrl_c_cancels(terminals: Any) -> None:
    terminal = terminals("run", "--name", "long", "--", "sh", "-c", "echo on; exec sleep 600")
    terminal.read("] on\r\n")
    terminal.type("\x03")
    assert terminal.end() == 130
    assert "is being cancelled" in terminal.seen
    assert the_task().status == "cancelled"


def test_a_shell_on_a_node(terminals: Any) -> None:
    ran = flow(
        "run", "-d", "-N", "2", "--name", "long", "--", "sh", "-c", "echo on; exec sleep 600"
    )
    task = Flow().get_task(ran.stdout.strip())
    eventually(lambda: str(task.logs()).count("on") == 2)
    os.environ["SHELL"] = "/bin/sh"
    terminal = terminals("ssh", "long", "--node", "1")
    terminal.type("echo I am $FLOW_NODE_RANK of $FLOW_NUM_NODES\n")
    terminal.read("I am 1 of 2")
    terminal.type("exit 5\n")
    assert terminal.end() == 5
    task.cancel()
    task.wait(90)


def test_tables_are_drawn_on_a_terminal(terminals: Any) -> None:
    HandMade("digits").end("failed", "first failure")
    terminal = terminals("status")
    assert terminal.end() == 0
    assert "\x1b[31mfailed" in terminal.seen


# How fast, how small


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_status_with_100_tasks_is_small(flow_home: Path) -> None:
    for number in range(100):
        made = HandMade(f"task-{number}")
        if number % 10:
            made.end()
    # Not the maximum that the kernel keeps for a child: it begins with the size of its parent.
    code = (
        "import re, sys; from flowlite.cli import main; code = main(['status', '--all']);"
        "sys.stderr.write(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]); sys.exit(code)"
    )
    done = subprocess.run(
        [PYTHON, "-c", code], env=environment(), capture_output=True, text=True, check=True
    )
    assert len(done.stdout.splitlines()) == 101
    assert int(done.stderr) * 1024 < 60e6
