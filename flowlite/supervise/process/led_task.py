"""A task that a supervisor leads, with what it leads it with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flowlite.node.quick_dataclass import dataclass

if TYPE_CHECKING:
    from flowlite.provider import Provider
    from flowlite.supervise.process.journal import Journal
    from flowlite.supervise.provision import Provisioner
    from flowlite.supervise.record.paths import TaskPaths
    from flowlite.supervise.record.task_view import TaskView
    from flowlite.supervise.threads import Threads


@dataclass(frozen=True, slots=True)
class LedTask:
    """A task that a supervisor leads: what was asked for, and what launches, records and equips its machines.

    Attributes:
        provider: Where its machines come from.
        asked: What the user has asked for.
        paths: Its files on this machine.
        journal: Writes its steps to the store; has its present record.
        provisioner: Launches and ends its machines.
        threads: Where calls that block are made.
        agent: The agent's zipapp on this machine, and its hash.
    """

    provider: Provider
    asked: TaskView
    paths: TaskPaths
    journal: Journal
    provisioner: Provisioner
    threads: Threads
    agent: tuple[Path, str]
