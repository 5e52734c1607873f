"""Volumes that node 0 serves to the others: real agents on this machine, a real sftp-server, real sshfs."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from flowlite.node.leader_volumes import confined_sftp as sharing_sftp
from flowlite.node.mount_namespace.unmount import mounted_below
from flowlite.node.protocol.framing import Hello, WireError
from flowlite.node.protocol.stream import Stream, admit, ask
from flowlite.node.system import processes
from tests.components import need
from tests.helpers import eventually
from tests.node.agents import SECRET, RealGang

SHARE = "/flowlite-shared"


def gang(tmp_path: Path, body: str, **options: Any) -> RealGang:
    call = {"kind": "command", "argv": [sys.executable, "-u", "-c", HEAD + body]}
    volume = {
        "name": "data", "path": SHARE, "source": str(tmp_path / "kept" / "data"), "interface": "file",
        "share": "sshfs",
    }  # fmt: skip
    options = {"nodes": 3, "processes_per_node": 1, "shared": False, **options}
    return RealGang(tmp_path / "nodes", call, volumes=[volume], **options)


HEAD = """
import os, sys, time
from pathlib import Path
here, rank = Path("/flowlite-shared"), int(os.environ["RANK"])
def until(path):
    while not path.exists():
        time.sleep(0.01)
"""


class TestSharing:
    @pytest.mark.parametrize("tls", [False, True])
    def test_what_one_node_writes_all_read_at_once(self, tmp_path: Path, tls: bool) -> None:
        need("sshfs")
        body = """
for turn in range(3):
    if rank == turn:
        (here / f"turn{turn}.tmp").write_bytes(b"%d" % turn * 300_000)
        (here / f"turn{turn}.tmp").rename(here / f"turn{turn}")
    until(here / f"turn{turn}")
    print(len((here / f"turn{turn}").read_bytes()))
"""
        with gang(tmp_path, body, tls=tls) as run:
            ended = run.run()
            assert ended["outcome"] == "done", (ended, run.logs())
            assert [run.text(rank) for rank in range(3)] == ["300000\n" * 3] * 3
            run.assert_nothing_left()
        assert {path.name for path in (tmp_path / "kept" / "data").iterdir()} == {
            "turn0", "turn1", "turn2",
        }  # fmt: skip
        assert not mounted_below(tmp_path)

    def test_a_directory_of_many_files_and_names_of_all_kinds(self, tmp_path: Path) -> None:
        need("sshfs")
        body = """
if rank == 1:
    for number in range(40):
        (here / f"größe {number}").write_text(str(number))
    (here / "link").symlink_to("größe 7")
    (here / "done").touch()
until(here / "done")
print(sum(int(p.read_text()) for p in here.glob("größe *")), (here / "link").read_text())
"""
        with gang(tmp_path, body) as run:
            assert run.run()["outcome"] == "done", run.logs()
            assert {run.text(rank) for rank in range(3)} == {"780 7\n"}

    def test_the_end_of_the_leader_is_an_error_and_no_hang(self, tmp_path: Path) -> None:
        need("sshfs")
        body = """
if rank == 0:
    time.sleep(600)
print("ready", flush=True)
while True:
    list(here.iterdir())
    time.sleep(0.05)
