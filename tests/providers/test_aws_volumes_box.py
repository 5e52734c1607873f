"""Volumes on EC2 in the box, by whole tasks: EFS that two nodes share, and a disk that goes from task to task."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.providers.aws_machines import nfs_everywhere, on_each_machine

if TYPE_CHECKING:
    from flowlite.testing.cloud import CloudInABox
    from flowlite.testing.hosts import Host

pytestmark = pytest.mark.timeout(300)
ROOT = Path(__file__).resolve().parents[2]


class Laptop:
    """`flow` on the laptop of the box's client."""

    def __init__(self, box: CloudInABox, home: Path) -> None:
        (home / "config.toml").write_text('provider = "aws"\n[aws]\nregion = "us-east-1"\n')
        variables = {"FLOW_HOME": str(home), "PYTHONPATH": str(ROOT)}
        self._environment = {**box.client_environment(), **variables}

    def flow(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "flowlite.cli", *words],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=150,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        assert done.returncode == code, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr


@pytest.fixture
def laptop(box: CloudInABox, flow_home: Path) -> Laptop:
    return Laptop(box, flow_home)


def test_two_nodes_share_what_flowlite_made(box: CloudInABox, laptop: Laptop) -> None:
    script = (
        "cat /data/old 2>/dev/null; [ $RANK = 0 ] && { echo from 0 > /data/new; mv /data/new /data/it; }; "
        "until [ -e /data/it ]; do sleep 0.05; done; cat /data/it; echo kept by $RANK >> /data/old; "
        "grep ' /data ' /proc/mounts | cut -d' ' -f2"
    )
    (laptop_file := Path(os.environ["FLOW_HOME"]) / "task.yaml").write_text(
        f"command: {script!r}\nnum_instances: 2\nmax_run_time_hours: 1\n"
        "volumes: {/data: {name: ckpt, size_gb: 10}}\n"
    )
    shown = laptop.flow("run", str(laptop_file), "--dry-run")
    assert "volume ckpt is not there yet and will be made: EFS, encrypted" in shown
    with nfs_everywhere(box):
        said = laptop.flow("run", str(laptop_file))
        assert said.count("] from 0") == 2, said
        again = laptop.flow("run", str(laptop_file))
    assert again.count("kept by") >= 2, again
    listed = laptop.flow("volumes", "list")
    assert "ckpt" in listed
    assert "fs-" in listed
    assert {each["state"] for each in box.aws.instances()} == {"terminated"}
    laptop.flow("volumes", "delete", "ckpt", "--yes")
    assert "ckpt" not in laptop.flow("volumes", "list")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[str]:
    """The device that stands for a disk of 1 GB."""
    if shutil.which("losetup") is None or shutil.which("mkfs.ext4") is None:
        pytest.skip("disks need losetup and mkfs.ext4")
    with open(tmp_path / "disk", "wb") as file:
        file.truncate(2**30)
    made = subprocess.run(
        ["losetup", "--find", "--show", str(tmp_path / "disk")],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        pytest.skip(f"this machine gives no loop device: {made.stderr}")
    yield made.stdout.strip()
    subprocess.run(["losetup", "--detach", made.stdout.strip()], check=True)


def test_a_disk_goes_from_task_to_task(box: CloudInABox, laptop: Laptop, disk: str) -> None:
    number = os.stat(disk).st_rdev
    node = ["mknod", "/dev/sdf", "b", str(os.major(number)), str(os.minor(number))]

    def attach(host: Host) -> None:
        if host.exec(node).returncode != 0:
            raise RuntimeError("the machine is not up yet")

    def task(script: str) -> str:
        file = Path(os.environ["FLOW_HOME"]) / "task.yaml"
        file.write_text(
            f"command: {script!r}\nmax_run_time_hours: 1\n"
            "volumes: {/data: {name: scratch, size_gb: 1, interface: block}}\n"
        )
        return laptop.flow("run", str(file))

    with on_each_machine(box, attach):
        task("echo kept > /data/it")
        assert "kept" in task("cat /data/it")
    placed: list[dict[str, Any]] = box.aws.instances()
    assert len({each["zone"] for each in placed}) == 1, "the disk ties its tasks to its zone"
    assert {each["state"] for each in placed} == {"terminated"}
    assert len(box.aws.leftovers()["volumes"]) == 1, "it outlives the machines"
    laptop.flow("volumes", "delete", "scratch", "--yes")
    assert box.aws.leftovers()["volumes"] == []
