"""Gangs of real agents on this machine, from start to release, and with every kind of process killed on the way."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from flowlite.bundle.call import build_bundle
from flowlite.node.forkserver import registry
from flowlite.node.serialization.result_file import read_outcome
from flowlite.node.system import processes
from tests.helpers import assert_no_process_left, eventually, taken_port
from tests.node.agents import RealGang
from tests.node.proxy import Proxy

STUBBORN = "trap '' TERM; while :; do sleep 1; done"
IDLE = {"kind": "command", "argv": ["sh", "-c", "echo up; exec sleep 600"]}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


def function(home: Path, what: Callable[..., Any], *args: Any) -> dict[str, Any]:
    """A call of a function, as `AgentConfig.call`."""
    directory = home / "bundle"
    directory.mkdir()
    return build_bundle(what, args, {}, directory=directory).call_config(str(directory))


def command(*argv: str) -> dict[str, Any]:
    return {"kind": "command", "argv": list(argv)}


def results(gang: RealGang) -> list[Any]:
    """The value of every rank, as it came through the link."""
    values = []
    for each in gang.workers():
        path = gang.home / f"came.{each['rank']}"
        path.write_bytes(gang.streams[f"{each['rank']}.result"])
        values.append(read_outcome(path, allow_pickle=True).value)
    return values


def follow(gang: RealGang, script: Callable[[RealGang], Awaitable[Any]]) -> None:
    """Start the agents and run a supervisor's part."""
    gang.start()

    async def within() -> None:
        async with asyncio.timeout(90):
            await script(gang)
            if gang.link is not None:
                await gang.link.close()

    asyncio.run(within())


async def all_up(gang: RealGang) -> None:
    """Until every worker has written something."""
    world = len(gang.configs) * gang.configs[0].workers_per_node
    await gang.until("go")
    link = gang.link
    assert link is not None
    while len([name for name, kept in gang.streams.items() if kept]) < world:
        await asyncio.sleep(0.01)


def test_a_function_on_two_nodes(home: Path) -> None:
    def describe(shift: int) -> dict[str, Any]:
        print("hello from rank", os.environ["RANK"])
        names = (
            "RANK",
            "LOCAL_RANK",
            "WORLD_SIZE",
            "FLOW_NODE_RANK",
            "FLOW_NODE_IPS",
            "MASTER_PORT",
        )
        return {
            "shifted": int(os.environ["RANK"]) + shift,
            **{each: os.environ[each] for each in names},
        }

    with RealGang(home, function(home, describe, 10)) as gang:
        ended = gang.run()
        assert ended["outcome"] == "done", (ended, gang.logs())
        found = results(gang)
        assert [each["shifted"] for each in found] == [10, 11, 12, 13]
        assert [each["FLOW_NODE_RANK"] for each in found] == ["0", "0", "1", "1"]
        assert [each["LOCAL_RANK"] for each in found] == ["0", "1", "0", "1"]
        assert {each["WORLD_SIZE"] for each in found} == {"4"}
        assert {each["FLOW_NODE_IPS"] for each in found} == {"127.0.0.1,127.0.0.1"}
        assert [gang.text(rank) for rank in range(4)] == [
            f"hello from rank {rank}\n" for rank in range(4)
        ]
        kinds = [event["kind"] for event in gang.events]
        assert kinds.index("go") > max(place for place, kind in enumerate(kinds) if kind == "ready")
        gang.assert_nothing_left()
        report = gang.report(1)
        assert report["outcome"] == "done"
        assert [
            each["rank"] for each in sorted(report["workers"], key=lambda each: each["rank"])
        ] == [2, 3]


def test_torch_ranks_meet_through_the_warm_process(home: Path) -> None:
    pytest.importorskip("torch")

    def reduce() -> float:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        tensor = torch.ones(4) * dist.get_rank()
        dist.all_reduce(tensor)
        dist.barrier()
        return float(tensor.sum())

    with RealGang(home, function(home, reduce)) as gang:
        ended = gang.run()
        assert ended["outcome"] == "done", (ended, gang.logs(), gang.text(0, "err"))
        assert results(gang) == [24.0] * 4
        templates = {
            event["facts"]["warm_seconds"] for event in gang.events if event["kind"] == "ready"
        }
        assert len(templates) == 1, "both nodes share one import of torch"
        # Nobody destroyed the process group, and yet nobody aborted.
        assert [each["code"] for each in gang.workers()] == [0] * 4
        gang.assert_nothing_left()


