"""Buckets at a path of every node of a gang: the same bytes for every rank, refusals before the start, nothing left."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flowlite import Flow, FlowApp, Task, TaskConfig, TaskFailed
from flowlite.node.mount_namespace import unmount
from flowlite.node.system import processes
from tests.helpers import assert_no_process_left, eventually, processes_of
from tests.s3.servers import S3Server

ROOT = Path(__file__).parents[2]
SHARD = random.Random(7).randbytes(3_000_000)
OBJECTS = {
    "set/shard-0.bin": SHARD,
    "set/with blank & more.txt": b"a name that URLs quote",
    "set/deep/er/leaf": b"leaf",
    "beside/secret.txt": b"not below the prefix",
}

pytestmark = pytest.mark.needs("fuse")


@pytest.fixture
def server(s3_server: S3Server, flow_home: Path) -> S3Server:
    s3_server.fill("train", OBJECTS)
    return s3_server


@pytest.fixture
def flow(server: S3Server, flow_home: Path) -> Iterator[Flow]:
    said: list[str] = []
    yield Flow(notify=said.append)
    assert [line for line in mounts_of(flow_home) if "fuse" in line] == []


def mounts_of(home: Path) -> list[str]:
    return [*unmount.mounted_below(home)]


WAIT = """
import os, sys, time
print("up", os.getpid(), sorted(os.listdir("/data")), flush=True)
while not os.path.exists(sys.argv[1]): time.sleep(0.02)
print(len(open("/data/shard-0.bin", "rb").read()), flush=True)
"""


@pytest.fixture
def held(flow: Flow, tmp_path: Path) -> Iterator[Callable[..., Task[Any]]]:
    """Starts a gang of 2 × 1 that sees the bucket and waits for a file."""
    go = tmp_path / "go"
    started: list[Task[Any]] = []

    def start(**options: Any) -> Task[Any]:
        config = TaskConfig(
            command=[sys.executable, "-c", WAIT, str(go)],
            num_instances=2,
            mounts={"/data": "s3://train/set"},
            grace_seconds=1.0,
            **options,
        )
        task = flow.run(config)
        started.append(task)
        eventually(lambda: str(task.logs()).count("up ") == 2 or task.done)
        assert not task.done, task.reason
        return task

    yield start
    go.touch()
    for task in started:
        task.cancel()
        task.wait(90)


def finish(tmp_path: Path) -> None:
    (tmp_path / "go").touch()


def test_every_rank_reads_the_same_bytes_and_none_can_write(flow: Flow) -> None:
    app = FlowApp()

    @app.function(num_instances=2, processes_per_node=2, mounts={"/data": "s3://train/set"})
    def look() -> dict[str, Any]:
        found = {}
        for directory, _, names in os.walk("/data"):
            for name in names:
                path = os.path.join(directory, name)
                with open(path, "rb") as file:
                    found[os.path.relpath(path, "/data")] = hashlib.sha256(file.read()).hexdigest()
        refused = ""
        try:
            open("/data/new", "w").close()
        except OSError as error:
            refused = error.strerror or ""
        return {"found": found, "refused": refused, "environment": dict(os.environ)}

    results = look.spawn().results()
    expected = {
        key.removeprefix("set/"): hashlib.sha256(body).hexdigest()
        for key, body in OBJECTS.items()
        if key.startswith("set/")
    }
    assert [each["found"] for each in results] == [expected] * 4
    assert {each["refused"] for each in results} == {"Read-only file system"}


def test_parts_of_a_large_object_at_any_place(flow: Flow) -> None:
    app = FlowApp()

    @app.function(num_instances=1, processes_per_node=2, mounts={"/data": "s3://train/set"})
    def read(places: list[int]) -> list[bytes]:
        with open("/data/shard-0.bin", "rb") as file:
            return [os.pread(file.fileno(), 4096, place) for place in places]

    places = [random.Random(3).randrange(len(SHARD)) for _ in range(40)]
    wanted = [SHARD[place : place + 4096] for place in places]
    assert read.spawn(places).results() == [wanted, wanted]


def test_mounts_at_submission_on_the_command_line_and_in_a_mapping(
    server: S3Server, flow: Flow, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    given = {"url": "s3://train/set/deep", "endpoint_url": server.endpoint, "region": "us-east-1"}
    ls = TaskConfig(command="ls /a/er", name="mapping")
    task = flow.run(ls, mounts={"/a": given}, wait=True)
    assert task.status == "completed", task.reason
    assert "leaf" in str(task.logs())
    assert task.record.config["mounts"] == {"/a": given}
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.endpoint)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "flowlite.cli", "run", "--mount", "/a=s3://train/set/deep"),
            *("-N", "2", "--", "ls", "/a/er"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("leaf") == 2


def test_a_bucket_that_cannot_be_read_fails_the_task_before_any_worker_starts(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-all-along")
    config = TaskConfig(
        command=["touch", str(tmp_path / "ran")],
        num_instances=2,
        mounts={"/data": "s3://train/set"},
    )
    task = flow.run(config, wait=True)
    assert task.status == "failed"
    assert "SignatureDoesNotMatch" in task.reason
    assert "the variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in task.reason
    assert "wrong-all-along" not in json.dumps(task.record.config) + task.reason
    assert not (tmp_path / "ran").exists()
    with pytest.raises(TaskFailed, match="SignatureDoesNotMatch"):
        task.result()


def test_who_submits_without_a_credential_is_told(
    flow_home: Path, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    said: list[str] = []
    config = TaskConfig(command="true", mounts={"/data": "s3://train/set"})
    task = Flow(notify=said.append).run(config, wait=True)
    assert any("no AWS credential was found here" in line for line in said)
    assert task.status == "failed"
    assert "no credential" in task.reason


def test_the_secret_is_nowhere_but_in_private_files(
    held: Callable[..., Task[Any]], server: S3Server, flow_home: Path, tmp_path: Path
) -> None:
    task = held()
    pids = [pid for pid in processes_of(task.id) if pid != os.getpid()]
    assert len(pids) > 6
    for pid in pids:
        assert server.secret not in Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    workers = re.findall(r"up (\d+)", str(task.logs()))
    assert len(workers) == 2
    for file in [path for path in flow_home.rglob("*") if path.is_file()]:
        if server.secret.encode() in file.read_bytes():
            assert file.stat().st_mode & 0o077 == 0, file
            assert file.name in {"storage.json", "credentials"}, file
    assert server.secret not in json.dumps([str(event) for event in task.events()])
    finish(tmp_path)
    assert task.wait(90).status == "completed"
    assert "3000000" in str(task.logs())
    assert server.secret not in str(task.logs())
    holders = [path for path in flow_home.rglob("*") if path.is_file()]
    eventually(lambda: not any(server.secret.encode() in read(path) for path in holders))


def test_flow_ssh_sees_what_the_workers_see(
    held: Callable[..., Task[Any]], flow_home: Path
) -> None:
    task = held()
    seen = task.exec(["ls", "/data"], node=1)
    assert b"shard-0.bin" in seen.stdout


def test_a_cancelled_task_leaves_nothing(held: Callable[..., Task[Any]], flow_home: Path) -> None:
    task = held()
    task.cancel()
    assert task.wait(90).status == "cancelled"
    assert_no_process_left(task.id)
    assert mounts_of(flow_home) == []


@pytest.mark.parametrize("victim", ["agent", "reaper", "guard", "program"])
def test_whatever_is_killed_nothing_stays_mounted(
    held: Callable[..., Task[Any]], flow_home: Path, tmp_path: Path, victim: str
) -> None:
    task = held()
    attempt = next((flow_home / "tasks" / task.id / "nodes").glob("*/a1"))
    agent = int(json.loads((attempt / "agent.pid").read_bytes())["pid"])
    reaper = int(json.loads((attempt / "env.json").read_bytes())["reaper"]["pid"])
    guard = guard_of(agent)
    os.kill(
        {"agent": agent, "reaper": reaper, "guard": guard, "program": program_of(guard)}[victim],
        signal.SIGKILL,
    )
    if victim in ("guard", "program"):
        eventually(
            lambda: any("reading" in event.text for event in task.events()),
            what="a warning",
        )
        finish(tmp_path)
    assert task.wait(90).status == "failed"
    assert_no_process_left(task.id)
    assert mounts_of(flow_home) == []


def test_a_second_attempt_sees_the_bucket_again(
    held: Callable[..., Task[Any]], flow_home: Path, tmp_path: Path
) -> None:
    task = held(retries=1)
    first = int(re.findall(r"up (\d+)", str(task.logs()))[0])
    os.kill(first, signal.SIGKILL)
    eventually(lambda: str(task.logs()).count("up ") == 4, what="the second attempt")
    finish(tmp_path)
    assert task.wait(90).status == "completed"
    assert mounts_of(flow_home) == []


def read(path: Path) -> bytes:
    """A file that may have gone meanwhile."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def guard_of(agent: int) -> int:
    """The guard of an agent's buckets: its one child that is ours."""
    rows = processes.table()
    return next(each.pid for each in rows.values() if each.parent == agent and not each.dead)


def program_of(guard: int) -> int:
    rows = processes.table()
    return next(each.pid for each in rows.values() if each.parent == guard and not each.dead)


def test_a_task_on_warm_nodes_sees_its_own_bucket(server: S3Server, flow: Flow) -> None:
    server.fill("second", {"only": b"in the second"})
    app = FlowApp(keep_warm="60s")

    @app.function(num_instances=2)
    def look() -> list[str]:
        return sorted(os.listdir("/data-of-warm"))

    # Not /data: agents of other tests may have made that here, and the third task would find it, empty.
    first = look.options(mounts={"/data-of-warm": "s3://train/set"}).spawn().results()
    second = look.options(mounts={"/data-of-warm": "s3://second"}).spawn().results()
    third = look.spawn()
    assert first == [["deep", "shard-0.bin", "with blank & more.txt"]] * 2
    assert second == [["only"]] * 2
    assert isinstance(third.exception(), FileNotFoundError)
