"""The command `flow dev`."""

from __future__ import annotations

import asyncio
import json as json_module
import os
import secrets
import shlex
import socket
import time
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowlite.cli import interrupts, output
from flowlite.cli.commands.dev import listener, ssh_entry
from flowlite.cli.common_options import YesToCost
from flowlite.cli.confirmation import can_ask, confirm_launch
from flowlite.cli.task_options import task_options, with_task_options
from flowlite.errors import CapExceeded, ConfigError, FlowError, NodeUnreachable, NotFound

if TYPE_CHECKING:
    from flowlite.api.client import Flow
    from flowlite.api.node_access import NodeAccess
    from flowlite.api.task import Task
    from flowlite.spec import TaskConfig

# Options of `flow run` that make no sense for a node that waits.
_LEFT_OUT = ("processes_per_node", "manual", "mode", "keep_warm", "retries", "after")
_TOKEN = "JUPYTER_TOKEN"
_JUPYTER_PORT = 8888
_LOOK_SECONDS = 0.5
_JUPYTER_SECONDS = 300.0
# For how long a node that does not answer may still turn out to have ended.
_ENDED_SECONDS = 10.0
# Ends at once when the task is stopped.
_WAIT = "trap 'exit 0' TERM INT; while :; do sleep 3600 & wait; done"
_START_JUPYTER = """\
for each in jupyterlab notebook jupyter_server; do
  python -c "import $each" 2>/dev/null && exec python -m $each --no-browser --allow-root \
--ServerApp.ip=127.0.0.1 --ServerApp.port="$1" --ServerApp.port_retries=0 --ServerApp.allow_remote_access=True
done
echo 'this node has no Jupyter: add --setup "pip install jupyterlab", or an --image that has it' >&2
exit 1
"""


@with_task_options(left_out=_LEFT_OUT)
def dev(
    name: Annotated[
        str, typer.Option("--name", help="Name of the task; `ssh` knows its node as flow-NAME.")
    ] = "dev",
    jupyter: Annotated[
        bool, typer.Option("--jupyter", help="Start Jupyter, and forward it to here until Ctrl-C.")
    ] = False,
    yes: YesToCost = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON: how to connect.")] = False,
    **options: Any,
) -> None:
    """Start a node to work on, with VS Code, Jupyter or a shell.

    \b
    flow dev --provider aws --gpu a10g:1 --max-run-time-hours 8
    flow dev --jupyter --setup "pip install jupyterlab"

    Shows how to connect. Run again, it shows that for the node that runs. The node is kept until `flow cancel NAME` or
    its cap. Most options of `flow run` apply here, too.
    """
    from flowlite.api.client import Flow

    flow = Flow(notify=lambda text: output.tell(f"note: {text}"))
    config = _config(name, jupyter, options)
    with _alone(name):
        task = _running(flow, name)
        is_new = task is None
        task = task or _start(flow, config, yes or json)
    if is_new:
        output.tell(f"task {task.name} ({task.id}); to end it: flow cancel {task.name}")
    else:
        _check_options(task, config, jupyter)
        output.tell(f"task {task.name} ({task.id}) is {task.status} already")
    try:
        _wait_until_running(task)
        _show(task, json)
    except KeyboardInterrupt:
        output.tell(
            f"\ninterrupted; task {task.name} ({task.id}) continues. `flow dev --name {task.name}` shows how to "
            f"connect, and `flow cancel {task.name}` ends it"
        )
        raise output.Quit(130) from None


def _check_options(task: Task[Any], asked: TaskConfig, jupyter: bool) -> None:
    """Warns about options that a node which runs already does not have. Raises ConfigError if it has no Jupyter."""
    end = f"`flow cancel {task.name}` ends it, and another --name starts another node beside it"
    if jupyter and _jupyter_port(task) is None:
        raise ConfigError(
            f"--jupyter: task {task.name} ({task.id}) runs already, and was started without Jupyter; {end}"
        )
    wanted, given = asked.to_dict(), asked.model_fields_set - {"command", "secrets"}
    other = [name for name in sorted(given) if wanted[name] != task.record.config.get(name)]
    if other:
        output.warn(
            f"{', '.join(other)}: no effect on task {task.name} ({task.id}), which runs already; {end}"
        )


def _jupyter_port(task: Task[Any]) -> int | None:
    """The port of Jupyter on a node of `flow dev`; None if it was started without."""
    command = task.record.config["command"]
    return int(command[-1]) if len(command) > 3 else None