def test_a_command_on_two_nodes_with_a_warm_process_for_each(home: Path) -> None:
    script = (
        "echo $RANK $FLOW_TASK_NAME; echo to stderr >&2; cat secret-is-$TOKEN 2>/dev/null; exit 0"
    )
    with RealGang(home, command("sh", "-c", script), shared=False) as gang:
        for paths in gang.paths:
            paths.secrets.write_text(json.dumps({"TOKEN": "s3cret"}))
            (paths.home / "secret-is-s3cret").write_text("known\n")
        assert gang.run()["outcome"] == "done"
        assert gang.text(3) == "3 test\nknown\n"
        assert gang.text(2, "err") == "to stderr\n"
        assert all(each["sizes"]["result"] == 0 for each in gang.workers())
        gang.assert_nothing_left()
        for path in home.rglob("*.log"):
            assert "s3cret" not in path.read_text()


@pytest.mark.slow
def test_a_bare_torchrun_forms_the_gang_in_manual_mode(home: Path) -> None:
    pytest.importorskip("torch")
    script = home / "train.py"
    script.write_text(
        "import os, torch.distributed as dist\n"
        "dist.init_process_group('gloo'); dist.barrier()\n"
        # In one piece: the ranks below one torchrun share its stream.
        "os.write(1, f'rank {dist.get_rank()} of {dist.get_world_size()}\\n'.encode()); os._exit(0)\n"
    )
    with RealGang(home, command("torchrun", str(script)), mode="manual") as gang:
        ended = gang.run(PET_NNODES="9", SLURM_PROCID="0")
        assert ended["outcome"] == "done", (ended, gang.text(0, "err"))
        lines = sorted((gang.text(0) + gang.text(1)).splitlines())
        assert lines == [f"rank {rank} of 4" for rank in range(4)]
        gang.assert_nothing_left()


def test_a_master_port_that_is_taken_is_not_given_out(home: Path) -> None:
    with taken_port(29500):
        script = "import os, socket; s = socket.socket(); s.bind(('', int(os.environ['MASTER_PORT']))); s.listen()"
        call = command(sys.executable, "-c", f"import os\nif os.environ['RANK'] == '0': {script}")
        with RealGang(home, call) as gang:
            ended = gang.run()
            assert ended["outcome"] == "done", gang.text(0, "err")
            go = next(event for event in gang.events if event["kind"] == "go")
            assert go["master_port"] != 29500
            gang.assert_nothing_left()


