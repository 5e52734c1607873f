"""Checks before GO: the master port can be reached, and each volume is the same file system on every node."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ..forkserver.worker_group import Workers
from ..rendezvous.member_client import PrepareError
from ..system import retrying
from ..system.retrying import RetryWindow

PROBE_SECONDS = retrying.NEVER_REACHED
"""How long a file written by the leader may take to appear on another node. Network file systems cache directory
listings for some seconds, and either node may lose its network for a while."""


async def reach_master(order: Mapping[str, Any], trial: RetryWindow) -> None:
    """Connect to the master port of the leader. Raises PrepareError."""
    address, port = str(order["master_addr"]), int(order["master_port"])
    while True:
        try:
            async with asyncio.timeout(retrying.TRY_SECONDS):
                _, writer = await asyncio.open_connection(address, port)
        except ConnectionResetError:
            return  # the leader accepted the connection and reset it, as it does when it has many probes
        except (OSError, TimeoutError) as error:
            if wrong := trial.failed(error):
                remedy = ""
                if wrong.firewall:
                    remedy = ". Allow TCP between the nodes, on all ports"
                raise PrepareError(
                    f"MASTER_PORT {port} of the leader ({address}) {wrong.text}{remedy}",
                    passing=True,
                ) from error
            await asyncio.sleep(retrying.AGAIN)
            continue
        # Reset rather than close, so that the connection leaves no state on the port.
        writer.transport.abort()
        return


async def volumes(
    workers: Workers, paths: Sequence[str], token: str, *, write: bool, longest: float
) -> None:
    """Write the probe file of a token into every volume, or wait for it to appear, at the paths that workers see.

    Args:
        write: Whether to write the file (on the leader) or wait for it.
        longest: Seconds for which the network of a volume may be out.

    Raises:
        PrepareError: A volume cannot be used, or the file does not appear.
    """
    began = answered = time.monotonic()
    while True:
        answer = await workers.probe(paths, token, write=write)
        now = time.monotonic()
        for path, error in answer["errors"].items():
            passing = path in answer["passing"]
            if not passing or now - began >= longest:
                what = "written to" if write else "read"
                raise PrepareError(
                    f"the volume at {path} cannot be {what}: {error}", passing=passing
                )
        if answer["errors"]:
            answered = now
            await asyncio.sleep(retrying.AGAIN)
            continue
        if not answer["missing"]:
            return
        if now - answered > PROBE_SECONDS:
            raise PrepareError(
                f"the volume at {answer['missing'][0]} is not the same place here as on node 0: a "
                f"file written there did not appear within {PROBE_SECONDS:g} s. Mount the same "
                "file system on every node"
            )
        await asyncio.sleep(0.02)
