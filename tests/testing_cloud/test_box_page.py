"""The session of docs/cloud-in-a-box.md, as a person types it."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from flowlite.testing.cloud import CloudInABox
from tests.docs.blocks import Block, blocks_of, compare, environment_of

pytestmark = [
    pytest.mark.needs("hosts"),
    pytest.mark.slow,
    pytest.mark.timeout(300),
]
ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "cloud-in-a-box.md"


def session() -> Block:
    return next(block for block in blocks_of(PAGE) if block.language == "console")


def run(command: str, environment: dict[str, str], typed: str = "") -> str:
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=ROOT,
        env=environment,
        input=typed,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        check=False,
    )
    return done.stdout


def test_the_session_is_what_comes_out(box: CloudInABox, flow_home: Path, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    person = {**environment_of(flow_home, tools), "SHELL": "/bin/sh", "PYTHONPATH": str(ROOT)}
    laptop = {**person, **box.environment()}
    block = session()
    for prompt, part in re.findall(
        r"^(laptop\$ |\$ )((?:(?!^(?:laptop\$ |\$ )).*\n)+)", block.text, flags=re.MULTILINE
    ):
        command, _, shown = part.partition("\n")
        if command == "exit":
            continue
        said = run(command, laptop if prompt == "laptop$ " else person, typed="exit\n")
        compare(block, shown, said)


def flow(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flowlite.cli", "cloud-in-a-box", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_a_command_gives_its_status_and_what_is_left_is_told(flow_home: Path) -> None:
    launch = "from tests.testing_cloud.ec2_client import *; print(launch(client()))"
    script = f"echo $FLOW_HOME; {shlex.quote(sys.executable)} -c '{launch}'; exit 7"
    done = flow("--machines", "1", "--boot", "0", "--", "sh", "-c", script)
    assert done.returncode == 7, done.stderr
    home, launched = done.stdout.splitlines()
    assert home != str(flow_home)
    (id,) = re.findall(r"i-[0-9a-f]+", launched)
    assert f"Still rented when the box closed: {id}." in done.stderr


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (["--machines", "0"], "Invalid value for '--machines'", 2),
        (["--", "no-such-program"], "there is no program 'no-such-program'", 5),
    ],
)
def test_mistakes_are_explained(words: list[str], said: str, code: int) -> None:
    done = flow(*words)
    assert said in done.stderr
    assert done.returncode == code
