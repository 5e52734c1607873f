"""What every connection does, done through a command: all tests of the contract once more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flowlite.connect.base import Connection
from flowlite.connect.step.connection import StepConnection
from tests.connect import test_contract
from tests.helpers import eventually, process_alive

globals().update(
    {name: thing for name, thing in vars(test_contract).items() if name.startswith("test_")}
)
unused_port = test_contract.unused_port


@pytest.fixture(params=["local", "ssh", "carried"])
def connection(request: pytest.FixtureRequest, step: Callable[..., StepConnection]) -> Connection:
    """On this machine, on a host by SSH, and through another one that carries its command."""
    if request.param == "local":
        return step()
    if request.param == "carried":
        return step(step(prefix=()), ("env", "CARRIED=1"))
    connect = request.getfixturevalue("connect")
    return step(connect(request.getfixturevalue("server")))


def test_a_command_that_takes_too_long_is_killed(connection: Connection, tmp_path: Path) -> None:
    # In place of the one above: what is to begin at the far end may take its time on a busy machine.
    note, seconds = tmp_path / "pid", 0.5
    while not note.exists():
        with pytest.raises(TimeoutError, match=rf"sh did not end within {seconds} s"):
            connection.run(["sh", "-c", f"echo $$ > {note}; exec sleep 1000"], timeout=seconds)
        seconds *= 2
    pid = int(eventually(note.read_text))
    eventually(lambda: not process_alive(pid), what="the command is gone")
