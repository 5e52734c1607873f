"""Hostile answers: without end, of any size and depth. Client and supervisor stay small, and do not wait for ever."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from flowlite.node.protocol import mux_framing
from flowlite.node.serialization import envelope, result_file
from tests.components import need
from tests.connect.sshd import Sshd, scratch
from tests.security.hostile_hosts import HOSTS
from tests.tasks_made_by_hand import HandMade

pytestmark = pytest.mark.slow
MOST_MIB = 150
# Generous for a busy machine; what has no bound never ends.
SECONDS = 120

DEEP = "[" * 300_000
MANY = "[" + "{}," * 500_000 + "{}]"


def run(
    case: str, *arguments: object, home: Path | None = None, most: int = MOST_MIB
) -> dict[str, Any]:
    """Has a process of its own take the answer; gives what came of it."""
    environment = dict(os.environ)
    environment.pop("SSH_AUTH_SOCK", None)
    if home is not None:
        environment["FLOW_HOME"] = str(home)
    ended = subprocess.run(
        [sys.executable, "-m", "tests.security.hostile_client", case, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env=environment,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    told: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    assert told["mib"] < most, told
    return told


# A host


@pytest.fixture
def hostile_host(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A host whose sshd runs this script whatever is asked; gives the configuration that leads there."""
    need("sshd")
    made: list[Sshd] = []

    def make(script: str) -> Path:
        directory = scratch()
        path = directory / "answer.sh"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}")
        made.append(Sshd(directory, options={"ForceCommand": f"/bin/sh {path}"}).start())
        config = tmp_path / "ssh_config"
        config.write_text(made[-1].config_for("box"))
        return config

    yield make
    for server in made:
        server.stop()
        shutil.rmtree(server.directory)


@pytest.mark.parametrize(("case", "script", "said"), HOSTS.values(), ids=HOSTS)
def test_what_a_host_says(
    case: str, script: str, said: str, hostile_host: Callable[[str], Path], tmp_path: Path
) -> None:
    told = run(case, hostile_host(script), home=tmp_path / "flow")
    assert said in told["told"]


# A node


def _sparse(path: Path, size: int, end: bytes = b"") -> None:
    """A file that is as large as it says and takes no room."""
    with open(path, "wb") as file:
        file.truncate(size - len(end))
        file.seek(0, os.SEEK_END)
        file.write(end)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    directory = tmp_path / "node"
    (directory / "a1").mkdir(parents=True)
    return directory


def test_an_agents_log_of_gigabytes(node: Path, tmp_path: Path) -> None:
    (node / "a1" / "agent.pid").write_text('{"pid": 999999999, "start": "1"}')
    _sparse(node / "a1" / "agent.log", 1_500_000_000, b"\nlast words\n")
    assert "last words" in run("probe", node, home=tmp_path / "flow")["told"]
    assert "the end of it" in run("agent_log", node, home=tmp_path / "flow")["told"]


def test_an_agents_log_of_control_characters(node: Path, tmp_path: Path) -> None:
    (node / "a1" / "agent.log").write_bytes(b"\x1b\x08" * 10_000_000)
    assert "the end of it" in run("agent_log", node, home=tmp_path / "flow")["told"]


def test_a_report_of_gigabytes(node: Path, tmp_path: Path) -> None:
    _sparse(node / "a1" / "report.json", 1_500_000_000)
    assert run("report", node, home=tmp_path / "flow")["told"] == "None"


@pytest.mark.parametrize(
    "text", [DEEP, MANY, '{"workers": ' + MANY + "}"], ids=["deep", "many", "in it"]
)
def test_a_report_that_is_a_bomb(text: str, node: Path, tmp_path: Path) -> None:
    (node / "a1" / "report.json").write_text(text)
    run("report", node, home=tmp_path / "flow")


def test_a_process_file_without_end(node: Path, tmp_path: Path) -> None:
    (node / "a1" / "agent.pid").symlink_to("/dev/zero")
    assert "not as an agent writes it" in run("probe", node, home=tmp_path / "flow")["told"]


@pytest.mark.parametrize("what", ["a device", "a pipe", "a deep document", "a large file"])
def test_what_looks_at_a_task_on_its_node_does_not_hang(what: str, tmp_path: Path) -> None:
    homes = []
    for name in ("agent.pid", "env.json", "agent.json", "r0.pid"):
        path = tmp_path / f"with {name}" / "a1" / name
        path.parent.mkdir(parents=True)
        homes.append(path.parent.parent)
        if what == "a device":
            path.symlink_to("/dev/zero")
        elif what == "a pipe":
            os.mkfifo(path)
        elif what == "a deep document":
            path.write_text(DEEP)
        else:
            _sparse(path, 1_500_000_000)
    assert run("on_the_node", *homes)["told"] == "looked at 4"


