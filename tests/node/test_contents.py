"""Contents that nodes get from one another: those of the task, to its members, and only with the right hash."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowlite.node.contents import fetch as fetching
from flowlite.node.contents import serve as serving
from flowlite.node.protocol import tls
from flowlite.node.protocol.framing import CHECK_ROLE, CONTENTS_ROLE, Hello, WireError
from flowlite.node.protocol.stream import Stream, ask
from flowlite.supervise.attempt import certificates
from tests.helpers import eventually

SECRET = b"the secret of the task, as it is"
CERTIFICATE = certificates.make()
OTHER_CERTIFICATE = certificates.make()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Node:
    """A node's directories, and the orders that the supervisor would give it."""

    def __init__(self, directory: Path, name: str) -> None:
        self.name = name
        self.home, self.blobs = directory / name, directory / name / "blobs"
        self.blobs.mkdir(parents=True)

    def keep(self, *contents: bytes) -> None:
        for content in contents:
            (self.blobs / sha256(content)).write_bytes(content)

    def order(self, contents: list[bytes], **gang: Any) -> dict[str, Any]:
        assert CERTIFICATE.key is not None
        facts = {
            "task": "t1",
            "attempt": 1,
            "peer": self.name,
            "roster": ["a", "b", "c"],
            "bind": "127.0.0.1",
            "secret": SECRET.hex(),
            "certificate": CERTIFICATE.certificate.decode(),
            "key": CERTIFICATE.key.decode(),
        }
        return {
            "home": str(self.home),
            "blobs": str(self.blobs),
            "project": False,
            "more": {sha256(each): len(each) for each in contents},
            "gang": {**facts, **gang},
        }

    def serve(self, contents: list[bytes]) -> tuple[str, int]:
        return "127.0.0.1", serving.ContentServer(self.order(contents)).port

    def fetch(self, contents: list[bytes], *peers: tuple[str, int], **gang: Any) -> dict[str, Any]:
        return fetching.fetch({**self.order(contents, **gang), "peers": peers})

    def files(self) -> set[str]:
        """All files of the node; nothing of a distribution may be left beside the contents."""
        return {path.name for path in self.home.rglob("*") if path.is_file()}


@pytest.fixture
def node(tmp_path: Path) -> Callable[[str], Node]:
    return lambda name: Node(tmp_path, name)


def test_a_project_and_more_come_by_hash(node: Callable[[str], Node]) -> None:
    one, other = node("a"), node("b")
    # More than fit into one request, an empty one, and one of several blocks.
    files = [b"%d" % number for number in range(150)] + [b"", os.urandom(3_000_000)]
    call = os.urandom(1_000_000)
    manifest = {
        "files": [[f"f{n}", sha256(each), len(each), False] for n, each in enumerate(files)],
        "links": {},
        "directories": [],
    }
    for each in (one, other):
        (each.home / "project.json").write_text(json.dumps(manifest))
    one.keep(*files, call)
    order = {"project": True}
    port = serving.ContentServer({**one.order([call]), **order}).port
    asked = {**other.order([call]), **order, "peers": [("127.0.0.1", port)]}
    before = fetching.fetch({**asked, "peers": []})
    assert before == {
        "lacking": 153,
        "bytes": sum(map(len, files)) + len(call),
        "troubles": [],
    }
    assert fetching.fetch(asked) == {"lacking": 0, "bytes": 0, "troubles": [""]}
    for content in (*files, call):
        assert (other.blobs / sha256(content)).read_bytes() == content
    assert other.files() == {*map(sha256, files), sha256(call), "project.json"}
    # What is here is not asked for again.
    assert fetching.fetch(asked)["troubles"] == []


def test_wrong_bytes_are_refused_and_come_from_another_node(node: Callable[[str], Node]) -> None:
    corrupt, honest, other = node("a"), node("c"), node("b")
    contents = [b"first", b"right" * 100_000, b"last"]
    corrupt.keep(*contents)
    honest.keep(*contents)
    (corrupt.blobs / sha256(contents[1])).write_bytes(b"wrong" * 100_000)
    peer = corrupt.serve(contents)
    found = other.fetch(contents, peer)
    assert found["lacking"] == 2
    assert found["troubles"] == ["sent a content that does not have its hash"]
    assert other.files() == {sha256(b"first")}
    found = other.fetch(contents, peer, honest.serve(contents))
    assert (found["lacking"], found["troubles"][1]) == (0, "")
    assert (other.blobs / sha256(contents[1])).read_bytes() == contents[1]


def test_what_a_node_lacks_itself_comes_from_another(node: Callable[[str], Node]) -> None:
    half, whole, other = node("a"), node("c"), node("b")
    contents = [b"one", b"two", b"three"]
    half.keep(b"one", b"three")
    (half.blobs / sha256(b"two")).write_bytes(b"of another size")
    whole.keep(*contents)
    found = other.fetch(contents, half.serve(contents), whole.serve(contents))
    assert found["lacking"] == 0
    assert found["troubles"] == ["lacks some of the contents", ""]


