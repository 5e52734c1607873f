"""Volumes that are directories, on hosts of a pool and at Slurm: listed while tasks write to them; large ones."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from flowlite.connect.local import LocalConnection
from flowlite.provider import VolumeInfo
from provider_adapters.slurm import volumes as slurm_volumes
from provider_adapters.slurm.login import Facts, SlurmLogin
from provider_adapters.slurm.volumes import Volumes as SlurmVolumes
from provider_adapters.ssh import hosts, volumes
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
    program.with_name("real-du").symlink_to(str(shutil.which("du")))
    program.write_text(f'#!/bin/sh\n{shutil.which("du")} "$@"\n[ "$3" != last ]\n')
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return tmp_path


def slurm_volumes_of(root: Path) -> SlurmVolumes:
    login = SlurmLogin("", root, LocalConnection())
    login._facts = Facts("/usr/bin/sbatch", "", "", str(root), "me", 1, "here")
    return SlurmVolumes(login, str(root))


def pool_volumes_of(root: Path) -> SshVolumes:
    pool = Pool("lab", (Host("gpu1", 0, "lab", {"host": "gpu1"}),), str(root / "volumes"))
    return SshVolumes(pool, Places(root / "flow"))


def at_slurm(root: Path) -> list[VolumeInfo]:
    return slurm_volumes_of(root).list()


def on_hosts(root: Path) -> list[VolumeInfo]:
    return pool_volumes_of(root).list()


@pytest.mark.parametrize("listed", [at_slurm, on_hosts])
def test_a_file_that_goes_meanwhile_hides_no_volume(
    root: Path, listed: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "connect", lambda host: LocalConnection())
    assert callable(listed)
    assert [each.name for each in listed(root)] == ["first", "last"]


@pytest.mark.parametrize("listed", [at_slurm, on_hosts])
def test_one_that_takes_too_long_to_measure_hides_none(
    root: Path, listed: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`du` looks at every file. Of a volume of some million files on the network, that takes minutes."""
    (root / "volumes" / "large one").mkdir()
    (root / "volumes" / "first" / "file").write_bytes(b"x" * 5000)
    (root / "bin" / "du").write_text(
        '#!/bin/sh\n[ "$3" != "large one" ] || exec sleep 600\nexec real-du "$@"\n'
    )
    monkeypatch.setattr(volumes, "_MEASURED_SECONDS", 2, raising=False)
    monkeypatch.setattr(volumes, "_SECONDS", 4)
    monkeypatch.setattr(slurm_volumes, "_SECONDS", 4)
    monkeypatch.setattr(hosts, "connect", lambda host: LocalConnection())
    assert callable(listed)
    found = {each.name: each.used_bytes for each in listed(root)}
    assert list(found) == ["first", "large one", "last"]
    assert found["first"] > 5000
    assert found["large one"] is None


@pytest.mark.parametrize("listed", [at_slurm, on_hosts])
def test_a_machine_without_timeout_measures_all(
    root: Path, listed: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("sh", "xargs", "du"):
        if not (root / "bin" / name).exists():
            (root / "bin" / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(root / "bin"))
    monkeypatch.setattr(hosts, "connect", lambda host: LocalConnection())
    assert callable(listed)
    assert all(each.used_bytes is not None for each in listed(root))


@pytest.mark.parametrize("volumes_of", [slurm_volumes_of, pool_volumes_of])
def test_a_deletion_takes_as_long_as_it_takes(
    root: Path, volumes_of: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    rm = shutil.which("rm")
    (root / "bin" / "rm").write_text(f'#!/bin/sh\nsleep 2\nexec {rm} "$@"\n')
    (root / "bin" / "rm").chmod(0o700)
    monkeypatch.setattr(volumes, "_SECONDS", 1)
    monkeypatch.setattr(slurm_volumes, "_SECONDS", 1)
    monkeypatch.setattr(hosts, "connect", lambda host: LocalConnection())
    assert callable(volumes_of)
    volumes_of(root).delete("first")
    assert not (root / "volumes" / "first").exists()
