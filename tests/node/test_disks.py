"""The room on a node's disks: as the workers see them, and also where one of them hangs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flowlite.cli.commands.doctor import _state
from flowlite.node.inspect import disks
from flowlite.node.leader_volumes.confined_sftp import find_server
from tests.helpers import eventually

needs_mounts = pytest.mark.needs("namespaces")
MEGABYTE = 1 << 20


def test_a_disk_is_named_once() -> None:
    found, silent = disks.look(["/", "/", "/nowhere"])

    assert (len(found), silent) == (1, [])
    assert found[0]["path"] == "/"
    assert 0 <= found[0]["free"] <= found[0]["total"]


@contextmanager
def own_mounts(directory: Path, options: str, *fill: str) -> Iterator[int]:
    """A process that sees a file system of its own at a directory, as workers see their volumes."""
    script = f'mount -t tmpfs -o {options} none "$0" && "$@" && echo ready && exec sleep 60'
    child = subprocess.Popen(
        ["unshare", "-rm", "sh", "-c", script, str(directory), *(fill or ("true",))],
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        yield child.pid
    finally:
        child.kill()
        child.communicate()


@needs_mounts
@pytest.mark.parametrize(
    ("options", "fill", "trouble"),
    [
        ("size=1M", 'head -c 1M /dev/zero > "$0/all"', "is nearly full (0.0 of 0 GB free)"),
        (
            "size=1M,nr_inodes=40",
            'for n in $(seq 39); do : > "$0/$n"; done',
            "has nearly no room for further files, however small (0 of 40 inodes free)",
        ),
    ],
    ids=["bytes", "inodes"],
)
def test_a_volume_that_only_the_workers_see_is_looked_at(
    tmp_path: Path, options: str, fill: str, trouble: str
) -> None:
    path = str(tmp_path)
    with own_mounts(tmp_path, options, "sh", "-c", fill, path) as worker:
        found, silent = disks.look([path], seen_by=worker)

    assert [(each["path"], each["total"]) for each in found] == [(path, MEGABYTE)]
    assert _state({"disks": found, "silent_disks": silent}) == f"{path} {trouble}"


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[Path]:
    """A file system whose client is suspended, so that it answers nothing."""
    mounted, served = tmp_path / "mounted", tmp_path / "served"
    for each in (mounted, served):
        each.mkdir()
    ours, servers = socket.socketpair()
    with ours, servers:
        server = subprocess.Popen([find_server()], stdin=servers, stdout=servers)
        client = subprocess.Popen(
            ["sshfs", "-f", "-o", "passive,attr_timeout=0", f":{served}", str(mounted)],
            stdin=ours,
            stdout=ours,
        )
    try:
        eventually(lambda: os.path.ismount(mounted), what="it is mounted")
        os.kill(client.pid, signal.SIGSTOP)
        yield mounted
    finally:
        for each in (client, server):
            each.kill()
            each.wait()
        tool = shutil.which("fusermount3")
        assert tool is not None
        subprocess.run([tool, "-u", "-z", str(mounted)], check=True)


@pytest.mark.needs("sshfs")
def test_one_that_hangs_is_named_and_holds_up_nothing(hanging: Path) -> None:
    began = time.monotonic()
    # The program's output ends with it, though what hangs is still there.
    program = (
        "import json; from flowlite.node.inspect import disks; "
        f"print(json.dumps(disks.look([{str(hanging)!r}, '/'], seconds=1.0)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30
    )
    assert time.monotonic() - began < 20
    found: list[Any]
    found, silent = json.loads(done.stdout)
    assert silent == [str(hanging)]
    assert [each["path"] for each in found] == ["/"]
    assert _state({"disks": [], "silent_disks": silent}) == (
        f"{hanging} does not answer: its file server, or the network to it, hangs"
    )
