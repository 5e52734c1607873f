"""A cloud in a box: machines, the APIs that rent them out, and the client's laptop.

with CloudInABox(machines=4) as box, box.enter():
    os.environ.update(box.environment())
    ...                                            # what a client does
    assert box.aws.instances() == []
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from flowlite.testing.cloud.ec2.box import AwsBox
from flowlite.testing.cloud.served import Served
from flowlite.testing.hosts import Cluster, Host, why_not

if TYPE_CHECKING:
    from flowlite.testing.cloud.mithril.box import MithrilBox

# Ranges in seconds: how long EC2 does not know a new group, and keeps interfaces of ended machines.
_UNKNOWN = (0.3, 3.0)
_LATE = (0.0, 5.0)


class CloudInABox:
    """EC2 and Mithril in a box, which share a number of machines. The box is removed on leaving the context.

    Args:
        machines: How many machines can be rented at the same time.
        boot_seconds: Time from the launch until a machine runs. Its sshd answers shortly after.
        python: The interpreter that is `python3` on the machines: by default the tests' own, "" for this machine's.
        clouds: The APIs that the box has.
        cluster: A cluster that is up, whose slots are rented out instead of new ones. It is not closed with the box.
    """

    def __init__(
        self,
        machines: int = 6,
        *,
        boot_seconds: float = 0.5,
        python: str | None = None,
        clouds: Sequence[str] = ("aws", "mithril"),
        cluster: Cluster | None = None,
    ) -> None:
        self.boot_seconds = boot_seconds
        self._owns_cluster = cluster is None
        self.cluster = cluster or Cluster(0, slots=machines, python=python)
        self._served: list[Served] = []
        try:
            started = {name: _kind(name)(self.cluster.directory) for name in clouds}
            self._served = list(started.values())
            for served in self._served:
                served.wait_until_up()
        except BaseException:
            self.close()
            raise
        self._by_name = started
        self._set_up()

    @property
    def aws(self) -> AwsBox:
        """The controls of EC2."""
        found = self._by_name["aws"]
        assert isinstance(found, AwsBox)
        return found

    @property
    def mithril(self) -> MithrilBox:
        """The controls of Mithril."""
        from flowlite.testing.cloud.mithril.box import MithrilBox

        found = self._by_name["mithril"]
        assert isinstance(found, MithrilBox)
        return found

    @property
    def directory(self) -> Path:
        """The directory in which the box keeps its files while it is up."""
        return self.cluster.directory

    def host(self, instance: Mapping[str, object]) -> Host:
        """The host behind an entry of a cloud's `instances()`, to inspect it or to make it fail."""
        name = instance["machine"]
        return next(host for host in self.cluster if host.name == name)

    def environment(self) -> dict[str, str]:
        """The environment variables that point a client to the box's APIs, and to no real cloud."""
        found: dict[str, str] = {}
        for served in self._served:
            found |= served.environment()
        return found

    def client_environment(self) -> dict[str, str]:
        """The environment for a client's process: this process's, without variables that point elsewhere."""
        kept = self.cluster.client_environment()
        kept.pop("FLOW_SSH_CONFIG", None)
        return {**kept, **self.environment()}

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Moves this thread, and the threads and processes that it starts, to the client's laptop."""
        with self.cluster.enter_laptop():
            yield

    def reset(self) -> None:
        """Returns the box to its first state: no instances, no faults, and no processes on the laptop."""
        # Processes on the laptop end first, since they could launch more.
        self.cluster.reset()
        for served in self._served:
            served.reset()
        self._set_up()

    def unkind(self, seed: int | None) -> None:
        """Makes the clouds fail at random, from a seed, until the next reset. None ends it.

        Calls fail before or after their effect, or get no answer. Listings lag, interfaces of ended machines remain
        for a while, and new groups are not known at once.
        """
        for served in self._served:
            served.unkind(seed)
        if "aws" in self._by_name:
            chance = random.Random(seed)
            unknown, late = chance.choice(_UNKNOWN), chance.choice(_LATE)
            self.aws.timing(unknown=unknown if seed is not None else None)
            self.aws.timing(late=late if seed is not None else 0.0)

    def close(self) -> None:
        """Removes the box. Calling it again is allowed."""
        for served in self._served:
            with contextlib.suppress(OSError):
                served.close()
        if self._owns_cluster:
            self.cluster.close()

    def _set_up(self) -> None:
        if "aws" in self._by_name:
            self.aws.timing(boot=self.boot_seconds, stop=0.1)
        if "mithril" in self._by_name:
            self.mithril.rules(boot_seconds=self.boot_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _kind(name: str) -> type[Served]:
    if name == "aws":
        return AwsBox
    from flowlite.testing.cloud.mithril.box import MithrilBox

    return MithrilBox


__all__ = ["CloudInABox", "why_not"]
