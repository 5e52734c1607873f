"""`outputs=`: what the working directory holds at the end is here before the nodes are given back."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlite.api.client import Flow
from flowlite.api.task import Task
from flowlite.api.volume_files.files import sources_of
from flowlite.cli import main
from flowlite.connect.base import Connection
from flowlite.connect.bounded import too_long
from flowlite.connect.local import LocalConnection
from flowlite.errors import ConfigError, NodeUnreachable, ProviderError
from flowlite.node.outputs import listing
from flowlite.node.system import processes
from flowlite.node.volume_files import program
from flowlite.spec import TaskConfig
from flowlite.supervise.attempt.node_handle import Node
from flowlite.supervise.attempt.outputs import manifest, packs
from flowlite.supervise.attempt.outputs.fetch import FetchedOutputs, OutputFetch
from flowlite.supervise.attempt.outputs.manifest import OutputFile, OutputManifest
from tests.gangs import Gang, let_go, shell, submit
from tests.helpers import eventually


def came(gang: Gang) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gang.paths.outputs.read_bytes())
    return found


def files(gang: Gang) -> dict[str, str]:
    """What is in the directory of the outputs, by relative path."""
    root = Path(came(gang)["to"])
    return {
        str(path.relative_to(root)): path.read_text()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


WRITE = 'mkdir -p runs/a; echo "model $FLOW_NODE_RANK" > runs/a/m.pt; echo no > other.txt'


class TestOnThisMachine:
    def test_files_that_fit_come_to_the_directory_of_the_task(self, flow_home: Path) -> None:
        gang = submit(flow_home, shell(WRITE), outputs=["runs/**"])
        gang.end()
        assert files(gang) == {"runs/a/m.pt": "model 0\n"}
        found = came(gang)
        assert found["to"].endswith(f"flow-outputs/gang-{gang.id}")
        assert (found["files"], found["bytes"], found["missing"]) == (1, 8, {})
        kinds = dict(gang.events)
        assert kinds["outputs"] == f"1 file (8 B) in {found['to']}"

    def test_each_node_of_several_has_a_directory(self, flow_home: Path) -> None:
        gang = submit(flow_home, shell(WRITE), nodes=3, outputs=["runs/**"])
        gang.end()
        assert files(gang) == {f"node{n}/runs/a/m.pt": f"model {n}\n" for n in range(3)}

    def test_a_place_that_cannot_be_is_refused_before_anything_starts(
        self, flow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "flow-outputs").write_text("a file")
        with pytest.raises(ConfigError, match="flow-outputs is no directory"):
            Flow().run(TaskConfig(command=["true"], outputs=["*.txt"]))
        assert Flow().list_tasks() == []

    @pytest.mark.needs("root")
    def test_a_place_that_another_user_has_made_in_tmp_is_refused(
        self, flow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        tmp_path.chmod(0o1777)
        (tmp_path / "flow-outputs").mkdir(mode=0o777)
        os.chown(tmp_path / "flow-outputs", 4321, 4321)
        with pytest.raises(ConfigError, match="flow-outputs belongs to uid 4321"):
            Flow().run(TaskConfig(command=["true"], outputs=["*.txt"]))
        assert Flow().list_tasks() == []

    def test_they_come_after_a_failure_too(self, flow_home: Path) -> None:
        gang = submit(flow_home, shell(f"{WRITE}; exit 3"), outputs=["runs/**"])
        gang.end("failed")
        assert files(gang) == {"runs/a/m.pt": "model 0\n"}

    def test_they_come_after_a_cancel_too(self, flow_home: Path) -> None:
        gang = submit(flow_home, shell(f"{WRITE}; touch begun; sleep 600"), outputs=["**"])
        eventually(lambda: list(gang.paths.directory.glob("nodes/**/begun")))
        gang.store.request_cancel(gang.id)
        gang.end("cancelled")
        assert files(gang)["runs/a/m.pt"] == "model 0\n"
        # What is ours lies beside it here, and is nobody's output.
        assert set(files(gang)) == {"runs/a/m.pt", "other.txt", "begun"}

    def test_only_the_last_attempt_brings_them(self, flow_home: Path) -> None:
        script = 'mkdir -p runs; echo x > runs/$FLOW_ATTEMPT; test "$FLOW_ATTEMPT" = 2'
        gang = submit(flow_home, shell(script), outputs=["runs/**"], retries=1)
        gang.end()
        assert set(files(gang)) == {"runs/1", "runs/2"}
        assert [kind for kind, _ in gang.events].count("outputs") == 1

    def test_links_within_come_as_links_and_others_do_not(self, flow_home: Path) -> None:
        script = (
            "mkdir -p runs/step; echo x > runs/step/f; ln -s step runs/latest; "
            "ln -s /etc/passwd runs/passwd; ln -s ../../.. runs/up; mkfifo runs/pipe; echo y > out; "
            "ln -s ../out runs/out; chmod +x out"
        )
        gang = submit(flow_home, shell(script), outputs=["runs/**", "out"])
        gang.end()
        root = Path(came(gang)["to"])
        assert os.readlink(root / "runs/latest") == "step"
        assert os.readlink(root / "runs/out") == "../out"
        assert sorted(os.listdir(root / "runs")) == ["latest", "out", "step"]
        assert os.access(root / "out", os.X_OK)
        assert not os.access(root / "runs/step/f", os.X_OK)
        assert came(gang)["left_out"] == {
            "links that lead out of the working directory": 2,
            "sockets, pipes and devices": 1,
        }

    def test_commands_bring_links_or_say_that_they_do_not(
        self, flow_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        write = "mkdir -p runs/step; echo x > runs/step/f; ln -s step runs/latest; touch begun"
        script = f'{write}; while [ ! -e "$FLOW_HOME/go" ]; do sleep 0.02; done'
        gang = submit(flow_home, shell(script), outputs=["runs/**"])
        eventually(lambda: list(gang.paths.directory.glob("nodes/**/begun")))
        assert main(["outputs", gang.id, "--to", str(tmp_path / "now")]) == 0
        assert main(["cp", f"{gang.id}:runs", str(tmp_path / "copy")]) == 0
        assert "not copied: 1 links, sockets, pipes and devices" in capsys.readouterr().err
        (tmp_path / "elsewhere").symlink_to(tmp_path)
        assert main(["cp", str(tmp_path), f"{gang.id}:here"]) == 0
        assert "not copied: 2 links to directories or to nothing" in capsys.readouterr().err
        let_go(flow_home)
        gang.end()
        for _ in range(2):
            assert main(["outputs", gang.id, "--to", str(tmp_path / "then")]) == 0
        for place in ("now", "then"):
            assert os.readlink(tmp_path / place / "runs" / "latest") == "step"
            assert (tmp_path / place / "runs" / "latest" / "f").read_text() == "x\n"

    def test_a_node_that_cannot_be_reached_keeps_back_no_others(
        self,
        flow_home: Path,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        script = 'echo x > out; touch begun; while [ ! -e "$FLOW_HOME/go" ]; do sleep 0.02; done'
        gang = submit(flow_home, shell(script), outputs=["out"], nodes=2)
        eventually(lambda: len(list(gang.paths.directory.glob("nodes/**/begun"))) == 2)
        reach = Task.reach

        def only_node_1(task: Any, node: int) -> Any:
            if node == 0:
                raise NodeUnreachable("node 0 does not answer")
            return reach(task, node)

        monkeypatch.setattr(Task, "reach", only_node_1)
        assert main(["outputs", gang.id, "--to", str(tmp_path / "now"), "--json"]) == 5
        told = capsys.readouterr()
        assert json.loads(told.out)["data"]["files"] == 1
        assert "error: node 0 does not answer" in told.err
        assert (tmp_path / "now" / "node1" / "out").read_text() == "x\n"
        let_go(flow_home)
        gang.end()

    def test_a_directory_that_cannot_be_read_is_told(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "locked" / "below").mkdir(parents=True)
        (tmp_path / "f").write_text("x")
        scandir = os.scandir

        def refused(path: Any) -> Any:
            # Root may read all directories.
            if str(path).endswith("/locked"):
                raise PermissionError(errno.EACCES, "Permission denied", path)
            return scandir(path)

        monkeypatch.setattr(os, "scandir", refused)
        found = listing.everything(str(tmp_path))
        assert found["left_out"] == {"directories that cannot be read": 1}
        outputs = listing.outputs(str(tmp_path), str(tmp_path / "home"), ["f", "locked/**"])
        assert outputs["left_out"] == {"directories that cannot be read": 1}
        assert [path for path, *_ in outputs["files"]] == ["f"]
        tree = program.VolumeFiles(str(tmp_path)).do({"do": "tree", "path": ""}, io.BytesIO(), [])
        assert (len(tree["files"]), tree["others"]) == (1, 1)
        with pytest.raises(PermissionError):
            listing.everything(str(tmp_path / "locked"))
        with pytest.raises(PermissionError):
            sources_of(tmp_path, "")

    def test_a_file_from_before_1970_comes_too(self, flow_home: Path) -> None:
        gang = submit(flow_home, shell(f"{WRITE}; touch -d @-86400 runs/old"), outputs=["runs/**"])
        gang.end()
        assert files(gang) == {"runs/a/m.pt": "model 0\n", "runs/old": ""}
        assert (Path(came(gang)["to"]) / "runs" / "old").stat().st_mtime == -86400

    def test_what_lay_there_before_is_no_output(self, flow_home: Path, tmp_path: Path) -> None:
        (tmp_path / "runs").mkdir()
        (tmp_path / "runs" / "mine").write_text("old")
        (tmp_path / "runs" / "changed").write_text("old")
        script = f"cd {tmp_path}; echo new > runs/changed; echo new > runs/added"
        gang = submit(
            flow_home,
            shell(script),
            outputs=["runs/**"],
            workdir=str(tmp_path),
            nodes=2,
        )
        gang.end()
        # Both nodes have the same directory.
        assert files(gang) == {"node0/runs/changed": "new\n", "node0/runs/added": "new\n"}

    def test_nothing_of_the_users_is_overwritten(self, flow_home: Path) -> None:
        gang = submit(flow_home, shell(WRITE), outputs=["runs/**"], supervise=False)
        place = Path(came(gang)["to"]) / "runs" / "a" / "m.pt"
        place.parent.mkdir(parents=True)
        place.write_text("mine")
        gang.end()
        assert place.read_text() == "mine"
        assert came(gang)["taken"] == ["runs/a/m.pt"]

    def test_a_link_here_leads_nothing_elsewhere(self, flow_home: Path, tmp_path: Path) -> None:
        gang = submit(flow_home, shell(WRITE), outputs=["runs/**"], supervise=False)
        root = Path(came(gang)["to"])
        root.mkdir(parents=True)
        (root / "runs").symlink_to(tmp_path)
        gang.end()
        assert list(tmp_path.iterdir()) == []
        assert came(gang)["taken"] == ["runs/a/m.pt"] or "runs" in str(came(gang)["taken"])

    def test_a_task_whose_outputs_cannot_be_written_here_is_not_completed(
        self, flow_home: Path, tmp_path: Path
    ) -> None:
        """Nobody can make a directory below a file; what is missing is said, and the result is none of a success."""
        gang = submit(flow_home, shell(WRITE), outputs=["runs/**"], supervise=False)
        blocked = tmp_path / "file"
        blocked.write_text("")
        gang.paths.outputs.write_text(json.dumps({"to": str(blocked / "to")}))
        record = gang.wait("stopping", timeout=90)
        eventually(lambda: "outputs" in gang.record.reason)
        assert record.state == "stopping"
        blocked.unlink()
        gang.end()
        assert files(gang) == {"runs/a/m.pt": "model 0\n"}

    def test_a_supervisor_that_is_killed_meanwhile_goes_on(
        self, flow_home: Path, tmp_path: Path
    ) -> None:
        gang = submit(flow_home, shell(WRITE), outputs=["runs/**"], supervise=False)
        blocked = tmp_path / "file"
        blocked.write_text("")
        gang.paths.outputs.write_text(json.dumps({"to": str(blocked / "to")}))
        gang.wait("stopping", timeout=90)
        eventually(lambda: "outputs" in gang.record.reason)
        gang.kill_supervisor()
        blocked.unlink()
        gang.end()
        assert files(gang) == {"runs/a/m.pt": "model 0\n"}

    def test_that_nothing_fits_is_said(self, flow_home: Path) -> None:
        gang = submit(flow_home, shell("true"), outputs=["runs/**"])
        gang.end()
        assert dict(gang.events)["outputs"] == "no file fits outputs="


def test_files_written_after_the_clock_was_set_back_are_outputs(tmp_path: Path) -> None:
    """As on a machine that starts with the clock hours ahead, and reaches a time server while the task runs."""
    note = tmp_path / "home" / "a1" / "agent.pid"
    note.parent.mkdir(parents=True)
    started = processes.identity(os.getpid())
    note.write_text(json.dumps(started))
    workdir = tmp_path / "work"
    workdir.mkdir()
    (workdir / "model.pt").touch()

    def listed() -> list[str]:
        found = listing.outputs(str(workdir), str(tmp_path / "home"), ["**"])
        return [path for path, *_ in found["files"]]

    ahead = note.stat().st_mtime + 3 * 3600
    os.utime(note, (ahead, ahead))
    assert listed() == ["model.pt"]
    # What is older than the agent is none, by the present clock as well.
    tick = os.sysconf("SC_CLK_TCK")
    note.write_text(json.dumps({**started, "start": str(int(started["start"]) + 10**6 * tick)}))
    os.utime(note, (ahead + 10**7, ahead + 10**7))
    assert listed() == []


def test_a_directory_is_known_from_that_of_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clones of one image have the same name, and give the same numbers to the same files."""
    here = listing._place(str(tmp_path))
    assert listing._place(str(tmp_path)) == here
    monkeypatch.setattr(listing.processes, "boot_id", lambda: "another boot")
    assert listing._place(str(tmp_path)) != here


