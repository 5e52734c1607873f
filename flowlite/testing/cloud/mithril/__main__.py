"""Runs the fake Mithril as a program.

python -m flowlite.testing.cloud.mithril DIRECTORY      the API of a box, on the machines of its cluster
python -m flowlite.testing.cloud.mithril --port 8800    the API alone, without machines, until Ctrl-C
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from pathlib import Path

from flowlite.testing.cloud.machines import Machines
from flowlite.testing.cloud.mithril.box import PaperMithril, capacity_of
from flowlite.testing.cloud.mithril.onsite import OnsiteMithril
from flowlite.testing.cloud.orders import Orders
from flowlite.testing.cloud.serving import serve


def main() -> None:
    """Serves until told to stop."""
    parser = argparse.ArgumentParser(prog="python -m flowlite.testing.cloud.mithril")
    parser.add_argument("directory", nargs="?", type=Path, help="of a cluster that is up")
    parser.add_argument("--port", type=_port, default=0, help="on its own: where to listen")
    parser.add_argument("--boot-seconds", type=float, default=2.0, help="until an instance runs")
    given = parser.parse_args()
    if given.directory is None:
        _alone(given.port, given.boot_seconds)
    else:
        capacity = capacity_of(given.directory)

        def build(machines: Machines, orders: Orders) -> OnsiteMithril:
            return OnsiteMithril(machines, orders, capacity)

        serve("mithril", build)


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError("a port is 0 to 65535, and 0 takes any free one")
    return port


def _alone(port: int, boot_seconds: float) -> None:
    with PaperMithril(port, boot_seconds=boot_seconds) as cloud:
        for name, value in cloud.environment().items():
            sys.stdout.write(f"export {name}={value}\n")
        sys.stdout.flush()
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()
