"""Batch scripts of Slurm, read: `read_batch` makes configurations of one."""

from flowlite.spec.batch.config import Reading, read_batch
from flowlite.spec.batch.script import BatchScript, looks_like_batch

__all__ = ["BatchScript", "Reading", "looks_like_batch", "read_batch"]