def test_an_absolute_link_into_the_working_directory_is_a_relative_one(tmp_path: Path) -> None:
    """Also if the directory was reached through a link, as a home may be."""
    (tmp_path / "real" / "runs" / "step").mkdir(parents=True)
    (tmp_path / "linked").symlink_to(tmp_path / "real")
    for name, top in (("one", tmp_path / "linked"), ("two", tmp_path / "real")):
        (top / "runs" / name).symlink_to(top / "runs" / "step")
    (tmp_path / "real" / "runs" / "out").symlink_to(f"{tmp_path}/linked/../secret")
    (tmp_path / "real" / "runs" / "beside").symlink_to(f"{tmp_path}/real2")
    found = listing.outputs(str(tmp_path / "linked"), str(tmp_path / "home"), ["**"])
    assert sorted(found["links"]) == [("runs/one", "step"), ("runs/two", "step")]
    assert found["left_out"] == {"links that lead out of the working directory": 2}


def test_links_count_as_files_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MOST_FILES", 3)
    (tmp_path / "a").touch()
    for number in range(2):
        (tmp_path / f"to-{number}").symlink_to("a")
    home = str(tmp_path / "home")
    assert not listing.outputs(str(tmp_path), home, ["*"])["too_many"]
    (tmp_path / "to-2").symlink_to("a")
    assert listing.outputs(str(tmp_path), home, ["*"])["too_many"]


