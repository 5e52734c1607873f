"""Files of volumes and buckets, from and to this machine: here, on hosts, in a bucket, and while a task runs."""

from __future__ import annotations

import io
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from flowlite.api.volume_files import in_bucket, on_machine
from flowlite.api.volume_files.files import Tree, plain_path, sources_of
from flowlite.api.volume_files.in_bucket import BucketFiles
from flowlite.api.volume_files.on_machine import MachineVolume
from flowlite.api.volume_files.storage import split
from flowlite.cli import main
from flowlite.connect.bounded import MOST_OUTPUT
from flowlite.connect.local import LocalConnection
from flowlite.connect.values import Completed, File
from flowlite.errors import ConfigError, FlowError, NodeUnreachable, NotFound
from flowlite.node.checkpoints import targets
from flowlite.node.s3 import client
from flowlite.node.s3.sigv4 import Credential
from flowlite.node.system import atomic_files
from flowlite.node.volume_files import program
from flowlite.supervise.attempt.outputs.output_directory import OutputDirectory
from flowlite.testing.hosts import Cluster
from tests.providers.lab import Lab
from tests.s3.servers import S3Server

Run = Callable[..., str]


@pytest.fixture
def flow(capsys: pytest.CaptureFixture[str]) -> Run:
    """`flow volumes` in this process."""

    def run(*words: str, code: int = 0) -> str:
        capsys.readouterr()
        ended = main(["volumes", *words])
        said = "".join(capsys.readouterr())
        assert ended == code, said
        return said

    return run


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    (root / "sub").mkdir(parents=True)
    (root / "a.txt").write_text("a")
    (root / "sub" / "large").write_bytes(os.urandom(20_000_000))
    (root / "sub" / "empty").write_text("")
    (root / "sub" / "run").write_text("#!/bin/sh\n")
    (root / "sub" / "run").chmod(0o755)
    return root


