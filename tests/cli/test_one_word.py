"""`flow run -- 'a whole line'`: one word with spaces is a line for a shell."""

from __future__ import annotations

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
