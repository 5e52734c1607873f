"""Checkpoints in a bucket: the place itself against two servers, and whole gangs."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
import uuid
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from flowlite.node.checkpoints import targets
from flowlite.node.checkpoints.manifest import (
    CheckpointManifest,
    File,
    SetName,
    object_name,
    whole_sets,
)
from flowlite.node.checkpoints.targets import BucketTarget, TargetError, place_of
from flowlite.node.s3 import client, multipart_upload
from flowlite.node.s3.client import Response, S3Error, Store
from flowlite.node.s3.sigv4 import Credential
from tests.components import need
from tests.node.agents import RealGang
from tests.s3.servers import REGION, S3Server

# Of this process only: at its end, a gang kills all processes of its task.
TASK = f"ts3checkpoint{os.getpid()}"


@pytest.fixture(params=["rclone", "ceph"])
def server(request: pytest.FixtureRequest) -> S3Server:
    """Both servers, one after the other."""
    name = {"rclone": "one_s3_server", "ceph": "ceph_server"}[request.param]
    found: S3Server = request.getfixturevalue(name)
    return found


def storage_of(server: S3Server, url: str, **changes: str) -> dict[str, Any]:
    credential = {"access_key": server.key, "secret_key": server.secret, **changes}
    return {
        "checkpoint": {
            "url": url, "endpoint_url": server.endpoint, "region": REGION, "credential": credential,
            "source": "the test's key",
        }
    }  # fmt: skip


def new_bucket(server: S3Server) -> str:
    name = f"ckpt-{uuid.uuid4().hex[:12]}"
    server.fill(name, {})
    return name


@pytest.fixture
def place(server: S3Server, tmp_path: Path) -> BucketTarget:
    url = f"s3://{new_bucket(server)}/runs/one"
    (tmp_path / "storage.json").write_text(json.dumps(storage_of(server, url)))
    found = place_of(url, tmp_path / "storage.json")
    assert isinstance(found, BucketTarget)
    return found


@pytest.mark.parametrize(
    ("status", "code", "tries"),
    [(503, "SlowDown", 2), (400, "RequestTimeout", 2), (400, "ExpiredToken", 1)],
)
def test_what_is_tried_again(tmp_path: Path, status: int, code: str, tries: int) -> None:
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            asked.append(self.rfile.read(int(self.headers["content-length"])))
            body = f"<Error><Code>{code}</Code></Error>".encode() if len(asked) == 1 else b""
            self.send_response(status if body else 200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{http.server_address[1]}"
        place = BucketTarget(
            Store("s3://b", "b", endpoint_url=url, credential=Credential("a", "s"))
        )
        (tmp_path / "file").write_bytes(b"content")
        if tries == 1:
            with pytest.raises(TargetError, match=code):
                place.upload(tmp_path / "file", "files/x", 7)
        else:
            place.upload(tmp_path / "file", "files/x", 7)
        http.shutdown()
    assert asked == [b"content"] * tries


class Cutting:
    """An HTTP proxy before an S3 server, which ends connections before all of an answer was sent.

    Attributes:
        body_bytes: How much of a body it sends; None for all.
        lose_completed: Whether to send nothing of the first answer to the end of an upload.
    """

    def __init__(self, server: S3Server) -> None:
        cutting = self
        self.body_bytes: int | None = None
        self.lose_completed = False
        self.completed: list[str] = []
        behind = urlsplit(server.endpoint)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                sent = self.rfile.read(length) if length else None
                asked = http.client.HTTPConnection(behind.hostname or "", behind.port, timeout=20)
                asked.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    asked.putheader(name, value)
                asked.endheaders(sent)
                reply = asked.getresponse()
                body = reply.read()
                asked.close()
                if self.command == "POST" and "uploadId=" in self.path and cutting.lose_completed:
                    cutting.completed.append(self.path)
                    if cutting.completed.count(self.path) == 1:
                        return
                    # Ceph answers as at first; AWS and MinIO do not know the upload any more.
                    reply.status, body = 404, b"<Error><Code>NoSuchUpload</Code></Error>"
                self.send_response_only(reply.status)
                for name, value in reply.getheaders():
                    if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                        self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body[: cutting.body_bytes])

            do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

            def log_message(self, *_: object) -> None:
                return

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        # The host is signed: it stays the one that was asked for.
        self.store = Store(
            f"s3://{new_bucket(server)}/runs",
            "",
            "runs",
            endpoint_url=f"http://127.0.0.1:{self._http.server_address[1]}",
            region=REGION,
            credential=Credential(server.key, server.secret),
        )
        self.store = replace(self.store, bucket=self.store.url.split("/")[2])

    def __enter__(self) -> Cutting:
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()


@pytest.mark.slow
class TestBrokenConnections:
    def test_a_file_that_takes_longer_than_any_connection(
        self, server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(targets, "_FIRST_PAUSE", 0.01)
        source, target = tmp_path / "source", tmp_path / "target"
        source.write_bytes(os.urandom(7 << 20))
        with Cutting(server) as cutting:
            place = BucketTarget(cutting.store)
            place.upload(source, "files/a.pt", 7 << 20)
            cutting.body_bytes = 1 << 20
            place.download("files/a.pt", target, 7 << 20)
            assert target.read_bytes() == source.read_bytes()
            # A manifest that is cut short is not taken for a damaged one.
            place.write("sets/x", bytes(2 << 20))
            with pytest.raises(TargetError, match="the connection ended 1048576 bytes before"):
                place.read("sets/x")
            cutting.body_bytes = 0
            with pytest.raises(
                TargetError, match="the connection ended 7340032 bytes before the end"
            ):
                place.download("files/a.pt", target, 7 << 20)

    def test_the_answer_to_the_end_of_an_upload_is_lost(
        self, ceph_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(targets, "_FIRST_PAUSE", 0.01)
        monkeypatch.setattr(multipart_upload, "PART", 5 << 20)
        source, target = tmp_path / "source", tmp_path / "target"
        with Cutting(ceph_server) as cutting:
            cutting.lose_completed = True
            place = BucketTarget(cutting.store)
            for upload in (
                lambda: place.upload(source, "files/a.pt", 12 << 20),
                lambda: place.resume_upload(source, "files/a.pt", 12 << 20, lambda _: None),
            ):
                source.write_bytes(os.urandom(12 << 20))
                upload()
                place.download("files/a.pt", target, 12 << 20)
                assert target.read_bytes() == source.read_bytes()
            assert len(cutting.completed) == 4
            # An upload that somebody else has given up is not taken for one that was completed.
            begun = multipart_upload.MultipartUpload.begin(
                place._request_key, place._store.key("files/a.pt")
            )
            begun.abort()
            with pytest.raises(S3Error, match="NoSuchUpload"):
                begun.complete([f'"{"0" * 32}"'])


class Elsewhere(BaseHTTPRequestHandler):
    """A server that knows another region than the one that was asked for."""

    refusal = 301, "<Code>PermanentRedirect</Code>"

    def do_GET(self) -> None:
        right = "/eu-central-1/s3/" in self.headers["authorization"]
        body = "<ListBucketResult/>" if right else f"<Error>{self.refusal[1]}</Error>"
        self.send_response_only(200 if right else self.refusal[0])
        if self.refusal[0] == 301:
            self.send_header("x-amz-bucket-region", "eu-central-1")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        return


class Malformed(Elsewhere):
    refusal = 400, "<Code>AuthorizationHeaderMalformed</Code><Region>eu-central-1</Region>"


@pytest.mark.parametrize("handler", [Elsewhere, Malformed])
def test_a_copier_in_the_place_of_a_killed_one_finds_the_region(
    monkeypatch: pytest.MonkeyPatch, handler: type[Elsewhere]
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        store = Store("s3://b", "b", credential=Credential("a", "s"))
        if handler is Malformed:
            store = replace(store, endpoint_url=url)
        else:
            monkeypatch.setattr(Store, "base", lambda store: f"{url}/b")
        assert BucketTarget(store).sizes("sets/") == {}
        assert store.located().region == "eu-central-1"
        server.shutdown()


class TestPlace:
    def test_a_manifest_of_very_many_files_comes_back(self, place: BucketTarget) -> None:
        path, sha256 = "samples/rank_0012/epoch_0003/0123456789.json", "0" * 64
        file = File(path, 1, 10**18, 0o600, sha256, object_name("files", path, sha256))
        content = CheckpointManifest(0, 1, (file,) * 120_000).to_json().encode()
        assert len(content) > client.MOST_ANSWER
        place.write("sets/x", content)
        assert place.read("sets/x") == content

    def test_files_come_back_as_they_went(
        self, place: BucketTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Ceph, as AWS, wants parts of at least 5 MiB.
        monkeypatch.setattr(multipart_upload, "PART", 5 << 20)
        place.check()
        for name, size in (("files/a.pt", 12), ("files/empty", 0), ("files/d/b%20c.pt", 13 << 20)):
            source, target = tmp_path / "source", tmp_path / "target"
            source.write_bytes(os.urandom(size))
            place.upload(source, name, size)
            place.download(name, target, size)
            assert target.read_bytes() == source.read_bytes()
        place.write("sets/x", b"manifest")
        assert place.read("sets/x") == b"manifest"
        assert place.sizes("files/") == {
            "files/a.pt": 12,
            "files/empty": 0,
            "files/d/b%20c.pt": 13 << 20,
        }
        place.delete(["files/a.pt", "files/d/b%20c.pt", "files/never"])
        assert set(place.sizes("")) == {"files/empty", "sets/x"}
        with pytest.raises(FileNotFoundError):
            place.read("sets/y")
        with pytest.raises(FileNotFoundError):
            place.download("files/never", tmp_path / "target", 1)

    def test_a_file_that_shrinks_meanwhile_is_not_left_there(
        self, place: BucketTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(multipart_upload, "PART", 5 << 20)
        source = tmp_path / "source"
        source.write_bytes(b"x" * (11 << 20))
        with pytest.raises(TargetError, match="shorter"):
            place.upload(source, "files/a", 14 << 20)
        assert place.sizes("files/") == {}

    def test_an_interrupted_upload_goes_on_with_the_parts_that_are_there(
        self, place: BucketTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(multipart_upload, "PART", 5 << 20)
        source, size = tmp_path / "source", 22 << 20
        content = bytearray(os.urandom(size))
        source.write_bytes(content)
        sent: list[str] = []
        most = 3
        whole = Store.request

        def request(
            store: Store, method: str, key: str, query: Any = None, **more: Any
        ) -> Response:
            if method == "PUT":
                if len(sent) >= most:
                    raise KeyboardInterrupt
                sent.append(query["partNumber"])
            return whole(store, method, key, query, **more)

        monkeypatch.setattr(Store, "request", request)
        first: set[str] = set()
        for name in ("a b/large", "a b/changed", "a b/large2", "files/large"):
            sent.clear()
            with pytest.raises(KeyboardInterrupt):
                place.resume_upload(source, name, size, lambda _: None)
            first = first or set(sent)
        assert place.sizes("") == {}
        # What is missing is sent.
        missing = {"1", "2", "3", "4", "5"} - first
        sent.clear()
        most = 100
        moved: list[int] = []
        place.resume_upload(source, "a b/large", size, moved.append)
        assert (set(sent), sum(moved)) == (missing, size)
        place.download("a b/large", tmp_path / "target", size)
        assert (tmp_path / "target").read_bytes() == content
        # A file that has changed since its upload began.
        content[0] ^= 1
        source.write_bytes(content)
        moved.clear()
        place.resume_upload(source, "a b/changed", size, moved.append)
        assert sum(moved) == size
        place.download("a b/changed", tmp_path / "target", size)
        assert (tmp_path / "target").read_bytes() == content
        # One is left, of another file whose name begins with this one's.
        assert place.discard_unfinished("a b/large", below=False) == set()
        assert place.discard_unfinished("a b", below=True) == {"a b/large2"}
        assert place.discard_unfinished("a b", below=True) == set()
        place.discard_interrupted("files")
        assert place.discard_unfinished("files", below=True) == set()

    def test_a_wrong_key_is_told_by_what_was_tried(self, server: S3Server, tmp_path: Path) -> None:
        url = f"s3://{new_bucket(server)}/x"
        storage = tmp_path / "storage.json"
        storage.write_text(json.dumps(storage_of(server, url, secret_key="wrong")))
        with pytest.raises(TargetError) as caught:
            place_of(url, storage).check()
        text = str(caught.value)
        assert "the test's key" in text
        assert url in text
        assert server.secret not in text
        assert "wrong" not in text


def test_without_a_credential_the_node_has_its_own(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"s3://{new_bucket(s3_server)}/x"
    storage = storage_of(s3_server, url)
    storage["checkpoint"]["credential"] = None
    (tmp_path / "storage.json").write_text(json.dumps(storage))
    place = place_of(url, tmp_path / "storage.json")
    place.check()
    place.write("sets/x", b"y")
    assert place.sizes("sets/") == {"sets/x": 1}
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(TargetError, match=r"no credential|cannot be"):
        place_of(url, tmp_path / "storage.json").check()


BODY = """
import os, sys, time
from pathlib import Path
here = Path(os.environ["FLOW_CHECKPOINT_DIR"])
step = int((here / "last").read_text()) if (here / "last").exists() else 0
print("from", step)
for step in range(step + 1, step + 4):
    (here / f"model {step}.pt").write_bytes(b"%d" % step * 100_000)
    new = here / "last.tmp"
    new.write_text(str(step))
    new.rename(here / "last")
