"""The session of docs/testing.md, as a person types it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import Block, blocks_of, compare, environment_of

pytestmark = pytest.mark.needs("hosts")
ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def person(flow_home: Path) -> Iterator[dict[str, str]]:
    """A shell's variables; hosts that are up already are somebody else's."""
    directory = Path(tempfile.mkdtemp(prefix="person-"))
    tools = directory / "tools"
    tools.mkdir()
    environment = {**environment_of(flow_home, tools), "TMPDIR": str(directory), "SHELL": "/bin/sh"}
    yield environment
    run("python -m flowlite.testing.hosts down", environment)
    shutil.rmtree(directory, ignore_errors=True)


def run(command: str, environment: dict[str, str], typed: str = "") -> tuple[int, str]:
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=ROOT,
        env=environment,
        input=typed,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )
    return done.returncode, done.stdout


def session() -> Block:
    """The block of the page."""
    page = ROOT / "docs" / "testing.md"
    return next(block for block in blocks_of(page) if block.text.startswith("$ make hosts"))


def test_the_page_is_right(person: dict[str, str]) -> None:
    block = session()
    for part in re.split(r"^(\$ |laptop\$ )", block.text, flags=re.MULTILINE)[1:]:
        if part in ("$ ", "laptop$ "):
            on_laptop = part != "$ "
            continue
        command, _, shown = part.partition("\n")
        if on_laptop:
            command = f"python -m flowlite.testing.hosts laptop sh -c {shlex.quote(command)}"
        code, output = run(command, person, typed="exit\n")
        assert code == 0, f"{command}: {output}"
        compare(block, shown, output)
    assert not [n for n in os.listdir(person["TMPDIR"]) if n.startswith("flowlite-hosts-")]


def test_mistakes_are_explained(person: dict[str, str]) -> None:
    hosts = "python -m flowlite.testing.hosts"
    assert run(f"{hosts} list", person) == (
        1,
        "hosts: no hosts are up; `make hosts N=4` brings them up\n",
    )
    assert run(f"{hosts} up 1", person)[0] == 0
    for command, said in (
        ("up 1", "hosts are up already"),
        ("kill node07", "no host 'node07'; there are node00"),
        ("kill laptop", "the laptop cannot kill"),
        ("delay node00", "hosts: usage: delay HOST MS [LOSS_PERCENT]\n"),
        ("pause node00 3", "hosts: usage: pause HOST\n"),
    ):
        code, output = run(f"{hosts} {command}", person)
        assert code == 1
        assert said in output


def test_every_operation_can_be_typed(person: dict[str, str]) -> None:
    hosts = "python -m flowlite.testing.hosts"
    assert run(f"{hosts} up 1", person)[0] == 0
    for command in (
        "pause node00",
        "resume node00",
        "partition laptop",
        "heal laptop",
        "delay node00 10 1",
        "delay node00 0",
        "fill-disk node00",
        "free-disk node00",
        "skew-clock node00 60",
        "stop-sshd node00",
        "start-sshd node00",
        "hang-logins node00",
        "restart-sshd node00",
        "change-host-key node00",
        "silence-resolver node00",
        "kill node00",
        "start node00",
        "power-cut node00",
        "start node00",
    ):
        assert run(f"{hosts} {command}", person) == (0, ""), command
    assert run(f"{hosts} on node00 hostname", person) == (0, "node00\n")
    assert run(f"{hosts} laptop hostname -I", person)[1].startswith("10.77.0.1 ")
