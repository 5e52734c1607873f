"""Volumes that a node mounts itself: file systems of the network and attached disks, with real agents."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowlite.node.attached_volumes import disks, mount_commands
from flowlite.node.attached_volumes.run import NotMounted
from flowlite.node.mount_namespace.unmount import mounted_below
from tests.components import need
from tests.helpers import eventually
from tests.node.agents import RealGang
from tests.sharing import nfs

pytestmark = pytest.mark.needs("mounts")

MEGABYTE = 1 << 20
EFS = "nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport"
SHOWN = "/flowlite-volume"
# One partition of 2048 sectors, in the table that a PC has.
PARTITIONED = r"""
printf '\0\0\0\0\203\0\0\0\0\010\0\0\0\010\0\0' | dd of="$0" bs=1 seek=446 conv=notrunc status=none
printf '\125\252' | dd of="$0" bs=1 seek=510 conv=notrunc status=none
"""


def volume(source: Path, **values: Any) -> dict[str, Any]:
    return {
        "name": "ckpt",
        "path": SHOWN,
        "interface": "file",
        "source": str(source),
        **values,
    }


def network(source: Path, **values: Any) -> dict[str, Any]:
    return volume(source, share="nfs", address="10.0.1.5", export="/", options=EFS, **values)


def run(tmp_path: Path, volumes: list[dict[str, Any]], script: str, **options: Any) -> RealGang:
    call = {"kind": "command", "argv": ["sh", "-c", script]}
    return RealGang(
        tmp_path / "nodes",
        call,
        volumes=volumes,
        **{"nodes": 1, "processes_per_node": 1, **options},
    )


# Command lines


def test_the_command_for_efs() -> None:
    assert mount_commands.network_command(network(Path("/mnt/flowlite/ckpt"))) == [
        "mount.nfs4",
        "10.0.1.5:/",
        "/mnt/flowlite/ckpt",
        "-o",
        "nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport",
    ]


def test_the_command_for_lustre() -> None:
    lustre = volume(
        Path("/mnt/flowlite/data"),
        share="lustre",
        address="fs-0123.fsx.us-east-1.amazonaws.com@tcp",
        export="/abcdev",
        options="relatime,flock",
    )
    assert mount_commands.network_command(lustre) == [
        *("mount", "-t", "lustre", "-o", "relatime,flock"),
        "fs-0123.fsx.us-east-1.amazonaws.com@tcp:/abcdev",
        "/mnt/flowlite/data",
    ]


def test_what_the_kernel_is_told_where_nfs_common_is_missing() -> None:
    assert mount_commands.kernel_options(EFS, "10.0.1.5", "10.0.1.77") == (
        f"{EFS},addr=10.0.1.5,clientaddr=10.0.1.77"
    )


def test_the_commands_for_a_disk() -> None:
    disk = volume(Path("/mnt/flowlite/ckpt"), share="disk", filesystem="ext4")
    assert mount_commands.disk_command(disk, "/dev/nvme1n1") == [
        *("mount", "-t", "ext4", "-o", "noatime", "/dev/nvme1n1", "/mnt/flowlite/ckpt")
    ]
    assert disks.format_command("ext4", "/dev/nvme1n1", "a-name-that-is-too-long") == [
        *("mkfs.ext4", "-q", "-m", "0"),
        *("-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard"),
        *("-L", "a-name-t-c8400de", "/dev/nvme1n1"),
    ]


def test_a_disk_is_known_by_its_serial_number(tmp_path: Path) -> None:
    for name, serial in (
        ("nvme0n1", "vol0aaa"),
        ("nvme1n1", "vol0bbb   "),
        ("nvme1n1p1", "vol0bbb"),
        ("sda", "vol0bbb"),
    ):
        (tmp_path / name / "device").mkdir(parents=True)
        (tmp_path / name / "device" / "serial").write_text(serial + "\n")
    assert disks.by_serial("vol0bbb", tmp_path) == "/dev/nvme1n1"
    assert disks.by_serial("vol0ccc", tmp_path) is None


# The network


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    bin = tmp_path / "bin"
    bin.mkdir()
    servers = tmp_path / "servers"
    servers.mkdir()
    nfs.helper(bin, servers)
    monkeypatch.setenv("PATH", f"{bin}:{os.environ['PATH']}")
    return servers


def test_workers_find_it_at_its_path_and_nothing_stays_mounted(
    tmp_path: Path, servers: Path
) -> None:
    kept = nfs.serve(servers, "10.0.1.5")
    (kept / "before").write_text("from the last task")
    script = f"cat {SHOWN}/before; echo of $RANK > {SHOWN}/new$RANK"
    volumes = [network(tmp_path / "mnt" / "ckpt")]
    with run(tmp_path, volumes, script) as gang:
        ended = gang.run()
        assert ended["outcome"] == "done", (ended, gang.logs())
        assert gang.text(0) == "from the last task"
        gang.assert_nothing_left()
    assert (kept / "new0").read_text() == "of 0\n"
    eventually(lambda: not mounted_below(tmp_path))
    assert (servers / "mounts.log").read_text().endswith(f"ckpt -o {EFS}\n")


def test_a_server_that_does_not_answer_fails_the_task_with_its_name(
    tmp_path: Path, servers: Path
) -> None:
    with run(tmp_path, [network(tmp_path / "mnt" / "ckpt")], "true") as gang:
        ended = gang.run()
        assert ended["outcome"] == "checks", ended
        assert "volume 'ckpt'" in ended["reason"]
        assert "Connection timed out for 10.0.1.5:/" in ended["reason"]
    assert not mounted_below(tmp_path)


def test_a_killed_agent_leaves_nothing_mounted(tmp_path: Path, servers: Path) -> None:
    nfs.serve(servers, "10.0.1.5")
    out = "echo ready; exec sleep 600"
    with run(tmp_path, [network(tmp_path / "mnt" / "ckpt")], out) as gang:
        gang.start()
        stream = gang.paths[0].stream(0, "out")
        eventually(lambda: stream.exists() and stream.read_bytes())
        assert mounted_below(tmp_path / "mnt")
        gang.agents[0].kill()
        eventually(lambda: not mounted_below(tmp_path))


def test_lustre_without_its_client_says_what_to_install(tmp_path: Path) -> None:
    if mount_commands.program("mount.lustre"):
        pytest.skip("this machine has the Lustre client")
    lustre = volume(
        tmp_path, share="lustre", address="fs-1@tcp", export="/a", options="relatime,flock"
    )
    with pytest.raises(NotMounted, match="install the Lustre client"):
        mount_commands.mount(lustre)


# Disks


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A blank disk of 64 MB: its file, and its device."""
    need("disks")
    file = tmp_path / "disk"
    with open(file, "wb") as made:
        made.truncate(64 * MEGABYTE)
    done = subprocess.run(
        ["losetup", "--find", "--show", str(file)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"this machine gives no loop device: {done.stderr}")
    device = done.stdout.strip()
    yield file, device
    subprocess.run(["losetup", "--detach", device], check=True)


def on(device: str, source: Path, **values: Any) -> dict[str, Any]:
    return volume(
        source,
        **{
            "interface": "block",
            "share": "disk",
            "serial": "vol0abc",
            "devices": [device],
            "size_bytes": 64 * MEGABYTE,
            "filesystem": "ext4",
            **values,
        },
    )


def test_a_blank_disk_is_formatted_once_and_kept(tmp_path: Path, disk: tuple[Path, str]) -> None:
    there = on(disk[1], tmp_path / "mnt" / "ckpt")
    for task in ("first", "second"):
        script = f"cat {SHOWN}/from 2>/dev/null; echo {task} > {SHOWN}/from"
        with run(tmp_path / task, [there], script) as gang:
            ended = gang.run()
            assert ended["outcome"] == "done", (ended, gang.logs())
            assert gang.text(0) == {"first": "", "second": "first\n"}[task]
        # It can go to another machine now: nothing is left to be written.
        eventually(lambda: not mounted_below(tmp_path))
    assert subprocess.run(["e2fsck", "-fn", disk[1]], capture_output=True).returncode == 0


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (["mkfs.ext2", "-q"], "has ext2 on it, not ext4"),
        (["sh", "-c", PARTITIONED], "has dos on it"),
        (["sh", "-c", 'printf precious | dd of="$0" seek=5 bs=4096 status=none'], "is not blank"),
        (["sh", "-c", 'printf "at the end" | dd of="$0" seek=16383 bs=4096 status=none'], "is not blank"),
        (["mkswap", "-q"], "has swap on it"),
    ],
)  # fmt: skip
def test_a_disk_with_anything_on_it_is_never_formatted(
    tmp_path: Path, disk: tuple[Path, str], make: list[str], why: str
) -> None:
    file, device = disk
    made = subprocess.run([*make, device], capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"{make[0]} fails here: {made.stderr!r}")
    before = file.read_bytes()
    with pytest.raises(NotMounted, match=rf"{why}.*left as it is"):
        mount_commands.mount(on(device, tmp_path))
    assert file.read_bytes() == before


