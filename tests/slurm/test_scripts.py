"""Python scripts on a real Slurm: forked within their job, also from what the task before has left in it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from flowlite.node.config.python_command import STARTED_ANEW
from tests.flow_commands.run import flow
from tests.slurm.site import SlurmSite

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LOOK = """
import colorsys, os, sys

def parent(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])

server = parent(os.getppid())
with open(f"/proc/{server}/cmdline") as file:
    held = "held_by_flowlite" in file.read()
print("look", os.environ["RANK"], sys.argv[1:], sys._getframe().f_back, held, os.environ["SLURM_JOB_ID"], server)
"""


def test_a_script_is_forked_from_what_the_one_before_has_left(
    slurm_site: SlurmSite, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "look.py").write_text(LOOK)
    seen = []
    for name in ("first", "second"):
        done = _flow(
            slurm_site,
            project,
            *("run", "-N", "2", "--processes-per-node", "2", "--keep-warm", "5m", "--sync"),
            *("--name", name, "--", "python3", "look.py", name),
        )
        lines = sorted(
            line.partition("look ")[2].split(" None ")
            for line in done.stdout.splitlines()
            if "look " in line
        )
        assert [start for start, _ in lines] == [f"{rank} ['{name}']" for rank in range(4)], done
        assert {end.split()[0] for _, end in lines} == {"True"}, done.stdout
        seen.append({tuple(end.split()[1:]) for _, end in lines})
        status = _flow(slurm_site, project, "status", name).stdout
        assert STARTED_ANEW not in " ".join(status.split()), status
    (first, second) = seen
    # One fork server for each node, in one job.
    assert [len(each) for each in seen] == [2, 2], seen
    assert first == second
    assert len({job for job, _ in first}) == 1
    assert "2 nodes are kept warm (slurm)" in _flow(slurm_site, project, "status").stdout
    _flow(slurm_site, project, "gc", "--warm")
    slurm_site.slurm.wait(lambda: not slurm_site.slurm.jobs(), "the job has ended")


def _flow(site: SlurmSite, directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs `flow` on the laptop."""
    with site.slurm.enter_laptop():
        return flow(words, cwd=directory, timeout=300)
