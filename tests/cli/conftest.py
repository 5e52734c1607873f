"""Running `flow` inside the test's own process, for everything that needs no process of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flowlite.cli import main


@dataclass(frozen=True)
class Ran:
    """What one command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The data of the one JSON document it printed, after a look at its shape."""
        (line,) = self.out.splitlines()
        document = json.loads(line)
        assert list(document) == ["schema", "kind", "data"]
        assert document["schema"] == 1
        return document["data"]


Flow = Callable[..., Ran]


@pytest.fixture
def flow(flow_home: Path, capsys: pytest.CaptureFixture[str]) -> Flow:
    """Calls `flow` with these words."""

    def run(*words: str) -> Ran:
        capsys.readouterr()
        code = main(words)
        said = capsys.readouterr()
        return Ran(code, said.out, said.err)

    return run
