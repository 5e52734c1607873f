"""`flow run` where the process that calls it was started in unusual surroundings."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flowlite import TaskConfig
from flowlite.api.client import Flow
from tests.helpers import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.timeout(120)


def _run(
    home: Path,
    cwd: Path,
    before: Callable[[], object] | None = None,
    *options: str,
    inside: Sequence[str] = (),
) -> tuple[int, str]:
    """Runs a script on two nodes. Returns the exit code, and all that was printed.

    Args:
        home: The FLOW_HOME.
        cwd: The current directory.
        before: Called in the new process, before it becomes `flow`.
        options: Options of `flow run`.
        inside: The start of a command line that calls `flow`.
    """
    script = home / "train.py"
    script.write_text("import os\nprint('this is rank', os.environ['RANK'])\n")
    command = [
        *inside,
        sys.executable,
        "-m",
        "flowlite.cli",
        "run",
        "-N",
        "2",
        "--no-sync",
        *options,
    ]
    done = subprocess.run(
        [*command, "--", "python", str(script)],
        cwd=cwd,
        env={**os.environ, "FLOW_HOME": str(home), "PYTHONPATH": str(ROOT)},
        preexec_fn=before,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=90,
        check=False,
    )
    return done.returncode, done.stdout


def test_all_signals_are_blocked(flow_home: Path, tmp_path: Path) -> None:
    def block() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())

    code, said = _run(flow_home, tmp_path, block)
    assert code == 0, said
    assert "this is rank 0" in said, said
    assert "this is rank 1" in said, said


def _ignore_ends_of_children() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def test_a_daemon_that_ignores_the_ends_of_its_children_is_told_the_exit_status(
    flow_home: Path,
) -> None:
    task = Flow().run(TaskConfig(command=["sleep", "600"]))
    eventually(lambda: task.status == "running")
    done = subprocess.run(
        [sys.executable, "-m", "flowlite.cli", "ssh", task.id, "--", "sh", "-c", "exit 7"],
        env={**os.environ, "FLOW_HOME": str(flow_home), "PYTHONPATH": str(ROOT)},
        preexec_fn=_ignore_ends_of_children,
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )
    assert done.returncode == 7
    task.cancel()
    task.wait(timeout=60)


def test_processes_in_the_background_hear_of_the_ends_of_their_children(
    flow_home: Path, tmp_path: Path
) -> None:
    code, said = _run(
        flow_home, tmp_path, _ignore_ends_of_children, "--notify", "exit 7", "--detach"
    )
    assert code == 0, said
    (task,) = Flow().list_tasks()
    task.wait(timeout=60)
    eventually(lambda: any("it ended with 7" in event.text for event in task.events()))


def test_a_program_that_ignores_the_ends_of_its_children_has_supervisors_that_do_not(
    flow_home: Path, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import signal\n"
        "from flowlite import Flow, TaskConfig\n"
        "from flowlite.settings import flow_home\n"
        "from flowlite.supervise.background import run_detached\n"
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "task = Flow().run(TaskConfig(command=['sleep', '600'], notify='exit 7'))\n"
        "module = 'flowlite.supervise.process.notifications'\n"
        "run_detached(flow_home.home(), module, task.id, 'failed', '0')\n"
    )
    subprocess.run(
        [sys.executable, str(program)],
        env={**os.environ, "FLOW_HOME": str(flow_home), "PYTHONPATH": str(ROOT)},
        timeout=60,
        check=True,
    )
    (task,) = Flow().list_tasks()
    eventually(lambda: any("it ended with 7" in event.text for event in task.events()))
    eventually(lambda: task.status == "running")
    pid = json.loads((flow_home / "tasks" / task.id / "supervisor.json").read_text())["pid"]
    ignored = re.search(r"SigIgn:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    assert ignored is not None
    assert not int(ignored[1], 16) & 1 << (signal.SIGCHLD - 1)
    task.cancel()
    task.wait(timeout=60)


@pytest.mark.parametrize("name", ["with:colon", "with\nnewline"])
def test_a_home_that_cannot_be_in_pythonpath(flow_home: Path, tmp_path: Path, name: str) -> None:
    home = flow_home / name
    home.mkdir(mode=0o700)
    code, said = _run(home, tmp_path)
    assert code == 0, said
    assert "this is rank 1" in said, said


def test_the_current_directory_was_removed(flow_home: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    code, said = _run(flow_home, gone, gone.rmdir)
    assert code == 2, said
    assert said == (
        "error: the current directory was removed; change to one that exists, such as with `cd ~`\n"
    )


@pytest.mark.parametrize(
    "words",
    [
        ["run", "train.py::train"],
        ["run", "--schedule", "@daily", "--", "true"],
        ["config", "trust"],
    ],
)
def test_commands_without_a_current_directory(
    words: list[str], flow_home: Path, tmp_path: Path
) -> None:
    """What they need it for, they do before the call of the API that looks whether it is there."""
    gone = tmp_path / "gone"
    gone.mkdir()
    command = [sys.executable, "-m", "flowlite.cli", *words]
    ran = subprocess.run(
        command,
        env={**os.environ, "FLOW_HOME": str(flow_home), "PYTHONPATH": str(ROOT)},
        cwd=gone,
        preexec_fn=gone.rmdir,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == (
        "error: the current directory was removed; change to one that exists, such as with `cd ~`\n"
    )


def _limit_sizes() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))


def test_files_may_not_become_large(flow_home: Path, tmp_path: Path) -> None:
    code, said = _run(flow_home, tmp_path, _limit_sizes)
    assert code == 2, said
    assert "raise it with `ulimit -f unlimited`" in said, said
    assert not (flow_home / "state.db").exists()


def test_a_program_that_cannot_be_written_is_what_the_task_waits_for(
    flow_home: Path, tmp_path: Path
) -> None:
    flow = Flow()
    assert list(flow.list_tasks()) == []
    shutil.rmtree(flow_home / "agents", ignore_errors=True)
    code, said = _run(flow_home, tmp_path, _limit_sizes, "--detach")
    assert code == 0, said
    (task,) = flow.list_tasks()
    eventually(lambda: "raise it with `ulimit -f unlimited`" in task.record.reason)
    task.cancel()
    task.wait(timeout=60)
    assert task.record.state == "cancelled"


@pytest.mark.needs("namespaces")
@pytest.mark.parametrize(
    ("option", "advice"),
    [("--net", "`ip link set lo up`"), ("--pid", "`mount -t proc proc /proc`")],
)
def test_a_namespace_is_incomplete(
    flow_home: Path, tmp_path: Path, option: str, advice: str
) -> None:
    inside = ["unshare", "--user", "--map-root-user", option, "--fork", "--kill-child"]
    code, said = _run(flow_home, tmp_path, inside=inside)
    assert code == 2, said
    assert advice in said, said
    assert said.startswith("error: "), said
    assert said.count("\n") == 1, said


@pytest.mark.needs("namespaces")
def test_a_user_without_a_home_directory(flow_home: Path, tmp_path: Path) -> None:
    """As any number in a container: nobody in /etc/passwd, and without HOME."""
    inside = ["unshare", "--user", "--map-user=12345", "env", "-u", "HOME"]
    options = ("--sync", "--setup", "true")
    code, said = _run(flow_home, tmp_path, None, *options, inside=inside)
    assert (code, said.count("this is rank")) == (0, 2), said
    asks = "from flowlite.python_request import index_settings; print(index_settings().keys())"
    for command in (["-m", "flowlite.cli", "gc"], ["-c", asks]):
        done = subprocess.run(
            [*inside, sys.executable, *command],
            cwd=tmp_path,
            env={**os.environ, "FLOW_HOME": str(flow_home), "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("sync", ["--sync", "--no-sync"])
def test_pwd_is_the_directory_of_the_ranks(sync: str, flow_home: Path, tmp_path: Path) -> None:
    """And not where the command was typed, if a rank has a copy of that; through a link it is what the shell had."""
    (tmp_path / "project").mkdir()
    (tmp_path / "link").symlink_to("project")
    look = "import os; print('PWD', os.path.samefile(os.environ['PWD'], '.'), os.environ['PWD'])"
    done = subprocess.run(
        [sys.executable, "-m", "flowlite.cli", "run", sync, "--", "python", "-c", look],
        cwd=tmp_path / "link",
        env={
            **os.environ,
            "FLOW_HOME": str(flow_home),
            "PYTHONPATH": str(ROOT),
            "PWD": str(tmp_path / "link"),
        },
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "PWD True" in done.stdout
    assert (f" {tmp_path / 'link'}\n" in done.stdout) == (sync == "--no-sync")


def test_warnings_of_python_that_are_errors(
    flow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the tests of a project may run; the supervisor inherits both."""
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    monkeypatch.setenv("PYTHONWARNDEFAULTENCODING", "1")
    code, printed = _run(flow_home, tmp_path)
    assert code == 0, printed
