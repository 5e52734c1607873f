"""`flow forward`: forwards ports of this machine to ports of a node, such as TensorBoard's."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowlite.cli import interrupts, output
from flowlite.cli.common_options import TASK
from flowlite.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from flowlite.api.task import Task
    from flowlite.connect.forwarding import Forwarding, Port

_LOOK_SECONDS = 1.0


def forward(
    task: Annotated[str, TASK],
    ports: Annotated[
        list[str],
        typer.Argument(
            help="A port of the node; HERE:THERE for another port here.", metavar="PORT..."
        ),
    ],
    node: Annotated[int, typer.Option("--node", min=0, help="Node rank.", metavar="N")] = 0,
    bind: Annotated[
        str, typer.Option("--bind", help="Address here to listen on.", metavar="ADDRESS")
    ] = "127.0.0.1",
    json: Annotated[bool, typer.Option("--json", help="Print JSON once it listens.")] = False,
) -> None:
    """Forward ports of this machine to ports of a node, until the task ends or Ctrl-C."""
    from flowlite.api.client import Flow
    from flowlite.connect.forwarding import Forwarding, parse_port
    from flowlite.connect.local import LocalConnection

    wanted = [parse_port(each) for each in ports]
    found = Flow().get_task(task)
    if found.record.final:
        raise NotFound(
            f"task {found.name} ({found.id}) has ended ({found.status}); its ports can be reached only while it runs"
        )
    # Outside of the event loop, where Ctrl-C would have to wait for it.
    with found.reach(node) as there:
        if isinstance(there.connection, LocalConnection):
            _refuse_itself(found, node, wanted)
        forwarding = Forwarding(there.connection, wanted, bind, output.tell)
        interrupts.run(
            _forward(found, forwarding, lambda bound: _show(found, node, bind, bound, json))
        )
    output.tell(f"task {found.name} ({found.id}) has ended ({found.status})")


async def _forward(
    task: Task[Any], forwarding: Forwarding, show: Callable[[list[Port]], None]
) -> None:
    """Forwards until the task has ended. `show` is called with the ports once they are open."""
    try:
        show(await forwarding.open())
        sys.stdout.flush()
        while not task.record.final:
            await asyncio.sleep(_LOOK_SECONDS)
    finally:
        await forwarding.close()


def _refuse_itself(task: Task[Any], node: int, ports: list[Port]) -> None:
    for port in ports:
        if port.local == port.remote:
            raise ConfigError(
                f"node {node} of task {task.name} ({task.id}) is this machine: its port {port.remote} is 127.0.0.1:"
                f"{port.remote} already; HERE:{port.remote} gives it another port, too"
            )


def _show(task: Task[Any], node: int, bind: str, ports: list[Port], json: bool) -> None:
    if json:
        listed = [{"address": bind, "port": each.local, "node_port": each.remote} for each in ports]
        output.print_json("forward", {"task": task.id, "node": node, "ports": listed})
        return
    for each in ports:
        output.say(
            f"{bind}:{each.local} leads to port {each.remote} of node {node} of {task.name} ({task.id})"
        )
    output.tell("Ctrl-C ends it")