class TestManifest:
    """What a node says is checked: it may be anybody's."""

    @pytest.mark.parametrize(
        "line",
        [
            ["../x", 1, 1, False],
            ["/etc/x", 1, 1, False],
            ["a//b", 1, 1, False],
            ["a/./b", 1, 1, False],
            ["", 1, 1, False],
            ["a\0", 1, 1, False],
            ["a", -1, 1, False],
            ["a", 1, 1.5, False],
            ["a", True, 1, False],
            ["a", 2**64, 1, False],
            ["a/b", "../../x"],
            ["a/b", "/x"],
            ["a", 3],
            ["a"],
            {"a": 1},
            "a",
            None,
        ],
    )
    def test_what_no_agent_says_is_refused(self, line: object) -> None:
        head = {"left_out": {}, "place": "p", "root": "/w", "too_many": False}
        with pytest.raises((ValueError, TypeError, KeyError)):
            manifest.read("\n".join(map(json.dumps, (head, line))).encode())

    @pytest.mark.parametrize("number", ["1e999", "-1", "true", '"3"', "[" * 5000 + "]" * 5000])
    def test_a_number_of_files_that_is_none_is_refused(self, number: str) -> None:
        head = f'{{"left_out": {{"x": {number}}}, "place": "p", "root": "/w", "too_many": false}}'
        with pytest.raises((ValueError, TypeError, KeyError)):
            manifest.read(head.encode())

    @given(st.binary(max_size=200))
    def test_noise_is_refused(self, noise: bytes) -> None:
        with pytest.raises((ValueError, TypeError, KeyError)):
            manifest.read(noise)

    @given(st.text(max_size=30))
    def test_a_path_inside_stays_inside(self, path: str) -> None:
        if manifest.is_inside(path):
            whole = os.path.normpath(os.path.join("/root/of/all", path))
            assert whole.startswith("/root/of/all/")

    def test_names_that_cannot_be_here_are_counted(self) -> None:
        head = {"left_out": {"x": 1}, "place": "p", "root": "/w", "too_many": False}
        lines = [head, ["a\udcff", 1, 1, False], ["a\nb", 1, 1, False], ["ok", 1, 1, True]]
        found = manifest.read("\n".join(map(json.dumps, lines)).encode())
        assert [file.path for file in found.files] == ["ok"]
        assert found.left_out == {
            "x": 1,
            "files with names that are too long, or no printable text": 2,
        }

    @pytest.mark.parametrize(
        "name",
        [
            "資料\N{IDEOGRAPHIC SPACE}1.txt",
            "Screenshot 9.41.00\N{NARROW NO-BREAK SPACE}AM.png",
            "\N{MAN}\N{ZERO WIDTH JOINER}\N{WOMAN}.png",
        ],
    )
    def test_names_of_ordinary_files(self, name: str) -> None:
        head = {"left_out": {}, "place": "p", "root": "/w", "too_many": False}
        found = manifest.read("\n".join(map(json.dumps, [head, [name, 1, 1, False]])).encode())
        assert [file.path for file in found.files] == [name]

    def test_a_list_of_all_that_is_brought_is_read(self) -> None:
        head = {"left_out": {}, "place": "p", "root": "/w", "too_many": False}
        path = "a" * 100 + "/" + "b" * 100
        lines = [json.dumps(head)]
        lines += [
            f'["{path}/{number}", 1, 1700000000000000000, false]'
            for number in range(listing.MOST_FILES)
        ]
        whole = "\n".join(lines).encode()
        assert 16 << 20 < len(whole) < manifest._LONGEST_LIST
        assert len(manifest.read(whole).files) == listing.MOST_FILES
        with pytest.raises(ValueError, match="more than 100,000 entries"):
            manifest.read(whole + b"\n" * 1000)

    def test_a_list_that_does_not_end_is_no_silent_node(self) -> None:
        class Node:
            def run(self, *_: object, most: int, **__: object) -> NoReturn:
                raise too_long("a node", most)

        with pytest.raises(ProviderError, match="list of files is longer than 64 MiB"):
            manifest.ask(cast(Connection, Node()), ["x"], home="/w")


