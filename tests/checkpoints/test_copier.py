"""Copies of one directory to one target, made step by step, with what goes wrong on the way."""

from __future__ import annotations

import json
import os
import resource
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from flowlite.node.checkpoints import sidecar
from flowlite.node.checkpoints.copier import Copier
from flowlite.node.checkpoints.sidecar import FINAL, CheckpointSidecar
from flowlite.node.checkpoints.targets import DirectoryTarget, TargetError

from .remote import names_at, newest, sets_at


def copier_of(tmp_path: Path, *, node: int = 0, nodes: int = 1, **changes: Any) -> Copier:
    """A copier of a directory of its own, to the place `remote` that all nodes share."""
    root, storage = tmp_path / f"root{node}", tmp_path / "storage"
    for each in (root, storage):
        each.mkdir(exist_ok=True)
    order = {
        "root": str(root), "shown_at": "/ckpt", "sync": str(tmp_path / "remote"), "storage": str(storage),
        "memory": str(tmp_path / f"memory{node}.json"), "every": 0.0, "keep": 3, "node": node, "nodes": nodes,
        "source": True, "others_write": False, "outage": 5.0, "writer": "t1.1", "facts": {}, **changes,
    }  # fmt: skip
    copier = Copier(order)
    copier.claim()
    return copier


def write_and_scan(copier: Copier, **files: str) -> None:
    """Writes finished files (NAME.pt) and lets the copier see them."""
    for name, content in files.items():
        (copier.root / f"{name}.pt").write_text(content)
    for _ in range(2):
        copier.look(None)


