"""The whole box: machines, the APIs that rent them out, and the laptop of their client.

with CloudInABox(machines=4) as box, box.enter():
    os.environ.update(box.environment())
    ...                                            # whatever a client does
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

# Seconds for which EC2 does not know a new group, and keeps interfaces of machines that have ended.
_UNKNOWN = (0.3, 3.0)
_LATE = (0.0, 5.0)


class CloudInABox:
    """EC2 and Mithril, and a number of machines that they share. Up on entering, gone on leaving.

    Args:
        machines: How many can be rented at the same time.
        boot_seconds: From the launch until a machine runs; its sshd answers a moment later.
        python: The interpreter that is `python3` on the machines: that of the tests by default, "" for this machine's.
        clouds: Which APIs there are.
    """

    def __init__(
        self,
        machines: int = 6,
        *,
        boot_seconds: float = 0.5,
        python: str | None = None,
        clouds: Sequence[str] = ("aws", "mithril"),
    ) -> None:
        self.boot_seconds = boot_seconds
        self.cluster = Cluster(0, slots=machines, python=python)
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
        """EC2."""
        found = self._by_name["aws"]
        assert isinstance(found, AwsBox)
        return found

    @property
    def mithril(self) -> MithrilBox:
        """Mithril."""
        from flowlite.testing.cloud.mithril.box import MithrilBox

        found = self._by_name["mithril"]
        assert isinstance(found, MithrilBox)
        return found

    @property
    def directory(self) -> Path:
        """Where the box keeps its things while it is up."""
        return self.cluster.directory

    def host(self, instance: Mapping[str, object]) -> Host:
        """The machine of an instance, as `instances()` of a cloud shows it: to look into it, or to harm it."""
        name = instance["machine"]
        return next(host for host in self.cluster if host.name == name)

    def environment(self) -> dict[str, str]:
        """Variables that lead a client to the box, and to nothing else."""
        found: dict[str, str] = {}
        for served in self._served:
            found |= served.environment()
        return found

    def client_environment(self) -> dict[str, str]:
        """All variables for a client's process: this process's, without what would lead it elsewhere."""
        kept = self.cluster.client_environment()
        kept.pop("FLOW_SSH_CONFIG", None)
        return {**kept, **self.environment()}

    @contextmanager
    def enter(self) -> Iterator[None]:
        """This thread, and every thread and process it starts, is on the client's laptop meanwhile."""
        with self.cluster.enter_laptop():
            yield

    def reset(self) -> None:
        """As on the first day: no instance, nothing on order, nothing running on the laptop."""
        # Who still runs on the laptop could ask for more.
        self.cluster.reset()
        for served in self._served:
            served.reset()
        self._set_up()

    def unkind(self, seed: int | None) -> None:
        """Has the clouds go wrong by chance, drawn from a seed, from now until the next reset; None ends it.

        Calls fail, before their effect or after it, or get no answer; listings and interfaces of ended machines are
        late, and groups that were just made are not known for a while.
        """
        for served in self._served:
            served.unkind(seed)
        if "aws" in self._by_name:
            chance = random.Random(seed)
            unknown, late = chance.choice(_UNKNOWN), chance.choice(_LATE)
            self.aws.timing(unknown=unknown if seed is not None else None)
            self.aws.timing(late=late if seed is not None else 0.0)

    def close(self) -> None:
        """Takes everything away. Again is no error."""
        for served in self._served:
            with contextlib.suppress(OSError):
                served.close()
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