def contents(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def there_and_back(volume: str, source: Path, here: Path, run: Run) -> None:
    """What every kind of storage has to do."""
    assert "4 files (20 MB)" in run("put", str(source), f"{volume}new/")
    assert "data/" in run("ls", f"{volume}new")
    shown = run("ls", f"{volume}new/data/sub")
    assert all(name in shown for name in ("empty", "large", "run"))
    assert "4 files (20 MB)" in run("get", f"{volume}new/data", str(here))
    assert contents(here) == contents(source)
    # Again: a directory that exists gets it inside, and what is there is not overwritten.
    run("get", f"{volume}new/data", str(here))
    assert contents(here / "data") == contents(source)
    (here / "a.txt").write_text("mine")
    refused = run("get", f"{volume}new/data/a.txt", str(here), code=1)
    assert "not written over other files" in refused
    told = run("get", f"{volume}new/data/a.txt", str(here), "--json", code=1)
    document, error = told.splitlines()
    assert json.loads(document)["data"]["taken"] == ["a.txt"]
    assert error == refused.strip()
    assert (here / "a.txt").read_text() == "mine"
    # One file, under another name, over an existing one.
    (source / "a.txt").write_text("changed")
    run("put", str(source / "a.txt"), f"{volume}new/data/b.txt")
    run("put", str(source / "a.txt"), f"{volume}new/data")
    run("get", f"{volume}new/data/a.txt", str(here / "named"))
    assert (here / "named").read_text() == "changed"
    # With a slash at its end, the target is a directory, which need not exist.
    run("get", f"{volume}new/data/a.txt", f"{here}/made/")
    run("get", f"{volume}new/data/sub", f"{here}/made-too/")
    assert (here / "made" / "a.txt").read_text() == "changed"
    assert (here / "made-too" / "sub" / "run").is_file()
    assert "is a directory; add --recursive" in run("rm", f"{volume}new/data", code=1)
    assert "1 file removed" in run("rm", f"{volume}new/data/b.txt")
    assert "4 files removed" in run("rm", "-r", f"{volume}new/data")
    run("ls", f"{volume}new/data", code=3)
    run("get", f"{volume}none", str(here), code=3)


def test_a_volume_of_this_machine(flow: Run, flow_home: Path, source: Path, tmp_path: Path) -> None:
    assert "`flow volumes create ckpt` makes it" in flow("ls", "ckpt", code=3)
    flow("create", "ckpt")
    there_and_back("ckpt:", source, tmp_path / "here", flow)
    root = flow_home / "volumes" / "ckpt"
    # Programs stay programs, and times stay.
    flow("put", str(source), "ckpt")
    assert os.access(root / "data" / "sub" / "run", os.X_OK)
    large = source / "sub" / "large"
    assert (root / "data/sub/large").stat().st_mtime_ns == large.stat().st_mtime_ns
    # Nothing outside of it.
    (root / "out").symlink_to(tmp_path)
    assert "leads out of the volume" in flow("rm", "ckpt:../x", code=2)
    assert "leads out of the volume through a link" in flow("rm", "-r", "ckpt:out/data", code=1)
    assert "leads out" in flow("put", str(source / "a.txt"), "ckpt:out/x/a.txt", code=1)
    assert "that is the volume itself" in flow("rm", "-r", "ckpt", code=1)
    assert source.exists()
    listed = json.loads(flow("ls", "ckpt", "--json"))["data"]
    assert [(each["name"], each["kind"]) for each in listed] == [
        ("data", "directory"),
        ("new", "directory"),
        ("out", "other"),
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("flow_home")
def test_a_bucket(flow: Run, s3_server: S3Server, source: Path, tmp_path: Path) -> None:
    s3_server.fill("data", {"there/before": b"x"})
    large = source / "sub" / "large"
    large.write_bytes(os.urandom(40_000_000))
    (source / "sub" / "empty").write_text("")
    started = {"there", "new"}

    def run(*words: str, code: int = 0) -> str:
        # A bucket stores no permissions.
        return flow(*words, code=code).replace("(40 MB)", "(20 MB)")

    there_and_back("s3://data/", source, tmp_path / "here", run)
    flow("put", str(source), "s3://data")
    listed = json.loads(flow("ls", "s3://data", "--json"))["data"]
    assert {each["name"] for each in listed} - {"data"} <= started
    before = s3_server.client().head_object(Bucket="data", Key="data/sub/large")["LastModified"]
    time.sleep(1.1)  # S3 counts in seconds; only a later write would show.
    flow("put", str(source), "s3://data")
    after = s3_server.client().head_object(Bucket="data", Key="data/sub/large")["LastModified"]
    assert before == after
    # Another version of the same size, which is older than the object.
    another = os.urandom(40_000_000)
    large.write_bytes(another)
    os.utime(large, (1e9, 1e9))
    flow("put", str(large), "s3://data/data/sub/large")
    assert (
        s3_server.client().get_object(Bucket="data", Key="data/sub/large")["Body"].read() == another
    )
    s3_server.client().create_multipart_upload(Bucket="data", Key="data/half")
    assert "1 file removed" in flow("rm", "s3://data/data/half")
    flow("rm", "s3://data/data/half", code=3)
    assert "flowlite does not empty" in flow("rm", "-r", "s3://data", code=2)
    assert "NoSuchBucket" in flow("ls", "s3://no-such-bucket", code=3)


@pytest.mark.slow
@pytest.mark.parametrize("server", ["one_s3_server", "ceph_server"])
def test_an_object_that_is_replaced_between_two_parts(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str
) -> None:
    s3: S3Server = request.getfixturevalue(server)
    for name, value in s3.variables().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(in_bucket, "_RANGE", 1 << 20)
    size = 3 << 20
    s3.fill("replaced", {"last.pt": b"a" * size})
    bucket = in_bucket.open_bucket("s3://replaced")
    moved: list[int] = []

    def move(count: int) -> None:
        moved.append(count)
        if sum(moved) == 1 << 20 and count:
            s3.client().put_object(Bucket="replaced", Key="last.pt", Body=b"b" * size)

    def get() -> list[str]:
        tree = bucket.tree("last.pt")
        return bucket.get("last.pt", tree, OutputDirectory(tmp_path), "last.pt", move)

    with pytest.raises(
        FlowError, match=r"last\.pt was replaced or removed while it was copied; run it again$"
    ):
        get()
    assert get() == []
    assert (tmp_path / "last.pt").read_bytes() == b"b" * size


@pytest.mark.slow
@pytest.mark.parametrize("server", ["one_s3_server", "ceph_server"])
def test_objects_that_are_replaced_or_removed_after_they_were_listed_keep_no_others_back(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str
) -> None:
    s3: S3Server = request.getfixturevalue(server)
    for name, value in s3.variables().items():
        monkeypatch.setenv(name, value)
    s3.fill("written", {name: name.encode() * 100 for name in ("a", "b", "c", "d")})
    bucket = in_bucket.open_bucket("s3://written")
    tree = bucket.tree("")
    s3.client().put_object(Bucket="written", Key="b", Body=b"B" * 100)
    s3.client().delete_object(Bucket="written", Key="c")
    with pytest.raises(FlowError, match=r"b, c were replaced .* all other files were copied"):
        bucket.get("", tree, OutputDirectory(tmp_path), "", lambda _: None)
    assert sorted(contents(tmp_path)) == ["a", "d"]
    assert bucket.get("", bucket.tree(""), OutputDirectory(tmp_path), "", lambda _: None) == []
    assert sorted(contents(tmp_path)) == ["a", "b", "d"]


def test_a_bucket_that_is_busy_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        """Refuses each request once, as S3 does where many ask."""

        def do_GET(self) -> None:
            asked.append(self.path)
            status, headers, body = 200, {}, b"ab"
            if asked.count(self.path) % 2:
                status, body = 503, b"<Error><Code>SlowDown</Code></Error>"
            elif "list-type" in self.path:
                body = b"<ListBucketResult><Contents><Key>d/x</Key><Size>2</Size></Contents></ListBucketResult>"
            else:
                status, headers = 206, {"content-range": "bytes 0-1/2"}
            self.send_response_only(status)
            for name, value in {**headers, "content-length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    monkeypatch.setattr(targets, "_FIRST_PAUSE", 0.01)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        bucket = BucketFiles(
            client.Store("s3://b", "b", endpoint_url=url, credential=Credential("a", "s"))
        )
        found = bucket.tree("d")
        assert bucket.get("d", found, OutputDirectory(tmp_path), "", lambda _: None) == []
        server.shutdown()
    assert contents(tmp_path) == {"x": b"ab"}


@pytest.mark.slow
@pytest.mark.parametrize("server", ["one_s3_server", "ceph_server"])
def test_a_list_of_one_level_asks_for_no_more(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, server: str
) -> None:
    s3: S3Server = request.getfixturevalue(server)
    for name, value in s3.variables().items():
        monkeypatch.setenv(name, value)
    keys = ["d/top.txt", "d/sub/1", "d/sub/2", "d/a b+%/x", "e/1"]
    s3.fill("levels", dict.fromkeys(keys, b"x"))
    bucket = in_bucket.open_bucket("s3://levels")
    bodies: list[bytes] = []
    ask = client.Store.request

    def record(*arguments: Any, **options: Any) -> client.Response:
        found = ask(*arguments, **options)
        bodies.append(found.body)
        return found

    monkeypatch.setattr(client.Store, "request", record)
    assert [(each.name, each.kind) for each in bucket.entries("d")] == [
        ("a b+%", "directory"),
        ("sub", "directory"),
        ("top.txt", "file"),
    ]
    assert [each.name for each in bucket.entries("")] == ["d", "e"]
    assert b"sub" in b"".join(bodies)
    assert not any(b"<Key>d/sub/" in body or b"<Key>d%2Fsub%2F" in body for body in bodies)


def test_a_name_that_is_no_key(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9")).write_text("x")
    bucket = BucketFiles(client.Store("s3://b", "b", endpoint_url="http://127.0.0.1:9"))
    with pytest.raises(FlowError, match="which is UTF-8; rename the file"):
        bucket.put(sources_of(tmp_path, "d"), lambda _: None)


def test_a_pool_with_a_shared_directory_and_one_without(
    hosts: Cluster, flow_home: Path, source: Path, tmp_path: Path
) -> None:
    settings = f'python = "{sys.executable}"\nshared_dir = "/mnt/shared/volumes"'
    lab = Lab(hosts, flow_home, list(hosts)[:2], settings)

    def run(*words: str, code: int = 0) -> str:
        done = lab.flow("volumes", *words, code=code)
        return done.stdout + done.stderr

    assert "`flow volumes create ckpt` makes it" in run("ls", "ckpt", code=3)
    run("create", "ckpt")
    # Tasks see what was put, and the other way round.
    run("put", str(source), "ckpt")
    run("get", "ckpt:data", str(tmp_path / "here"))
    assert contents(tmp_path / "here") == contents(source)
    script = "cat /mnt/ckpt/data/a.txt; echo of a task > /mnt/ckpt/b.txt"
    done = lab.flow("run", "--volume", "/mnt/ckpt=ckpt", "--", "sh", "-c", script)
    assert (source / "a.txt").read_text() in done.stdout
    run("get", "ckpt:b.txt", str(tmp_path))
    assert (tmp_path / "b.txt").read_text() == "of a task\n"
    # The first host does not answer: another one has it, too.
    lab.hosts[0].kill()
    assert "b.txt" in run("ls", "ckpt")


class Breaking(LocalConnection):
    """A connection that breaks at one of its requests, before or after the node has done it."""

    def __init__(self, at: int, *, after: bool) -> None:
        super().__init__()
        self.asked = 0
        self._at = at
        self._after = after

    def run(self, *arguments: Any, **options: Any) -> Completed:
        self.asked += 1
        if self.asked == self._at and not self._after:
            raise NodeUnreachable("cut")
        done = super().run(*arguments, **options)
        if self.asked == self._at:
            raise NodeUnreachable("cut")
        return done


@pytest.mark.parametrize("after", [False, True])
def test_a_transfer_that_breaks_goes_on(source: Path, tmp_path: Path, after: bool) -> None:
    root, here = tmp_path / "volume", tmp_path / "here"
    root.mkdir()
    sources = sources_of(source, "d")
    total = sum(each.size for each in sources)

    def volume(at: int = 0) -> MachineVolume:
        return MachineVolume("v", Breaking(at, after=after), (sys.executable,), str(root))

    moved: list[int] = []
    with pytest.raises(NodeUnreachable):
        volume(3).put(sources, moved.append)
    sent = sum(moved)
    assert 0 < sent < total
    again: list[int] = []
    volume().put(sources, again.append)
    assert sum(again) == total
    # The part of the large file that was there is not sent again.
    assert on_machine._PART in again[:8]
    assert contents(root / "d") == contents(source)
    tree = volume().tree("d")
    with pytest.raises(NodeUnreachable):
        volume(2).get("d", tree, OutputDirectory(here), "", lambda _: None)
    volume().get("d", tree, OutputDirectory(here), "", lambda _: None)
    assert contents(here) == contents(source)


@pytest.mark.usefixtures("flow_home")
def test_links_here(flow: Run, source: Path, tmp_path: Path) -> None:
    (source / "link").symlink_to("sub/run")
    (source / "elsewhere").symlink_to(tmp_path)
    (source / "nowhere").symlink_to("none")
    os.mkfifo(source / "pipe")
    flow("create", "ckpt")
    said = flow("put", str(source), "ckpt")
    assert "not copied: 3 links to directories or to nothing, and special files" in said
    assert "5 files (20 MB)" in said
    flow("put", str(source / "link"), "ckpt")
    assert "link" in flow("ls", "ckpt")
    assert "neither a file nor a directory" in flow("put", str(source / "pipe"), "ckpt", code=2)


def test_links_there_are_told(flow: Run, flow_home: Path, source: Path, tmp_path: Path) -> None:
    flow("create", "ckpt")
    flow("put", str(source), "ckpt")
    there = flow_home / "volumes" / "ckpt" / "data"
    (there / "latest").symlink_to("sub")
    (there / "nowhere").symlink_to("none")
    said = flow("get", "ckpt:data", str(tmp_path / "back"))
    assert "not copied: 2 links" in said
    assert "4 files (20 MB)" in said


@pytest.mark.usefixtures("flow_home")
def test_names_may_have_as_many_bytes_as_a_file_system_allows(flow: Run, tmp_path: Path) -> None:
    source = tmp_path / f"{'数' * 83}.bin"
    source.write_text("x")
    flow("create", "ckpt")
    flow("put", str(source), "ckpt")
    flow("get", f"ckpt:{source.name}", str(tmp_path / "back"))
    assert (tmp_path / "back").read_text() == "x"
    target = str(tmp_path / "new" / source.name)
    LocalConnection().put_many([File(target, source)])
    assert Path(target).read_text() == "x"
    place = str(tmp_path / "placed" / source.name)
    atomic_files.place(b"x", place, 0o600)
    assert os.listdir(tmp_path / "placed") == [source.name]


def unpacked(tmp_path: Path, size: int) -> list[Path]:
    """Two versions of a file, as from archives which set one time for all files."""
    versions = [tmp_path / "one", tmp_path / "two"]
    for version, content in zip(versions, (b"a", b"b"), strict=True):
        version.write_bytes(content * size)
        os.utime(version, ns=(10**18, 10**18))
    return versions


@pytest.mark.parametrize("size", [10, 3 * on_machine._PART])
def test_another_version_of_the_same_size_and_time(tmp_path: Path, size: int) -> None:
    root, here = tmp_path / "volume", tmp_path / "here"
    root.mkdir()
    volume = MachineVolume("v", LocalConnection(), (sys.executable,), str(root))
    one, two = unpacked(tmp_path, size)
    for version in (one, two):
        volume.put(sources_of(version, "f"), lambda _: None)
        assert (root / "f").read_bytes() == version.read_bytes()
    volume.put(sources_of(one, "g"), lambda _: None)
    destination = OutputDirectory(here)
    assert volume.get("f", volume.tree("f"), destination, "x", lambda _: None) == []
    assert volume.get("f", volume.tree("f"), destination, "x", lambda _: None) == []
    assert volume.get("g", volume.tree("g"), destination, "x", lambda _: None) == ["x"]
    assert (here / "x").read_bytes() == two.read_bytes()


def test_a_version_is_not_continued_with_another(tmp_path: Path) -> None:
    root = tmp_path / "volume"
    root.mkdir()
    one, two = unpacked(tmp_path, 3 * on_machine._PART)
    # The state, and the first part.
    broken = MachineVolume("v", Breaking(3, after=False), (sys.executable,), str(root))
    with pytest.raises(NodeUnreachable):
        broken.put(sources_of(one, "f"), lambda _: None)
    assert [each.stat().st_size for each in root.iterdir()] == [on_machine._PART]
    volume = MachineVolume("v", LocalConnection(), (sys.executable,), str(root))
    volume.put(sources_of(two, "f"), lambda _: None)
    assert (root / "f").read_bytes() == two.read_bytes()


def test_parts_of_a_version_that_is_gone_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [".f.5-de0-one.part", ".f.5-de0-two.part", ".f.x.5-de0-one.part", ".f.part"]
    for name in parts:
        (tmp_path / name).write_text("abc")

    def have() -> list[int]:
        asked = {"root": str(tmp_path), "do": "state", "files": [["f", 5, 0xDE0, "two"]]}
        out = io.BytesIO()
        program.main(io.BytesIO(json.dumps(asked).encode() + b"\n"), out)
        return list(json.loads(out.getvalue())["have"])

    # Another client may send it now.
    assert have() == [3]
    assert sorted(contents(tmp_path)) == sorted(parts)
    monkeypatch.setattr(program, "_ABANDONED_SECONDS", -1.0)
    assert have() == [3]
    assert sorted(contents(tmp_path)) == sorted(parts[1:])


def test_a_file_that_changes_meanwhile(source: Path, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    root.mkdir()
    volume = MachineVolume("v", LocalConnection(), (sys.executable,), str(root))
    sources = sources_of(source, "d")
    (source / "a.txt").write_text("longer")
    with pytest.raises(FlowError, match=r"a\.txt was changed while it was sent"):
        volume.put(sources, lambda _: None)
    volume.put(sources_of(source, "d"), lambda _: None)
    tree = volume.tree("d")
    (root / "d" / "a.txt").write_text("much longer")
    with pytest.raises(FlowError, match=r"a\.txt was changed while it was copied"):
        volume.get("d", tree, OutputDirectory(tmp_path / "here"), "", lambda _: None)


@pytest.mark.parametrize("size", [2000, 3 * on_machine._PART])
def test_files_that_a_task_changes_or_removes_keep_no_others_back(
    tmp_path: Path, size: int
) -> None:
    """A task that runs writes its log, and moves files into their places, all the time."""
    root, here = tmp_path / "volume", tmp_path / "here"
    root.mkdir()
    for name in ("a.pt", "b.log", "c.tmp", "d.pt"):
        (root / name).write_bytes(b"a" * size)
    volume = MachineVolume("v", LocalConnection(), (sys.executable,), str(root))
    tree = volume.tree("")
    (root / "b.log").write_bytes(b"b" * (size - 1))
    (root / "c.tmp").unlink()
    with pytest.raises(FlowError, match=r"v: b\.log was changed .* all other files were copied"):
        volume.get("", tree, OutputDirectory(here), "", lambda _: None)
    assert sorted(contents(here)) == ["a.pt", "d.pt"]
    alone = Tree(True, tuple(each for each in tree.files if each.path == "c.tmp"))
    with pytest.raises(NotFound, match=r"c\.tmp was removed while it was copied"):
        volume.get("c.tmp", alone, OutputDirectory(here), "c.tmp", lambda _: None)
    assert volume.get("", volume.tree(""), OutputDirectory(here), "", lambda _: None) == []
    assert sorted(contents(here)) == ["a.pt", "b.log", "d.pt"]


@pytest.mark.parametrize("how", ["replaced", "rewritten", "grown"])
def test_a_large_file_that_changes_between_two_parts(tmp_path: Path, how: str) -> None:
    root = tmp_path / "volume"
    root.mkdir()
    size = 3 * on_machine._PART
    (root / "last.pt").write_bytes(b"a" * size)

    class Writing(LocalConnection):
        """The task writes its next checkpoint after the first part of this one was read."""

        asked = 0

        def run(self, *arguments: Any, **options: Any) -> Completed:
            done = super().run(*arguments, **options)
            self.asked += 1
            if self.asked == 2:
                if how == "replaced":
                    (root / "new").write_bytes(b"b" * size)
                    (root / "new").replace(root / "last.pt")
                elif how == "rewritten":
                    (root / "last.pt").write_bytes(b"b" * size)
                else:
                    with (root / "last.pt").open("ab") as file:
                        file.write(b"b" * size)
            return done

    here = tmp_path / "here"
    volume = MachineVolume("v", Writing(), (sys.executable,), str(root))

    def get() -> list[str]:
        tree = volume.tree("last.pt")
        return volume.get("last.pt", tree, OutputDirectory(here), "last.pt", lambda _: None)

    if how == "grown":
        assert get() == []
        assert (here / "last.pt").read_bytes() == b"a" * size
        return
    with pytest.raises(FlowError, match=r"last\.pt was changed while it was copied; run it again"):
        get()
    assert get() == []
    assert (here / "last.pt").read_bytes() == b"b" * size


class Lying(LocalConnection):
    """A machine that answers what it likes."""

    def __init__(self, answer: bytes) -> None:
        super().__init__()
        self._answer = answer

    def run(self, *arguments: Any, **options: Any) -> Completed:
        return Completed(0, self._answer, b"")


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", ""])
def test_no_path_of_a_machine_leads_elsewhere(path: str) -> None:
    answer = {"single": False, "files": [[path, 1, 1, False]], "others": 0}
    volume = MachineVolume("v", Lying(json.dumps(answer).encode() + b"\n"), ("python",), "/v")
    with pytest.raises(FlowError, match="leads out"):
        volume.tree("")
    nonsense = MachineVolume("v", Lying(b"hello\n"), ("python",), "/v")
    with pytest.raises(FlowError, match="cannot be reached"):
        nonsense.tree("")


def test_a_part_that_is_cut_short_is_no_file(tmp_path: Path) -> None:
    asked = {"root": str(tmp_path), "do": "write", "files": [["f", 5, 1, "v", False, 0, 5]]}
    out = io.BytesIO()
    program.main(io.BytesIO(json.dumps(asked).encode() + b"\nabc"), out)
    assert "only a part of it arrived" in json.loads(out.getvalue())["failed"]
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("ckpt", ("ckpt", "", True)),
        ("ckpt:", ("ckpt", "", True)),
        ("ckpt:a/./b//c", ("ckpt", "a/b/c", False)),
        ("ckpt:/a/", ("ckpt", "a", True)),
        ("s3://bucket", ("s3://bucket", "", True)),
        ("s3://bucket/a/b", ("s3://bucket", "a/b", False)),
    ],
)
def test_places_are_read(text: str, found: tuple[str, str, bool]) -> None:
    assert split(text) == found


@pytest.mark.parametrize("text", ["", ":x", "A", "ckpt:../x", "ckpt:a/../b", "./x", "a b:c"])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        split(text)


def test_a_path_stays_inside() -> None:
    assert plain_path("a/b/") == "a/b"
    assert Tree(False, ()).size == 0
    assert on_machine._AT_ONCE < MOST_OUTPUT
    with pytest.raises(NotFound):
        MachineVolume("v", LocalConnection(), (sys.executable,), "/").tree("no-such-directory/x")