def test_a_node_that_dies_or_is_not_there_is_replaced(
    node: Callable[[str], Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    dying, whole, other = node("a"), node("c"), node("b")
    contents = [os.urandom(2_000_000)]
    dying.keep(*contents)
    whole.keep(*contents)
    sent = Stream.send

    def die_on_the_way(self: Stream, data: bytes) -> None:
        if len(data) > 100_000:
            sent(self, data[:1000])
            self.network.close()
            raise OSError("dead")
        sent(self, data)

    with socket.create_server(("127.0.0.1", 0)) as nobody:
        closed = nobody.getsockname()[1]
    monkeypatch.setattr(Stream, "send", die_on_the_way)
    peers = [("127.0.0.1", closed), dying.serve(contents)]
    found = other.fetch(contents, *peers)
    assert found["lacking"] == 1
    assert "cannot be reached" in found["troubles"][0]
    assert "hung up" in found["troubles"][1] or "sends no more" in found["troubles"][1]
    assert other.files() == set()
    monkeypatch.setattr(Stream, "send", sent)
    assert other.fetch(contents, *peers[:1], whole.serve(contents))["lacking"] == 0


@pytest.mark.parametrize(
    "gang",
    [
        {"secret": bytes(32).hex()},
        {"task": "t2"},
        {"attempt": 2},
        {"peer": "nobody"},
        {"certificate": OTHER_CERTIFICATE.certificate.decode()},
    ],
    ids=lambda gang: next(iter(gang)),
)
def test_only_members_of_the_gang_get_anything(
    node: Callable[[str], Node], gang: dict[str, Any]
) -> None:
    one, other = node("a"), node("b")
    one.keep(b"private")
    found = other.fetch([b"private"], one.serve([b"private"]), **gang)
    assert found["lacking"] == 1
    assert found["troubles"][0]
    assert other.files() == set()


def stream_to(node: Node, port: int, role: str = CONTENTS_ROLE) -> Stream:
    certificate = node.home / "certificate"
    certificate.write_bytes(CERTIFICATE.certificate)
    network = socket.create_connection(("127.0.0.1", port))
    stream = Stream(network, tls.client(certificate)())
    ask(stream, SECRET, Hello("t1", role, "b", 1))
    return stream


def test_a_peer_of_another_service_is_turned_away(node: Callable[[str], Node]) -> None:
    one = node("a")
    with pytest.raises((WireError, OSError)):
        stream_to(one, one.serve([b"private"])[1], CHECK_ROLE)


@pytest.mark.parametrize("name", ["f" * 64, "../project.json", "/etc/hostname", "\x00", "\xff"])
def test_nothing_but_contents_of_the_task_is_given_away(
    node: Callable[[str], Node], name: str
) -> None:
    one = node("a")
    one.keep(b"of the task")
    # This is in the same cache, for another task.
    (one.blobs / ("f" * 64)).write_bytes(b"of another task")
    (one.home / "project.json").write_text("{}")
    stream = stream_to(one, one.serve([b"of the task"])[1])
    stream.send(name.encode("latin-1") + b"\n")
    with pytest.raises((WireError, OSError)):
        stream.read_exactly(1)


def test_a_connection_gets_each_content_once(node: Callable[[str], Node]) -> None:
    one = node("a")
    one.keep(b"12345")
    stream = stream_to(one, one.serve([b"12345"])[1])
    name = sha256(b"12345").encode()
    stream.send(name + b"\n")
    assert stream.read_exactly(13) == (5).to_bytes(8, "big") + b"12345"
    stream.send(name + b"\n")
    with pytest.raises((WireError, OSError)):
        stream.read_exactly(1)


def test_the_server_ends_with_its_input_and_leaves_no_secret(node: Callable[[str], Node]) -> None:
    one, other = node("a"), node("b")
    one.keep(b"content")
    argv = [sys.executable, "-m", "flowlite.node"]
    server = subprocess.Popen(
        [*argv, "contents-serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        server.stdin.write(json.dumps(one.order([b"content"])).encode() + b"\n")
        server.stdin.flush()
        port = json.loads(server.stdout.readline())["port"]
        assert one.files() == {sha256(b"content")}
        order = {**other.order([b"content"]), "peers": [("127.0.0.1", port)]}
        asked = json.dumps(order).encode()
        done = subprocess.run(
            [*argv, "contents-fetch"], input=asked, capture_output=True, check=True
        )
        assert json.loads(done.stdout)["lacking"] == 0
        server.stdin.close()
        assert eventually(lambda: server.poll() is not None)
        assert server.returncode == 0
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def test_a_node_that_cannot_write_says_so(node: Callable[[str], Node], tmp_path: Path) -> None:
    one, other = node("a"), node("b")
    one.keep(b"content")
    other.blobs.rmdir()
    other.blobs.write_text("in the way")
    with pytest.raises(OSError, match="directory"):
        other.fetch([b"content"], one.serve([b"content"]))
