"""`distributed_mode="mpi"` and `"ray"` in a job of a real Slurm, to which their own launchers have a way as well."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.stacks.environments import trainers
from tests.stacks.mpi_programs import ADD, ADDED, python
from tests.stacks.test_ray_hosts import SPREAD

if TYPE_CHECKING:
    from tests.slurm.site import SlurmSite

pytestmark = [pytest.mark.slow, pytest.mark.hours, pytest.mark.timeout(600)]


def test_mpirun_reaches_the_nodes_of_a_job(slurm_site: SlurmSite) -> None:
    """Left to itself it would start its daemons with `srun`, beside the step and without the task's variables."""
    program = python()
    add = slurm_site.slurm.shared / "add.py"
    add.write_text(ADD)
    gang = slurm_site.submit([str(program), str(add)], distributed_mode="mpi", processes_per_node=2)
    gang.end()
    assert sorted(line.split() for line in gang.output(0).splitlines()) == ADDED


@pytest.mark.alone
def test_a_cluster_of_ray_spans_the_nodes_of_a_job(slurm_site: SlurmSite) -> None:
    config = slurm_site.home / "config.toml"
    config.write_text(config.read_text().replace(sys.executable, str(trainers())))
    spread = slurm_site.slurm.shared / "spread.py"
    spread.write_text(SPREAD)
    gang = slurm_site.submit(
        [str(trainers()), str(spread)], distributed_mode="ray", processes_per_node=2
    )
    gang.end(timeout=400.0)
    head, *addresses, first, second = gang.output(0).split()
    assert head in addresses
    assert len(set(addresses)) == 2
    assert (first, second) == ("0", "1")
