"""What tests do to the machines of EC2 in the box, as soon as these run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from tests.sharing import nfs

if TYPE_CHECKING:
    from flowlite.testing.cloud import CloudInABox
    from flowlite.testing.hosts import Host

_SERVERS = "/mnt/shared/nfs"


@contextmanager
def on_each_machine(box: CloudInABox, do: Callable[[Host], None]) -> Iterator[None]:
    """Does something on each machine as soon as it runs."""
    over, done = threading.Event(), set[str]()

    def watch() -> None:
        while not over.wait(0.02):
            for each in box.aws.instances():
                if each["state"] == "running" and each["id"] not in done:
                    with suppress(OSError, RuntimeError):
                        do(box.host(each))
                        done.add(each["id"])

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def nfs_everywhere(box: CloudInABox) -> Iterator[None]:
    """Machines can mount EFS: each has a `mount.nfs4` for which there is a server at every address."""
    (box.cluster.shared / "nfs").mkdir(exist_ok=True)

    def give(host: Host) -> None:
        nfs.helper(host.root / "usr/local/sbin", _SERVERS, any_server=True)

    with on_each_machine(box, give):
        yield
