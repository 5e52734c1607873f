"""Without root: mounted by fusermount3, shown to workers at the asked path, and gone with whoever held it.

Run by test_ordinary_user.py, where everybody may open the FUSE device, as on most machines.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowlite.node.mount_namespace import unmount
from flowlite.node.system import processes
from tests.helpers import eventually
from tests.s3.guards import SYSTEM_PYTHON, TASK, Guard, entry
from tests.s3.servers import S3Server

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
SHOW = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from flowlite.node.mount_namespace import worker_view as scene
told = json.loads(sys.argv[2])
volumes = [{"name": m["url"], "path": "/flowlite-test/data", "source": m["source"]} for m in told["mounts"]]
within = told["pid"] if told["private"] else None
state = scene.enter({"volumes": volumes, "keep_visible": [], "within": within}, "/nowhere")
with open("/flowlite-test/data/hello") as file:
    print(json.dumps({**state, "read": file.read(), "uid": os.getuid()}))
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory that every user can reach."""
    directory = Path(tempfile.mkdtemp(prefix="flow-nobody-"))
    directory.chmod(0o755)
    yield directory
    unmount.unmount_below(directory)
    shutil.rmtree(directory)


@pytest.fixture
def guard(one_s3_server: S3Server, home: Path) -> Iterator[Guard]:
    one_s3_server.fill("nobody", {"set/hello": b"world"})
    storage = {"/data": entry(one_s3_server, "s3://nobody/set")}
    with Guard(home, storage, tool="rclone", user=NOBODY) as running:
        yield running


def test_workers_see_it_at_its_path_and_nobody_else_does(guard: Guard) -> None:
    told = guard.hear()
    assert told["event"] == "mounted", told
    assert not told["private"]
    done = subprocess.run(
        [SYSTEM_PYTHON, "-c", SHOW, str(ROOT), json.dumps(told)],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert (seen["read"], seen["uid"]) == ("world", NOBODY)
    assert seen["volumes"][0]["how"] == "namespace"
    assert not Path("/flowlite-test").exists()
    assert guard.end() == 0
    guard.assert_nothing_left()


def test_the_guard_is_killed_and_its_program_takes_the_mount_away(guard: Guard) -> None:
    guard.mounted()
    guard.process.kill()
    guard.process.wait(90)
    eventually(lambda: not unmount.mounted_below(guard.paths.home), what="nothing mounted")


def test_everything_is_killed_at_once_and_a_dead_mount_is_cleared(guard: Guard) -> None:
    guard.mounted()
    # The program first: it would take its mount away when it hears that the guard is dead.
    for pid in (*guard.programs(), guard.process.pid):
        processes.send(pid, 9)
    guard.process.wait(90)
    eventually(lambda: not processes.marked({"FLOW_TASK_ID": TASK}))
    assert unmount.mounted_below(guard.paths.home)
    assert unmount.unmount_below(guard.paths.home) == []
    assert unmount.mounted_below(guard.paths.home) == []
