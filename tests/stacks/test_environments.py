"""The environments that stacks are tested in: made once, complete, and a test without one says which."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stacks import environments
from tests.wheels import make_wheel, use_no_index


@pytest.fixture
def wheels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A cache of its own, and a directory that all packages come from."""
    wheels = tmp_path / "wheels"
    make_wheel(wheels, "torchvision", "0.28.0")
    make_wheel(wheels, "trainer", requires=["torch==1.0", "torchvision"])
    use_no_index(monkeypatch, tmp_path / "uv")
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(wheels))
    monkeypatch.setattr(environments, "_PLACE", str(tmp_path / "cache"))
    environments.environment.cache_clear()
    yield wheels
    environments.environment.cache_clear()


def said(python: Path, code: str) -> str:
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_it_has_the_stack_and_sees_the_rest_of_ours(wheels: Path) -> None:
    python = environments.stack("trainer==1.0", name="trainer")
    find = "from importlib.util import find_spec as f; print(f('{}').origin)"
    for name in ("trainer", "torchvision"):
        assert said(python, find.format(name)).startswith(str(python.parents[1]))
    for name in ("torch", "numpy", "flowlite"):
        theirs = subprocess.check_output(
            [environments.sys.executable, "-c", find.format(name)], text=True
        )
        assert said(python, find.format(name)) == theirs.strip()
    assert said(python, "import sys; print(sys.prefix)") == str(python.parents[1])
    flow = python.parent / "flow"
    assert "flow run" in subprocess.check_output([flow, "run", "--help"], text=True)


def test_one_that_was_not_finished_is_made_again(wheels: Path) -> None:
    python = environments.stack("trainer==1.0", name="trainer")
    (python.parents[1] / "ready").unlink()
    left = python.parents[1] / "left"
    left.touch()
    environments.environment.cache_clear()
    assert environments.stack("trainer==1.0", name="trainer") == python
    assert not left.exists()
    left.touch()
    environments.environment.cache_clear()
    assert environments.stack("trainer==1.0", name="trainer") == python
    assert left.exists()


def test_what_cannot_be_installed_is_named(wheels: Path) -> None:
    with pytest.raises(pytest.skip.Exception) as skipped:
        environments.stack("no-such-trainer==1.0", name="the new one")
    reason = str(skipped.value)
    assert reason.startswith("the stack the new one cannot be installed here")
    assert "no-such-trainer" in reason


def test_those_of_a_python_that_is_gone_are_removed(wheels: Path) -> None:
    python = environments.stack("trainer==1.0", name="trainer")
    ready = python.parents[1] / "ready"
    ready.write_text(ready.read_text().replace(environments.sys.prefix, str(wheels / "gone")))
    make_wheel(wheels, "trainer", "2.0")
    environments.stack("trainer==2.0", name="trainer")
    assert not python.exists()
