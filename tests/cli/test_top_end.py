"""`flow top` on a terminal, until its task ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowlite import Flow, TaskConfig
from tests.cli.terminals import OnTerminal


@pytest.mark.parametrize("code", [0, 3])
def test_it_ends_quietly_with_its_task(flow_home: Path, tmp_path: Path, code: int) -> None:
    go_on = tmp_path / "go-on"
    go_on.touch()
    waits = f"while test -e {go_on}; do sleep 0.05; done; exit {code}"
    task = Flow().run(TaskConfig(command=waits, num_instances=2))
    watching = OnTerminal("top", "--interval", "0.5", task.id, columns=120)
    watching.read_until(lambda said: said.count("cores") > 0 or "% of" in said)
    go_on.unlink()
    ended, said = watching.end()
    assert ended == 0, said
    assert "No such file" not in said
    assert "error" not in said.lower()
    assert task.wait().status == ("failed" if code else "completed")
