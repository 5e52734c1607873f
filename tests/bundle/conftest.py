"""A project on disk, and a node without flowlite to run calls on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flowlite.bundle.agent_zip import AgentZip, build_agent_zip
from flowlite.bundle.call import Bundle
from flowlite.bundle.result import Outcome, load_result


@pytest.fixture(scope="session")
def agent_zip(tmp_path_factory: pytest.TempPathFactory) -> AgentZip:
    return build_agent_zip(tmp_path_factory.mktemp("home"))


class Project:
    """Files that can be imported, and forgotten again."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    root = tmp_path / "project"
    root.mkdir()
    monkeypatch.syspath_prepend(str(root))
    before = set(sys.modules)
    yield Project(root)
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


_RUN = """
import json, sys
zip_, call, result = sys.argv[1:]
sys.path.insert(0, zip_)
from flowlite_node.worker import load_call as calls
print(json.dumps(calls.run_call(json.loads(call), result, node=1, rank=3)))
assert "flowlite" not in sys.modules
"""


class Node:
    """A fresh process that has the agent's zip and the bundle, and nothing else of ours."""

    def __init__(self, agent: AgentZip, directory: Path) -> None:
        self._agent = agent
        self.directory = directory
        directory.mkdir()
        self.failure: Any = None
        self.printed = ""

    def run(self, bundle: Bundle, **changed: Any) -> Outcome:
        """Bring the files over, run the call, and read what came out."""
        for path in (bundle.path, *(source.path for source in bundle.sources)):
            (self.directory / path.name).write_bytes(path.read_bytes())
        result = self.directory / "result"
        call = json.dumps({**bundle.call_config(str(self.directory)), **changed})
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        done = subprocess.run(
            [sys.executable, "-c", _RUN, str(self._agent.path), call, str(result)],
            cwd=self.directory,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        *printed, failure = done.stdout.splitlines()
        self.printed, self.failure = "\n".join(printed), json.loads(failure)
        return load_result(
            result, allow_pickle=True, node=1, rank=3, task_name="t", task_id="task-1", attempt=1
        )


@pytest.fixture
def node(agent_zip: AgentZip, tmp_path: Path) -> Node:
    return Node(agent_zip, tmp_path / "node")


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., Bundle]:
    from flowlite.bundle.call import build_bundle

    def build(fn: Any, *args: Any, **kwargs: Any) -> Bundle:
        return build_bundle(fn, args, kwargs, directory=tmp_path / "bundle")

    return build
