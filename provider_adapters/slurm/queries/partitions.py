"""The partitions of a cluster with their nodes and limits, from `sinfo`; cached for a minute."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from flowlite.errors import ConfigError
from flowlite.node.quick_dataclass import dataclass
from flowlite.node.system.atomic_files import place
from flowlite.settings.suggest import did_you_mean
from provider_adapters.slurm.queries import parse
from provider_adapters.slurm.queries.parse import Partition

if TYPE_CHECKING:
    from flowlite.spec.gpu import GpuRequest
    from provider_adapters.slurm.login import SlurmLogin

_FRESH_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class PartitionNodes:
    """One partition with all its kinds of nodes."""

    name: str
    rows: tuple[Partition, ...]

    @property
    def limit(self) -> float | None:
        """Maximum seconds of a job; None for no limit."""
        return self.rows[0].limit

    @property
    def default_limit(self) -> float | None:
        """Seconds of a job that does not ask for a time; None for no limit."""
        return self.rows[0].default_limit or self.limit

    @property
    def up(self) -> bool:
        """Whether the partition accepts jobs."""
        return self.rows[0].up

    @property
    def nodes(self) -> int:
        """Number of nodes, in any state."""
        return sum(row.nodes for row in self.rows)

    def fitting(self, request: GpuRequest | None, cores: float, memory_mb: float) -> int:
        """Number of nodes that are large enough."""
        return sum(
            row.nodes
            for row in self.rows
            if row.cores >= cores
            and row.memory_mb >= memory_mb
            and (request is None or gres_for(request, row) is not None)
        )


class Cluster:
    """The partitions of one cluster."""

    def __init__(self, login: SlurmLogin, directory: Path) -> None:
        self._login = login
        self._file = directory / f"partitions-{login.key}.txt"

    @property
    def defaults(self) -> dict[str, str]:
        """As `SlurmLogin.defaults`."""
        return self._login.defaults

    def partitions(self) -> list[PartitionNodes]:
        """All partitions, the default one first; none if the cluster does not show them. Raises ProviderError."""
        text = self._remembered()
        if text is None:
            text = self._login.ask_if_shown("sinfo", "-h", "-a", "-o", parse.PARTITIONS_FORMAT)
            with suppress(OSError):
                place(text.encode(), str(self._file))
        by_name: dict[str, list[Partition]] = {}
        for row in parse.partitions(text):
            by_name.setdefault(row.name, []).append(row)
        found = [PartitionNodes(name, tuple(rows)) for name, rows in by_name.items()]
        return sorted(found, key=lambda each: not each.rows[0].default)

    def choose(self, name: str) -> PartitionNodes | None:
        """The partition of that name, or the default one; None if there is no default, or none is shown.

        Raises:
            ConfigError: There is no partition of that name.
        """
        found = self.partitions()
        if "," in name:
            # The first partition with room; not known before.
            return None
        if name and found:
            for each in found:
                if each.name == name:
                    return each
            names = [each.name for each in found]
            near = did_you_mean(name, names) or f"; it has {', '.join(names)}"
            raise ConfigError(f"slurm: the cluster has no partition {name!r}{near}")
        return found[0] if found and found[0].rows[0].default else None

    def _remembered(self) -> str | None:
        with suppress(OSError):
            if 0 <= time.time() - self._file.stat().st_mtime < _FRESH_SECONDS:
                return self._file.read_text()
        return None


def gres_for(request: GpuRequest, row: Partition) -> str | None:
    """The GRES to request for these GPUs on such nodes: `a100:4`, or `4` if types are unknown; None if unfit."""
    for kind, count in row.gpus.items():
        if count >= request.count and (not kind or is_kind(kind, request.kind)):
            return f"{kind}:{request.count}" if kind else str(request.count)
    return None


def is_kind(written: str, kind: str) -> bool:
    """Whether a cluster's own name of a GPU, such as `nvidia_a100-sxm4-80gb`, means that kind."""
    words = re.split(r"[^a-z0-9]+", written.lower())
    plain = "".join(words)
    return kind in words or plain == kind or plain.removeprefix("nvidia").startswith(f"{kind}sxm")


def names_of(partitions: Sequence[PartitionNodes]) -> str:
    """The GPUs of the partitions, as a text for the user."""
    found: dict[str, int] = {}
    for each in partitions:
        for row in each.rows:
            for kind, count in row.gpus.items():
                name = kind or "GPUs of an unnamed type"
                found[name] = max(found.get(name, 0), count)
    return ", ".join(f"{name} (up to {count} per node)" for name, count in found.items())
