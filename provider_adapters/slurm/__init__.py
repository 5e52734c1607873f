"""The provider `slurm`: nodes are those of one job that `sbatch` was given."""

from provider_adapters.slurm.provider import SlurmProvider

__all__ = ["SlurmProvider"]
