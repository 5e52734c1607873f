"""`flow run -- 'a whole line'`: one word with spaces is a line for a shell."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from flowlite import Flow as Client
from tests.cli.conftest import Flow


@pytest.mark.parametrize("line", ["echo hi && echo there", "python train.py"])
def test_a_whole_line_is_refused_with_the_command_that_runs_it(flow: Flow, line: str) -> None:
    ran = flow("run", "-N", "2", "--", line)
    assert ran.code == 2
    assert ran.err.startswith(f"error: {line!r} is one word, and no program has that name")
    assert f"flow run -N 2 -- sh -c {shlex.quote(line)}\n" in ran.err
    assert Client().list_tasks() == []


def test_a_program_with_a_space_in_its_name_is_one(flow: Flow, tmp_path: Path) -> None:
    program = tmp_path / "my program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert flow("run", "--dry-run", "--", str(program)).code == 0


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize(
    "command", ['["python train.py --lr 0.1"]', "\n  - pip install x\n  - python train.py"]
)
def test_a_line_in_a_list_of_a_task_file_is_refused_before_anything_is_launched(
    flow: Flow, tmp_path: Path, command: str, dry_run: bool
) -> None:
    file = tmp_path / "task.yaml"
    file.write_text(f"name: t\ncommand: {command}\n")
    ran = flow("run", *(["--dry-run"] if dry_run else []), str(file))
    assert (ran.code, Client().list_tasks()) == (2, [])
    assert (
        "command: a list is one program with its arguments, and no program has the name" in ran.err
    )


def test_a_path_with_a_space_may_be_one_of_the_nodes(flow: Flow, tmp_path: Path) -> None:
    file = tmp_path / "task.yaml"
    file.write_text('command: ["/opt/my tools/train", "--lr", "1"]\nworkdir: /\n')
    assert flow("run", "--dry-run", str(file)).code == 0


def test_a_script_without_its_interpreter_is_refused(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No program is looked for in the current directory, here or on a node."""
    monkeypatch.chdir(tmp_path)
    for name, write in (("train.py", "python train.py"), ("go.sh", "sh go.sh")):
        (tmp_path / name).write_text("#!/bin/sh\n")
        ran = flow("run", "--", name, "--lr", "3")
        assert (ran.code, Client().list_tasks()) == (2, [])
        assert (
            f"command: {name} is a file here, and no program on the PATH; write {write}" in ran.err
        )
    # These may have a program of that name.
    for option, value in (("--image", "u"), ("--setup", "make install"), ("--env", "PATH=.")):
        assert flow("run", "--dry-run", option, value, "--", "go.sh").code == 0
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "go.sh").chmod(0o755)
    assert flow("run", "--dry-run", "--", "go.sh").code == 0


@pytest.mark.parametrize(
    "command",
    [
        "python trian.py",
        "env A=1 python -u trian.py --lr 3",
        "bash trian.py",
        "python src/train.py",
    ],
)
def test_a_script_that_is_not_there_is_refused_where_its_files_are_sent(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Machines were launched for a name with a slip of the keyboard."""
    (tmp_path / "train.py").write_text("pass\n")
    monkeypatch.chdir(tmp_path)
    ran = flow("run", "--dry-run", "--sync", "--", *command.split())
    assert ran.code == 2
    script = next(word for word in command.split() if word.endswith(".py"))
    assert f"the command runs {script}, and there is no such file in {tmp_path}" in ran.err
    assert ("; did you mean 'train.py'?" in ran.err) == (script == "trian.py")


@pytest.mark.parametrize(
    ("options", "command"),
    [
        ("--setup true", "python made.py"),
        ("--file made.py=train.py", "python made.py"),
        ("", "python -m pip"),
        ("", "python -c pass"),
        ("", "env -C / python made.py"),
        ("", "env --chdir=/ python made.py"),
        ("", "env -C/ sh made.sh"),
        ("", "sh -c made.py"),
        ("", "python /opt/made.py"),
        ("--no-sync", "python made.py"),
        ("--workdir below", "python inner.py"),
        ("--file tool=below", "python tool"),
        ("--image u", "bash made.sh"),
        ("--env PATH=/opt", "bash made.sh"),
        ("", "bash tool.sh"),
    ],
)
def test_a_script_that_may_be_there_is_not_refused(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str, command: str
) -> None:
    (tmp_path / "train.py").write_text("pass\n")
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "inner.py").write_text("pass\n")
    (tmp_path / "below" / "tool.sh").write_text("true\n")
    (tmp_path / "below" / "tool.sh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{tmp_path / 'below'}")
    monkeypatch.chdir(tmp_path)
    sync = [] if "--no-sync" in options else ["--sync"]
    assert flow("run", "--dry-run", *sync, *options.split(), "--", *command.split()).code == 0