"""
        with gang(tmp_path, body) as run:
            run.start()
            asyncio.run(run.until("started"))
            out = run.paths[1].stream(1, "out")
            eventually(lambda: out.exists() and b"ready" in out.read_bytes())
            run.agents[0].kill()
            for node in (1, 2):
                assert run.report(node)["outcome"] in ("fenced", "preempted", "failed")
            run.assert_nothing_left(timeout=90)
        assert not mounted_below(tmp_path)

    @pytest.mark.parametrize(
        ("node", "sidecar", "said"),
        [
            (0, "share-server", "the process that serves it was killed; using it on other nodes"),
            (1, "share-mount", "the process that holds it was killed; using it here fails"),
        ],
    )
    def test_a_volume_that_is_lost_is_told(
        self, tmp_path: Path, node: int, sidecar: str, said: str
    ) -> None:
        need("sshfs")
        go = tmp_path / "go"
        with gang(tmp_path, f"until(Path({str(go)!r}))", nodes=2) as run:
            run.start()

            async def follow() -> dict[str, Any]:
                await run.until("started")
                below = processes.descendants([run.agents[node].pid])
                (pid,) = [pid for pid in below if sidecar in words_of(pid)]
                os.kill(pid, signal.SIGKILL)
                warned = await run.until("warning")
                go.touch()
                await run.finish()
                return warned

            assert f"volume 'data' is lost: {said}" in asyncio.run(follow())["text"]
            run.assert_nothing_left()
        assert not mounted_below(tmp_path)

    def test_a_member_that_is_killed_leaves_nothing_mounted(self, tmp_path: Path) -> None:
        need("sshfs")
        with gang(tmp_path, "time.sleep(600)") as run:
            run.start()
            asyncio.run(run.until("started"))
            run.agents[1].kill()
            run.agents[1].wait()
            ours = str(run.paths[1].directory)
            eventually(lambda: not [p for p in running() if ours in p], what="all of it is gone")
        assert not mounted_below(tmp_path)

    def test_without_sshfs_it_is_refused_with_the_choices(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No node has sshfs: an empty directory in the place of those where programs are."""
        need("mounts")
        hide = (
            f"mount --bind /dev/null {shutil.which('sshfs')}" if shutil.which("sshfs") else "true"
        )
        done = subprocess.run(
            ["unshare", "-m", "--propagation", "private", "sh", "-c",
             f"{hide} && {sys.executable} - {tmp_path}"],
            input=REFUSAL, capture_output=True, text=True, timeout=100, check=False,
            cwd=Path(__file__).parent.parent.parent,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        assert "checks" in done.stdout
        assert "'data' cannot be had from node 0" in done.stdout
        assert "shared_dir" in done.stdout
        assert "checkpoint=" in done.stdout


REFUSAL = """
import sys
from pathlib import Path
sys.path.insert(0, ".")
from tests.sharing.test_agents import gang
with gang(Path(sys.argv[1]), "pass") as run:
    ended = run.run()
    print(ended["outcome"], ended["reason"])
"""


def running() -> list[str]:
    return [words for name in os.listdir("/proc") if name.isdigit() and (words := words_of(name))]


def words_of(pid: int | str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


class TestConfinement:
    """What a member can reach through the server: the volume, and nothing else of the leader."""

    def sftp(self, tmp_path: Path, *commands: str) -> list[str]:
        need("sftp-server")
        volume, stage = tmp_path / "volume", tmp_path / "stage"
        volume.mkdir(exist_ok=True)
        stage.mkdir(exist_ok=True)
        (volume / "file").write_text("inside")
        (volume / "link").unlink(missing_ok=True)
        (volume / "link").symlink_to("/etc/shadow")
        (volume / "up").unlink(missing_ok=True)
        (volume / "up").symlink_to("../../../../../../etc")
        (tmp_path / "secret").write_text("outside")
        server = tmp_path / "server.sh"
        argv = processes.own_command(
            sys.executable, "share-sftp", str(volume), str(stage), "0", flags=("-I", "-S")
        )
        # The sftp client stands in for the agent, whose end it does not outlive.
        line = shlex.join(argv).removesuffix(" 0")
        server.write_text(f"#!/bin/sh\nexec {line} $PPID\n")
        server.chmod(0o700)
        answers = []
        for command in commands:
            done = subprocess.run(
                ["sftp", "-q", "-D", str(server)], input=f"{command}\n", capture_output=True, text=True,
                timeout=90, check=False,
            )  # fmt: skip
            answers.append(done.stdout.partition("\n")[2] + done.stderr)
        return answers

    def test_the_volume_can_be_read_and_written(self, tmp_path: Path) -> None:
        here = tmp_path / "got"
        fetched, _ = self.sftp(tmp_path, f"get file {here}", f"put {here} new")
        assert here.read_text() == "inside", fetched
        assert (tmp_path / "volume" / "new").read_text() == "inside"

    @pytest.mark.parametrize(
        "path",
        ["/etc/shadow", "../etc/shadow", "/volume/../etc/shadow", "link", "up/shadow", "/proc/1/environ",
         "/proc/self/environ", "/old/etc/shadow", "/root/.ssh/id_ed25519", "../secret"],
    )  # fmt: skip
    def test_nothing_else_can_be_read(self, tmp_path: Path, path: str) -> None:
        target = tmp_path / "got"
        (said,) = self.sftp(tmp_path, f"get {path} {target}")
        assert not target.exists(), said
        (said,) = self.sftp(tmp_path, f"get {tmp_path}/secret {target}")
        assert not target.exists(), said

    def test_nothing_else_can_be_written(self, tmp_path: Path) -> None:
        source = tmp_path / "source"
        source.write_text("evil")
        for path in ("/etc/passwd", "/x", "../x", "/dev/null2", "/tmp/x", "/sftp-server"):
            (said,) = self.sftp(tmp_path, f"put {source} {path}")
            assert "ailure" in said or "denied" in said or "No such" in said, (path, said)
        assert not (tmp_path / "x").exists()

    def test_the_root_holds_what_the_program_needs_only(self, tmp_path: Path) -> None:
        (said,) = self.sftp(tmp_path, "ls -1 /")
        names = {line.strip().lstrip("/") for line in said.splitlines() if line.strip()}
        assert names <= {"dev", "etc", "lib", "lib64", "usr", "sftp-server", "volume"}, said
        (said,) = self.sftp(tmp_path, "ls -1 /etc")
        assert {line.rpartition("/")[2] for line in said.split()} == {"passwd", "nsswitch.conf"}

    def test_libraries_are_read_from_what_ldd_says(self) -> None:
        listing = """
\tlinux-vdso.so.1 (0x00007fb206d53000)
\tlibcrypto.so.3 => /lib/x86_64-linux-gnu/libcrypto.so.3 (0x00007fb206b2c000)
\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007fb206b2c000)
\t/lib64/ld-linux-x86-64.so.2 (0x00007fb206d55000)
"""
        assert sharing_sftp.libraries(listing) == [
            "/lib/x86_64-linux-gnu/libcrypto.so.3", "/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2",
        ]  # fmt: skip


class TestTheOpening:
    """Nobody without the task's secret gets further than the first frame."""

    def talk(self, secret: bytes, **changes: Any) -> tuple[object, object]:
        """What both sides come to: the volume or the error, None or the error."""
        ours, theirs = socket.socketpair()
        said = {"task": "t1", "role": "volume", "peer": "i-1", "attempt": 1, "purpose": "data"}
        answers: list[object] = []

        def lead() -> None:
            try:
                stream = Stream(ours, None)
                known = lambda peer, volume: (peer, volume) == ("i-1", "data")  # noqa: E731
                expected = Hello("t1", "volume", "", 1)
                answers.append(admit(stream, SECRET, expected, known))
            except (OSError, WireError) as error:
                answers.append(error)
            finally:
                ours.close()

        leader = threading.Thread(target=lead)
        leader.start()
        member: object = None
        try:
            ask(Stream(theirs, None), secret, Hello(**{**said, **changes}))
        except (OSError, WireError) as error:
            member = error
        finally:
            theirs.close()
            leader.join()
        return answers[0], member

    def test_a_member_comes_in(self) -> None:
        assert self.talk(SECRET) == ("data", None)

    @pytest.mark.parametrize(
        "changes",
        [{"task": "t2"}, {"attempt": 2}, {"peer": "i-9"}, {"purpose": "other"}, {"role": "relay"}],
    )
    def test_another_gang_does_not(self, changes: dict[str, Any]) -> None:
        leader, member = self.talk(SECRET, **changes)
        assert isinstance(leader, WireError)
        assert member is not None

    def test_nobody_without_the_secret_does(self) -> None:
        leader, member = self.talk(b"guessed, and as long")
        assert isinstance(leader, WireError)
        assert member is not None

    @pytest.mark.parametrize("line", [b"", b"{}", b"[]", b"\xff" * 50, b"x" * 9000])
    def test_nonsense_ends_the_connection(self, line: bytes) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(line + b"\n")
            theirs.shutdown(socket.SHUT_WR)
            with pytest.raises(WireError):
                admit(Stream(ours, None), SECRET, Hello("t", "volume", "", 1), lambda *_: True)


def test_what_the_leader_tells_is_passed_on_whole(tmp_path: Path) -> None:
    """The port of the shared volumes goes the way that the leader's place goes."""
    need("sshfs")
    with gang(tmp_path, "pass", nodes=2) as run:
        run.start()
        place = eventually(
            lambda: run.paths[0].leader.exists() and json.loads(run.paths[0].leader.read_text())
        )
        assert set(place) == {"address", "port", "share"}
        asyncio.run(run.finish())
        for agent in run.agents:
            agent.send_signal(signal.SIGTERM)