class TestWhileTheyCome:
    """Something removes files: there, which is the task's own business, or here. Others change, or cannot be read."""

    @pytest.mark.parametrize("gone", ["there", "here", "here in the middle"])
    def test_a_file_that_is_gone(self, tmp_path: Path, gone: str) -> None:
        root, here = tmp_path / "there", tmp_path / "here"
        root.mkdir()
        content = os.urandom(packs.PACKED_BELOW)
        (root / "model.pt").write_bytes(content)
        to_remove = {"there": [root], "here": [here], "here in the middle": [here]}[gone]

        class Removing(LocalConnection):
            def read(self, path: str, offset: int = 0) -> Iterator[bytes]:
                if gone != "here in the middle":
                    self.remove()
                whole = b"".join(super().read(path, offset))
                yield whole[:1000]
                self.remove()
                yield whole[1000:]

            def remove(self) -> None:
                if to_remove:
                    shutil.rmtree(to_remove.pop())

        brought = self.bring(root, here, Removing())
        assert brought.missing == {}
        if gone == "there":
            assert (brought.files, brought.left_out) == (0, {"removed while they came": 1})
        else:
            assert (brought.files, brought.left_out) == (1, {})
            assert (here / "model.pt").read_bytes() == content

    @pytest.mark.parametrize("change", [b"more", b""])
    def test_a_file_of_another_size_comes_as_it_is_now(self, tmp_path: Path, change: bytes) -> None:
        """As a log to which something else still writes, or one that it has truncated."""
        root, here = tmp_path / "there", tmp_path / "here"
        root.mkdir()
        for name in ("a.log", "b.pt"):
            (root / name).write_bytes(os.urandom(packs.PACKED_BELOW))

        class Changing(LocalConnection):
            cut = False

            def read(self, path: str, offset: int = 0) -> Iterator[bytes]:
                if path.endswith("a.log"):
                    with open(path, "ab" if change else "wb") as file:
                        file.write(change)
                elif not self.cut:
                    self.cut = True
                    raise NodeUnreachable("for a moment")
                return super().read(path, offset)

        brought = self.bring(root, here, Changing())
        assert (brought.files, brought.left_out, brought.missing) == (2, {}, {})
        assert brought.taken == []
        for name in ("a.log", "b.pt"):
            assert (here / name).read_bytes() == (root / name).read_bytes()

    def test_a_file_that_cannot_be_read_keeps_no_other_away(self, tmp_path: Path) -> None:
        root, here = tmp_path / "there", tmp_path / "here"
        root.mkdir()
        for name in ("a.pt", "b.pt"):
            (root / name).write_bytes(os.urandom(packs.PACKED_BELOW))

        class Refusing(LocalConnection):
            def read(self, path: str, offset: int = 0) -> Iterator[bytes]:
                if path.endswith("a.pt"):
                    raise PermissionError(errno.EACCES, "this user may not read it", path)
                return super().read(path, offset)

        brought = self.bring(root, here, Refusing())
        assert (brought.files, brought.missing) == (1, {})
        assert brought.sentence().endswith("left out: 1 files that cannot be read")
        assert (here / "b.pt").read_bytes() == (root / "b.pt").read_bytes()

    def bring(self, root: Path, here: Path, connection: LocalConnection) -> FetchedOutputs:
        """Fetches all files of a directory."""

        class Reach:
            async def persist(
                self, node: Node, do: Callable[[Node], Any], *_: Any, **__: Any
            ) -> Any:
                return do(node)

        instance = SimpleNamespace(id="n0")
        node = SimpleNamespace(rank=0, instance=instance, connection=connection)
        fetch = OutputFetch(
            ["*"], here, [cast(Node, node)], cast(Any, Reach()), lambda _: None, lambda: None
        )
        files = []
        for path in sorted(root.iterdir()):
            status = path.stat()
            files.append(OutputFile(path.name, status.st_size, status.st_mtime_ns, False))
        fetch._manifests[0] = OutputManifest(str(root), tuple(files), (), "p", {})
        fetch._list = lambda node: None  # type: ignore[method-assign]
        return asyncio.run(fetch.bring(ended_well=True, lost=(), given_up=asyncio.Event()))
