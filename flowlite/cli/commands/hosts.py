"""`flow hosts`: manages the machines of the SSH provider."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Annotated, Any

import typer

from flowlite.cli import output
from flowlite.cli.common_options import Json, Yes
from flowlite.cli.confirmation import can_ask, confirm
from flowlite.errors import ConfigError, ProviderError
from flowlite.output.slow_notice import told_if_slow

SAID_AFTER = 3.0
"""Seconds after which a user is told that hosts are waited for."""

Name = Annotated[str, typer.Argument(help="A host, as you would pass it to `ssh`.", metavar="NAME")]
Pool = Annotated[str | None, typer.Option("--pool", help="Look in this pool only.")]


hosts = typer.Typer(
    help="Machines reached by SSH: add, list and check them.", invoke_without_command=True
)


@hosts.callback()
def _list_by_default(context: typer.Context, json: Json = False) -> None:
    if context.invoked_subcommand is None:
        list_hosts(json=json)


@hosts.command("list")
def list_hosts(pool: Pool = None, json: Json = False) -> None:
    """List all hosts, and the tasks that use them."""
    with _told_if_slow():
        rows = _host_commands().rows(pool)
    if json:
        output.print_json("hosts", rows)
        return
    if not rows:
        output.say("no hosts yet; `flow hosts add NAME` adds one")
        return
    columns = ("pool", "name", "address", "python", "cores", "gpus", "state", "reason")
    output.table(columns, [_cells(row) for row in rows])


def _told_if_slow() -> AbstractContextManager[None]:
    return told_if_slow(output.tell, "not all hosts have answered yet", SAID_AFTER)


def _cells(row: dict[str, Any]) -> list[str]:
    plain = [row.get(key) for key in ("pool", "name", "address", "python", "cores", "gpus")]
    return [
        *("-" if value in (None, "") else str(value) for value in plain),
        row["state"],
        row["why"],
    ]


@hosts.command()
def add(
    name: Name,
    pool: Annotated[str | None, typer.Option("--pool", help="The pool to add it to.")] = None,
    private_ip: Annotated[
        str | None,
        typer.Option(
            "--private-ip",
            help="Address at which the other hosts reach it, if it cannot be detected.",
        ),
    ] = None,
    python: Annotated[
        str | None, typer.Option("--python", help="Path of the Python interpreter to use there.")
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option("--gpus", help="Its GPUs, if nvidia-smi does not list them: h100:8."),
    ] = None,
    user: Annotated[str | None, typer.Option("--user", help="User to log in as.")] = None,
    port: Annotated[int | None, typer.Option("--port", help="Port of its SSH server.")] = None,
    identity_file: Annotated[
        str | None, typer.Option("--identity-file", "-i", help="Private key to log in with.")
    ] = None,
    json: Json = False,
) -> None:
    """Add a host to the file of FLOW_HOME."""
    host, path = _host_commands().add(
        name,
        pool,
        private_ip=private_ip,
        python=python,
        gpus=gpus,
        user=user,
        port=port,
        identity_file=identity_file,
    )
    if json:
        output.print_json("host", {"name": host.name, "pool": host.pool, "file": str(path)})
        return
    output.say(f"{host.name} is in the pool {host.pool}, in {path}")
    output.say("`flow hosts check` says whether tasks can run there")


@hosts.command()
def check(pool: Pool = None, json: Json = False) -> None:
    """Connect to every host and check Python, clocks, disks, links and the shared directory."""
    with _told_if_slow():
        told = _host_commands().check(pool)
    serious = any(problem["serious"] for each in told for problem in each["problems"])
    if json:
        output.print_json("check", told)
    elif not told:
        output.say("no hosts yet; `flow hosts add NAME` adds one")
    for each in [] if json else told:
        _say_check(each)
    if serious:
        raise output.Quit(ProviderError.exit_code)


def _say_check(told: dict[str, Any]) -> None:
    problems = told["problems"]
    count, answered = len(told["hosts"]), len(told["answered"])
    fine = "" if problems else "; nothing is wrong with them"
    output.say(f"pool {told['pool']}: {answered} of {count} hosts answer{fine}")
    if problems:
        rows = [
            (p["host"], "error" if p["serious"] else "warning", p["problem"], p["fix"])
            for p in problems
        ]
        output.table(("host", "", "reason", "what"), rows)


@hosts.command()
def trust(
    name: Name,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Show the key of a host, and accept it from now on."""
    from flowlite.connect.ssh import host_keys

    host_commands = _host_commands()
    target, key, known = host_commands.shown_key(name)
    if known == key.fingerprint:
        text = f"the key of {target.label} is known already: {key.kind} {known}"
        told = {"name": name, "fingerprint": known, "known": True, "file": None}
        output.say_or_json(text, json, "host-key", told)
        return
    _explain_key(target.label, key, known)
    if not yes:
        if not can_ask():
            raise ConfigError(
                f"compare the fingerprint with what the host's owner says, then: flow hosts trust {name} --yes"
            )
        confirm("Accept this key?", "the key was not accepted")
    file = host_keys.trust(target, key)
    told = {"name": name, "fingerprint": key.fingerprint, "known": False, "file": str(file)}
    output.say_or_json(f"accepted, in {file}", json, "host-key", told)


@hosts.command()
def remove(name: Name, pool: Pool = None, json: Json = False) -> None:
    """Take a host out of its pool."""
    where, path = _host_commands().remove(name, pool)
    text = f"{name} is no longer in the pool {where} ({path})"
    data = {"name": name, "pool": where, "removed": True}
    output.say_or_json(text, json, "removed-host", data)


def _explain_key(label: str, key: Any, known: str) -> None:
    output.tell(f"{label} shows the key {key.kind} {key.fingerprint}")
    if known:
        output.tell(
            f"before, it was {known}: the host was set up anew, or somebody stands between you and it"
        )
    output.tell(
        "on the host itself, `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` (or ecdsa, rsa) says which it is"
    )


def _host_commands() -> Any:
    """The SSH adapter's functions for hosts, which are not part of the contract of providers."""
    from flowlite.api.adapters import adapter, settings_here

    provider: Any = adapter("ssh")
    return provider.host_commands(lambda: settings_here("ssh"))