# A mux server

_MUX_SERVER = """\
import os, struct, sys, time
def frame(kind, stream, payload=b""):
    return struct.pack(">BII", kind, stream, len(payload)) + payload + b"\\n"
def say(data):
    while data:
        data = data[os.write(1, data):]
OUT, ERR, DONE = {OUT}, {ERR}, {DONE}
GREETING = {GREETING!r}
FACTS = frame(DONE, 0, b'{{"host": "n1", "pid": 1, "python": "3", "daemon": null}}')
"""
_FLOOD = "say(GREETING + FACTS)\nwhile True:\n    say(frame({kind}, 1, bytes(65536)))\n"
MUX_SERVERS: dict[str, tuple[str, str, str]] = {
    "noise before it begins": (
        "step_run",
        "while True:\n    say(bytes(65536))",
        "is longer than 1 MiB",
    ),
    "output without end": ("step_run", _FLOOD.format(kind="OUT"), "node n1"),
    "complaints without end": ("step_run", _FLOOD.format(kind="ERR"), "node n1"),
    "what nobody takes": ("step_idle", _FLOOD.format(kind="OUT"), "sends more than it may"),
    "frames without content": (
        "step_idle",
        "say(GREETING + FACTS)\nwhile True:\n    say(frame(OUT, 1) * 5000)",
        "sends more than it may",
    ),
    "a frame of 64 MB": (
        "step_run",
        "say(GREETING + FACTS + frame(OUT, 1, bytes(64 << 20)))\ntime.sleep(60)",
        "begins no frame",
    ),
    "a deep document": (
        "step_run",
        "say(GREETING + frame(DONE, 0, b'[' * 300000))\ntime.sleep(60)",
        "nested too deeply",
    ),
    "an end that is a deep document": (
        "step_run",
        "say(GREETING + FACTS)\nwhile True:\n    say(frame(DONE, 1, b'[' * 300000))\n    time.sleep(0.1)",
        "nested too deeply",
    ),
    "an exit status that is none": (
        "step_run",
        'say(GREETING + FACTS)\nwhile True:\n    say(frame(DONE, 1, b\'{"code": "x"}\'))\n    time.sleep(0.1)',
        "code is not a whole number",
    ),
}


@pytest.mark.parametrize(("case", "script", "said"), MUX_SERVERS.values(), ids=MUX_SERVERS)
def test_what_a_mux_server_says(case: str, script: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "mux_server.py"
    head = _MUX_SERVER.format(
        OUT=mux_framing.OUT,
        ERR=mux_framing.ERR,
        DONE=mux_framing.DONE,
        GREETING=mux_framing.GREETING,
    )
    path.write_text(head + script)
    assert said in run(case, path, home=tmp_path / "flow")["told"]


# Logs


def _log(made: HandMade, blocks: Iterator[bytes]) -> None:
    made.write(0, b"")
    with open(made.paths.stream(1, 0, 0, "out"), "ab") as file:
        for block in blocks:
            file.write(block)


LOGS: dict[str, Callable[[], Iterator[bytes]]] = {
    "a line of 80 MB": lambda: (b"x" * (1 << 20) for _ in range(80)),
    "a line of 50 MB that is no text": lambda: (
        os.urandom(1 << 20).replace(b"\n", b"") for _ in range(50)
    ),
    "a progress bar of 50 MB": lambda: (b"%d%%\r" % n * 50_000 for n in range(250)),
    "a line of 4 MB of control characters": lambda: (b"\x1b\x08" * (1 << 19) for _ in range(4)),
    "a line of 30 MB with an emoji": lambda: ("😀".encode() + b"x" * (1 << 20) for _ in range(30)),
    "many lines of nothing": lambda: (b"\n" * (1 << 18) for _ in range(2)),
}


@pytest.mark.parametrize(
    "words", [(), ("--json",), ("--tail", "200")], ids=["text", "json", "tail"]
)
@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)
def test_logs_of_any_form(
    log: Callable[[], Iterator[bytes]], words: tuple[str, ...], flow_home: Path
) -> None:
    made = HandMade("big", nodes=1, per_node=1)
    (made.paths.directory / "secrets.json").write_text(json.dumps({"TOKEN": "hunter2-token"}))
    _log(made, log())
    made.end()
    assert run("flow", "logs", "big", *words, home=flow_home)["told"].startswith("0: ")


