"""Coming back to what did not answer when it was to end: until nothing is left, and by one process at a time."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from flowlite.errors import ProviderError
from flowlite.provider import Provider
from flowlite.supervise.attempt import unreachable_nodes


class Left:
    """A provider that has given up so many hosts; one answers at each look, after some at which none does."""

    name = "left"

    def __init__(self, hosts: int, silent: int = 0) -> None:
        self.hosts = hosts
        self.silent = silent
        self.looks = 0

    def has_left(self) -> bool:
        return self.hosts > 0

    def revisit(self) -> None:
        self.looks += 1
        if self.looks <= self.silent:
            raise ProviderError("none of them answers")
        self.hosts -= 1


def provider(left: Left) -> Provider:
    return cast("Provider", left)


@pytest.fixture(autouse=True)
def begun(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What would have been started."""
    started: list[tuple[Any, ...]] = []
    monkeypatch.setattr(unreachable_nodes, "_EVERY", 0.0)
    monkeypatch.setattr(unreachable_nodes, "run_detached", lambda *begun: started.append(begun))
    return started


def test_it_goes_on_until_nothing_is_left(tmp_path: Path) -> None:
    left = Left(3, silent=2)
    unreachable_nodes.revisit(tmp_path, provider(left))
    assert (left.hosts, left.looks) == (0, 5)
    assert not list(tmp_path.iterdir())


def test_nothing_is_started_where_nothing_is_left(
    tmp_path: Path, begun: list[tuple[Any, ...]]
) -> None:
    unreachable_nodes.begin_if_left(tmp_path, provider(Left(0)))
    unreachable_nodes.begin_again(tmp_path)
    assert begun == []
    assert not list(tmp_path.iterdir())


def test_one_process_at_a_time_and_another_if_it_was_killed(
    tmp_path: Path, begun: list[tuple[Any, ...]]
) -> None:
    left = Left(1)
    unreachable_nodes.begin_if_left(tmp_path, provider(left))
    (file,) = tmp_path.iterdir()
    assert len(begun) == 1
    held = os.open(file, os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    unreachable_nodes.begin_again(tmp_path)
    assert len(begun) == 1
    unreachable_nodes.revisit(tmp_path, provider(left))
    assert left.looks == 0
    os.close(held)
    unreachable_nodes.begin_again(tmp_path)
    assert begun == [(tmp_path, unreachable_nodes.__name__)] * 2


def test_what_is_given_up_while_it_leaves_is_not_forgotten(tmp_path: Path) -> None:
    left = Left(1)

    class Late(Left):
        def has_left(self) -> bool:
            # Given up when the last look was over, and its supervisor found the file locked.
            if self.looks == 1 and self.hosts == 0 and not list(tmp_path.iterdir()):
                self.hosts = 1
            return self.hosts > 0

    left = Late(1)
    unreachable_nodes.revisit(tmp_path, provider(left))
    assert (left.hosts, left.looks) == (0, 2)


def test_a_process_that_was_killed_at_its_end_is_not_begun_again_for_ever(
    tmp_path: Path, begun: list[tuple[Any, ...]]
) -> None:
    left = Left(1)
    unreachable_nodes.begin_if_left(tmp_path, provider(left))
    # It was killed after its last look, or somebody else has ended what was left.
    left.hosts = 0
    unreachable_nodes.begin_again(tmp_path)
    unreachable_nodes.revisit(tmp_path, provider(left))
    unreachable_nodes.begin_again(tmp_path)
    assert len(begun) == 2
    assert not list(tmp_path.iterdir())


def test_a_provider_that_cannot_be_asked_ends_no_supervisor(tmp_path: Path) -> None:
    class Broken(Left):
        def has_left(self) -> bool:
            raise ProviderError("its notes cannot be read")

    unreachable_nodes.begin_if_left(tmp_path, provider(Broken(1)))


def test_the_process_looks_at_all_providers_and_stays_until_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own: what it does takes threads, which cannot begin when its main thread has ended."""
    program = tmp_path / "program.py"
    program.write_text(
        """
import threading
from flowlite.supervise.attempt import unreachable_nodes as revisiting

class Left:
    name, hosts = "", 2
    def __init__(self, name): self.name = name
    def has_left(self): return self.hosts > 0
    def revisit(self):
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()
        self.hosts -= 1

revisiting._EVERY = 0.05
revisiting.get_provider = lambda home, settings: Left(settings.provider)
revisiting.main()
"""
    )
    home = tmp_path / "home"
    home.mkdir()
    for name in ("one", "two"):
        (home / f"revisiting-{name}").touch()
    root = str(Path(unreachable_nodes.__file__).parents[2])
    environment = {**os.environ, "FLOW_HOME": str(home), "PYTHONPATH": root}
    subprocess.run([sys.executable, str(program)], env=environment, check=True, timeout=90)
    assert not list(home.iterdir())
