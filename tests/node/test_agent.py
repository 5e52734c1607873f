"""The agent as a process: what it is told, what it costs, and that it stands alone."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlite.node.agent.main import is_alone
from flowlite.node.config.agent_config import AgentConfig, AttemptPaths, ConfigFault
from flowlite.node.setup import done
from flowlite.node.system import processes
from flowlite.node.system.atomic_files import write_atomically
from tests.helpers import clean_by_age, eventually
from tests.node.agents import RealGang, agent_command

IDLE = {"kind": "command", "argv": ["sleep", "60"]}
CONFIG: dict[str, Any] = {
    "task": "t1",
    "name": "n",
    "attempt": 1,
    "instance": "b",
    "roster": ["a", "b", "c"],
    "processes_per_node": 4,
    "call": {"kind": "command", "argv": ["true"]},
}


class TestConfig:
    def test_ranks_follow_from_the_roster(self) -> None:
        config = AgentConfig(**CONFIG)
        assert (config.node_rank, config.num_nodes, config.is_leader) == (1, 3, False)
        assert list(config.ranks) == [4, 5, 6, 7]

    def test_in_manual_mode_one_worker_is_started_on_each_node(self) -> None:
        config = AgentConfig(**CONFIG, mode="manual")
        assert config.workers_per_node == 1
        assert list(config.ranks) == [1]

    @given(st.dictionaries(st.sampled_from(["HOME", "A"]), st.text()), st.floats(0, 1e6))
    def test_it_comes_back_from_json_as_it_was(
        self, environment: dict[str, str], seconds: float
    ) -> None:
        config = AgentConfig(**CONFIG, environment=environment, max_run_seconds=seconds)
        assert AgentConfig.from_json(config.to_json()) == config

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"instance": "z"}, "not in the roster"),
            ({"mode": "magic"}, "magic"),
            ({"colour": "red"}, "colour"),
            ({"processes_per_node": 0}, "at least 1"),
            ({"call": {"kind": "prayer"}}, "prayer"),
            ({"task": ...}, "task"),
        ],
    )
    def test_what_is_wrong_is_named(self, change: dict[str, Any], message: str) -> None:
        data = {name: value for name, value in {**CONFIG, **change}.items() if value is not ...}
        with pytest.raises(ConfigFault, match=message):
            AgentConfig.from_json(json.dumps(data))

    def test_garbage_is_no_config(self) -> None:
        for text in (b"\xff", b"[]", b"", b"{"):
            with pytest.raises(ConfigFault):
                AgentConfig.from_json(text)


def test_files_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_atomically(path, "one")
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "half\udcff")
    assert path.read_text() == "one"
    assert list(tmp_path.iterdir()) == [path]


def test_a_config_it_does_not_understand_is_reported(tmp_path: Path) -> None:
    directory = tmp_path / "a1"
    directory.mkdir()
    (directory / "agent.json").write_text(json.dumps({**CONFIG, "instance": "z"}))
    (directory / "secret").write_text("s")
    done = subprocess.run(agent_command(directory), check=False)
    assert done.returncode == 2
    report = json.loads((directory / "report.json").read_bytes())
    assert report["outcome"] == "error"
    assert "not in the roster" in report["reason"]


def test_it_stands_alone_and_there_is_one_of_it(tmp_path: Path) -> None:
    with RealGang(tmp_path, IDLE, nodes=1, processes_per_node=1) as gang:
        agent = gang.start_agent(0)
        noted = eventually(
            lambda: gang.paths[0].leader.exists() and json.loads(gang.paths[0].pid.read_bytes())
        )
        assert noted["pid"] == agent.pid
        assert processes.is_alive(noted["pid"], noted["start"])
        assert os.getsid(agent.pid) == agent.pid
        second = subprocess.run(
            agent_command(gang.paths[0].directory), capture_output=True, text=True, check=False
        )
        assert second.returncode == 0
        assert "already runs" in second.stderr
        os.kill(agent.pid, signal.SIGHUP)
        asyncio.run(gang.until("started"))
        assert agent.poll() is None
        agent.terminate()
        assert agent.wait(90) == 0
        gang.assert_nothing_left()


def test_it_ends_when_told_to_also_where_its_directory_was_removed(tmp_path: Path) -> None:
    with RealGang(tmp_path, IDLE, nodes=1, processes_per_node=1) as gang:
        agent = gang.start_agent(0)
        asyncio.run(gang.until("started"))
        shutil.rmtree(gang.paths[0].home)
        agent.terminate()
        assert agent.wait(60) == 0


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_there_is_one_of_it_also_where_a_file_system_has_no_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert is_alone(AttemptPaths(tmp_path))
    assert not is_alone(AttemptPaths(tmp_path))
    # The nodes' setup does not wait for a lock that does not come.
    assert done.take(0)


def test_a_setup_that_ran_before_an_upgrade_of_flowlite_does_not_run_again(tmp_path: Path) -> None:
    """Its commands need not bear that, and a task that runs meanwhile may have another attempt on the node."""
    config = AgentConfig(
        **CONFIG, setup=["true"], python=sys.executable, cache=str(tmp_path / "cache" / "uv")
    )
    python = [config.python, os.path.realpath(config.python)]
    machine = [os.uname().nodename, processes.boot_id()]
    parts = json.dumps([1, ["true"], [], python, ".", [], *machine])
    key = hashlib.sha256(parts.encode()).hexdigest()[:32]
    (tmp_path / "setup.json").write_text(json.dumps({"key": key, "run": "before"}))
    assert done.Record(config, AttemptPaths(tmp_path / "a1")).find() == done.Done("before", True)


def test_one_process_can_become_the_agents_of_several_nodes(tmp_path: Path) -> None:
    with RealGang(tmp_path, {"kind": "command", "argv": ["true"]}) as gang:
        command = agent_command(gang.paths[0].directory)
        command[-1:] = ["--detach", *(str(paths.directory) for paths in gang.paths)]
        subprocess.run(command, check=True, env={**os.environ, "FLOW_TASK_ID": gang.task})
        assert asyncio.run(gang.finish())["outcome"] == "done"
        assert {gang.report(node)["outcome"] for node in range(2)} == {"done"}
        gang.assert_nothing_left()


@pytest.mark.parametrize(("program", "outcome"), [("true", "done"), ("false", "failed")])
def test_a_signal_after_the_end_of_its_gang_does_not_change_how_that_ended(
    tmp_path: Path, program: str, outcome: str
) -> None:
    """The agent waits to be collected, and its machine may be shut down before."""
    call = {"kind": "command", "argv": [program]}
    with RealGang(tmp_path, call, nodes=1, processes_per_node=1) as gang:
        agent = gang.start_agent(0)

        async def until_it_has_ended() -> None:
            assert (await gang.until("ended"))["outcome"] == outcome
            assert gang.link is not None
            await gang.link.close()

        asyncio.run(until_it_has_ended())
        agent.terminate()
        report = gang.report(0)
        assert report["outcome"] == outcome
        assert bool(report["first_failure"]) == (outcome == "failed")
        gang.assert_nothing_left()


@pytest.mark.skipif(not processes.LINUX, reason="other systems clean in other ways")
def test_what_it_uses_of_a_shared_machine_stays_noted_however_long_it_runs(tmp_path: Path) -> None:
    # The paths of sockets are short.
    with (
        tempfile.TemporaryDirectory(prefix="flow-") as place,
        RealGang(tmp_path, IDLE, nodes=1, processes_per_node=1, visible_gpus="0") as gang,
    ):
        noted = Path(place, f"flowlite-{os.getuid()}", "gpus.json")
        noted.parent.mkdir(mode=0o700)
        noted.write_text("{}")
        agent = gang.start_agent(0, TMPDIR=place)
        asyncio.run(gang.until("started"))
        clean_by_age(Path(place))
        assert noted.exists()
        agent.terminate()
        gang.assert_nothing_left()
        clean_by_age(Path(place))
        assert not noted.exists()


@pytest.mark.skipif(not processes.LINUX, reason="read from /proc")
def test_it_is_small(tmp_path: Path) -> None:
    with RealGang(tmp_path, IDLE, nodes=1, processes_per_node=1) as gang:
        agent = gang.start_agent(0)
        asyncio.run(gang.until("started"))
        status = Path(f"/proc/{agent.pid}/status").read_text()
        resident = next(int(line.split()[1]) for line in status.splitlines() if "VmRSS" in line)
        assert resident <= 25 * 1024
        maps = Path(f"/proc/{agent.pid}/maps").read_text()
        assert "_ssl." not in maps


def test_the_program_explains_itself() -> None:
    for arguments in ([], ["nonsense"], ["agent"]):
        shown = subprocess.run(
            processes.own_command(sys.executable, *arguments),
            capture_output=True,
            text=True,
            check=False,
        )
        assert shown.returncode == 2
        assert "agent ATTEMPT_DIR" in shown.stderr
