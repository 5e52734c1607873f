"""`image=` on this machine, from the decorator to what is left of the container."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowlite import Flow, TaskFailed
from flowlite.spec import TaskConfig
from provider_adapters.local import LocalProvider
from tests.podman import IMAGE, Podman, why_not
from tests.providers.in_environments import inside, version_of_probe
from tests.wheels import make_wheel, serve_index, use_no_index


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    made = Podman(tmp_path_factory.mktemp("podman") / "p")
    reason = made.prepare()
    if reason:
        made.close()
        pytest.skip(f"podman runs no container here: {reason}")
    yield made
    made.close()


@pytest.fixture
def engine(
    podman: Podman, flow_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Podman]:
    for name, value in podman.environment.items():
        monkeypatch.setenv(name, value)
    use_no_index(monkeypatch, tmp_path / "uv-cache")
    yield podman
    assert podman.containers() == []


@pytest.mark.usefixtures("engine")
def test_a_function_runs_inside() -> None:
    results = inside.spawn().results()
    assert [rank for rank, _, _ in results] == [0, 1]
    for _, _, root in results:
        assert "proc" in root
        assert "home" not in root
        assert root != sorted(os.listdir("/"))


@pytest.mark.usefixtures("engine")
def test_dependencies_are_added_to_what_the_image_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(tmp_path / "wheels", "flowlite-probe-one", "1.5")
    with serve_index(tmp_path / "wheels") as index:
        monkeypatch.setenv("UV_DEFAULT_INDEX", index)
        results = version_of_probe.options(image=IMAGE).spawn().results()
    assert [(version, rank) for version, _, rank in results] == [("1.5", 0), ("1.5", 1)]
    assert all("/envs/" in prefix for _, prefix, _ in results)


@pytest.mark.usefixtures("engine")
def test_dependencies_that_cannot_be_had_fail_the_task_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    with pytest.raises(TaskFailed) as caught:
        version_of_probe.options(image=IMAGE).remote()
    assert f"in the image {IMAGE}: dependencies (flowlite-probe-one)" in str(caught.value)
    assert "127.0.0.1:9/simple cannot be reached" in str(caught.value)


@pytest.mark.usefixtures("engine")
def test_a_cancelled_task_leaves_no_container(engine: Podman) -> None:
    task = Flow().run(TaskConfig(command=["sh", "-c", "echo up; sleep 60"], image=IMAGE))
    next(iter(task.logs(follow=True)))
    assert len(engine.containers()) == 1
    task.cancel()
    task.wait()
    assert task.status == "cancelled"
    assert engine.containers() == []


def test_an_image_that_is_not_here_is_a_rehearsal_without_it(flow_home: Path) -> None:
    plan = LocalProvider().plan(TaskConfig(image="no.such/image:1"))
    assert plan.options["container"] is None
    (note,) = plan.notes
    assert "image no.such/image:1 is not used" in note
