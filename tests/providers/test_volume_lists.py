"""The lists of volumes that are directories, on hosts of a pool and at Slurm, while tasks write to them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from flowlite.connect.local import LocalConnection
from flowlite.provider import VolumeInfo
from provider_adapters.slurm.login import Facts, SlurmLogin
from provider_adapters.slurm.volumes import Volumes as SlurmVolumes
from provider_adapters.ssh import hosts
from provider_adapters.ssh.pools import Host, Pool
from provider_adapters.ssh.volume_hosts import Places
from provider_adapters.ssh.volumes import Volumes as SshVolumes


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with two volumes. A file of the last one is removed while `du` looks at it."""
    for name in ("first", "last"):
        (tmp_path / "volumes" / name).mkdir(parents=True)
    program = tmp_path / "bin" / "du"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\n{shutil.which("du")} "$@"\n[ "$3" != last ]\n')
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return tmp_path


def at_slurm(root: Path) -> list[VolumeInfo]:
    login = SlurmLogin("", root, LocalConnection())
    login._facts = Facts("/usr/bin/sbatch", "", "", str(root), "me", 1, "here")
    return SlurmVolumes(login, str(root)).list()


def on_hosts(root: Path) -> list[VolumeInfo]:
    pool = Pool("lab", (Host("gpu1", 0, "lab", {"host": "gpu1"}),), str(root / "volumes"))
    return SshVolumes(pool, Places(root / "flow")).list()


@pytest.mark.parametrize("listed", [at_slurm, on_hosts])
def test_a_file_that_goes_meanwhile_hides_no_volume(
    root: Path, listed: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "connect", lambda host: LocalConnection())
    assert callable(listed)
    assert [each.name for each in listed(root)] == ["first", "last"]