def test_another_disk_under_the_same_name_is_not_taken(
    tmp_path: Path, disk: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disks, "WAIT_SECONDS", 0.0)
    with pytest.raises(NotMounted, match=r"\(vol0abc\) does not appear"):
        mount_commands.mount(on(disk[1], tmp_path, size_bytes=65 * MEGABYTE))
    assert not any(disk[0].read_bytes())


def test_what_is_mounted_already_is_mounted_once(tmp_path: Path, disk: tuple[Path, str]) -> None:
    there = on(disk[1], tmp_path / "mnt")
    (tmp_path / "mnt").mkdir()
    mount_commands.mount(there)
    mount_commands.mount(there)
    assert len(mounted_below(tmp_path / "mnt")) == 1
    mount_commands.unmount(there["source"])
    assert not mounted_below(tmp_path)


def test_a_busy_one_goes_all_the_same(
    tmp_path: Path, disk: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mount_commands, "_BUSY_SECONDS", 0.2)
    there = on(disk[1], tmp_path / "mnt")
    (tmp_path / "mnt").mkdir()
    mount_commands.mount(there)
    with open(tmp_path / "mnt" / "held", "w") as held:
        held.write("x")
        held.flush()
        mount_commands.unmount(there["source"])
        assert not mounted_below(tmp_path)
