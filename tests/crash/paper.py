"""EC2 whose machines exist on paper: all of its API, and nobody answers at the addresses of their machines.

To count the calls for 64 machines no machine is needed; this costs neither root nor a network.

    python -m tests.crash.paper DIRECTORY       serves EC2 as `python -m flowlite.testing.cloud.ec2` does
"""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flowlite.testing.cloud.ec2.box import AwsBox
from flowlite.testing.cloud.machines import Machine

MACHINES = 1000


class PaperMachines:
    """As `flowlite.testing.cloud.machines.Machines`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._kept: dict[str, tuple[Machine, threading.Timer | None]] = {}

    def boot(
        self,
        name: str,
        *,
        delay: float = 0.0,
        on_up: Callable[[], None] | None = None,
        **_: Any,
    ) -> Machine:
        """Has an address at once, and "runs" after the delay."""
        with self._lock:
            self._count += 1
            place = f"{self._count // 250 % 250}.{self._count % 250 + 1}"
            machine = Machine(name, f"paper{self._count}", f"127.98.{place}", f"127.99.{place}")
            timer = None
            if delay != float("inf") and on_up is not None:
                timer = threading.Timer(delay, on_up)
                timer.daemon = True
                timer.start()
            self._kept[name] = (machine, timer)
            return machine

    def end(self, name: str) -> None:
        """It does not run any more."""
        with self._lock:
            _, timer = self._kept.pop(name, (None, None))
            if timer is not None:
                timer.cancel()

    power_cut = end
    halt = end

    def restart(self, name: str) -> None:
        """Nothing runs anyway."""

    def end_all(self) -> None:
        """None runs any more."""
        for name in list(self._kept):
            self.end(name)

    def free(self) -> int:
        """There is always room."""
        return MACHINES

    def find(self, name: str) -> Machine | None:
        """The machine of that name."""
        return self._kept.get(name, (None, None))[0]

    def console(self, name: str) -> str:
        """It said nothing."""
        return ""

    def guard(self, name: str, admitted: list[str]) -> None:
        """Nobody comes in anyway."""

    def write(self, name: str, path: str, text: str) -> None:
        """There is no disk."""

    def remove(self, name: str, path: str) -> None:
        """There is no disk."""

    def listen(self, name: str, address: str, port: int) -> socket.socket:
        """A socket that nobody finds."""
        return socket.create_server(("127.0.0.1", 0))

    def listen_on_laptop(self) -> socket.socket:
        """Where the API listens: the client is in this network."""
        return socket.create_server(("127.0.0.1", 0), backlog=128)

    def laptop_connections(self) -> str:
        """The callers are in this network."""
        return Path("/proc/thread-self/net/tcp").read_text()


class PaperAws(AwsBox):
    """`box.aws`, without a box."""

    module = "tests.crash.paper"


class Paper:
    """A box with EC2 alone, on paper. Up on entering."""

    def __enter__(self) -> Paper:
        self._directory = tempfile.TemporaryDirectory(prefix="flow-paper-")
        self.aws = PaperAws(Path(self._directory.name))
        self.aws.wait_until_up()
        return self

    def __exit__(self, *_: object) -> None:
        self.aws.close()
        self._directory.cleanup()

    @contextmanager
    def enter(self) -> Iterator[None]:
        """The client is in the tests' own network: all of it is on loopback."""
        yield

    def environment(self) -> dict[str, str]:
        """Variables that lead a client there."""
        return self.aws.environment()


def main() -> None:
    """The process of the API."""
    from flowlite.testing.cloud.ec2 import __main__ as ec2
    from flowlite.testing.cloud.serving import serve

    assert ec2  # It sets the variables that moto reads when it is imported.
    from flowlite.testing.cloud.ec2.service import Ec2Service

    serve("aws", Ec2Service, PaperMachines())  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
