"""A real Slurm on test hosts (`docs/testing.md`)."""

from flowlite.testing.slurm.cluster import SlurmCluster, why_not

__all__ = ["SlurmCluster", "why_not"]