@pytest.mark.slow
def test_a_line_of_300_megabytes(flow_home: Path) -> None:
    made = HandMade("big", nodes=1, per_node=1)
    _log(made, (b"x" * (1 << 20) for _ in range(300)))
    made.end()
    assert run("flow", "logs", "big", home=flow_home)["told"].startswith("0: ")


def test_an_index_of_many_records(flow_home: Path) -> None:
    made = HandMade("big", nodes=1, per_node=1)
    _log(made, iter([b"line\n" * 1000]))
    record = struct.pack("<Qd", 7, 1e9) * (1 << 16)
    with open(f"{made.paths.stream(1, 0, 0, 'out')}.idx", "ab") as file:
        for _ in range(40):
            file.write(record)
    made.end()
    assert run("flow", "logs", "big", "--tail", "3", home=flow_home)["told"].startswith("0: ")


def test_a_line_without_end_from_a_command_on_all_nodes(tmp_path: Path) -> None:
    told = run("ssh_lines", 200_000_000, home=tmp_path / "flow")["told"]
    assert told.endswith("characters")


# Results


def _exception(path: Path, **header: Any) -> None:
    """The result file of a worker that raised, as a hostile node makes it: with a header of any size."""
    text = json.dumps(
        {"format": 1, "python": result_file.PYTHON, "kind": "exception", "parts": [], **header}
    ).encode()
    head = struct.pack("<8sI", envelope.SEALED, len(text)) + text
    data = head + bytes(-len(head) % 64)
    path.write_bytes(data + envelope._seal_of([data]))


