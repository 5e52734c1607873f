"""The fork server of local nodes, started before any agent is there."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowlite.api.adapters import adapter
from flowlite.bundle.agent_zip import build_agent_zip
from flowlite.node.agent.forkserver_spec import Needs
from flowlite.node.config.agent_config import AgentConfig, AttemptPaths
from flowlite.node.forkserver import registry
from flowlite.node.system import processes, runtime_dir
from flowlite.provider import Instance, LaunchIntent, Plan
from provider_adapters.local import warming
from tests.helpers import kill_processes_of_home
from tests.node.test_warm import Client

pytestmark = pytest.mark.skipif(not processes.LINUX, reason="nothing is forked ahead elsewhere")


@pytest.fixture
def homes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """Two FLOW_HOMEs, one after the other in one process, as those of tests or of a notebook."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parent.parent.parent))
    made = [Path(tempfile.mkdtemp(prefix="flow-")) for _ in range(2)]
    yield made
    for home in made:
        kill_processes_of_home(home)
        shutil.rmtree(home, ignore_errors=True)
    # This process must not seem to have been updated under way to tests that come after this one.
    for name in [name for name in sys.modules if name.partition(".")[0] == "flowlite_node"]:
        del sys.modules[name]


def test_it_runs_the_agent_of_its_own_home(
    homes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for home in homes:
        monkeypatch.setenv("FLOW_HOME", str(home))
        warmed = adapter("local")
        plan = Plan("local", "this machine", 1, 1, options={"max_tasks": 4})
        preload = {
            "agent": str(build_agent_zip(home).path),
            "call": {"kind": "function", "imports": ["json"]},
        }
        intent = LaunchIntent("one", "t-warming", 1, plan.to_json(), preload=preload)
        (node,) = warmed.launch(intent)
        spec = warming.spec_of(home, plan, intent)
        assert spec is not None
        # Its first answer comes once it runs.
        Client({**spec, "socket": node.data["warm_socket"]}).close()
        warmed.terminate([node])
        # An agent program that is gone, as after the end of a test or an update.
        shutil.rmtree(home)


FUNCTION = {"kind": "function", "imports": ["json"]}
SCRIPT = {"kind": "command", "argv": [sys.executable, "-c", "print()"], "imports": []}


@pytest.fixture
def one_core(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process may use one core of the machine."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.usefixtures("one_core")
@pytest.mark.parametrize("seconds", [0.0, 60.0])
@pytest.mark.parametrize(
    "call",
    [FUNCTION, SCRIPT, {**FUNCTION, "start": "spawn"}, {"kind": "command", "argv": ["true"]}],
)
def test_it_is_the_fork_server_that_an_agent_would_start(
    homes: list[Path], call: dict[str, Any], seconds: float
) -> None:
    """With as many threads, too: numpy takes the number of threads when it is imported."""
    home = homes[0]
    preload = {
        "agent": str(build_agent_zip(home).path),
        "call": call,
        "processes_per_node": 1,
        "environment": {"A": "1"},
        "warm_seconds": seconds,
    }
    plan = Plan("local", "this machine", 1, 1, options={"python": sys.executable})
    spec = warming.spec_of(home, plan, LaunchIntent("one", "t", 1, plan.to_json(), preload=preload))
    assert spec is not None
    assert spec["environment"]["OMP_NUM_THREADS"] == "1"
    paths = AttemptPaths(home / "nodes" / "n0" / "a1")
    config = AgentConfig(
        task="t",
        name="n",
        attempt=1,
        instance="one-000",
        roster=["one-000"],
        processes_per_node=1,
        call=call,
        python=sys.executable,
        environment={"A": "1", "FLOW_HOME": str(home)},
        warm_seconds=seconds,
        warm_socket=spec["socket"],
    )
    needs = Needs(config, paths, call)
    agents = needs.kept_spec() if needs.keeps_warm else needs.warm_spec()
    # The program is in the key, and the agent of this test runs from the source tree.
    own = {"log", "key", "program", "most"}
    assert {name: spec[name] for name in spec.keys() - own} == {
        name: agents[name] for name in agents.keys() - own
    }


def test_its_start_imports_the_shipped_code_only_if_that_is_another_than_of_this_process(
    homes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = homes[0]
    monkeypatch.setenv("FLOW_HOME", str(home))
    warmed = adapter("local")
    plan = Plan("local", "this machine", 1, 1, options={"max_tasks": 4})
    agent = build_agent_zip(home).path
    preload = {"agent": str(agent), "call": {"kind": "function", "imports": ["json"]}}

    def started(task: str) -> str:
        intent = LaunchIntent("one", task, 1, plan.to_json(), preload=preload)
        (node,) = warmed.launch(intent)
        (server,) = processes.marked({"FLOW_TASK_ID": task, "FLOW_HOME": str(home)})
        command = Path(f"/proc/{server}/cmdline").read_text().split("\0")
        warmed.terminate([node])
        return command[command.index("warm") - 1]

    assert started("t-same") == str(agent)
    assert not [name for name in sys.modules if name.partition(".")[0] == "flowlite_node"]
    monkeypatch.setattr(warming, "_last_change", lambda _: time.time())
    assert started("t-changed") == str(agent)
    assert str(agent) in str(sys.modules["flowlite_node.forkserver.client"].__file__)


def test_a_node_is_not_kept_by_a_fork_server_that_is_dying(
    flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was killed is listed as alive until the kernel has ended it, but answers nobody any more."""
    monkeypatch.setenv("TMPDIR", str(flow_home))
    path = os.path.join(runtime_dir.find(), f"{registry.PREFIX}dying")
    # The socket of a fork server, whose process is this one: alive, as far as the list of processes tells.
    registry.note(path, 1, None)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen()
        asking = threading.Thread(target=lambda: listener.accept()[0].close(), daemon=True)
        asking.start()
        node = Instance(id="one-000", task_id="one", state="running", address="127.0.0.1")
        assert registry.look(path) is not None
        assert warming.WarmNodes(flow_home).keep([(node, path)], 60.0) == []
        asking.join()
