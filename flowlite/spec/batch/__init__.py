"""Reads Slurm batch scripts: `read_batch` turns a script into configurations."""

from flowlite.spec.batch.config import Reading, read_batch
from flowlite.spec.batch.script import BatchScript, looks_like_batch

__all__ = ["BatchScript", "Reading", "looks_like_batch", "read_batch"]