HEADERS: dict[str, dict[str, Any]] = {
    "a text of 60 MB": {"message": "x" * 60_000_000},
    "a document of 45 MB": {"more": [[]] * 15_000_000},
    "as large as it may be": {"traceback": "\x1b" * 600_000, "message": "\x9b" * 50_000},
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_the_head_of_a_result(header: dict[str, Any], flow_home: Path) -> None:
    made = HandMade("odd", nodes=1, per_node=1)
    _exception(made.paths.result(1, 0), type="evil.Error", **header)
    made.fails(0, {"kind": "exception", "type": "evil.Error", "message": "no"}, first=True, code=1)
    made.end("failed", "first failure")
    assert run("flow", "result", "odd", home=flow_home)["told"].startswith("1: ")


def test_a_value_of_a_few_bytes(flow_home: Path) -> None:
    value: Any = "x"
    for _ in range(34):
        value = [value, value]
    made = HandMade("odd", nodes=1, per_node=1)
    made.returns(0, value)
    made.end()
    for words in ((), ("--json",)):
        assert run("flow", "result", "odd", *words, home=flow_home)["told"].startswith("0: ")


# A leader


def test_a_leader_that_reports_without_end(flow_home: Path) -> None:
    assert "nothing more of it is kept" in run("leader_events", 400, home=flow_home)["told"]


# A cloud


@contextmanager
def _cloud(headers: dict[str, str], blocks: Callable[[], Iterator[bytes]]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.do_GET()

        do_PUT = do_POST

        def do_GET(self) -> None:
            self.send_response(200)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            try:
                for block in blocks():
                    self.wfile.write(block)
            except OSError:
                return

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def _without_end() -> Iterator[bytes]:
    while True:
        yield bytes(65536)


CLOUDS: dict[str, tuple[dict[str, str], Callable[[], Iterator[bytes]], str]] = {
    "an answer without end": ({}, _without_end, "longer than"),
    "an answer that is compressed": (
        {"Content-Encoding": "gzip"},
        lambda: iter([gzip.compress(bytes(100_000_000))]),
        "compressed",
    ),
    "a deep document": ({}, lambda: iter([DEEP.encode()]), "something else than JSON"),
    "a document of 15 MB": ({}, lambda: iter([b"[" * 15_000_000]), "longer than"),
}


@pytest.mark.parametrize(("headers", "blocks", "said"), CLOUDS.values(), ids=CLOUDS)
def test_what_mithril_says(
    headers: dict[str, str], blocks: Callable[[], Iterator[bytes]], said: str, tmp_path: Path
) -> None:
    pytest.importorskip("httpx")
    with _cloud(headers, blocks) as url:
        assert said in run("mithril", url, home=tmp_path / "flow")["told"]


def test_what_mithril_lists() -> None:
    """Pages without end, each another one."""
    pytest.importorskip("httpx")
    cursors = iter(range(10**9))

    def page() -> Iterator[bytes]:
        data = [{"name": "x" * 100, "of": [{}] * 5}] * 4000
        yield json.dumps({"data": data, "next_cursor": str(next(cursors))}).encode()

    with _cloud({}, page) as url:
        assert "do not end" in run("mithril_pages", url)["told"]


AWS: dict[str, tuple[Callable[[], Iterator[bytes]], str]] = {
    "an answer without end": (_without_end, "longer than"),
    "a document of many elements": (
        lambda: iter([b"<DescribeInstancesResponse>" + b"<a/>" * 2_000_000]),
        "longer than",
    ),
    "more elements than there may be": (
        lambda: iter([b"<a>" + b"<a/>" * 1_040_000 + b"</a>"]),
        "too many elements",
    ),
    # Less than the bounds in each respect.
    "as many elements as there may be": (
        lambda: iter([b"<a>" + b"<bb>\n<cccccc> \xc2\xa0 </cccccc>\n</bb>\n" * 70_000 + b"</a>"]),
        "instances:",
    ),
    "as many instances as there may be": (
        lambda: iter(
            [
                b"<DescribeInstancesResponse><reservationSet><item><instancesSet>"
                + b"<item><ebsOptimized/>\n    </item>" * 70_000
                + b"</instancesSet></item></reservationSet></DescribeInstancesResponse>"
            ]
        ),
        "instances:",
    ),
    "many names in a long namespace": (
        lambda: iter(
            [
                b"<a xmlns='%s'>" % (b"u" * 20_000)
                + b"".join(b"<a%d/>" % n for n in range(100_000))
                + b"</a>"
            ]
        ),
        "too many namespaces, or too long ones",
    ),
    "many names": (
        lambda: iter([b"<a>" + b"".join(b"<a%d/>" % n for n in range(100_000)) + b"</a>"]),
        "too many names",
    ),
    "many attributes": (
        lambda: iter([b"<a " + b" ".join(b"a%d=''" % n for n in range(350_000)) + b"/>"]),
        "too many attributes",
    ),
    "many lines": (lambda: iter([b"<a>" + b"ab\n" * 1_300_000 + b"</a>"]), "too many lines"),
    "entities": (
        lambda: iter(
            [b"<!DOCTYPE a [<!ENTITY x '%s'>]><a>" % (b"y" * 300) + b"&x;" * 90_000 + b"</a>"]
        ),
        "document type",
    ),
    "a deep document": (lambda: iter([b"<a>" * 1_000_000]), "elements deep"),
    "a page of a hotel": (lambda: iter([b"<html><body>Log in"]), "not one of AWS"),
    "a page of a hotel, of a type": (
        lambda: iter([b"<!DOCTYPE html><html><body>Log in"]),
        "not one of AWS",
    ),
    "a refusal of megabytes": (
        lambda: iter(
            [
                b"<Response><Errors><Error><Code>UnauthorizedOperation</Code><Message>"
                + b"x" * 4_000_000
                + b"</Message></Error></Errors></Response>"
            ]
        ),
        "instances:",
    ),
}


@pytest.mark.parametrize(("blocks", "said"), AWS.values(), ids=AWS)
def test_what_aws_says(blocks: Callable[[], Iterator[bytes]], said: str, tmp_path: Path) -> None:
    pytest.importorskip("boto3")
    with _cloud({}, blocks) as url:
        assert said in run("aws", url, home=tmp_path / "flow")["told"]


PRICES: dict[str, tuple[bytes, str]] = {
    "many objects": (b'{"PriceList":[' + b"{}," * 1_300_000 + b"{}]}", "too many objects"),
    "a deep document": (b"[" * 4_000_000, "too many objects"),
    "a document of 15 MB": (b'{"PriceList":["' + b"x" * 15_000_000, "longer than"),
}


@pytest.mark.parametrize(("answer", "said"), PRICES.values(), ids=PRICES)
def test_what_a_service_of_aws_says_in_json(answer: bytes, said: str, tmp_path: Path) -> None:
    pytest.importorskip("boto3")
    with _cloud({}, lambda: iter([answer])) as url:
        assert said in run("aws_prices", url, home=tmp_path / "flow")["told"]


def _instances(count: int) -> bytes:
    """The inside of a page of DescribeInstances."""
    each = b"<item><instanceId>i-%d</instanceId><imageId>%s</imageId></item>"
    return (
        b"<reservationSet><item><instancesSet>"
        + b"".join(each % (number, b"x" * 200) for number in range(count))
        + b"</instancesSet></item></reservationSet>"
    )


PAGES: dict[str, tuple[Callable[[int], int], int, str]] = {
    "pages without end": (lambda number: number, 1, "after 200 there is another one"),
    "a page again and again": (lambda number: 7, 1, "leads back"),
    "pages in a circle": (lambda number: number % 5, 1, "leads back"),
    "large pages": (lambda number: number, 3_000, "after 10,000 instances"),
    "one page of all": (lambda number: number, 15_000, "after 10,000 instances"),
    "a token of megabytes": (lambda number: 10**3_000, 1, "leads back"),
}


@pytest.mark.parametrize(("token", "size", "said"), PAGES.values(), ids=PAGES)
def test_what_aws_lists(token: Callable[[int], int], size: int, said: str, tmp_path: Path) -> None:
    pytest.importorskip("boto3")
    asked = iter(range(10**9))
    inside = _instances(size)

    def page() -> Iterator[bytes]:
        following = b"<nextToken>t%x</nextToken>" % token(next(asked))
        yield b"<DescribeInstancesResponse>" + inside + following + b"</DescribeInstancesResponse>"

    with _cloud({}, page) as url:
        told = run("aws_pages", url, home=tmp_path / "flow")["told"]
    assert said in told
    assert "endpoint_url" in told
    # botocore may have sent one of them again.
    assert next(asked) < 300


def test_what_the_service_of_roles_says(tmp_path: Path) -> None:
    """Without end, to a task with a bucket and to the provider."""
    pytest.importorskip("boto3")
    with _cloud({}, _without_end) as url:
        told = run("aws_role", url, tmp_path, home=tmp_path / "flow")["told"]
    assert told.count("longer than") == 2, told


def test_what_a_metadata_service_says(tmp_path: Path) -> None:
    pytest.importorskip("boto3")
    with _cloud({}, _without_end) as url:
        assert "longer than" in run("aws_metadata", url, home=tmp_path / "flow")["told"]


# A server of S3


def _bucket(inside: bytes) -> bytes:
    return b"<ListBucketResult>" + inside + b"<IsTruncated>true</IsTruncated>%s</ListBucketResult>"


_OBJECTS = b"<Contents><Key>a</Key></Contents>" * 1000
S3: dict[str, tuple[bytes, Callable[[int], int], str]] = {
    "pages in a circle": (_bucket(_OBJECTS), lambda number: number % 3, "repeats a page"),
    "empty pages": (_bucket(b""), lambda number: number, "pages without objects"),
    "many elements": (_bucket(b"<a/>" * 1_500_000), lambda number: number, "too many elements"),
    "many names in a long namespace": (
        b"<a xmlns='%s'>" % (b"u" * 20_000)
        + b"".join(b"<a%d/>" % n for n in range(100_000))
        + b"%s</a>",
        lambda number: number,
        "too many namespaces",
    ),
    "more than a page has": (
        _bucket(b"<a>" + b"x" * 9_000_000 + b"</a>"),
        lambda number: number,
        "more than 8 MiB",
    ),
}


@pytest.mark.parametrize(("answer", "token", "said"), S3.values(), ids=S3)
def test_what_a_bucket_lists(
    answer: bytes, token: Callable[[int], int], said: str, tmp_path: Path
) -> None:
    asked = iter(range(10**9))
    following = b"<NextContinuationToken>%d</NextContinuationToken>"

    def page() -> Iterator[bytes]:
        yield answer.replace(b"%s", following % token(next(asked)))

    with _cloud({}, page) as url:
        assert said in run("s3_list", url, home=tmp_path / "flow")["told"]


def test_which_uploads_a_bucket_lists(tmp_path: Path) -> None:
    asked = iter(range(10**9))
    markers = b"<NextKeyMarker>%d</NextKeyMarker><NextUploadIdMarker>%d</NextUploadIdMarker>"

    def page() -> Iterator[bytes]:
        number = next(asked)
        yield (
            b"<ListMultipartUploadsResult><IsTruncated>true</IsTruncated>"
            + markers
            % (
                number,
                number,
            )
            + b"</ListMultipartUploadsResult>"
        )

    with _cloud({}, page) as url:
        told = run("s3_uploads", url, home=tmp_path / "flow")["told"]
    assert "after 100 pages" in told
