"""`image=` on this machine, from the decorator to what is left of the container."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flowlite import Flow, TaskFailed
from flowlite.api.adapters import adapter
from flowlite.spec import TaskConfig
from tests.podman import IMAGE, Podman
from tests.providers.in_environments import inside, version_of_probe
from tests.wheels import make_wheel, serve_index, use_no_index


@pytest.fixture(autouse=True)
def no_other_index(monkeypatch: pytest.MonkeyPatch, flow_home: Path, tmp_path: Path) -> None:
    use_no_index(monkeypatch, tmp_path / "uv-cache")


@pytest.mark.usefixtures("podman")
def test_a_function_runs_inside() -> None:
    results = inside.spawn().results()
    assert [rank for rank, _, _ in results] == [0, 1]
    for _, _, root in results:
        assert "proc" in root
        assert "home" not in root
        assert root != sorted(os.listdir("/"))


@pytest.mark.usefixtures("podman")
def test_dependencies_are_added_to_what_the_image_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(tmp_path / "wheels", "flowlite-probe-one", "1.5")
    with serve_index(tmp_path / "wheels") as index:
        monkeypatch.setenv("UV_DEFAULT_INDEX", index)
        results = version_of_probe.options(image=IMAGE).spawn().results()
    assert [(version, rank) for version, _, rank in results] == [("1.5", 0), ("1.5", 1)]
    assert all("/envs/" in prefix for _, prefix, _ in results)


@pytest.mark.usefixtures("podman")
def test_dependencies_that_cannot_be_had_fail_the_task_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    with pytest.raises(TaskFailed) as caught:
        version_of_probe.options(image=IMAGE).remote()
    assert f"in the image {IMAGE}: dependencies (flowlite-probe-one)" in str(caught.value)
    assert "127.0.0.1:9/simple cannot be reached" in str(caught.value)


def test_a_cancelled_task_leaves_no_container(podman: Podman) -> None:
    task = Flow().run(TaskConfig(command=["sh", "-c", "echo up; sleep 60"], image=IMAGE))
    next(iter(task.logs(follow=True)))
    assert len(podman.containers()) == 1
    task.cancel()
    task.wait()
    assert task.status == "cancelled"


def test_an_image_that_is_not_here_is_a_rehearsal_without_it(flow_home: Path) -> None:
    plan = adapter("local").plan(TaskConfig(image="no.such/image:1"))
    assert plan.options["container"] is None
    (note,) = plan.notes
    assert "image no.such/image:1 is not used" in note
