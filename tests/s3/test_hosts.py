"""Buckets on real hosts reached by SSH, with the S3 server on the laptop beside them."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.helpers import eventually
from tests.providers.lab import Lab, left_on
from tests.s3.servers import RcloneServer, S3Server

if TYPE_CHECKING:
    from flowlite.testing.hosts import Cluster, Host

SHARD = random.Random(11).randbytes(1_500_000)
WORKER = """
import hashlib, os, sys, time
body = open("/data/shard.bin", "rb").read()
try: open("/data/new", "w")
except OSError as error: refused = error.strerror
print("rank", os.environ["RANK"], hashlib.sha256(body).hexdigest(), refused, flush=True)
while len(sys.argv) > 1 and not os.path.exists(sys.argv[1]): time.sleep(0.05)
open("/data/shard.bin", "rb").read()
"""


@pytest.fixture
def lab(hosts: Cluster, flow_home: Path) -> Lab:
    return Lab(hosts, flow_home, hosts[:2])


@pytest.fixture
def server(lab: Lab) -> Iterator[S3Server]:
    """On the laptop, which all hosts reach; with the variables set that open it."""
    with lab.cluster.enter_laptop(), RcloneServer(lab.cluster.laptop.address) as server:
        server.fill("train", {"set/shard.bin": SHARD, "beside": b"x"})
        lab.environment.update(server.variables())
        yield server


def mounts_on(host: Host) -> str:
    return host.exec(["sh", "-c", "grep -h -e ' - fuse' /proc/[0-9]*/mountinfo | sort -u"]).stdout


def nothing_left(lab: Lab) -> None:
    assert lab.held() == {}
    for host in lab.hosts:
        assert left_on(host) == []
        assert mounts_on(host) == ""
        left = host.exec(["sh", "-c", "ls ~/.flowlite-node/tasks"]).stdout
        assert "-00" not in left


def test_four_ranks_on_two_hosts_read_the_same_bytes(lab: Lab, server: S3Server) -> None:
    done = lab.flow(
        *("run", "-N", "2", "--processes-per-node", "2", "--mount", "/data=s3://train/set"),
        *("--", sys.executable, "-c", WORKER),
    )
    line = f"{hashlib.sha256(SHARD).hexdigest()} Read-only file system"
    for rank in range(4):
        assert f"rank {rank} {line}" in done.stdout
    nothing_left(lab)


def test_a_wrong_secret_fails_the_task_on_a_named_host_before_the_start(
    lab: Lab, server: S3Server
) -> None:
    lab.environment["AWS_SECRET_ACCESS_KEY"] = "wrong-all-along"
    words = ("--mount", "/data=s3://train/set", "--", "echo", "ran")
    done = lab.flow("run", "-N", "2", *words, code=1)
    assert "SignatureDoesNotMatch" in done.stderr
    assert f"Tried: {server.endpoint}, with the variables AWS_ACCESS_KEY_ID" in done.stderr
    assert "wrong-all-along" not in done.stdout + done.stderr
    assert "] ran" not in done.stdout
    nothing_left(lab)


def test_the_secret_is_in_no_command_line_and_no_open_file_of_a_host(
    lab: Lab, server: S3Server
) -> None:
    go = "/tmp/go-on"
    task = lab.submit(
        *("-N", "2", "--mount", "/data=s3://train/set", "--", sys.executable, "-c", WORKER, go)
    )
    eventually(lambda: lab.flow("logs", task).stdout.count("rank ") == 2, every=0.3)
    for host in lab.hosts:
        seen = host.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]).stdout
        assert "rclone mount" in seen
        assert server.secret not in seen
        found = host.exec(
            [
                "sh",
                "-c",
                f"grep -rls {server.secret} ~/.flowlite-node /tmp /run | xargs -r stat -c '%a %n'",
            ]
        ).stdout.split("\n")
        files = [line for line in found if line]
        assert files
        assert {line.split()[0] for line in files} == {"600"}, files
    for host in lab.hosts:
        host.exec(["touch", go])
    assert lab.wait(task, "completed", "failed")["status"] == "completed"
    nothing_left(lab)


@pytest.mark.parametrize("program", ["agent", "rclone mount"])
def test_what_is_killed_on_a_host_leaves_no_mount(lab: Lab, server: S3Server, program: str) -> None:
    go = "/tmp/go-on"
    task = lab.submit(
        *("-N", "2", "--mount", "/data=s3://train/set", "--", sys.executable, "-c", WORKER, go)
    )
    eventually(lambda: lab.flow("logs", task).stdout.count("rank ") == 2, every=0.3)
    pattern = "agent.pyz agent" if program == "agent" else program
    killed = lab.hosts[1].exec(["pkill", "-9", "-f", pattern])
    assert killed.returncode == 0
    for host in lab.hosts:
        host.exec(["touch", go])
    assert lab.wait(task, "completed", "failed", timeout=90)["status"] == "failed"
    nothing_left(lab)


def test_a_host_that_cannot_reach_the_bucket_says_so(lab: Lab, server: S3Server) -> None:
    server.stop()
    words = ("--mount", "/data=s3://train/set", "--", "echo", "ran")
    done = lab.flow("run", "-N", "2", *words, code=1)
    assert f"{server.endpoint} does not answer as S3: [Errno 111]" in done.stderr
    assert "Can this node reach it?" in done.stderr
    nothing_left(lab)
