"""Proofs before GO: that the master port can be reached, and that a volume is the same place on every node."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from .link import PrepareError
from .workers import Workers

PROBE_SECONDS = 15.0
"""How long a file written by the leader may take to appear on another node; network file systems keep old listings
for some seconds."""
PORT_SECONDS = 5.0


async def reach_master(order: Mapping[str, Any]) -> None:
    """Connect to the master port of the leader. Raises PrepareError."""
    address, port = str(order["master_addr"]), int(order["master_port"])
    try:
        opening = asyncio.open_connection(address, port)
        async with asyncio.timeout(PORT_SECONDS):
            _, writer = await opening
    except ConnectionResetError:
        return  # it answered, and had seen enough probes
    except (OSError, TimeoutError) as error:
        raise PrepareError(
            f"MASTER_PORT {port} of the leader ({address}) cannot be reached from here: "
            f"{str(error) or 'no answer'}. Allow TCP between the nodes, on all ports"
        ) from error
    # Reset rather than closed, so that the port is left without a trace.
    writer.transport.abort()


async def volumes(workers: Workers, paths: Sequence[str], token: str, *, write: bool) -> None:
    """Write the probe file of a token into every volume, or wait for it, where the workers will see them.

    Raises:
        PrepareError: One cannot be used, or the file does not appear.
    """
    if write:
        answer = await workers.probe(paths, token, write=True)
        for path, error in answer["errors"].items():
            raise PrepareError(f"the volume at {path} cannot be written to: {error}")
        return
    until = time.monotonic() + PROBE_SECONDS
    while True:
        answer = await workers.probe(paths, token, write=False)
        for path, error in answer["errors"].items():
            raise PrepareError(f"the volume at {path} cannot be read: {error}")
        if not answer["missing"]:
            return
        if time.monotonic() > until:
            raise PrepareError(
                f"the volume at {answer['missing'][0]} is not the same place here as on node 0: a "
                f"file written there did not appear within {PROBE_SECONDS:g} s. Mount the same "
                "file system on every node"
            )
        await asyncio.sleep(0.02)
