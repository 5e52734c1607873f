"""Checkpoints of real agents, copied to a directory: what goes up, what never does, and what comes back."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from flowlite.node.system import processes
from tests.checkpoints.remote import manifests, names_at, newest, sets_at
from tests.components import need
from tests.helpers import eventually
from tests.node.agents import RealGang

# Processes are found by it, also those of a test that runs beside this one in another process.
TASK = f"tcheckpoint{os.getpid()}"
WHOLE = 64 * 1024
"""Every file of these trainers is this long, and all of one byte."""

HEAD = """
import json, os, signal, sys, time
from pathlib import Path
here = Path(os.environ["FLOW_CHECKPOINT_DIR"])
rank, attempt = int(os.environ["RANK"]), int(os.environ["FLOW_ATTEMPT"])
WHOLE = 64 * 1024
def write(path, letter, pause=0.0, final=True):
    with open(path, "wb", buffering=0) as file:
        for _ in range(16):
            file.write(letter * (WHOLE // 16))
            time.sleep(pause)
def at_rest(name, memory=Path("checkpoint.json")):
    # Until the node has seen that the file is finished.
    while not memory.exists() or name not in json.loads(memory.read_text())["finished"]:
        time.sleep(0.01)
def copied(name):
    while True:
        try:
            if any(name in each.read_text() for each in Path(os.environ["REMOTE"]).rglob("*.json")):
                return
        except FileNotFoundError:
            pass  # it was pruned while it was read
        time.sleep(0.01)
def until(path):
    while not Path(path).exists():
        time.sleep(0.01)
"""


def trainer(body: str) -> dict[str, Any]:
    return {"kind": "command", "argv": [sys.executable, "-u", "-c", HEAD + body]}


def gang(tmp_path: Path, body: str, *, attempt: int = 1, **options: Any) -> RealGang:
    need("own-mounts")  # each node shows its own directory at the same path
    asked = {
        "path": "/flowlite-ckpt", "sync": str(tmp_path / "remote"), "every": 0.3, "keep": 3, "nodes": "leader",
        "final_seconds": 20.0, **options.pop("checkpoint", {}),
    }  # fmt: skip
    options = {"nodes": 1, "processes_per_node": 1, **options}
    return RealGang(
        tmp_path / "nodes", trainer(body), attempt=attempt, task=TASK,
        checkpoint=asked, environment={"REMOTE": asked["sync"]}, **options,
    )  # fmt: skip


def told(gang: RealGang, kind: str = "checkpoint") -> list[str]:
    return [event["text"] for event in gang.events if event["kind"] == kind]


def kill_copier(gang: RealGang) -> None:
    """Kills the process of node 0 that copies checkpoints, as the kernel does for lack of memory."""

    def command(pid: int) -> bytes:
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return b""

    below = processes.descendants([gang.agents[0].pid])
    (pid,) = [pid for pid in below if b"checkpoints" in command(pid)]
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not processes.is_alive(pid))


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    return tmp_path / "remote"


class TestCopying:
    def test_everything_is_there_when_the_gang_has_ended(
        self, tmp_path: Path, remote: Path
    ) -> None:
        body = """
(here / "step 5" / "größe").mkdir(parents=True)
write(here / "step 5" / "größe" / "model.pt", b"m")
write(here / "last.pt", b"l")
(here / "empty" / "below").mkdir(parents=True)
(here / "newest").symlink_to("step 5/größe")
(here / "empty" / "absolute").symlink_to(here / "step 5")
(here / "outside").symlink_to("/etc/hostname")
(here / "half.pt.tmp").write_bytes(b"x")
os.mkfifo(here / "pipe")
"""
        with gang(tmp_path, body) as run:
            ended = run.run()
            assert ended["outcome"] == "done", (ended, run.logs())
            assert newest(remote) == {
                "step 5/größe/model.pt": b"m" * WHOLE, "last.pt": b"l" * WHOLE,
            }  # fmt: skip
            (manifest,) = manifests(remote, sets_at(remote)[0])
            assert manifest.links == {"newest": "step 5/größe", "empty/absolute": "../step 5"}
            assert manifest.directories == ("empty/below",)
            assert set(manifest.unfinished) == {"outside", "pipe"}
            assert told(run) == [f"node 0 (i-000): checkpoint: 2 files, 131 kB at {remote}"]
            run.assert_nothing_left()

    def test_half_of_a_file_is_in_no_set(self, tmp_path: Path, remote: Path) -> None:
        """Whoever looks at the place at any moment finds whole files only, in every set."""
        body = """
for number in range(6):
    write(here / "last.pt", b"%d" % number, pause=0.04)
    write(here / f"epoch_{number}.pt", b"%d" % number, pause=0.02)
    copied(f"epoch_{number}.pt")
    until(Path(os.environ["REMOTE"]).parent / f"seen-{number + 2}")
"""
        found: list[dict[str, bytes]] = []
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(0.01):
                try:
                    found.append(newest(remote))
                except FileNotFoundError:
                    continue  # it was pruned while it was read
                (tmp_path / f"seen-{len(found[-1])}").touch()

        watcher = threading.Thread(target=watch)
        with gang(tmp_path, body) as run:
            watcher.start()
            try:
                assert run.run()["outcome"] == "done", run.logs()
            finally:
                stop.set()
                watcher.join()
            assert len(newest(remote)) == 7
        assert {len(each) for each in found} >= {2, 3, 4, 5, 6, 7}
        for each in found:
            for name, data in each.items():
                assert len(data) == WHOLE, name
                assert len(set(data)) == 1, name

    def test_old_sets_go_and_the_files_that_only_they_had(
        self, tmp_path: Path, remote: Path
    ) -> None:
        body = """
for number in range(8):
    write(here / "last.pt", b"%d" % number)
    at_rest("last.pt")
    time.sleep(0.3)
"""
        with gang(tmp_path, body, checkpoint={"keep": 2}) as run:
            assert run.run()["outcome"] == "done", run.logs()
        assert len(sets_at(remote)) == 2
        named = {
            file.object
            for found in sets_at(remote)
            for manifest in manifests(remote, found)
            for file in manifest.files
        }
        kept = {str(path.relative_to(remote)) for path in (remote / "files").rglob("*.pt")}
        assert kept == named
        assert newest(remote) == {"last.pt": b"7" * WHOLE}

    def test_a_place_that_cannot_be_used_is_refused_before_go(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with gang(tmp_path, "", checkpoint={"sync": str(tmp_path / "file" / "x")}) as run:
            ended = run.run()
        assert ended["outcome"] == "checks"
        assert "checkpoints cannot be copied to" in ended["reason"]
        assert "checkpoint.sync" in ended["reason"]

    def test_a_place_that_stops_working_is_told_once_and_used_again(
        self, tmp_path: Path, remote: Path
    ) -> None:
        body = """
write(here / "one.pt", b"1")
until(here / "go.tmp")
write(here / "two.pt", b"2")
"""
        with gang(tmp_path, body) as run:
            run.start()

            async def follow() -> dict[str, Any]:
                await run.until("started")
                await asyncio.to_thread(eventually, lambda: sets_at(remote))
                os.rename(remote, tmp_path / "away")
                remote.write_text("in the way")
                root = tmp_path / "nodes" / "i-000" / "checkpoint"
                (root / "three.pt").write_bytes(b"3" * WHOLE)
                warning = await run.until("warning")
                assert "is tried again" in warning["text"]
                remote.unlink()
                os.rename(tmp_path / "away", remote)
                (root / "go.tmp").touch()
                return await run.finish()

            assert asyncio.run(follow())["outcome"] == "done", run.logs()
            assert set(newest(remote)) == {"one.pt", "two.pt", "three.pt"}
            assert len(told(run, "warning")) == 1


class TestBadEnds:
    def test_after_a_failure_what_was_finished_is_copied_and_what_was_cut_is_not(
        self, tmp_path: Path, remote: Path
    ) -> None:
        body = """
write(here / "whole.pt", b"w")
at_rest("whole.pt")
with open(here / "half.pt", "wb", buffering=0) as file:
    file.write(b"h" * 100)
    raise ValueError("no such layer")
"""
        with gang(tmp_path, body, checkpoint={"every": 60}) as run:
            ended = run.run()
            assert ended["outcome"] == "failed"
            assert "no such layer" in ended["reason"] or "exited with 1" in ended["reason"]
            assert set(newest(remote)) == {"whole.pt"}
            assert "half.pt was being written" in " ".join(told(run, "warning"))

    def test_a_worker_killed_in_the_middle_of_a_file(self, tmp_path: Path, remote: Path) -> None:
        body = """
write(here / "last.pt", b"1")
copied("last.pt")
with open(here / "last.pt", "r+b", buffering=0) as file:
    file.write(b"2" * (WHOLE // 2))
    os.kill(os.getpid(), signal.SIGKILL)
"""
        with gang(tmp_path, body) as run:
            assert run.run()["outcome"] == "failed", run.logs()
        assert newest(remote) == {"last.pt": b"1" * WHOLE}
        # The next attempt on the same node finds the whole file in its place, and the half nowhere: trainers look at
        # all names in the directory.
        body = 'print((here / "last.pt").read_bytes()[:1], os.listdir(here))'
        with gang(tmp_path, body, attempt=2) as again:
            assert again.run()["outcome"] == "done", again.logs()
            assert again.text(0) == "b'1' ['last.pt']\n"
            aside = tmp_path / "nodes" / "i-000" / "checkpoint.unfinished"
            assert f"is now below {aside}" in " ".join(told(again, "warning"))
            assert (aside / "last.pt").read_bytes() == b"2" * (WHOLE // 2) + b"1" * (WHOLE // 2)
        assert newest(remote) == {"last.pt": b"1" * WHOLE}

    def test_a_checkpoint_made_at_the_stop_signal_is_copied(
        self, tmp_path: Path, remote: Path
    ) -> None:
        body = """
def save(*_):
    write(here / "preempted.pt", b"p", pause=0.02)
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
write(here / "one.pt", b"1")
(here / "written.tmp").touch()
time.sleep(600)
"""
        with gang(tmp_path, body, grace=30.0, checkpoint={"every": 60}) as run:
            run.start()
            here = tmp_path / "nodes" / "i-000" / "checkpoint"

            async def follow() -> dict[str, Any]:
                await run.until("started")
                # A signal that comes before would interrupt the first file, which then is none.
                await asyncio.to_thread(eventually, lambda: (here / "written.tmp").exists())
                run.agents[0].send_signal(signal.SIGTERM)
                return await run.finish()

            ended = asyncio.run(follow())
            assert ended["outcome"] == "preempted", run.logs()
            assert set(newest(remote)) == {"one.pt", "preempted.pt"}
            run.assert_nothing_left()

    def test_an_agent_killed_between_a_file_and_its_manifest(
        self, tmp_path: Path, remote: Path
    ) -> None:
        body = """
write(here / "one.pt", b"1")
until(here / "go.tmp")
write(here / "two.pt", b"2")
time.sleep(60)
"""
        root = tmp_path / "nodes" / "i-000" / "checkpoint"
        with gang(tmp_path, body) as run:
            run.start()
            asyncio.run(run.until("started"))
            eventually(lambda: set(newest(remote)) == {"one.pt"})
            # A manifest cannot be written from now on, files can.
            blocked = next((remote / "sets").iterdir()) / "000002"
            blocked.write_text("in the way")
            (root / "go.tmp").touch()
            eventually(lambda: list((remote / "files").glob("two.*.pt")))
            run.agents[0].kill()
            run.agents[0].wait()
            blocked.unlink()
            assert set(newest(remote)) == {"one.pt"}
        with gang(tmp_path, 'write(here / "three.pt", b"3")', attempt=2) as again:
            assert again.run()["outcome"] == "done", again.logs()
        assert set(newest(remote)) >= {"one.pt", "three.pt"}
        for name, data in newest(remote).items():
            assert len(data) == WHOLE, name

    @pytest.mark.parametrize("dies", ["while workers run", "during the last copy"])
    def test_a_copier_that_is_killed_is_started_again_and_goes_on(
        self, tmp_path: Path, remote: Path, dies: str
    ) -> None:
        body = """
write(here / "one.pt", b"1")
copied("one")
write(here / "two.pt", b"2")
copied("two")
until(here / "go.tmp")
write(here / "three.pt", b"3")
""" + ('copied("three")' if dies == "while workers run" else "")
        go = tmp_path / "nodes" / "i-000" / "checkpoint" / "go.tmp"
        with gang(tmp_path, body) as run:
            run.start()

            async def follow() -> dict[str, Any]:
                await run.until("started")
                await asyncio.to_thread(
                    eventually, lambda: set(newest(remote)) == {"one.pt", "two.pt"}
                )
                if dies == "while workers run":
                    kill_copier(run)
                    go.touch()
                else:
                    # It waits for the end of what cannot be copied now.
                    blocked = next((remote / "sets").iterdir()) / "000003"
                    blocked.write_text("in the way")
                    go.touch()
                    files = remote / "files"
                    await asyncio.to_thread(eventually, lambda: list(files.glob("three.*.pt")))
                    kill_copier(run)
                    blocked.unlink()
                return await run.finish()

            assert asyncio.run(follow())["outcome"] == "done", run.logs()
            assert newest(remote) == {
                f"{name}.pt": digit * WHOLE
                for name, digit in [("one", b"1"), ("two", b"2"), ("three", b"3")]
            }
            # Its sets come after those of the copier before, however they are numbered.
            assert len(sets_at(remote)) == 3
            warned = [text for text in told(run, "warning") if "It is started again" in text]
            assert len(warned) == 1, told(run, "warning")
            assert told(run) == [f"node 0 (i-000): checkpoint: 3 files, 197 kB at {remote}"]
            run.assert_nothing_left()

    def test_a_file_cut_off_while_no_copier_runs_is_in_no_set(
        self, tmp_path: Path, remote: Path
    ) -> None:
        body = """
write(here / "one.pt", b"1")
copied("one")
half = open(here / "half.pt", "wb", buffering=0)
half.write(b"h")
until(here / "go.tmp")
os.kill(os.getpid(), signal.SIGKILL)
"""
        root = tmp_path / "nodes" / "i-000" / "checkpoint"
        with gang(tmp_path, body) as run:
            run.start()

            async def follow() -> dict[str, Any]:
                await run.until("started")
                await asyncio.to_thread(eventually, (root / "half.pt").exists)
                kill_copier(run)
                (root / "go.tmp").touch()
                return await run.finish()

            assert asyncio.run(follow())["outcome"] == "failed", run.logs()
            assert set(newest(remote)) == {"one.pt"}
            assert any("half.pt was being written" in text for text in told(run, "warning"))
            run.assert_nothing_left()

    def test_a_last_copy_that_takes_too_long_is_given_up_and_told(
        self, tmp_path: Path, remote: Path
    ) -> None:
        body = """
write(here / "one.pt", b"1")
until(here / "go.tmp")
"""
        with gang(tmp_path, body, checkpoint={"final_seconds": 1.0}) as run:
            run.start()

            async def follow() -> dict[str, Any]:
                await run.until("started")
                await asyncio.to_thread(eventually, lambda: sets_at(remote))
                os.rename(remote, tmp_path / "away")
                remote.write_text("in the way")
                (tmp_path / "nodes" / "i-000" / "checkpoint" / "go.tmp").touch()
                return await run.finish()

            assert asyncio.run(follow())["outcome"] == "done", run.logs()
            assert "the last copy" in told(run, "warning")[-1]
            assert "final_seconds" in told(run, "warning")[-1]
            assert not told(run)
            run.assert_nothing_left()


class TestDirectoriesOfAllNodes:
    """One directory that all nodes write to, here one that the machine has already."""

    def gang(self, tmp_path: Path, body: str, **options: Any) -> RealGang:
        here = tmp_path / "scratch"
        here.mkdir()
        checkpoint = {"path": str(here), "every": 60.0, **options.pop("checkpoint", {})}
        return gang(tmp_path, body, nodes=2, checkpoint=checkpoint, **options)

    def test_a_node_that_writes_when_the_leader_has_ended(
        self, tmp_path: Path, remote: Path
    ) -> None:
        body = """
if rank == 1:
    until(here / "go.tmp")
write(here / f"{rank}.pt", b"%d" % rank)
"""
        with self.gang(tmp_path, body) as run:
            run.start()

            async def follow() -> dict[str, Any]:
                ended = await run.until("worker")
                assert ended["rank"] == 0, "what it has to copy does not hold its report back"
                (tmp_path / "scratch" / "go.tmp").touch()
                return await run.finish()

            assert asyncio.run(follow())["outcome"] == "done", run.logs()
            assert newest(remote) == {"0.pt": b"0" * WHOLE, "1.pt": b"1" * WHOLE}
            run.assert_nothing_left()

    def test_a_node_that_writes_at_the_stop_signal(self, tmp_path: Path, remote: Path) -> None:
        body = """
def save(*_):
    time.sleep(1.5)
    write(here / "late.pt", b"l", pause=0.02)
    sys.exit(143)
if rank == 1:
    signal.signal(signal.SIGTERM, save)
(here / f"{rank}.tmp").touch()
if rank == 0:
    until(here / "1.tmp")
    raise SystemExit(3)
time.sleep(600)
"""
        with self.gang(tmp_path, body, grace=60.0) as run:
            assert run.run()["outcome"] == "failed", run.logs()
            assert newest(remote) == {"late.pt": b"l" * WHOLE}
            run.assert_nothing_left()

    def test_half_of_a_file_of_another_node_is_in_no_set(
        self, tmp_path: Path, remote: Path
    ) -> None:
        body = """
if rank == 0:
    until(here / "never")
with open(here / "half.pt", "wb", buffering=0) as file:
    file.write(b"h" * 100)
    os.kill(os.getpid(), signal.SIGKILL)
"""
        with self.gang(tmp_path, body) as run:
            assert run.run()["outcome"] == "failed", run.logs()
            assert not names_at(remote)
            assert "half.pt was being written" in " ".join(told(run, "warning"))

    def test_a_node_that_does_not_stop_is_not_waited_for(
        self, tmp_path: Path, remote: Path
    ) -> None:
        body = """
if rank == 0:
    write(here / "0.pt", b"0")
    at_rest("0.pt", here / ".flowlite-checkpoint.json")
    (here / "0.tmp").touch()
time.sleep(600)
"""
        with self.gang(tmp_path, body, lost_after=4.0, fence_after=60.0) as run:
            run.start()

            asyncio.run(run.until("started"))
            eventually((tmp_path / "scratch" / "0.tmp").exists)
            run.agents[1].send_signal(signal.SIGSTOP)
            try:
                run.agents[0].send_signal(signal.SIGTERM)
                assert run.agents[0].wait(90) == 0, run.logs()
            finally:
                run.agents[1].send_signal(signal.SIGCONT)
            assert newest(remote) == {"0.pt": b"0" * WHOLE}


class TestComingBack:
    def test_a_new_node_gets_the_newest_set(self, tmp_path: Path, remote: Path) -> None:
        body = """
(here / "d").mkdir()
write(here / "d" / "a.pt", b"a")
(here / "newest").symlink_to("d/a.pt")
(here / "empty").mkdir()
"""
        with gang(tmp_path, body) as run:
            assert run.run()["outcome"] == "done", run.logs()
        os.rename(tmp_path / "nodes", tmp_path / "gone")
        body = """
print(sorted(str(p.relative_to(here)) for p in here.rglob("*")), (here / "newest").read_bytes()[:1])
print(oct((here / "d" / "a.pt").stat().st_mode))
"""
        with gang(tmp_path, body, nodes=3, attempt=2) as again:
            ended = again.run()
            assert ended["outcome"] == "done", (ended, again.logs())
            for rank in range(3):
                assert again.text(rank).startswith("['d', 'd/a.pt', 'empty', 'newest'] b'a'\n")
        assert len(names_at(remote)) == 1

    def test_what_is_newer_on_the_node_stays(self, tmp_path: Path, remote: Path) -> None:
        with gang(tmp_path, 'write(here / "a.pt", b"1"); write(here / "b.pt", b"1")') as run:
            assert run.run()["outcome"] == "done", run.logs()
        here = tmp_path / "nodes" / "i-000" / "checkpoint"
        (here / "a.pt").write_bytes(b"2" * WHOLE)
        (here / "b.pt").unlink()
        with gang(tmp_path, "print(*sorted(p.name for p in here.iterdir()))", attempt=2) as again:
            assert again.run()["outcome"] == "done", again.logs()
            assert again.text(0) == "a.pt\n"
        assert newest(remote) == {"a.pt": b"2" * WHOLE}

    def test_a_member_that_becomes_the_leader_gets_the_newest_set(
        self, tmp_path: Path, remote: Path
    ) -> None:
        """The gang has shrunk by its leader. The files of the next one are those of its last restore."""
        for attempt, name in ((1, "a.pt"), (2, "b.pt")):
            body = f'if rank == 0: write(here / "{name}", b"{attempt}")'
            with gang(tmp_path, body, attempt=attempt, nodes=2) as run:
                assert run.run()["outcome"] == "done", run.logs()
        nodes = tmp_path / "nodes"
        assert os.listdir(nodes / "i-001" / "checkpoint") == ["a.pt"]
        os.rename(nodes / "i-000", tmp_path / "gone")
        os.rename(nodes / "i-001", nodes / "i-000")
        with gang(tmp_path, "print(*sorted(p.name for p in here.iterdir()))", attempt=3) as again:
            assert again.run()["outcome"] == "done", again.logs()
            assert again.text(0) == "a.pt b.pt\n"
        assert newest(remote) == {"a.pt": b"1" * WHOLE, "b.pt": b"2" * WHOLE}

    def test_a_damaged_set_is_passed_over(self, tmp_path: Path, remote: Path) -> None:
        for attempt in (1, 2):
            with gang(tmp_path, f'write(here / "a.pt", b"{attempt}")', attempt=attempt) as run:
                assert run.run()["outcome"] == "done", run.logs()
        (found,) = manifests(remote, sets_at(remote)[0])
        (remote / found.files[0].object).write_bytes(b"x" * WHOLE)
        os.rename(tmp_path / "nodes", tmp_path / "gone")
        with gang(tmp_path, 'print((here / "a.pt").read_bytes()[:1])', attempt=3) as again:
            assert again.run()["outcome"] == "done", again.logs()
            assert again.text(0) == "b'1'\n"

    def test_nothing_whole_is_an_error_not_a_new_beginning(
        self, tmp_path: Path, remote: Path
    ) -> None:
        with gang(tmp_path, 'write(here / "a.pt", b"1")') as run:
            assert run.run()["outcome"] == "done", run.logs()
        next((remote / "files").glob("*.pt")).unlink()
        os.rename(tmp_path / "nodes", tmp_path / "gone")
        with gang(tmp_path, "", attempt=2) as again:
            ended = again.run()
        assert ended["outcome"] == "checks"
        assert "none is whole" in ended["reason"]

    def test_who_began_later_is_left_alone(self, tmp_path: Path, remote: Path) -> None:
        body = """
write(here / "a.pt", b"1")
until(here / "go.tmp")
write(here / "b.pt", b"2")
"""
        with gang(tmp_path, body) as run:
            run.start()

            async def follow() -> dict[str, Any]:
                await run.until("started")
                await asyncio.to_thread(eventually, lambda: sets_at(remote))
                other = remote / "sets" / "000002.tother.1"
                other.mkdir()
                (other / "claim").touch()
                (tmp_path / "nodes" / "i-000" / "checkpoint" / "go.tmp").touch()
                return await run.finish()

            assert asyncio.run(follow())["outcome"] == "done", run.logs()
            assert "tother.1 has begun to copy" in " ".join(told(run, "warning"))
            assert set(newest(remote)) == {"a.pt"}


class TestShards:
    BODY = """
write(here / f"shard{rank}.pt", b"%d" % rank)
print(*sorted(p.name for p in here.iterdir()))
"""

    def test_every_node_has_its_own_files_back(self, tmp_path: Path, remote: Path) -> None:
        shards = {"nodes": "all"}
        with gang(tmp_path, self.BODY, nodes=3, checkpoint=shards) as run:
            assert run.run()["outcome"] == "done", run.logs()
            assert len(told(run)) == 3
        (found, *_) = sets_at(remote)
        assert [[f.path for f in each.files] for each in manifests(remote, found)] == [
            ["shard0.pt"], ["shard1.pt"], ["shard2.pt"],
        ]  # fmt: skip
        os.rename(tmp_path / "nodes", tmp_path / "gone")
        with gang(tmp_path, self.BODY, nodes=3, attempt=2, checkpoint=shards) as again:
            assert again.run()["outcome"] == "done", again.logs()
            assert [again.text(rank) for rank in range(3)] == [f"shard{r}.pt\n" for r in range(3)]

    def test_a_set_that_one_node_did_not_finish_is_not_taken(
        self, tmp_path: Path, remote: Path
    ) -> None:
        # An earlier copy of the second attempt would have what the first one has left, and take its place.
        shards = {"nodes": "all", "every": 600.0}
        for attempt in (1, 2):
            body = f'write(here / "shard.pt", b"{attempt}")'
            with gang(tmp_path, body, nodes=2, attempt=attempt, checkpoint=shards) as run:
                assert run.run()["outcome"] == "done", run.logs()
        for name in names_at(remote):
            if name.generation == 2 and name.node == 1:
                (remote / name.path).unlink()
        os.rename(tmp_path / "nodes", tmp_path / "gone")
        body = 'print((here / "shard.pt").read_bytes()[:1])'
        with gang(tmp_path, body, nodes=2, attempt=3, checkpoint=shards) as again:
            assert again.run()["outcome"] == "done", again.logs()
            assert [again.text(0), again.text(1)] == ["b'1'\n"] * 2

    def test_another_number_of_nodes_is_refused(self, tmp_path: Path) -> None:
        shards = {"nodes": "all"}
        with gang(tmp_path, self.BODY, nodes=2, checkpoint=shards) as run:
            assert run.run()["outcome"] == "done", run.logs()
        with gang(tmp_path, self.BODY, nodes=1, attempt=2, checkpoint=shards) as again:
            ended = again.run()
        assert ended["outcome"] == "checks"
        assert "were copied by 2 nodes" in ended["reason"]


def test_manifests_say_who_made_them(tmp_path: Path, remote: Path) -> None:
    with gang(tmp_path, 'write(here / "a.pt", b"1")') as run:
        assert run.run()["outcome"] == "done", run.logs()
    (name,) = names_at(remote)
    told = json.loads((remote / name.path).read_bytes())["facts"]
    assert (told["task"], told["attempt"], told["name"]) == (TASK, 1, "test")
