"""`dependencies=` and `python=` on this machine: this Python where it will do, else one made with uv."""

from __future__ import annotations

import importlib.metadata
import json
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowlite import TaskFailed
from flowlite.api.adapters import adapter
from flowlite.api.client import Flow
from flowlite.cli.submit_and_follow import preview
from flowlite.connect import uv
from flowlite.errors import ConfigError
from flowlite.spec import TaskConfig
from provider_adapters.local import LocalProvider
from provider_adapters.local.pythons import missing_requirements
from tests.components import python_of
from tests.providers.in_environments import version_of_probe
from tests.wheels import make_wheel, serve_index, use_no_index

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
OTHERS = [
    minor for minor in ("3.11", "3.12", "3.13") if minor != HERE and python_of(minor) is not None
]
PASSWORD = secrets.token_hex(8)


@pytest.fixture(autouse=True)
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    use_no_index(monkeypatch, tmp_path / "uv-cache")
    directory = tmp_path / "wheels"
    make_wheel(directory, "flowlite-probe-one", "1.5")
    return directory


@pytest.fixture
def index(wheels: Path) -> Iterator[str]:
    with serve_index(wheels, user="me", password=PASSWORD) as address:
        yield address


@pytest.fixture
def provider(flow_home: Path) -> LocalProvider:
    return adapter("local")


def test_a_function_finds_what_it_depends_on(
    flow_home: Path, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", index)
    task = version_of_probe.spawn()
    results = task.results()
    assert [(version, rank) for version, _, rank in results] == [("1.5", 0), ("1.5", 1)]
    (prefix,) = {prefix for _, prefix, _ in results}
    assert Path(prefix).parent == flow_home / "envs"
    # The password of the index lies in files of their owner only, and in no log.
    for path in flow_home.rglob("*"):
        if path.is_file() and PASSWORD.encode() in path.read_bytes():
            assert path.stat().st_mode & 0o077 == 0, path
            assert path.name == "packages.json"


def test_it_is_there_the_second_time_without_any_index(
    flow_home: Path, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", index)
    first = version_of_probe.remote()
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    assert version_of_probe.remote() == first


@pytest.mark.usefixtures("flow_home")
def test_an_index_out_of_reach_fails_the_task_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://me:{PASSWORD}@127.0.0.1:9/simple")
    with pytest.raises(TaskFailed) as caught:
        version_of_probe.remote()
    told = str(caught.value)
    assert "flowlite-probe-one" in told
    assert "127.0.0.1:9/simple cannot be reached" in told
    assert PASSWORD not in told


def test_what_is_here_needs_nothing(provider: LocalProvider, tmp_path: Path) -> None:
    listing, more = tmp_path / "requirements.txt", tmp_path / "more.txt"
    listing.write_text("# what we need\ncloudpickle >= 2  # any\n-r more.txt\n--no-binary x\n")
    more.write_text("pydantic\n")
    plan = provider.plan(TaskConfig(python=HERE, dependencies=str(listing)))
    assert plan.options["python_spec"] is None
    assert plan.notes == ()


def test_what_is_missing_is_noted(provider: LocalProvider) -> None:
    plan = provider.plan(TaskConfig(dependencies=["cloudpickle>=999", "no-such-package"]))
    (note,) = [note for note in plan.notes if "dependencies" in note]
    assert "cloudpickle>=999 (installed: " in note
    assert "no-such-package (not installed)" in note
    assert "nothing else" in note
    assert plan.options["python_spec"]["requirements"] == "cloudpickle>=999\nno-such-package\n"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            TaskConfig(dependencies=["no-such-package-at-all"]),
            r"at-all \(not installed\).*and uv, which",
        ),
        (
            TaskConfig(dependencies=["cloudpickle>=999"]),
            r"cloudpickle>=999 \(installed: .*and uv, which",
        ),
        (TaskConfig(python="3.99", command=["true"]), r"python: 3.99 was asked for.*and uv, which"),
        (TaskConfig(dependencies="/no/such/requirements.txt"), "requirements.txt cannot be read"),
    ],
)
def test_without_uv_it_is_refused(
    provider: LocalProvider, monkeypatch: pytest.MonkeyPatch, config: TaskConfig, message: str
) -> None:
    monkeypatch.setattr(uv, "uv_here", lambda: None)
    with pytest.raises(ConfigError, match=message):
        provider.plan(config)


