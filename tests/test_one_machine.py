"""A store in a directory that several machines share is used by one of them at a time."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from flowlite.errors import StoreError
from flowlite.node.mount_namespace import mounts
from flowlite.state import database, one_machine
from flowlite.state.store import Store
from tests.test_store import leased, task

Move = Callable[..., None]


@pytest.fixture
def move(monkeypatch: pytest.MonkeyPatch) -> Move:
    """Lets the test go on on another machine. The directory is on a file server that all of them use."""
    monkeypatch.setattr(database, "is_shared", lambda path: True)

    def to(machine: str, boot: str = "") -> None:
        this = machine, boot or f"boot of {machine}"
        monkeypatch.setattr(one_machine, "_this", lambda: this)

    to("login1")
    return to


def test_another_machine_is_refused_while_one_uses_the_store(tmp_path: Path, move: Move) -> None:
    path = tmp_path / "state.db"
    first = Store(path)
    first.create_task(task())

    move("login2")
    with pytest.raises(StoreError, match=r"is in use on login1.*run `flow` on login1, or set"):
        Store(path)

    move("login1")
    Store(path).close()
    leased(first)


def test_another_machine_takes_over_what_nobody_uses(tmp_path: Path, move: Move) -> None:
    path = tmp_path / "state.db"
    first = Store(path)
    first.create_task(task())
    first.close()

    move("login2")
    second = Store(path)
    assert second.get_task("t1").name == "digits"

    move("login1")
    with pytest.raises(StoreError, match="is in use on login2"):
        Store(path)


def test_what_a_killed_process_left_counts_for_minutes_only(tmp_path: Path, move: Move) -> None:
    path = tmp_path / "state.db"
    first = Store(path)
    first.create_task(task())
    log = path.with_name("state.db-wal")
    before = log.stat().st_mtime - 600
    os.utime(log, (before, before))

    move("login2")
    second = Store(path)
    second.create_task(task("t2"))

    # A program that was idle meanwhile must not write over that.
    move("login1")
    for _ in range(2):
        with pytest.raises(StoreError, match="is in use on login2"):
            first.create_task(task("t3"))
    second.close()
    first.create_task(task("t3"))
    assert first.task_ids() == {"t1", "t2", "t3"}


def test_a_restart_or_another_name_makes_no_other_machine(tmp_path: Path, move: Move) -> None:
    path = tmp_path / "state.db"
    move("login1", "first")
    used = [Store(path)]
    used[0].create_task(task())
    move("login1", "second")
    used.append(Store(path))
    move("login1.example.org", "second")
    used.append(Store(path))
    assert [each.task_ids() for each in used] == [{"t1"}] * 3


@pytest.mark.parametrize(
    ("mount", "shared"),
    [
        ("server:/export/home /home nfs4", True),
        ("10.0.0.1@tcp:/scratch /home lustre", True),
        ("//server/share /home cifs", True),
        ("gpfs0 /home gpfs", True),
        ("server:/export/home /home2 nfs4", False),
        ("overlay / overlay", False),
        ("tmpfs /home tmpfs", False),
    ],
)
def test_a_directory_that_other_machines_may_use(
    monkeypatch: pytest.MonkeyPatch, mount: str, shared: bool
) -> None:
    source, point, kind = mount.split()
    here = [("/", "ext4", "/dev/sda"), (point, kind, source)]
    monkeypatch.setattr(mounts, "mounts", lambda: iter(here))
    assert mounts.is_of_many(*mounts.file_system_of("/home/you/.flowlite")) is shared


def test_a_blank_in_the_path_of_a_mount_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "36 35 0:98 / /home/a\\040b rw shared:1 - nfs4 server:/export/a\\040b rw\n"
    monkeypatch.setattr(mounts, "open", lambda *_, **__: io.StringIO(line), raising=False)
    assert mounts.file_system_of("/home/a b/x") == ("nfs4", "server:/export/a b")


def test_no_user_can_hide_mounts_by_the_name_of_a_mount_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users mount file systems of FUSE at paths of their choice, and every process of the machine sees that."""
    table = tmp_path / "mountinfo"
    table.write_bytes(
        b"36 35 0:97 / /mnt/other/a\rb rw shared:1 - fuse.sshfs host:/ rw\n"
        b"37 35 0:98 / /mnt/me rw shared:1 - nfs4 server:/export rw\n"
    )
    monkeypatch.setattr(mounts, "open", lambda _, **how: table.open(**how), raising=False)
    assert [point for point, _, _ in mounts.mounts()] == ["/mnt/other/a\rb", "/mnt/me"]
