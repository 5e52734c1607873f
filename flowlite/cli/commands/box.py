"""`flow cloud-in-a-box`: simulated EC2 and Mithril on this machine, for rehearsals without an account."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer


def cloud_in_a_box(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            help="Command to run beside the box; a shell by default.", metavar="COMMAND..."
        ),
    ] = None,
    machines: Annotated[
        int,
        typer.Option("--machines", "-n", min=1, max=64, help="Number of machines."),
    ] = 6,
    boot: Annotated[
        float, typer.Option("--boot", min=0, help="Seconds that a machine takes to boot.")
    ] = 2.0,
) -> None:
    """Open a shell beside simulated EC2 and Mithril on this machine, free of charge (Linux, as root)."""
    sys.stdout.flush()
    # Runs in a process of its own, since it must stay small and its imports do not belong to the client.
    words = ["-m", "flowlite.testing.cloud", "--machines", str(machines), "--boot", str(boot)]
    os.execv(sys.executable, [sys.executable, *words, "--", *(command or [])])