"""


def gang(tmp_path: Path, server: S3Server, url: str, attempt: int, **changes: str) -> RealGang:
    need("own-mounts")
    home = tmp_path / f"nodes{attempt}"
    for node in range(2):
        directory = home / f"i-{node:03}"
        directory.mkdir(parents=True)
        (directory / "storage.json").write_text(json.dumps(storage_of(server, url, **changes)))
    return RealGang(
        home, {"kind": "command", "argv": [sys.executable, "-u", "-c", BODY]}, nodes=2, attempt=attempt,
        processes_per_node=1, task=TASK,
        checkpoint={
            "path": "/flowlite-ckpt", "sync": url, "every": 0.3, "keep": 2, "nodes": "leader", "final_seconds": 30.0,
        },
    )  # fmt: skip


def test_a_gang_goes_on_from_where_another_one_ended(server: S3Server, tmp_path: Path) -> None:
    bucket = new_bucket(server)
    url = f"s3://{bucket}/runs/two words"
    with gang(tmp_path, server, url, 1) as run:
        assert run.run()["outcome"] == "done", run.logs()
        assert run.text(0) == "from 0\n"
        (told,) = [event["text"] for event in run.events if event["kind"] == "checkpoint"]
        assert told.endswith(f"checkpoint: 4 files, 300 kB at {url}")
        assert "ssl" not in run.logs()
        run.assert_nothing_left()
    with gang(tmp_path, server, url, 2) as again:
        assert again.run()["outcome"] == "done", again.logs()
        assert [again.text(0), again.text(1)] == ["from 3\n"] * 2
    listed = server.client().list_objects_v2(Bucket=bucket, Prefix="runs/two words/")["Contents"]
    keys = [each["Key"].removeprefix("runs/two words/") for each in listed]
    names = [name for key in keys if (name := SetName.parse(key)) is not None]
    newest = whole_sets(names)[0].names[0]
    body = (
        server.client()
        .get_object(Bucket=bucket, Key=f"runs/two words/{newest.path}")["Body"]
        .read()
    )
    manifest = CheckpointManifest.from_json(body)
    assert [file.path for file in manifest.files] == [
        "last",
        *(f"model {n}.pt" for n in range(1, 7)),
    ]
    for file in manifest.files:
        assert f"{file.object}" in keys


def test_a_key_that_opens_nothing_fails_the_task_before_go(
    s3_server: S3Server, tmp_path: Path
) -> None:
    url = f"s3://{new_bucket(s3_server)}/x"
    with gang(tmp_path, s3_server, url, 1, secret_key="wrong") as run:
        ended = run.run()
        assert ended["outcome"] == "checks"
        assert "with the test's key" in ended["reason"]
        assert not run.streams


def test_an_outage_that_lasts_may_be_over_in_the_next_attempt(tmp_path: Path) -> None:
    need("own-mounts")
    url, credential = "s3://bucket/x", {"access_key": "a", "secret_key": "b"}
    # Nobody listens there.
    opened = {"url": url, "endpoint_url": "http://127.0.0.1:9", "region": REGION, "source": "a key"}
    (tmp_path / "i-000").mkdir()
    storage = {"checkpoint": {**opened, "credential": credential}}
    (tmp_path / "i-000" / "storage.json").write_text(json.dumps(storage))
    checkpoint = {
        "path": "/flowlite-ckpt",
        "sync": url,
        "every": 60.0,
        "keep": 2,
        "nodes": "leader",
    }
    with RealGang(
        tmp_path,
        {"kind": "command", "argv": ["true"]},
        nodes=1,
        processes_per_node=1,
        join_timeout=4.0,
        checkpoint={**checkpoint, "final_seconds": 30.0},
    ) as run:
        ended = run.run()
    assert ended["outcome"] == "missing", run.logs()
    assert "checkpoints cannot be kept at s3://bucket/x" in ended["reason"]


def test_the_example_goes_on_from_a_bucket(
    s3_server: S3Server, flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a user runs it, with the credential of his shell."""
    url = f"s3://{new_bucket(s3_server)}/runs/resume"
    root = Path(__file__).resolve().parent.parent.parent
    monkeypatch.setenv("PYTHONPATH", str(root))

    def run() -> list[str]:
        done = subprocess.run(
            [sys.executable, str(root / "examples" / "resume.py"), url],
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()

    first, kept = run()
    assert first in [f"{{'began': {step}, 'epochs': 6}}" for step in (1, 2, 3)]
    assert kept.endswith(f"checkpoint: 6 files, 6 MB at {url}")
    again, _ = run()
    assert again == "{'began': 6, 'epochs': 6}"
    for path in flow_home.rglob("*"):
        if path.is_file() and path.name != "storage.json":
            assert s3_server.secret.encode() not in path.read_bytes(), path
