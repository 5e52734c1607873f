"""The project on rented machines: what lies beside the script is there, and nothing is rented for what would fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from flowlite.testing.cloud import CloudInABox
from tests.providers.test_aws_gang import Laptop

pytestmark = pytest.mark.timeout(240)
TRAIN = """
import os, pathlib
print("rank", os.environ["RANK"], "reads", pathlib.Path("data.csv").read_text())
"""


@pytest.fixture
def laptop(box: CloudInABox, flow_home: Path) -> Laptop:
    return Laptop(box, flow_home)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    (root / "train.py").write_text(TRAIN)
    (root / "data.csv").write_text("1,2,3")
    (root / ".gitignore").write_text("*.pt\n")
    (root / "model.pt").write_text("weights")
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    return root


def test_a_script_and_its_data_are_on_every_machine(laptop: Laptop, project: Path) -> None:
    words = ("run", "--provider", "aws", "-N", "2", "--", "python", "train.py")
    said = laptop.run("-m", "flowlite.cli", *words, cwd=project).stdout
    for rank in (0, 1):
        assert f"rank {rank} reads 1,2,3" in said
    laptop.assert_nothing_left()


def test_nothing_is_rented_for_a_file_that_is_only_here(laptop: Laptop, project: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "flowlite.cli", "run", "--provider", "aws", "--", "cat", "model.pt"],
        env=laptop.environment,
        cwd=project,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, "model.pt, which is only on this machine" in done.stderr) == (2, True)
    assert "RunInstances" not in [name for name, _ in laptop.box.aws.calls]
    assert laptop.box.aws.instances() == []
