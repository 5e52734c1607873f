"""The process that holds the buckets of a node: every program that mounts, every refusal, every kind of end."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from flowlite.node.buckets import mount_sidecar as bucket_guard
from flowlite.node.mount_namespace import unmount
from flowlite.node.s3.client import Store
from flowlite.node.system import processes
from tests.components import need
from tests.helpers import eventually
from tests.s3.gate import Gate
from tests.s3.guards import Guard, entry
from tests.s3.servers import RcloneServer, S3Server, free_port

KEYS = {
    "set/a b.txt": b"a blank",
    "set/plus+percent%25&question?equals=#.txt": b"what URLs quote",
    "set/ünïcødé-漢字.txt": "ünïcødé".encode(),
    "set/quote'\"$(echo no)`!*;~.txt": b"what shells quote",
    "set/deep/er/est.bin": bytes(range(256)) * 4096,
    "set/empty": b"",
    "other/not-shown.txt": b"beside the prefix",
    "settled.txt": b"begins like the prefix, and is not below it",
}
LIST = "import os; print(sorted(os.path.relpath(os.path.join(d, f), {0!r}) for d, _, fs in os.walk({0!r}) for f in fs))"

pytestmark = pytest.mark.needs("fuse")


# mount-s3 comes in no package; where it is not, its command line is all that can be tested (test_tools.py).
TOOLS = ["rclone", *(["mount-s3"] if shutil.which("mount-s3") else [])]


@pytest.fixture(params=TOOLS)
def tool(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name != "mount-s3":
        need(name)
    return name


@pytest.fixture
def server(one_s3_server: S3Server) -> S3Server:
    one_s3_server.fill("guarded", KEYS)
    return one_s3_server


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def guard(server: S3Server, home: Path) -> Iterator[Guard]:
    with Guard(home, {"/data": entry(server, "s3://guarded/set")}) as running:
        yield running


def test_every_byte_of_every_key_below_the_prefix(server: S3Server, tool: str, home: Path) -> None:
    with Guard(home, {"/data": entry(server, "s3://guarded/set/")}, tool=tool) as guard:
        (mount,) = guard.mounted()
        assert (mount["path"], mount["tool"]) == ("/data", tool)
        expected = {k.removeprefix("set/"): v for k, v in KEYS.items() if k.startswith("set/")}
        source = mount["source"]
        assert guard.within(LIST.format(source)) == str(sorted(expected))
        digests = {name: hashlib.sha256(body).hexdigest() for name, body in expected.items()}
        read = (
            "import hashlib, json, os\n"
            f"names = {sorted(expected)!r}\n"
            f"print(json.dumps({{n: hashlib.sha256(open(os.path.join({source!r}, n), 'rb').read()).hexdigest() "
            "for n in names}))"
        )
        assert json.loads(guard.within(read)) == digests
        assert guard.end() == 0
        guard.assert_nothing_left()


def test_writing_is_refused(server: S3Server, tool: str, home: Path) -> None:
    with Guard(home, {"/data": entry(server, "s3://guarded/set")}, tool=tool) as guard:
        (mount,) = guard.mounted()
        code = (
            "import os\n"
            f"for how in (lambda: open({mount['source'] + '/new'!r}, 'w'), "
            f"lambda: os.unlink({mount['source'] + '/empty'!r}), "
            f"lambda: os.mkdir({mount['source'] + '/folder'!r})):\n"
            "    try: how(); print('written')\n"
            "    except OSError as error: print(error.errno)\n"
        )
        assert set(guard.within(code).split()) == {"30"}
        assert guard.end() == 0
    assert {each["Key"] for each in listed(server)} == set(KEYS)


def test_no_secret_is_where_others_can_see_it(server: S3Server, tool: str, home: Path) -> None:
    with Guard(home, {"/data": entry(server, "s3://guarded/set")}, tool=tool) as guard:
        guard.mounted()
        running = [guard.process.pid, *guard.programs()]
        assert len(running) == 2
        for pid in running:
            assert server.secret not in Path(f"/proc/{pid}/cmdline").read_text()
            assert server.secret not in Path(f"/proc/{pid}/environ").read_text()
        files = [path for path in home.rglob("*") if path.is_file() and not path.is_symlink()]
        holders = [path for path in files if server.secret.encode() in path.read_bytes()]
        assert holders
        assert {path.stat().st_mode & 0o077 for path in holders} == {0}
        assert guard.end() == 0


def test_a_session_is_handed_over(server: S3Server, tool: str, home: Path) -> None:
    with Gate(server, token="a/session+token==") as gate:
        one = entry(server, "s3://guarded/set", endpoint_url=gate.endpoint)
        one["credential"] = {**one["credential"], "session_token": "a/session+token=="}
        with Guard(home, {"/data": one}, tool=tool) as guard:
            (mount,) = guard.mounted()
            read = f"print(open({mount['source'] + '/a b.txt'!r}).read())"
            assert guard.within(read) == "a blank"
            assert guard.end() == 0
        assert gate.passed > 2
        with Guard(
            home / "2",
            {"/data": {**one, "credential": {**one["credential"], "session_token": "x"}}},
        ) as guard:
            assert "ExpiredToken" in guard.hear()["why"]


def test_several_buckets_at_once(server: S3Server, home: Path) -> None:
    server.fill("guarded-two", {"second": b"two"})
    storage = {
        "/one": entry(server, "s3://guarded/set/deep"),
        "/two": entry(server, "s3://guarded-two"),
    }
    with Guard(home, storage) as guard:
        mounts = {each["path"]: each["source"] for each in guard.mounted()}
        assert guard.within(LIST.format(mounts["/one"])) == "['er/est.bin']"
        assert guard.within(LIST.format(mounts["/two"])) == "['second']"
        assert guard.end() == 0
        guard.assert_nothing_left()


def test_a_public_bucket_needs_no_credential(home: Path) -> None:
    with RcloneServer(public=True) as public:
        public.fill("open", {"hello": b"world"})
        storage = {"/data": entry(public, "s3://open", credential=None, source="no credential")}
        with Guard(home, storage) as guard:
            (mount,) = guard.mounted()
            assert guard.within(f"print(open({mount['source'] + '/hello'!r}).read())") == "world"
            assert guard.end() == 0


class Metadata:
    """What answers on a machine of EC2 when its software asks for the role: only with a token of its own."""

    def __init__(self, server: S3Server, ends: str = "2099-01-01T00:00:00Z") -> None:
        role = {
            "Code": "Success",
            "Type": "AWS-HMAC",
            "LastUpdated": "2020-01-01T00:00:00Z",
            "AccessKeyId": server.key,
            "SecretAccessKey": server.secret,
            "Token": "role-session",
            "Expiration": ends,
        }
        base = "/latest/meta-data/iam/security-credentials/"
        answers = {base: b"node-role", f"{base}node-role": json.dumps(role).encode()}

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                asked = self.headers.get("x-aws-ec2-metadata-token-ttl-seconds")
                self._answer(
                    b"a-token" if asked else b"",
                    {"x-aws-ec2-metadata-token-ttl-seconds": asked or "0"},
                )

            def do_GET(self) -> None:
                known = self.headers.get("x-aws-ec2-metadata-token") == "a-token"
                self._answer(answers.get(self.path, b"") if known else b"", {})

            def _answer(self, body: bytes, headers: dict[str, str]) -> None:
                self.send_response(200 if body else 401)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Metadata:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def test_the_nodes_own_role_opens_what_is_not_public(server: S3Server, home: Path) -> None:
    storage = {"/data": entry(server, "s3://guarded/set", credential=None, source="none")}
    with (
        Metadata(server) as metadata,
        Guard(
            home, storage, tool="rclone", AWS_EC2_METADATA_SERVICE_ENDPOINT=metadata.endpoint
        ) as guard,
    ):
        (mount,) = guard.mounted()
        assert mount["credential"] == "the node's own role node-role"
        assert guard.within(f"print(open({mount['source'] + '/a b.txt'!r}).read())") == "a blank"
        files = [path for path in home.rglob("*") if path.is_file()]
        assert not [path for path in files if server.secret.encode() in path.read_bytes()]
        assert guard.end() == 0


def test_a_credential_of_the_node_itself(server: S3Server, home: Path) -> None:
    storage = {"/data": entry(server, "s3://guarded/set", credential=None, source="none")}
    own = {"AWS_ACCESS_KEY_ID": server.key, "AWS_SECRET_ACCESS_KEY": server.secret}
    with Guard(home, storage, **own) as guard:
        (mount,) = guard.mounted()
        assert mount["credential"] == "the variables AWS_ACCESS_KEY_ID, … of the node"
        assert guard.end() == 0


# What cannot be read


def refusal(home: Path, storage: dict[str, Any], **options: Any) -> str:
    with Guard(home, storage, **options) as guard:
        told = guard.hear()
        assert told["event"] == "failed", told
        assert guard.process.wait(90) == 1
        guard.assert_nothing_left()
        return str(told["why"])


def test_a_wrong_secret_is_named_by_its_source_only(server: S3Server, home: Path) -> None:
    wrong = {"access_key": server.key, "secret_key": "not-this-one"}
    why = refusal(home, {"/data": entry(server, "s3://guarded/set", credential=wrong)})
    assert "s3://guarded/set of /data cannot be read from here: SignatureDoesNotMatch" in why
    assert f"Tried: {server.endpoint}, with the credential of the test." in why
    assert "The secret key does not belong to the access key" in why
    assert "not-this-one" not in why


def test_an_unknown_key(server: S3Server, home: Path) -> None:
    wrong = {"access_key": "nobody", "secret_key": "not-this-one"}
    why = refusal(home, {"/data": entry(server, "s3://guarded/set", credential=wrong)})
    assert "InvalidAccessKeyId" in why
    assert "does not know this access key" in why


def test_no_credential_where_one_is_needed(server: S3Server, home: Path) -> None:
    storage = {"/data": entry(server, "s3://guarded/set", credential=None, source="no credential")}
    why = refusal(home, storage)
    assert "with no credential" in why
    assert "give a credential (AWS_ACCESS_KEY_ID, AWS_PROFILE), or the node a role" in why


def test_a_bucket_that_is_not_there(server: S3Server, home: Path) -> None:
    why = refusal(home, {"/data": entry(server, "s3://guarded-not")})
    assert "NoSuchBucket" in why
    assert "no such bucket at this endpoint" in why


def test_a_prefix_below_which_nothing_lies_names_what_is_there(
    server: S3Server, home: Path
) -> None:
    why = refusal(home, {"/data": entry(server, "s3://guarded/sett")})
    assert "nothing lies below that prefix; what is there: guarded/other/, guarded/set/" in why


def test_an_object_is_no_directory(server: S3Server, home: Path) -> None:
    why = refusal(home, {"/data": entry(server, "s3://guarded/settled.txt")})
    assert "it is an object" in why
    assert "mount s3://guarded, and read settled.txt there" in why


def test_nobody_listens_at_the_endpoint(server: S3Server, home: Path) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    why = refusal(home, {"/data": entry(server, "s3://guarded", endpoint_url=nowhere)})
    assert f"{nowhere} does not answer as S3: [Errno 111] Connection refused" in why
    assert "Can this node reach it?" in why


def test_something_else_listens_at_the_endpoint(server: S3Server, home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def greet() -> None:
            while True:
                try:
                    connection, _ = other.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

        threading.Thread(target=greet, daemon=True).start()
        endpoint = f"http://127.0.0.1:{other.getsockname()[1]}"
        why = refusal(home, {"/data": entry(server, "s3://guarded", endpoint_url=endpoint)})
        assert "does not answer as S3" in why
        other.shutdown(socket.SHUT_RDWR)


def test_a_tool_that_is_not_installed(server: S3Server, home: Path) -> None:
    why = refusal(home, {"/data": entry(server, "s3://guarded")}, tool="goofys")
    assert "FLOW_S3_TOOL is 'goofys', which is not installed here" in why


def test_a_program_that_fails_gives_way_to_the_next_and_all_are_named(
    server: S3Server, home: Path
) -> None:
    broken = home / "bin"
    broken.mkdir()
    (broken / "mount-s3").write_text("#!/bin/sh\necho 'broken mount-s3' >&2\nexit 3\n")
    (broken / "mount-s3").chmod(0o755)
    path = f"{broken}:{os.environ['PATH']}"
    one = {"/data": entry(server, "s3://guarded/set")}
    if shutil.which("rclone"):
        with Guard(home / "next", one, PATH=path) as guard:
            assert guard.mounted()[0]["tool"] == "rclone"
            assert guard.end() == 0
    (broken / "rclone").write_text("#!/bin/sh\nexit 0\n")
    (broken / "rclone").chmod(0o755)
    why = refusal(home / "none", one, PATH=path)
    assert f"{broken}/mount-s3: it ended with 3; broken mount-s3" in why
    assert f"{broken}/rclone: it ended with 0" in why
    assert "though it can be read" in why


# Ends


@pytest.mark.needs("mounts")
def test_nothing_of_it_is_seen_by_others_where_mounts_can_be_private(guard: Guard) -> None:
    assert guard.hear()["private"]
    assert guard.programs()
    assert unmount.mounted_below(guard.paths.home) == []


def test_its_agent_is_killed(guard: Guard) -> None:
    guard.mounted()
    assert guard.end() == 0
    guard.assert_nothing_left()


def test_it_is_killed_itself(guard: Guard) -> None:
    guard.mounted()
    programs = guard.programs()
    guard.process.kill()
    guard.process.wait(90)
    eventually(lambda: not any(processes.is_alive(pid) for pid in programs), what="programs gone")
    unmount.unmount_below(guard.paths.home)
    assert unmount.mounted_below(guard.paths.home) == []


def test_it_is_asked_to_end(guard: Guard) -> None:
    guard.mounted()
    guard.process.terminate()
    assert guard.process.wait(90) == 0
    guard.assert_nothing_left()


def test_its_agent_goes_while_it_still_mounts(server: S3Server, home: Path) -> None:
    server.pause()
    try:
        with Guard(home, {"/data": entry(server, "s3://guarded")}) as guard:
            assert guard.end() == 0
            guard.assert_nothing_left()
    finally:
        server.resume()


def test_a_program_that_is_killed_is_told_of_and_reading_fails(guard: Guard) -> None:
    (mount,) = guard.mounted()
    (program,) = guard.programs()
    os.kill(program, signal.SIGKILL)
    told = guard.hear()
    assert told["event"] == "trouble"
    assert "/data (s3://guarded/set) is lost: rclone ended (signal 9)" in told["text"]
    read = (
        f"try: open({mount['source'] + '/empty'!r})\nexcept OSError as error: print(error.strerror)"
    )
    assert guard.within(read) == "Transport endpoint is not connected"
    assert guard.end() == 0
    guard.assert_nothing_left()


def test_a_file_held_open_does_not_keep_the_bucket(guard: Guard) -> None:
    (mount,) = guard.mounted()
    hold = (
        f"f = open({mount['source'] + '/deep/er/est.bin'!r}, 'rb'); f.read(10); print('open', flush=True)\n"
        "import subprocess, os\n"
        "if os.fork() == 0:\n"
        "    os.dup2(os.open('/dev/null', os.O_RDWR), 1); os.dup2(1, 2); import time; time.sleep(30); os._exit(0)\n"
    )
    assert guard.within(hold) == "open"
    assert guard.end() == 0
    guard_gone = unmount.mounted_below(guard.paths.home)
    assert guard_gone == []


def test_unmounting_below_a_directory_leaves_nothing_and_deletes_nothing(
    server: S3Server, tmp_path: Path
) -> None:
    """What a provider does before it deletes the directory of a node whose every process was killed."""
    point = tmp_path / "home" / "a1" / "with blank" / "data"
    point.mkdir(parents=True)
    config = tmp_path / "rclone.conf"
    config.write_text(
        f"[s3]\ntype=s3\nprovider=Other\nendpoint={server.endpoint}\naccess_key_id={server.key}\n"
        f"secret_access_key={server.secret}\nforce_path_style=true\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
    program = subprocess.Popen(
        ["rclone", "mount", "s3:guarded", str(point), "--config", str(config)], env=environment
    )
    eventually(lambda: unmount.is_mounted(point), what="the mount")
    program.kill()
    program.wait(90)
    assert unmount.mounted_below(tmp_path) == [str(point)]
    assert unmount.unmount_below(tmp_path / "home") == []
    assert unmount.mounted_below(tmp_path) == []
    shutil.rmtree(tmp_path / "home")
    assert {each["Key"] for each in listed(server)} == set(KEYS)


def listed(server: S3Server) -> list[dict[str, Any]]:
    return list(server.client().list_objects_v2(Bucket="guarded")["Contents"])


def test_a_server_that_falls_silent_is_told_of_once_and_so_is_its_return(
    server: S3Server, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The programs that mount wait for minutes, and say nothing."""
    said: list[str] = []
    bucket = bucket_guard.Bucket(
        "/data", Store.of(entry(server, "s3://guarded/set")), home / "data", home / "tool"
    )
    monkeypatch.setattr(bucket_guard, "report", lambda _, text: said.append(text))
    ask = partial(bucket_guard.ask, bucket)
    ask()
    assert said == []
    server.pause()
    try:
        # A server that answers may take its time.
        with monkeypatch.context() as impatient:
            impatient.setattr(bucket_guard, "ANSWER_SECONDS", 0.3)
            ask()
            ask()
    finally:
        server.resume()
    ask()
    assert len(said) == 2
    assert said[0].startswith("/data (s3://guarded/set) cannot be read: ")
    assert said[1] == "/data (s3://guarded/set) can be read again"
