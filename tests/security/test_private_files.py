"""What flowlite keeps is readable by its owner only, whatever the umask of the program that submits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowlite import Flow, FlowApp, TaskConfig


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
    opened = [
        str(path.relative_to(flow_home))
        for path in flow_home.rglob("*")
        # What a worker writes has the modes that the worker gives it.
        if not path.is_symlink() and path.name != "out.txt" and path.stat().st_mode & 0o077
    ]
    assert opened == []
