"""Whole tasks on EC2 in the box, from the command line to the last machine."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from flowlite.testing.cloud import CloudInABox

ROOT = Path(__file__).resolve().parent.parent.parent
pytestmark = pytest.mark.timeout(240)
SECONDS = 150.0
FUNCTION = """
import os
from flowlite import FlowApp

app = FlowApp(provider="aws")

@app.function(num_instances=2, processes_per_node=2, max_price_per_hour=0.1, max_run_time_hours=0.5)
def where(word: str) -> dict:
    print("rank", os.environ["RANK"], flush=True)
    return {"word": word, "ips": os.environ["FLOW_NODE_IPS"].split(","), "world": os.environ["WORLD_SIZE"]}

if __name__ == "__main__":
    print(where.remote("hello"))
"""


class Laptop:
    """`flow` on the laptop of the box's client."""

    def __init__(self, box: CloudInABox, home: Path) -> None:
        self.box = box
        self.home = home
        self.environment = {
            **box.client_environment(),
            "FLOW_HOME": str(home),
            "PYTHONPATH": str(ROOT),
        }

    def run(self, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, *words],
            env=self.environment,
            cwd=cwd or self.home,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        return done

    def flow(self, *words: str) -> str:
        return self.run("-m", "flowlite.cli", *words).stdout

    def json(self, *words: str) -> Any:
        return json.loads(self.flow(*words, "--json"))["data"]

    def assert_nothing_left(self) -> None:
        assert {each["state"] for each in self.box.aws.instances()} == {"terminated"}
        assert not any(self.box.aws.leftovers().values())


@pytest.fixture
def laptop(box: CloudInABox, flow_home: Path) -> Laptop:
    return Laptop(box, flow_home)


def test_a_command_on_two_machines(laptop: Laptop) -> None:
    began = time.monotonic()
    said = laptop.flow(
        "run", "-N", "2", "--provider", "aws", "--", "sh", "-c", "echo $RANK:$WORLD_SIZE"
    )
    assert sorted(line.split()[-1] for line in said.splitlines() if ":2" in line) == ["0:2", "1:2"]
    laptop.assert_nothing_left()
    taken = time.monotonic() - began
    actions = [name for name, _ in laptop.box.aws.calls]
    assert actions.count("RunInstances") == 1
    # Of all that it takes, planning included. Looks while the machines boot and end are a second apart at least, and
    # there are more of them only where this machine takes long; test_aws_calls.py counts on a clock of its own.
    looks = actions.count("DescribeInstances")
    assert len(actions) - looks < 30, actions
    assert len(actions) < 40 or looks < taken, actions
    # The cost is that of the machines' own times, as EC2 lists them.
    told = laptop.json("cost")
    times = [task["estimated_cost"] for task in told["tasks"]]
    assert 0 < times[0] < 2 * 0.08925 * SECONDS / 3600


def test_a_function_returns_from_two_machines(laptop: Laptop, tmp_path: Path) -> None:
    script = tmp_path / "where.py"
    script.write_text(FUNCTION)
    said = laptop.run(str(script), cwd=tmp_path).stdout
    addresses = [each["address"] for each in laptop.box.aws.instances()]
    assert "'word': 'hello'" in said
    assert "'world': '4'" in said
    for address in addresses:
        assert f"'{address}'" in said
    tags = [each["tags"] for each in laptop.box.aws.instances()]
    assert all(each["flowlite:deadline"].isdigit() for each in tags)
    laptop.assert_nothing_left()


def test_what_fits_and_what_it_costs(laptop: Laptop) -> None:
    found = laptop.json("offers", "--gpu", "h100:8", "-N", "4", "--provider", "aws")
    assert {(each["instance_type"], each["spot"]) for each in found} == {
        ("p5.48xlarge", False),
        ("p5.48xlarge", True),
    }
    assert [each["price_per_hour"] for each in found] == sorted(e["price_per_hour"] for e in found)