def _config(name: str, jupyter: bool, options: dict[str, Any]) -> TaskConfig:
    from flowlite.spec import TaskConfig

    given = task_options({**options, "manual": True})
    command = ["sh", "-c", _WAIT]
    if jupyter:
        os.environ[_TOKEN] = secrets.token_hex(24)
        given["secrets"] = [*(given.get("secrets") or ()), _TOKEN]
        command = ["sh", "-c", _START_JUPYTER, "jupyter", str(_port(given.get("provider")))]
    return TaskConfig(name=name, command=tuple(command), **given)


def _port(provider: str | None) -> int:
    """Jupyter's port on the node. On this machine, any that is free."""
    from flowlite.settings.settings import load_settings

    if load_settings({"provider": provider})["provider"] != "local":
        return _JUPYTER_PORT
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _alone(name: str) -> AbstractContextManager[None]:
    """Keeps another `flow dev` of that name waiting, which would start a second node beside this one."""
    from flowlite.settings import edited_files
    from flowlite.settings.settings import ensure_home

    directory = ensure_home() / "dev"
    directory.mkdir(mode=0o700, exist_ok=True)
    return edited_files.locked(directory / f".{name}")


def _running(flow: Flow, name: str) -> Task[Any] | None:
    """The node of that name that runs or is being started. Raises ConfigError if it is another task.

    One that is being cancelled is waited for.
    """
    for task in flow.list_tasks(unfinished=True):
        if task.name != name:
            continue
        if not _is_dev(task):
            raise ConfigError(
                f"task {name} ({task.id}) runs already, and is none of `flow dev`; choose another --name"
            )
        if task.record.cancel_requested_at is None:
            return task
        output.tell(f"task {name} ({task.id}) is being cancelled; waiting for its end")
        task.wait(show_logs=False)
    return None


def _is_dev(task: Task[Any]) -> bool:
    command = task.record.config.get("command") or []
    return len(command) > 2 and command[2] in (_WAIT, _START_JUPYTER)


def _start(flow: Flow, config: TaskConfig, yes: bool) -> Task[Any]:
    plan = flow.candidates(config)[1].dearest
    if plan.price_per_hour > 0 and plan.worst_case_cost is None:
        raise CapExceeded(
            f"a node of {plan.provider} costs ${plan.price_per_hour:.2f} per hour while it waits for you, and has no "
            "cap; add --max-run-time-hours 8 or --max-cost 20"
        )
    return flow.submit(
        config, show_plan=lambda _: None, confirm=lambda places: confirm_launch(places, yes)
    )


def _wait_until_running(task: Task[Any]) -> None:
    """Waits, and shows what for. Raises the task's error if it ends before."""
    shown = ""
    while True:
        record = task.record
        if record.final:
            error = task.exception(show_logs=False)
            raise error or FlowError(f"task {task.name} ({task.id}) has ended")
        if record.state == "running":
            return
        text = f"{record.state}: {record.reason}" if record.reason else record.state
        if text != shown:
            output.tell(text)
            shown = text
        time.sleep(_LOOK_SECONDS)


def _show(task: Task[Any], json: bool) -> None:
    from flowlite.settings.settings import home

    here = home()
    ssh_entry.remove_old(here, _is_over)
    config, why = None, ""
    try:
        config = ssh_entry.write(task, here)
    except ConfigError as error:
        why = str(error)
    port = _jupyter_port(task)
    try:
        with task.reach(0) as there:
            done = there.connection.run(there.argv(["pwd"]), timeout=60)
            inside = shlex.join(there.argv(["bash"]))
            if port is not None:
                interrupts.run(_wait_for_jupyter(task, there, port))
    except NodeUnreachable as error:
        # A node without Jupyter may just have ended.
        raise _failure(task) or error from None
    directory = done.stdout.decode("utf-8", "replace").strip() or "/"
    name, line = ssh_entry.alias(task.name), ssh_entry.include_line(here)
    shown: dict[str, Any] = {
        "task": task.id,
        "directory": directory,
        "ssh_config": str(config) if config else None,
        "host": name if config else None,
        "include": line if config else None,
        "jupyter_port": port,
        "jupyter_token": _token_of(task) if port is not None else None,
    }
    if json:
        output.print_json("dev", shown)
        return
    facts: dict[str, str | None] = {"shell": f"flow ssh {task.name}"}
    if config is not None:
        _offer_include(line)
        facts["ssh"] = f"ssh {name}"
        facts["VS Code"] = f"code --remote ssh-remote+{name} {shlex.quote(directory)}"
    elif why:
        facts["ssh"] = why
    else:
        facts["VS Code"] = f"code {shlex.quote(directory)} (the node is this machine)"
    facts["ends"] = f"flow cancel {task.name}{_or_cap(task)}"
    output.facts(facts, wrapped=False)
    if config is not None and (missing := _only_in_the_task(task)):
        output.tell(
            f"note: {missing}: in `flow ssh {task.name}`, not in ssh and VS Code. In a terminal of those, this leads "
            f"there:\n  {inside}"
        )
    if port is not None:
        with task.reach(0) as there:
            interrupts.run(_jupyter(task, there, port))