def test_requirements_with_extras_and_markers() -> None:
    assert missing_requirements(["pydantic[email]>=2", "nothing; python_version < '3'"]) == []


@pytest.mark.parametrize(
    ("prefix", "goes"), [("builds-v0/.tmpuUKT7W", True), ("archive-v0/K2LQvab_CjVF", False)]
)
def test_an_environment_that_goes_with_its_command_is_told(
    provider: LocalProvider, monkeypatch: pytest.MonkeyPatch, prefix: str, goes: bool
) -> None:
    """That of `uv run --with flowlite`; that of `uvx` stays."""
    monkeypatch.setattr(sys, "prefix", f"/home/me/.cache/uv/{prefix}")
    notes = provider.plan(TaskConfig(command=["true"])).notes
    assert any("`uv run` removes this environment" in note for note in notes) is goes


@pytest.mark.parametrize("name", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_an_active_environment_that_is_not_used_is_told(
    provider: LocalProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def notes(python: str = "python", **options: Any) -> list[str]:
        plan = provider.plan(TaskConfig(command=[python, "train.py"], **options))
        return [note for note in plan.notes if "active environment" in note]

    for other in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(other, raising=False)
    assert notes() == []
    mine = tmp_path / "env" / "bin" / "python"
    mine.parent.mkdir(parents=True)
    mine.symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(mine.parent), prepend=os.pathsep)
    monkeypatch.setenv(name, str(tmp_path / "env"))
    (note,) = notes()
    assert f"({sys.executable})" in note
    assert f"write {mine} in the command" in note
    assert notes(str(mine)) == []
    # The one that flowlite is installed in is used.
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable), prepend=os.pathsep)
    monkeypatch.setenv(name, sys.prefix)
    assert notes() == []


def test_requirements_with_hashes_and_addresses() -> None:
    here = f"cloudpickle=={importlib.metadata.version('cloudpickle')} --hash=sha256:00"
    assert missing_requirements([here, "git+https://me:pw@host/a.git"]) == [
        "git+https://***@host/a.git (an address)"
    ]


@pytest.mark.usefixtures("flow_home")
def test_a_plan_that_is_shown_has_no_password(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listing = tmp_path / "requirements.txt"
    listing.write_text(f"--index-url https://me:{PASSWORD}@host/simple\nno-such-package\n")
    address = f"no-such-package @ https://me:{PASSWORD}@host/a.whl"
    for given in (str(listing), [address]):
        preview(TaskConfig(command=["true"], dependencies=given), json=True)
        shown = json.loads(capsys.readouterr().out)["data"]
        assert PASSWORD not in json.dumps(shown)
        assert "https://***@host/" in shown["plan"]["options"]["python_spec"]["requirements"]
    with pytest.raises(ConfigError) as caught:
        preview(TaskConfig(command=["true"], dependencies=[f"{address} b"]), json=True)
    assert PASSWORD not in str(caught.value)


def test_a_variable_in_the_requirements_reaches_uv_and_nobody_else(
    flow_home: Path, index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = tmp_path / "requirements.txt"
    listing.write_text(
        f"--index-url {index.replace(PASSWORD, '${PROBE_TOKEN}')}\nflowlite-probe-one\n"
    )
    monkeypatch.setenv("PROBE_TOKEN", PASSWORD)
    command = ["python", "-c", "import flowlite_probe_one as it; print(it.VERSION)"]
    task = Flow().run(TaskConfig(command=command, dependencies=str(listing)))
    task.wait()
    assert [line.text for line in task.logs()] == ["1.5"], task.status
    files = [path for path in flow_home.rglob("*") if path.is_file()]
    holding = {path.name for path in files if PASSWORD.encode() in path.read_bytes()}
    # A node elsewhere has it from that file alone.
    assert holding == {"packages.json"}


if OTHERS:
    # A machine need not have a second CPython.

    @pytest.mark.usefixtures("flow_home")
    def test_a_command_runs_in_another_python() -> None:
        command = ["python", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        task = Flow().run(TaskConfig(command=command, python=OTHERS[0]))
        task.wait()
        assert [line.text for line in task.logs()] == [OTHERS[0]], task.status
