"""Connections to nodes that are reached through a command, such as `srun`."""

from __future__ import annotations

from flowlite.connect.step.connection import StepConnection
from flowlite.connect.step.errors import JobGone, srun_lost

__all__ = ["JobGone", "StepConnection", "srun_lost"]