class Outage:
    """An outage of the target that begins when a file is to be written whose name ends so: that of a manifest."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: str = ".json") -> None:
        self.over = False
        write = DirectoryTarget.write

        def fail(target: DirectoryTarget, name: str, content: bytes) -> None:
            if name.endswith(at) and not self.over:
                raise TargetError("the network is out")
            write(target, name, content)

        monkeypatch.setattr(DirectoryTarget, "write", fail)


class TestNumbers:
    """The part of a node belongs to a set by its number, so an outage at one node must not change the numbers there."""

    def test_a_last_copy_that_needs_two_tries_is_of_the_last_set(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        copiers = [copier_of(tmp_path, node=node, nodes=2) for node in (0, 1)]
        for copier in copiers:
            write_and_scan(copier, shard="1")
        outage = Outage(monkeypatch)
        with pytest.raises(TargetError):
            copiers[0].copy(FINAL)
        outage.over = True
        for copier in copiers:
            assert copier.copy(FINAL)
        (found,) = sets_at(tmp_path / "remote")
        assert found.key[2] == FINAL

    def test_a_copy_that_is_late_is_of_the_interval_in_which_it_is_made(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock = 1000.0
        monkeypatch.setattr(sidecar.time, "monotonic", lambda: clock)
        served = CheckpointSidecar(copier_of(tmp_path, node=1, nodes=2, every=100.0))
        served._start(None)

        def copy_at(moment: float) -> None:
            nonlocal clock
            clock = 1000.0 + moment - 10.0
            write_and_scan(served._copier, shard=str(moment))
            clock = 1000.0 + moment
            served._copier.look(None)
            served._copy_if_due()
            assert served._copying is not None
            served._copying.join()

        assert served._copying is not None
        served._copying.join()
        outage = Outage(monkeypatch)
        for moment in (100.0, 160.0):
            copy_at(moment)
        outage.over = True
        for moment in (175.0, 200.0, 300.0):
            copy_at(moment)
        assert sorted(each.number for each in names_at(tmp_path / "remote")) == [1, 2, 3]

    @pytest.mark.parametrize(("nodes", "numbers"), [(1, [1, 2]), (2, [1, 3])])
    def test_one_in_the_place_of_a_killed_one_goes_on_after_its_sets(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: int, numbers: list[int]
    ) -> None:
        killed = copier_of(tmp_path, node=nodes - 1, nodes=nodes)
        write_and_scan(killed, one="1")
        assert killed.copy(1)

        clock = 1000.0
        monkeypatch.setattr(sidecar.time, "monotonic", lambda: clock)
        served = CheckpointSidecar(copier_of(tmp_path, node=nodes - 1, nodes=nodes, every=100.0))
        served._start(None, {"since": 250.0, "cut": False})
        assert served._copying is not None
        served._copying.join()
        clock += 45.0
        write_and_scan(served._copier, two="2")
        clock += 5.0
        served._copier.look(None)
        served._copy_if_due()
        served._copying.join()
        assert sorted(each.number for each in names_at(tmp_path / "remote")) == numbers


def test_a_target_that_does_not_answer_at_first_is_used_once_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    served = CheckpointSidecar(copier_of(tmp_path, every=0.1))
    write_and_scan(served._copier, a="1")
    (tmp_path / "remote" / "sets" / "000001.t1.1" / "claim").unlink()
    outage = Outage(monkeypatch, "claim")
    served._claim_aside()
    assert not served._copy(None)
    outage.over = True
    assert served._copy(None)
    # In particular not that the copies were removed.
    troubles = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert {each["error"] for each in troubles if each["event"] == "trouble"} == {
        "the network is out"
    }


def test_a_set_has_the_earlier_version_of_a_file_that_changes_while_it_is_copied(
    tmp_path: Path,
) -> None:
    copier = copier_of(tmp_path)
    write_and_scan(copier, latest="1", epoch1="1")
    assert copier.copy()
    write_and_scan(copier, epoch2="2")
    (copier.root / "latest.pt").write_text("half of 2")
    (copier.root / "epoch1.pt").unlink()
    assert copier.copy()
    assert newest(tmp_path / "remote") == {"latest.pt": b"1", "epoch2.pt": b"2"}
    assert copier.newest is not None
    assert copier.newest[1].unfinished == ("latest.pt",)


class TestAWriterThatDies:
    """One that keeps one checkpoint deletes the last when it has written the next, which may be incomplete then."""

    def after_the_crash(self, tmp_path: Path) -> Copier:
        copier = copier_of(tmp_path, every=100.0)
        newest_link = copier.root / "newest"
        newest_link.symlink_to("epoch1.pt")
        write_and_scan(copier, epoch1="1", log="1")
        copier.end()
        assert copier.copy()
        (copier.root / "epoch2.pt").write_text("half of")
        newest_link.unlink()
        newest_link.symlink_to("epoch2.pt")
        (copier.root / "epoch1.pt").unlink()
        copier.cut(None, ())
        copier.end()
        copier.copy()
        return copier

    def test_the_last_set_has_the_checkpoint_that_was_deleted(self, tmp_path: Path) -> None:
        copier = self.after_the_crash(tmp_path)
        assert newest(tmp_path / "remote") == {"epoch1.pt": b"1", "log.pt": b"1"}
        assert copier.newest is not None
        assert copier.newest[1].links == {"newest": "epoch1.pt"}

    def test_the_same_node_has_it_again(self, tmp_path: Path) -> None:
        root = self.after_the_crash(tmp_path).root
        copier_of(tmp_path, every=100.0, writer="t1.2").restore(aside=True)
        assert (root / "newest").read_text() == "1"
        assert sorted(each.name for each in root.iterdir()) == [
            *("epoch1.pt", "log.pt", "newest"),
        ]
        assert (tmp_path / "root0.unfinished" / "epoch2.pt").read_text() == "half of"

    def test_a_link_to_a_newer_file_stays(self, tmp_path: Path) -> None:
        root = self.after_the_crash(tmp_path).root
        # As after an outage of the target at the end.
        (root / "epoch3.pt").write_text("3")
        (root / "newest").unlink()
        (root / "newest").symlink_to("epoch3.pt")
        state = json.loads((tmp_path / "memory0.json").read_bytes())
        seen = (root / "epoch3.pt").stat()
        state["finished"]["epoch3.pt"] = (seen.st_size, seen.st_mtime_ns)
        (tmp_path / "memory0.json").write_text(json.dumps(state))
        copier_of(tmp_path, every=100.0, writer="t1.2").restore(aside=True)
        assert (root / "newest").read_text() == "3"
        assert (root / "epoch1.pt").read_text() == "1"

    @pytest.mark.parametrize("left", ["epoch2.pt", "step.tmp"])
    def test_the_next_attempt_does_not_keep_what_is_deleted(
        self, tmp_path: Path, left: str
    ) -> None:
        """Though what the first one left incomplete, and did not put aside, stays there."""
        copier = self.after_the_crash(tmp_path)
        (copier.root / "epoch2.pt").rename(copier.root / left)
        copier.cut(None, ())
        copier.end()
        following = copier_of(tmp_path, every=100.0, writer="t1.2")
        following.restore(aside=False)
        following.claim()
        write_and_scan(following, epoch3="3")
        following.end()
        assert following.copy()
        write_and_scan(following, epoch4="4")
        (following.root / "epoch3.pt").unlink()
        following.end()
        assert following.copy()
        assert newest(tmp_path / "remote") == {"epoch4.pt": b"4", "log.pt": b"1"}


WHOLE = {"checkpoint-2/model.pt": b"2", "checkpoint-2/optimizer.pt": b"2"}


class TestACheckpointThatIsADirectory:
    """Trainers take the last one by its name, as Transformers does, and do not look whether it is whole."""

    def after_the_crash(self, tmp_path: Path) -> Copier:
        """The writer has died between two files, the first of which was finished long before."""
        copier = copier_of(tmp_path, every=100.0)
        self.write(copier, "checkpoint-2/model.pt", "checkpoint-2/optimizer.pt")
        (copier.root / "latest").symlink_to("checkpoint-2")
        copier.look(None)
        copier.end()
        assert copier.copy()
        self.write(copier, "checkpoint-4/model.pt")
        copier.look(None)
        copier.end()
        (copier.root / "checkpoint-4" / "optimizer.pt").write_text("half of")
        (copier.root / "latest").unlink()
        (copier.root / "latest").symlink_to("checkpoint-4")
        copier.cut(None, ())
        copier.end()
        copier.copy()
        return copier

    @staticmethod
    def write(copier: Copier, *paths: str) -> None:
        for path in paths:
            (copier.root / path).parent.mkdir(exist_ok=True)
            (copier.root / path).write_text(path[11])

    @staticmethod
    def here(root: Path) -> list[str]:
        return sorted(each.name for each in root.iterdir())

    def test_no_set_has_half_of_it(self, tmp_path: Path) -> None:
        copier = self.after_the_crash(tmp_path)
        assert newest(tmp_path / "remote") == WHOLE
        assert copier.newest is not None
        assert copier.newest[1].links == {"latest": "checkpoint-2"}

    def test_the_same_node_goes_on_from_the_one_before(self, tmp_path: Path) -> None:
        root = self.after_the_crash(tmp_path).root
        told = copier_of(tmp_path, every=100.0, writer="t1.2").restore(aside=True)
        assert self.here(root) == ["checkpoint-2", "latest"]
        assert self.here(tmp_path / "root0.unfinished/checkpoint-4") == ["model.pt", "optimizer.pt"]
        assert (root / "latest" / "model.pt").read_text() == "2"
        assert told["aside"] == ["checkpoint-4"]

    def test_a_second_one_takes_the_place_of_the_first_that_was_put_aside(
        self, tmp_path: Path
    ) -> None:
        root = self.after_the_crash(tmp_path).root
        copier = copier_of(tmp_path, every=100.0, writer="t1.2")
        copier.restore(aside=True)
        copier.claim()
        self.write(copier, "checkpoint-4/other.pt")
        copier.cut(None, ())
        copier.end()
        copier_of(tmp_path, every=100.0, writer="t1.3").restore(aside=True)
        assert self.here(root) == ["checkpoint-2", "latest"]
        assert self.here(tmp_path / "root0.unfinished/checkpoint-4") == ["other.pt"]
        assert newest(tmp_path / "remote") == WHOLE

    def follower(self, tmp_path: Path) -> Copier:
        """A node whose ranks have written into the directories of the same checkpoints, and which copies nothing."""
        copier = copier_of(
            tmp_path,
            every=100.0,
            source=False,
            root=str(tmp_path / "root1"),
            memory=str(tmp_path / "memory1.json"),
        )
        copier.root.mkdir()
        self.write(copier, "checkpoint-2/random.pt", "checkpoint-4/random.pt")
        return copier

    def test_nor_does_another_node_have_it(self, tmp_path: Path) -> None:
        self.after_the_crash(tmp_path)
        follower = self.follower(tmp_path)
        copier_of(tmp_path, every=100.0, writer="t1.2").prove("token", write=True)
        follower.prove("token", write=False)
        follower.restore(aside=True)
        assert self.here(follower.root) == ["checkpoint-2", "latest"]
        assert self.here(follower.root / "checkpoint-2") == [
            "model.pt",
            "optimizer.pt",
            "random.pt",
        ]

    def test_another_node_keeps_what_the_leader_has_though_no_set_has_it(
        self, tmp_path: Path
    ) -> None:
        copier = self.after_the_crash(tmp_path)
        (copier.root / "checkpoint-4" / "optimizer.pt").write_text("written again, to its end")
        copier.look(None)
        copier.end()
        follower = self.follower(tmp_path)
        leader = copier_of(tmp_path, every=100.0, writer="t1.2")
        leader.prove("token", write=True)
        follower.prove("token", write=False)
        follower.restore(aside=True)
        leader.restore(aside=True)
        assert self.here(follower.root) == ["checkpoint-2", "checkpoint-4", "latest"]
        assert self.here(leader.root) == ["checkpoint-2", "checkpoint-4", "latest"]

    def test_a_node_that_leads_for_the_first_time_has_none_that_was_not_copied(
        self, tmp_path: Path
    ) -> None:
        self.after_the_crash(tmp_path)
        root = self.follower(tmp_path).root
        leader = copier_of(
            tmp_path, writer="t1.2", root=str(root), memory=str(tmp_path / "memory2.json")
        )
        leader.prove("token", write=True)
        leader.restore(aside=True)
        assert self.here(root) == ["checkpoint-2", "latest"]

    def test_what_changes_in_a_whole_one_has_its_earlier_version(self, tmp_path: Path) -> None:
        copier = self.after_the_crash(tmp_path)
        (copier.root / "checkpoint-2" / "model.pt").write_text("half of 3")
        copier.cut(None, ())
        copier.end()
        copier.copy()
        assert newest(tmp_path / "remote") == WHOLE
        copier_of(tmp_path, every=100.0, writer="t1.2").restore(aside=True)
        assert self.here(copier.root / "checkpoint-2") == ["model.pt", "optimizer.pt"]
        assert (copier.root / "checkpoint-2" / "model.pt").read_text() == "2"

    def test_a_directory_of_many_checkpoints_is_none(self, tmp_path: Path) -> None:
        copier = copier_of(tmp_path, every=100.0)
        self.write(copier, "run-20230102/epoch_1.pt")
        copier.look(None)
        copier.end()
        (copier.root / "run-20230102" / "epoch_2.pt").write_text("half of")
        copier.cut(None, ())
        copier.end()
        assert copier.copy()
        assert list(newest(tmp_path / "remote")) == ["run-20230102/epoch_1.pt"]
        copier_of(tmp_path, every=100.0, writer="t1.2").restore(aside=True)
        assert self.here(copier.root / "run-20230102") == ["epoch_1.pt"]
        assert self.here(tmp_path / "root0.unfinished/run-20230102") == ["epoch_2.pt"]

    def test_one_without_a_file_is_none(self, tmp_path: Path) -> None:
        """The writer has died when it had made the directory."""
        root = self.after_the_crash(tmp_path).root
        copier = copier_of(tmp_path, every=100.0, writer="t1.2")
        copier.restore(aside=True)
        (root / "checkpoint-6" / "global_step6").mkdir(parents=True)
        (root / "empty").mkdir()
        copier.begin()
        copier.claim()
        copier.cut(None, ())
        copier.end()
        copier.copy()
        assert copier.newest is not None
        assert copier.newest[1].directories == ("empty",)
        told = copier_of(tmp_path, every=100.0, writer="t1.3").restore(aside=True)
        assert self.here(root) == ["checkpoint-2", "empty", "latest"]
        assert told["aside"] == ["checkpoint-6"]

    def test_one_whose_writer_dies_between_two_files_is_none(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Such as while it collects what the second one is to hold, when the first one is at rest."""
        now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: now)
        copier = copier_of(tmp_path, every=100.0)
        copier.begin()
        self.write(copier, "checkpoint-2/model.pt", "checkpoint-2/optimizer.pt")
        copier.look(None)
        now += 20
        copier.look(None)
        assert copier.copy()
        self.write(copier, "checkpoint-4/model.pt", "checkpoint-4/optimizer.pt")
        copier.look(None)
        self.write(copier, "checkpoint-6/model.pt")
        copier.look(None)
        now += 5
        copier.cut(None, ())
        copier.end()
        copier.copy()
        whole = {**WHOLE, "checkpoint-4/model.pt": b"4", "checkpoint-4/optimizer.pt": b"4"}
        assert newest(tmp_path / "remote") == whole
        following = copier_of(tmp_path, every=100.0, writer="t1.2")
        following.restore(aside=True)
        assert self.here(copier.root) == ["checkpoint-2", "checkpoint-4"]
        # One that dies at its start has written nothing.
        following.begin()
        following.cut(None, ())
        following.end()
        assert not following.watch.doubtful

    def test_a_set_that_is_copied_while_the_next_one_is_written_has_the_last(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A trainer that keeps one removes it first. The machine may be lost at any moment."""
        now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: now)
        copier = copier_of(tmp_path, every=100.0)
        self.write(copier, "checkpoint-2/model.pt", "checkpoint-2/optimizer.pt")
        (copier.root / "log.txt").write_text("1")
        copier.look(None)
        now += 20
        copier.look(None)
        assert copier.copy()
        shutil.rmtree(copier.root / "checkpoint-2")
        self.write(copier, "checkpoint-4/model.pt")
        (copier.root / "log.txt").write_text("12")
        copier.look(None)
        now += 3
        copier.look(None)
        assert copier.copy()
        assert newest(tmp_path / "remote") == {**WHOLE, "log.txt": b"12"}
        now += 20
        copier.look(None)
        assert copier.copy()
        assert newest(tmp_path / "remote") == {"checkpoint-4/model.pt": b"4", "log.txt": b"12"}


@pytest.mark.parametrize(
    ("tracker", "last", "name"),
    [
        ("latest", "global_step20", "global_step{}"),
        ("latest_checkpointed_iteration.txt", "20", "iter_00000{}"),
    ],
    ids=["DeepSpeed", "Megatron"],
)
class TestAFileThatNamesTheLastCheckpoint:
    """Trainers read in it where they continue, and fail if there is no such directory."""

    def copier(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracker: str, last: str, name: str
    ) -> Copier:
        """A file of a second checkpoint was written some seconds ago, so another one may follow."""
        now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: now)
        copier = copier_of(tmp_path, every=100.0)
        copier.begin()
        for step in (10, 20):
            directory = copier.root / name.format(step)
            directory.mkdir()
            for file in ("model.pt", "optimizer.pt")[: 30 // step]:
                (directory / file).write_text(str(step))
            (copier.root / tracker).write_text(last.replace("20", str(step)))
            copier.look(None)
            now += 20 if step == 10 else 5
            copier.look(None)
            assert copier.copy() or step == 20
        return copier

    def test_a_set_has_it_with_the_checkpoint(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracker: str, last: str, name: str
    ) -> None:
        copier = self.copier(tmp_path, monkeypatch, tracker, last, name)
        assert newest(tmp_path / "remote") == {
            tracker: last.replace("20", "10").encode(),
            f"{name.format(10)}/model.pt": b"10",
            f"{name.format(10)}/optimizer.pt": b"10",
        }
        copier.end()
        assert copier.copy()
        assert newest(tmp_path / "remote")[tracker] == last.encode()

    def test_where_that_is_put_aside_the_same_node_has_the_earlier_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracker: str, last: str, name: str
    ) -> None:
        copier = self.copier(tmp_path, monkeypatch, tracker, last, name)
        copier.cut(None, ())
        copier.end()
        copier.copy()
        told = copier_of(tmp_path, every=100.0, writer="t1.2").restore(aside=True)
        assert told["aside"] == [name.format(20), tracker]
        assert (copier.root / tracker).read_text() == last.replace("20", "10")


class TestACheckpointWithMetadata:
    """`torch.distributed.checkpoint` writes `.metadata` when all ranks have written their shards."""

    @pytest.fixture(params=["step-2", "last", "deep/last", ""])
    def place(self, request: pytest.FixtureRequest) -> str:
        """Its directory; "" is the directory of checkpoints itself."""
        return str(request.param)

    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        now = [1000.0]
        monkeypatch.setattr(time, "monotonic", lambda: now[0])
        return now

    @staticmethod
    def save(copier: Copier, place: str, content: str, *names: str) -> None:
        (copier.root / place).mkdir(parents=True, exist_ok=True)
        for name in names:
            (copier.root / place / name).write_text(content)

    @staticmethod
    def rest(copier: Copier, clock: list[float]) -> None:
        for _ in range(2):
            clock[0] += 60
            copier.look(None)

    def whole(
        self, tmp_path: Path, place: str, clock: list[float]
    ) -> tuple[Copier, dict[str, bytes]]:
        copier = copier_of(tmp_path, every=100.0)
        copier.begin()
        self.save(copier, place, "1", *self.NAMES, "meta.pt")
        self.rest(copier, clock)
        assert copier.copy()
        found = newest(tmp_path / "remote")
        assert len(found) == 4
        return copier, found

    NAMES = ("__0_0.distcp", "__1_0.distcp", ".metadata")

    def without_metadata(self, tmp_path: Path, place: str, clock: list[float]) -> Copier:
        copier = copier_of(tmp_path, every=100.0)
        copier.begin()
        self.save(copier, place, "1", *self.NAMES[:2])
        self.rest(copier, clock)
        return copier

    def test_it_is_copied_once_that_is_there(
        self, tmp_path: Path, place: str, clock: list[float]
    ) -> None:
        copier = self.without_metadata(tmp_path, place, clock)
        copier.copy()
        assert newest(tmp_path / "remote") == {}
        self.save(copier, place, "1", *self.NAMES[2:])
        self.rest(copier, clock)
        assert copier.copy()
        assert len(newest(tmp_path / "remote")) == 3

    def test_nobody_continues_from_one_without_it(
        self, tmp_path: Path, place: str, clock: list[float]
    ) -> None:
        """Its writer was killed an hour after it had written the last shard, as by the watchdog of a collective."""
        copier = self.without_metadata(tmp_path, place, clock)
        copier.cut(None, ())
        copier.end()
        copier.copy()
        assert newest(tmp_path / "remote") == {}
        copier_of(tmp_path, every=100.0, writer="t1.2").restore(aside=True)
        assert not list(copier.root.rglob("*.distcp"))

    def test_one_that_is_written_again_in_its_place_stays_as_it_was_until_that_is_new(
        self, tmp_path: Path, place: str, clock: list[float]
    ) -> None:
        copier, before = self.whole(tmp_path, place, clock)
        self.save(copier, place, "2", "__0_0.distcp")
        (copier.root / "log.txt").write_text("2")
        self.rest(copier, clock)
        assert copier.copy()
        assert newest(tmp_path / "remote") == {**before, "log.txt": b"2"}
        self.save(copier, place, "2", *self.NAMES, "meta.pt")
        self.rest(copier, clock)
        assert copier.copy()
        assert set(newest(tmp_path / "remote").values()) == {b"2"}

    def test_a_set_has_the_last_while_the_next_has_none(
        self, tmp_path: Path, clock: list[float]
    ) -> None:
        """A trainer that keeps one removes it first."""
        copier, before = self.whole(tmp_path, "epoch_1", clock)
        shutil.rmtree(copier.root / "epoch_1")
        self.save(copier, "epoch_2", "2", "__0_0.distcp")
        (copier.root / "log.txt").write_text("on")
        self.rest(copier, clock)
        assert copier.copy()
        assert newest(tmp_path / "remote") == {**before, "log.txt": b"on"}
        self.save(copier, "epoch_2", "2", *self.NAMES)
        self.rest(copier, clock)
        assert copier.copy()
        assert set(newest(tmp_path / "remote").values()) == {b"2", b"on"}

    @pytest.mark.parametrize("same_node", [True, False])
    def test_the_next_attempt_has_the_earlier_one_if_its_writer_dies_meanwhile(
        self, tmp_path: Path, place: str, clock: list[float], same_node: bool
    ) -> None:
        copier, before = self.whole(tmp_path, place, clock)
        self.save(copier, place, "2", "__0_0.distcp")
        self.rest(copier, clock)
        copier.cut(None, ())
        copier.end()
        copier.copy()
        assert newest(tmp_path / "remote") == before
        if not same_node:
            shutil.rmtree(copier.root)
            (tmp_path / "memory0.json").unlink()
        copier_of(tmp_path, every=100.0, writer="t1.2").restore(aside=True)
        for name in (*self.NAMES, "meta.pt"):
            assert (copier.root / place / name).read_text() == "1"

    def test_the_last_one_is_brought_back_if_the_next_has_none(
        self, tmp_path: Path, clock: list[float]
    ) -> None:
        copier, before = self.whole(tmp_path, "epoch_1", clock)
        shutil.rmtree(copier.root / "epoch_1")
        self.save(copier, "epoch_2", "2", "__0_0.distcp")
        self.rest(copier, clock)
        copier.cut(None, ())
        copier.end()
        copier.copy()
        told = copier_of(tmp_path, every=100.0, writer="t1.2").restore(aside=True)
        assert told["aside"] == ["epoch_2"]
        assert os.listdir(copier.root) == ["epoch_1"]
        assert len(os.listdir(copier.root / "epoch_1")) == len(before)

    def test_with_a_part_on_each_node_only_one_has_it(
        self, tmp_path: Path, clock: list[float]
    ) -> None:
        copier = copier_of(tmp_path, node=1, nodes=2, every=100.0)
        copier.begin()
        self.save(copier, "last", "1", "__1_0.distcp")
        self.rest(copier, clock)
        assert copier.copy(1)
        assert copier.newest is not None
        assert [each.path for each in copier.newest[1].files] == ["last/__1_0.distcp"]


def test_a_checkpoint_that_is_written_again_is_in_the_sets_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that cannot wait longer takes neither version of some files and the other of others."""
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    copier = copier_of(tmp_path, every=100.0)
    copier.begin()
    write = TestACheckpointThatIsADirectory.write
    write(copier, "checkpoint-2/model.pt", "checkpoint-2/optimizer.pt")
    for _ in range(2):
        now += 60
        copier.look(None)
    assert copier.copy()
    (copier.root / "checkpoint-2" / "model.pt").write_text("3")
    copier.look(None)
    now += 5
    copier.look(None)
    assert "checkpoint-2/model.pt" in copier.watch.finished
    copier.copy()
    assert newest(tmp_path / "remote") == WHOLE
    (copier.root / "checkpoint-2" / "optimizer.pt").write_text("3")
    for _ in range(2):
        now += 60
        copier.look(None)
    assert copier.copy()
    assert set(newest(tmp_path / "remote").values()) == {b"3"}


@pytest.mark.parametrize("content", ["", '{"format": 2}'])
def test_a_damaged_manifest_does_not_stop_copies_and_costs_no_file(
    tmp_path: Path, content: str
) -> None:
    first = copier_of(tmp_path)
    write_and_scan(first, a="1")
    assert first.copy()
    (found,) = names_at(tmp_path / "remote")
    (tmp_path / "remote" / found.path).write_text(content)
    (first.root / "a.pt").unlink()
    second = copier_of(tmp_path, writer="t2.1")
    write_and_scan(second, b="2")
    assert second.copy()
    second.prune()
    objects = [each.name[:2] for each in (tmp_path / "remote" / "files").iterdir()]
    # A newer version of flowlite may have written that manifest, and still needs its file.
    assert sorted(objects) == ["a.", "b."]
    assert newest(tmp_path / "remote") == {"b.pt": b"2"}


def test_what_a_killed_copier_has_left_of_a_file_goes_with_the_next_one(tmp_path: Path) -> None:
    files = tmp_path / "remote" / "files"
    left = [files / "node0001" / "d" / "a.0123.pt.4711.part", files / "node0001" / "b.4711.part"]
    of_another = files / "node0000" / "a.0123.pt.4711.part"
    for each in (*left, of_another):
        each.parent.mkdir(parents=True, exist_ok=True)
        each.write_bytes(bytes(100))
    write_and_scan(copier_of(tmp_path, node=1, nodes=2), a="1")
    assert not any(each.exists() for each in left)
    # That node may be copying just now.
    assert of_another.exists()


def test_the_state_of_a_directory_does_not_grow_with_files_that_are_gone(tmp_path: Path) -> None:
    copier = copier_of(tmp_path)
    for epoch in range(5):
        write_and_scan(copier, **{f"epoch{epoch}": str(epoch), "latest": str(epoch)})
        assert copier.copy()
        (copier.root / f"epoch{epoch}.pt").unlink()
    copier.look(None)
    assert list(json.loads((tmp_path / "memory0.json").read_bytes())["hashes"]) == ["latest.pt"]


def test_no_link_that_others_have_put_at_the_target_is_written_through(tmp_path: Path) -> None:
    """A directory of a group, in which others can guess the names of files that are about to be written."""
    mine, remote = tmp_path / "mine", tmp_path / "remote"
    mine.write_text("precious")
    (remote / "sets").mkdir(parents=True)
    (remote / f".flowlite-check-{os.getpid()}").symlink_to(mine)
    (remote / "sets" / f"1.{os.getpid()}.part").symlink_to(mine)
    (tmp_path / "restored").symlink_to(mine)
    target = DirectoryTarget(remote)
    target.check()
    target.write("sets/1", b"theirs")
    with pytest.raises(OSError, match="symbolic links"):
        target.download("sets/1", tmp_path / "restored", 6)
    assert mine.read_text() == "precious"
    assert (remote / "sets" / "1").read_bytes() == b"theirs"


def test_what_is_made_at_the_target_is_closed_to_others(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        target = DirectoryTarget(tmp_path / "new" / "remote")
        target.check()
        target.write("sets/1", b"x")
    finally:
        os.umask(before)
    made = [tmp_path / "new", *(tmp_path / "new").rglob("*")]
    assert len(made) == 4
    assert not [each for each in made if each.stat().st_mode & 0o077]


def test_a_full_disk_at_the_target_is_told_and_leaves_no_half_of_a_file(tmp_path: Path) -> None:
    source, target = tmp_path / "a.pt", DirectoryTarget(tmp_path / "remote")
    source.write_bytes(bytes(5000))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # As on a disk with 3000 free bytes: the first write takes them, and only the next one fails.
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))
    try:
        with pytest.raises(TargetError, match="cannot be written"):
            target.upload(source, "files/a.pt", 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list((tmp_path / "remote" / "files").iterdir()) == []


def test_a_full_disk_at_the_node_is_told(tmp_path: Path) -> None:
    first = copier_of(tmp_path)
    (first.root / "a.pt").write_bytes(bytes(5000))
    write_and_scan(first)
    assert first.copy()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    copier = copier_of(tmp_path, memory=str(tmp_path / "new.json"), root=str(tmp_path / "new"))
    copier.root.mkdir()
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))
    try:
        with pytest.raises(OSError, match=r"a\.pt \(5 kB\) cannot be brought to .*/new: "):
            copier.restore(aside=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(copier.root.iterdir()) == []


class TestACheckpointInShards:
    """With nodes="all", all nodes continue from the same one."""

    def gang(self, tmp_path: Path, attempt: int = 1, **changes: Any) -> list[Copier]:
        options = {"every": 100.0, "writer": f"t1.{attempt}", **changes}
        return [copier_of(tmp_path, node=node, nodes=2, **options) for node in range(2)]

    def write(self, copier: Copier, step: int, *names: str) -> None:
        for name in names:
            (copier.root / f"checkpoint-{step}").mkdir(exist_ok=True)
            (copier.root / f"checkpoint-{step}" / name).write_text(f"{step} of {copier.node}")

    def restore(self, gang: list[Copier]) -> list[list[str]]:
        """The names that each node has then. Nodes do this at the same time."""

        def prepare(copier: Copier) -> None:
            copier.prove(f"token{copier.order['writer']}", copier.node == 0)
            copier.restore(aside=True)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(prepare, gang))
        return [sorted(os.listdir(each.root)) for each in gang]

    def after_the_crash(self, tmp_path: Path, before: int) -> None:
        """Node 0 has written the second checkpoint; node 1 has died in the middle of it."""
        gang = self.gang(tmp_path)
        for copier in gang:
            copier.begin()
            if before:
                self.write(copier, before, "model.pt", "optimizer.pt")
            copier.look(None)
            copier.end()
            copier.copy(1)
            self.write(copier, 4, "model.pt", *(["optimizer.pt"] if copier.node == 0 else []))
        gang[0].look(None)
        gang[1].cut(None, ())
        for copier in gang:
            copier.end()
            copier.copy(FINAL)

    @pytest.mark.parametrize("before", [0, 2])
    def test_none_continues_from_what_another_has_half_of(
        self, tmp_path: Path, before: int
    ) -> None:
        self.after_the_crash(tmp_path, before)
        names = [f"checkpoint-{before}"] if before else []
        assert self.restore(self.gang(tmp_path, 2)) == [names, names]

    def test_none_continues_from_what_a_new_node_does_not_have(self, tmp_path: Path) -> None:
        """The trainer keeps one checkpoint, so that what came before is brought back to the other node."""
        gang = self.gang(tmp_path)
        for copier in gang:
            copier.begin()
            self.write(copier, 2, "model.pt")
            copier.look(None)
            copier.end()
            copier.copy(1)
        shutil.rmtree(gang[0].root / "checkpoint-2")
        self.write(gang[0], 4, "model.pt")
        gang[0].end()
        gang[0].copy(FINAL)
        shutil.rmtree(gang[1].root)
        (tmp_path / "memory1.json").unlink()
        assert self.restore(self.gang(tmp_path, 2)) == [["checkpoint-2"]] * 2
        assert (gang[0].root / "checkpoint-2" / "model.pt").read_text() == "2 of 0"

    def test_what_all_have_stays_though_it_was_not_copied(self, tmp_path: Path) -> None:
        self.after_the_crash(tmp_path, 2)
        gang = self.gang(tmp_path, 2)
        self.restore(gang)
        for copier in gang:
            copier.begin()
            self.write(copier, 6, "model.pt", "optimizer.pt")
            copier.look(None)
            copier.end()
        names = ["checkpoint-2", "checkpoint-6"]
        assert self.restore(self.gang(tmp_path, 3)) == [names, names]

    def test_nodes_may_use_names_of_their_own(self, tmp_path: Path) -> None:
        gang = self.gang(tmp_path)
        for copier in gang:
            copier.begin()
            self.write(copier, 2 + copier.node, "model.pt")
            copier.look(None)
            copier.end()
            copier.copy(FINAL)
        assert self.restore(self.gang(tmp_path, 2)) == [["checkpoint-2"], ["checkpoint-3"]]