def _only_in_the_task(task: Task[Any]) -> str:
    """What the processes of the task have and a login on the node does not; "" for nothing."""
    config = task.record.config
    paths = [*(config.get("volumes") or ()), *(config.get("mounts") or ())]
    found = [", ".join(paths)] if paths else []
    if config.get("image"):
        found.append("the image")
    if config.get("environment") or config.get("secrets"):
        found.append("its variables")
    return ", ".join(found)


def _failure(task: Task[Any]) -> BaseException | None:
    """Why the task has ended; None if it does not end now."""
    deadline = time.monotonic() + _ENDED_SECONDS
    while time.monotonic() < deadline:
        if task.status not in ("pending", "running"):
            return task.exception(show_logs=False)
        time.sleep(_LOOK_SECONDS)
    return None


def _or_cap(task: Task[Any]) -> str:
    seconds = task.record.plan.get("max_run_seconds")
    return f", or by itself {output.duration(seconds)} after its start" if seconds else ""


def _is_over(task_id: str) -> bool:
    from flowlite.api.session import open_session

    try:
        return open_session().store.get_task(task_id).final
    except NotFound:
        return True


def _offer_include(line: str) -> None:
    """Sees to it that `ssh` finds the entries: asks on a terminal, else shows what to do."""
    config = Path(os.path.expanduser("~/.ssh/config"))
    if ssh_entry.is_included(config, line):
        return
    if (
        config.is_absolute()
        and can_ask()
        and typer.confirm(f"Add `{line}` at the top of {config}?", err=True)
    ):
        with suppress(OSError):
            ssh_entry.include(config, line)
            output.tell(f"{config}: added {line}")
            return
    output.tell(f"for ssh and VS Code, put this line at the top of {config}:\n  {line}")


def _token_of(task: Task[Any]) -> str:
    from flowlite.api.session import open_session

    values = json_module.loads(open_session().paths(task.id).secrets.read_bytes())
    return str(values[_TOKEN])


async def _wait_for_jupyter(task: Task[Any], there: NodeAccess, port: int) -> None:
    """Waits until Jupyter listens. Raises the task's error if it ends before, or FlowError."""
    deadline = time.monotonic() + _JUPYTER_SECONDS
    while not await _listens(there.connection, port):
        if task.record.final:
            raise task.exception(show_logs=False) or FlowError("Jupyter has ended")
        if time.monotonic() > deadline:
            raise FlowError(f"Jupyter does not listen yet; see `flow logs {task.name}`")
        await asyncio.sleep(_LOOK_SECONDS)


async def _jupyter(task: Task[Any], there: NodeAccess, port: int) -> None:
    """Shows the address of Jupyter, and forwards its port until the task ends or Ctrl-C."""
    from flowlite.connect.forwarding import Forwarding, Port
    from flowlite.connect.local import LocalConnection

    if (other := listener.other_user(there, port)) is not None:
        raise FlowError(
            f"port {port} of the node is held by uid {other}, another user there, who would get Jupyter's token; "
            f"end the task (flow cancel {task.name}), and start it on another node"
        )
    forwarding = None
    here = port
    if not isinstance(there.connection, LocalConnection):
        forwarding = Forwarding(
            there.connection, [Port(_free_or_any(port), port)], "127.0.0.1", output.tell
        )
        here = (await forwarding.open())[0].local
    output.say(f"Jupyter  http://127.0.0.1:{here}/?token={_token_of(task)}")
    if forwarding is None:
        return
    output.tell(
        f"Ctrl-C ends the forwarding; the node stays, and `flow dev --name {task.name}` connects again"
    )
    try:
        while not task.record.final:
            await asyncio.sleep(_LOOK_SECONDS * 2)
    finally:
        await forwarding.close()
    output.tell(f"task {task.name} ({task.id}) has ended ({task.status})")


async def _listens(connection: Any, port: int) -> bool:
    with suppress(OSError):
        _, writer = await connection.open_tcp("127.0.0.1", port)
        writer.close()
        return True
    return False


def _free_or_any(port: int) -> int:
    with socket.socket() as probe, suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return port
    return 0