class TestFailures:
    def test_the_first_failure_stops_ranks_that_would_never_notice(self, home: Path) -> None:
        def train() -> None:
            import time

            if os.environ["RANK"] == "3":
                raise ValueError("no such layer")
            time.sleep(60)

        with RealGang(home, function(home, train)) as gang:
            ended = gang.run()
            assert ended["outcome"] == "failed"
            assert ended["reason"].endswith("node 1, rank 3: ValueError: no such layer")
            first = ended["first_failure"]
            assert (first["node"], first["rank"], first["code"]) == (1, 3, 1)
            assert [each["stopped"] for each in gang.workers()] == [True, True, True, False]
            failed_at = next(
                event["time"] for event in gang.events if event["kind"] == "first_failure"
            )
            assert ended["time"] - failed_at < 2
            path = home / "came"
            path.write_bytes(gang.streams["3.result"])
            assert isinstance(read_outcome(path, allow_pickle=True).exception, ValueError)
            gang.assert_nothing_left()

    def test_workers_that_ignore_sigterm_and_leave_grandchildren(self, home: Path) -> None:
        script = f'(setsid sh -c "{STUBBORN}" &); sh -c "{STUBBORN}" & echo up; {STUBBORN}'

        async def cancel(gang: RealGang) -> None:
            await all_up(gang)
            assert gang.link is not None
            await gang.link.stop("cancel", "the user said so")
            ended = await gang.finish()
            assert (ended["outcome"], ended["reason"]) == ("stopped", "the user said so")

        with RealGang(home, command("sh", "-c", script)) as gang:
            follow(gang, cancel)
            assert {each["signal"] for each in gang.workers()} == {signal.SIGKILL}
            gang.assert_nothing_left()

    def test_kill_9_of_a_worker(self, home: Path) -> None:
        async def kill(gang: RealGang) -> None:
            await all_up(gang)
            victim = processes.marked({"FLOW_TASK_ID": gang.task, "RANK": "2"})
            os.kill(min(victim), signal.SIGKILL)
            ended = await gang.finish()
            assert ended["outcome"] == "failed"
            assert ended["first_failure"]["rank"] == 2
            assert ended["first_failure"]["signal"] == signal.SIGKILL

        with RealGang(home, IDLE) as gang:
            follow(gang, kill)
            gang.assert_nothing_left()

    def test_kill_9_of_the_warm_process_of_one_node(self, home: Path) -> None:
        async def kill(gang: RealGang) -> None:
            await all_up(gang)
            reaper = json.loads(gang.paths[1].environment.read_text())["reaper"]
            os.kill(reaper["pid"], signal.SIGKILL)
            ended = await gang.finish()
            assert ended["outcome"] == "failed"
            assert ended["first_failure"]["node"] == 1

        with RealGang(home, IDLE) as gang:
            follow(gang, kill)
            gang.assert_nothing_left()

    def test_kill_9_of_an_agent(self, home: Path) -> None:
        async def kill(gang: RealGang) -> None:
            await all_up(gang)
            gang.agents[1].kill()
            suspect = await gang.until("suspect")
            assert suspect["instance"] == "i-001"
            assert gang.link is not None
            # Its workers are stopped by their reaper, without anybody's help.
            marks = {"FLOW_TASK_ID": gang.task, "FLOW_NODE_RANK": "1"}
            eventually(lambda: not processes.marked(marks), what="workers of the killed agent")
            await gang.link.lost("i-001", "its agent process is gone")
            ended = await gang.finish()
            assert ended["outcome"] == "lost"

        with RealGang(home, IDLE) as gang:
            follow(gang, kill)
            gang.assert_nothing_left()

    def test_kill_9_of_the_leader_ends_the_others_workers(self, home: Path) -> None:
        async def kill(gang: RealGang) -> None:
            await all_up(gang)
            gang.agents[0].kill()
            marks = {"FLOW_TASK_ID": gang.task, "FLOW_NODE_RANK": "1"}
            eventually(lambda: not processes.marked(marks), what="workers of the other node")

        with RealGang(home, IDLE, fence_after=8.0) as gang:
            follow(gang, kill)
            assert gang.report(1)["outcome"] == "fenced"
            assert {each["signal"] for each in gang.report(1)["workers"]} == {signal.SIGTERM}
            gang.assert_nothing_left()

    @pytest.mark.parametrize(
        "limits", [{"max_run_seconds": 0.5}, {"max_run_seconds": 600.0, "paid_seconds": 1.0}]
    )
    def test_the_longest_run_is_kept_with_nobody_watching(
        self, home: Path, limits: dict[str, float]
    ) -> None:
        with RealGang(home, IDLE, linger=0.3, grace=20.0, **limits) as gang:
            gang.start()
            gang.tell_leader()
            gang.assert_nothing_left()
            for node in range(2):
                report = gang.report(node)
                assert report["outcome"] == "deadline", (report, gang.logs())
                assert [each["signal"] for each in report["workers"]] == [signal.SIGTERM] * 2

    def test_an_agent_that_is_asked_to_end_says_so(self, home: Path) -> None:
        async def end(gang: RealGang) -> None:
            await all_up(gang)
            gang.agents[1].terminate()
            ended = await gang.finish()
            assert ended["outcome"] == "preempted"
            assert "node 1 got SIGTERM" in ended["reason"]

        with RealGang(home, IDLE) as gang:
            follow(gang, end)
            gang.assert_nothing_left()

    def test_a_node_that_does_not_come_is_named(self, home: Path) -> None:
        with RealGang(home, IDLE, join_timeout=6.0) as gang:
            gang.start_agent(0)
            ended = asyncio.run(gang.finish())
            assert ended["outcome"] == "missing"
            assert ended["missing"] == ["i-001"]
            gang.assert_nothing_left()

    def test_an_agent_that_never_hears_of_its_leader_gives_up(self, home: Path) -> None:
        with RealGang(home, IDLE, join_timeout=0.3) as gang:
            gang.start_agent(1)
            report = gang.report(1)
            assert report["outcome"] == "fenced"
            assert "leader.json did not come" in report["reason"]
            gang.assert_nothing_left()

    def test_a_damaged_bundle_fails_before_anything_starts(self, home: Path) -> None:
        call = function(home, os.getpid)
        Path(call["bundle"]).write_bytes(b"something else")
        with RealGang(home, call) as gang:
            ended = gang.run()
            assert ended["outcome"] == "checks"
            assert "call.bin is not the file that was sent" in ended["reason"]
            assert not gang.workers()
            gang.assert_nothing_left()


