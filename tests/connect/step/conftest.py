"""Connections through a command: on this machine, on a host by SSH, and carried by another such connection."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flowlite.bundle.agent_zip import build_agent_zip
from flowlite.connect.base import Connection
from flowlite.connect.local import LocalConnection
from flowlite.connect.step import pool
from flowlite.connect.step.connection import StepConnection


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The node's program as it lies on a node: under its hash."""
    built = build_agent_zip(tmp_path_factory.mktemp("home"))
    path = tmp_path_factory.mktemp("blobs") / built.sha256
    path.write_bytes(built.path.read_bytes())
    path.chmod(0o700)
    return path


@pytest.fixture
def step(program: Path) -> Iterator[Callable[..., StepConnection]]:
    """Makes them: `step()` is one on this machine. Closed after the test, with all that runs for them."""
    made: list[StepConnection] = []

    def make(
        base: Connection | None = None, prefix: tuple[str, ...] = ("env",), **more: Any
    ) -> StepConnection:
        given = {"label": "node n1", "python": sys.executable, "program": str(program), **more}
        made.append(StepConnection(base or LocalConnection(), prefix, **given))
        return made[-1]

    yield make
    for connection in reversed(made):
        connection.close()
    pool.close_idle()
