"""A real Slurm on test hosts (`docs/testing.md`).

`cluster.py` starts slurmctld, slurmdbd and slurmd of the Debian packages on test hosts: the first host is the head
and login node, the others run jobs. `configuration.py` writes their files, as pure functions; `scripts.py` has what
is run on the hosts. `operations.py` is for tests and people: it inspects jobs and nodes, and disturbs them.

Nothing of Slurm is simulated: the adapter's parsers meet what this version really prints. Needs root and the packages
that `python3 -m tests.components` names. Imports `testing/hosts`. Start with `cluster.py`.
"""

from flowlite.testing.slurm.cluster import SlurmCluster, why_not

__all__ = ["SlurmCluster", "why_not"]