@pytest.mark.parametrize("start", ["auto", "fork"])
def test_what_must_not_be_forked_is_started_afresh_or_refused(home: Path, start: str) -> None:
    (home / "flowlite_test_pool.py").write_text(
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True, name='pool').start()"
    )

    def children() -> int:
        import threading

        return threading.active_count()

    call = {**function(home, children), "imports": ["flowlite_test_pool"], "start": start}
    with RealGang(home, call, nodes=1, environment={"PYTHONPATH": str(home)}) as gang:
        ended = gang.run()
        if start == "auto":
            assert results(gang) == [1, 1]
        else:
            assert ended["outcome"] == "checks"
            assert "threads were started by an import" in ended["reason"]
        gang.assert_nothing_left()


class TestVolumes:
    def volume(self, home: Path, name: str = "ckpt") -> dict[str, Any]:
        source = home / "volumes" / name
        source.mkdir(parents=True)
        return {
            "name": "ckpt",
            "path": str(home / "shared" / "ckpt"),
            "source": str(source),
            "interface": "file",
        }

    def test_all_ranks_see_one_volume_at_the_path_asked_for(self, home: Path) -> None:
        volume = self.volume(home)
        script = f"echo $RANK > {volume['path']}/$RANK"
        with RealGang(home, command("sh", "-c", script), volumes=[volume]) as gang:
            ended = gang.run()
            assert ended["outcome"] == "done", (ended, gang.text(0, "err"))
            assert sorted(os.listdir(volume["source"])) == ["0", "1", "2", "3"], (
                "and no probe file stays"
            )
            gang.assert_nothing_left()

    def test_a_volume_that_is_another_place_on_another_node_is_refused(
        self, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one, two = self.volume(home), self.volume(home, "other")
        program = home / "impatient.py"
        program.write_text(
            f"import sys; sys.modules['ssl'] = None; sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
            "from flowlite.node.agent import main as beginning, go_checks as probes; probes.PROBE_SECONDS = 0.5\n"
            "sys.exit(beginning.main(sys.argv[1:]))"
        )
        with RealGang(home, IDLE, volumes=[one], shared=False) as gang:
            gang.configs[1].volumes = [{**two, "path": str(home / "shared" / "two")}]
            gang.paths[1].config.write_text(gang.configs[1].to_json())
            for paths in gang.paths:
                command = [sys.executable, str(program), str(paths.directory)]
                gang.agents.append(
                    subprocess.Popen(command, env={**os.environ, "FLOW_TASK_ID": gang.task})
                )
            ended = asyncio.run(gang.finish())
            assert ended["outcome"] == "checks"
            assert "node 1" in ended["reason"]
            assert "not the same place here as on node 0" in ended["reason"]
            gang.assert_nothing_left()

    def test_exec_sees_what_the_workers_see(self, home: Path) -> None:
        volume = self.volume(home)
        Path(volume["source"], "model").write_text("weights")

        async def visit(gang: RealGang) -> None:
            await all_up(gang)
            for node in range(2):
                shown = subprocess.run(
                    [
                        *processes.own_command(sys.executable, "exec", str(gang.paths[node].home)),
                        *(
                            "--",
                            "sh",
                            "-c",
                            f"echo node $FLOW_NODE_RANK $RANK; cat {volume['path']}/model; pwd",
                        ),
                    ],
                    env={**os.environ, "RANK": "77"},
                    capture_output=True,
                    text=True,
                    check=False,
                )
                assert (
                    shown.stdout == f"node {node} {node * 2}\nweights{gang.paths[node].home}\n"
                ), shown.stderr
            assert gang.link is not None
            await gang.link.stop("cancel", "enough")
            await gang.finish()

        with RealGang(home, IDLE, volumes=[volume]) as gang:
            follow(gang, visit)
            gang.assert_nothing_left()


def test_a_new_attempt_uses_the_warm_process_that_is_there(home: Path) -> None:
    first = RealGang(home, IDLE | command("sh", "-c", "exit 3"))
    with first:
        assert first.run()["outcome"] == "failed"
        again = RealGang(home, command("true"), task=first.task, attempt=2)
        templates = processes.marked({"FLOW_TASK_ID": first.task})
        with again:
            assert again.run()["outcome"] == "done"
            assert templates & processes.marked({"FLOW_TASK_ID": first.task})
        registry.retire(first.configs[0].warm_socket or "")
        assert_no_process_left(first.task)


def test_a_script_that_empties_its_output_is_told_how_to_write_it(tmp_path: Path) -> None:
    told = tmp_path / "told"
    script = f"until [ -e {told} ]; do echo line; sleep 0.1; : > /dev/stdout; sleep 0.1; done"
    call = {"kind": "command", "argv": ["sh", "-c", script]}
    with RealGang(tmp_path, call, nodes=1, processes_per_node=1) as gang:
        gang.start()

        async def follow() -> dict[str, Any]:
            warning = await gang.until("warning")
            told.touch()
            assert (await gang.finish())["outcome"] == "done", gang.logs()
            return warning

        text = asyncio.run(follow())["text"]
    assert "rank 0 has emptied the file of its standard output" in text
    assert "`tee -a`" in text


def test_the_directory_of_a_node_may_be_reached_through_a_link(tmp_path: Path) -> None:
    # As where /home leads to /data/home.
    (tmp_path / "data").mkdir()
    (tmp_path / "home").symlink_to("data")
    home = tmp_path / "home"
    workdir = str(home / "i-000" / "project")
    call = command("sh", "-c", "pwd; echo 1 > lost.txt")
    with RealGang(home, call, nodes=1, processes_per_node=1, workdir=workdir) as gang:
        ended = gang.run()
        assert ended["outcome"] == "done", (ended, gang.logs())
        assert gang.text(0) == f"{tmp_path}/data/i-000/project\n"
        told = [each["text"] for each in gang.events if each["kind"] == "unkept"]
        assert len(told) == 1, gang.events
        assert "lost.txt" in told[0]


def test_a_chunk_of_logs_may_take_longer_than_a_silent_leader_is_waited_for(home: Path) -> None:
    """A network that is slow and carries all the time is none that is dead."""
    call = command("sh", "-c", "head -c 300000 /dev/zero")
    with RealGang(home, call, nodes=1, processes_per_node=1) as gang:
        gang.start()
        place = gang.tell_leader()

        async def read() -> int:
            async with Proxy((place["address"], place["port"])) as proxy:
                proxy.slowness = 0.025
                link = gang.open_link()
                link._dial = lambda: asyncio.open_connection(*proxy.address)
                link._silence = 10.0
                await gang.until("ended")
                await gang.finish_after_end()
                return proxy.dialed

        assert asyncio.run(read()) == 1
        assert len(gang.streams["0.out"]) == 300_000
        gang.assert_nothing_left()
