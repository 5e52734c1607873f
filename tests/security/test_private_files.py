"""What flowlite keeps is readable by its owner only, whatever the umask of the program that submits."""

from __future__ import annotations

import hashlib
import importlib
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest

from flowlite import Flow, FlowApp, Task, TaskConfig
from flowlite.cli import main
from flowlite.connect.local import LocalConnection
from flowlite.connect.values import File
from flowlite.errors import ProviderError
from flowlite.node.host_lease import client as lease
from provider_adapters.slurm import volumes as slurm_volumes
from provider_adapters.slurm.login import Facts, SlurmLogin
from provider_adapters.slurm.shared import bring, make_volumes
from provider_adapters.ssh import hosts
from provider_adapters.ssh import volumes as ssh_volumes
from provider_adapters.ssh.pools import Host, Pool
from provider_adapters.ssh.volume_hosts import Places
from tests.helpers import eventually


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


def write_output() -> None:
    from pathlib import Path

    Path("out.txt").write_text("done")


@pytest.mark.usefixtures("no_umask")
def test_nothing_in_flow_home_is_open_to_others(
    flow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("API_TOKEN", "hunter2-long")
    app = FlowApp()
    volumes = {str(tmp_path / "kept"): "kept"}
    task = app.function(
        write_output,
        num_instances=2,
        secrets=["API_TOKEN"],
        outputs=["*.txt"],
        volumes=volumes,
        keep_warm=30,
    ).spawn()
    task.result()
    Flow().run(TaskConfig(command=["true"])).wait()
    assert open_to_others(flow_home) == []


# What a worker writes, or its Python, has the modes that the worker gives it.
_BY_WORKERS = frozenset({"out.txt", "__pycache__"})


def open_to_others(directory: Path) -> list[str]:
    """What other users could read in a directory, if they could enter those above."""
    found = []
    for path in directory.rglob("*"):
        # Files come and go while a task runs.
        with suppress(FileNotFoundError):
            mode = path.lstat().st_mode
            if not stat.S_ISLNK(mode) and path.name not in _BY_WORKERS and mode & 0o077:
                found.append(str(path.relative_to(directory)))
    return found


# Says that it runs, and ends when it may.
_STAY = "touch started.$$; until [ -e go ]; do sleep 0.1; done"
_MODULE = """\
import os, time

def stay(directory):
    open(f"{directory}/started.{os.getpid()}", "w").close()
    while not os.path.exists(f"{directory}/go"):
        time.sleep(0.1)
    raise RuntimeError("the end")
"""


def spawn_function(tmp_path: Path, patch: pytest.MonkeyPatch) -> Task[Any]:
    (tmp_path / "staying").mkdir()
    (tmp_path / "staying" / "__init__.py").write_text(_MODULE)
    patch.syspath_prepend(tmp_path)
    module = importlib.import_module("staying")
    # Forgotten after the test.
    del sys.modules["staying"]
    patch.setitem(sys.modules, "staying", module)
    return FlowApp().function(module.stay, num_instances=2).spawn(str(tmp_path))


def submit_launcher(tmp_path: Path, patch: pytest.MonkeyPatch) -> Task[Any]:
    command = ["sh", "-c", _STAY]
    return Flow().submit(
        TaskConfig(
            command=command, num_instances=2, distributed_mode="manual", workdir=str(tmp_path)
        )
    )


def submit_batch_script(tmp_path: Path, patch: pytest.MonkeyPatch) -> Task[Any]:
    script = tmp_path / "job.sbatch"
    script.write_text(
        f"#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --chdir={tmp_path}\nsrun sh -c '{_STAY}'\n"
    )
    assert main(["run", "--detach", str(script)]) == 0
    (task,) = Flow().list_tasks()
    return task


@pytest.mark.usefixtures("no_umask")
@pytest.mark.parametrize("submit", [spawn_function, submit_launcher, submit_batch_script])
def test_nothing_of_a_task_that_runs_is_open_to_others(
    flow_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    submit: Callable[[Path, pytest.MonkeyPatch], Task[Any]],
) -> None:
    directory = tmp_path / "work"
    directory.mkdir()
    task = submit(directory, monkeypatch)
    try:
        eventually(lambda: len([*directory.glob("started.*")]) == 2, what="both ranks run")
        assert [*(flow_home / "tasks" / task.id / "nodes").glob("*/a1/r*.pid")]
        assert open_to_others(flow_home) == []
    finally:
        (directory / "go").touch()
        task.wait()
    assert open_to_others(flow_home) == []


@pytest.mark.usefixtures("no_umask")
@pytest.mark.parametrize("where", ["pool", "lease", "cluster", "job"])
def test_volumes_in_a_shared_directory_are_closed_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    shared = tmp_path / "shared"
    pool = Pool("lab", (Host("gpu1", 0, "lab", {"host": "gpu1"}),), str(shared))
    monkeypatch.setattr(hosts, "connect", lambda host: LocalConnection())
    login = SlurmLogin("", tmp_path / "slurm", LocalConnection())
    login._facts = Facts("/usr/bin/sbatch", "", "", str(tmp_path), "ada", os.getuid(), "login1")
    if where == "pool":
        ssh_volumes.Volumes(pool, Places(tmp_path)).create("ckpt", None, "file")
    elif where == "lease":
        assert lease._make([f"{shared}/ckpt"]) == ""
    elif where == "cluster":
        slurm_volumes.Volumes(login, str(shared)).create("ckpt", "file")
    else:
        make_volumes(login, str(shared), ["ckpt", "data"])
    assert [*shared.rglob("ckpt")]
    assert open_to_others(tmp_path) == []


@pytest.mark.needs("root")
def test_a_shared_directory_that_another_user_has_made_is_refused(tmp_path: Path) -> None:
    """On a login node that is this machine: `/scratch/flow-ada`, made by somebody else."""
    tmp_path.chmod(0o1777)
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o777)
    os.chown(shared, 4321, 4321)
    login = SlurmLogin("", tmp_path / "slurm", LocalConnection())
    login._facts = Facts("/usr/bin/sbatch", "", "", str(tmp_path), "ada", os.getuid(), "login1")
    with pytest.raises(ProviderError, match="shared belongs to uid 4321"):
        slurm_volumes.Volumes(login, str(shared)).create("ckpt", "file")
    program = tmp_path / "agent.pyz"
    program.write_text("x")
    with pytest.raises(ProviderError, match="shared belongs to uid 4321"):
        bring(login, str(shared), program, "0" * 64, "nonce")
    assert list(shared.iterdir()) == []
    os.chown(shared, 0, 0)
    bring(login, str(shared), program, hashlib.sha256(b"x").hexdigest(), "nonce")
    assert [*shared.iterdir()]


@pytest.mark.usefixtures("no_umask")
def test_a_file_is_closed_to_others_before_it_has_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = []

    def copy(source: Path, target: Path) -> None:
        copyfile(source, target)
        modes.append(target.stat().st_mode & 0o777)

    monkeypatch.setattr(shutil, "copyfile", copy)
    (tmp_path / "source").write_text("a call")
    with LocalConnection() as connection:
        target = str(tmp_path / "node" / "call.bin")
        connection.put_many([File(target, tmp_path / "source")])
    assert modes == [0o600]
