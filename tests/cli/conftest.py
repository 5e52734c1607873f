"""Running `flow` inside the test's own process, for everything that needs no process of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
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
def flow(
    flow_home: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Flow]:
    """Calls `flow` with these words. What it has imported from a user's directory is forgotten after the test."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    main_modules = {name: sys.modules.get(name) for name in ("__main__", "__mp_main__")}

    def run(*words: str) -> Ran:
        capsys.readouterr()
        code = main(words)
        said = capsys.readouterr()
        return Ran(code, said.out, said.err)

    yield run
    for name, module in main_modules.items():
        if module is not None:
            sys.modules[name] = module
    for name in set(sys.modules) - before:
        # Not more than these: flowlite keeps what it has once imported of itself.
        if any(place.startswith(str(tmp_path)) for place in _places(sys.modules[name])):
            del sys.modules[name]


def _places(module: ModuleType) -> list[str]:
    """Where a module is from; a package without a file of its own has directories."""
    return [str(getattr(module, "__file__", "")), *map(str, getattr(module, "__path__", ()))]
