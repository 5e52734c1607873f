"""Test hosts for a person: `make hosts N=4`, or `python -m flowlite.testing.hosts COMMAND` (docs/testing.md)."""

from __future__ import annotations

import argparse
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path

from flowlite.testing.hosts import sweep
from flowlite.testing.hosts.cluster import ROOT, Cluster, why_not
from flowlite.testing.hosts.host import Host, Laptop

POOL = "lab"
# Commands that take a host's name (or "laptop", where the laptop has the operation) and further numbers.
OPERATIONS: dict[str, str] = {
    "kill": "end all processes of a host",
    "power-cut": "end a host without a word to anybody",
    "start": "start a host again",
    "pause": "freeze a host",
    "resume": "let it go on",
    "partition": "let all frames of a host, or of the laptop, vanish",
    "heal": "end that",
    "delay": "make a cable slow and lossy: HOST MILLISECONDS [PERCENT]; 0 ends it",
    "fill-disk": "leave a host no space",
    "free-disk": "give it back",
    "skew-clock": "set the clock wrong by so many SECONDS; 0 ends it",
    "stop-sshd": "nobody gets in any more",
    "start-sshd": "end that",
    "hang-logins": "let everybody in and run nothing; restart-sshd ends it",
    "restart-sshd": "restart sshd as it was at first",
    "change-host-key": "come up with another host key, as an impostor would",
    "silence-resolver": "let every name lookup wait for its time-out",
}


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    asked = _parser().parse_args(argv)
    try:
        status: int = asked.run(asked)
    except (RuntimeError, ValueError, TypeError) as error:
        print(f"hosts: {str(error).partition(chr(10))[0]}", file=sys.stderr)
        return 1
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m flowlite.testing.hosts", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(
        name: str, run: Callable[[argparse.Namespace], int], text: str
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text)
        command.set_defaults(run=run, operation=name)
        return command

    add("up", _up, "bring hosts up").add_argument("count", type=int, nargs="?", default=4)
    add("down", _down, "take everything away")
    add("list", _list, "which hosts there are")
    add("shell", _shell, "a shell on the laptop")
    add("laptop", _on_laptop, "run a command on the laptop").add_argument(
        "command", nargs=argparse.REMAINDER
    )
    on = add("on", _on_host, "run a command on a host, not through SSH")
    on.add_argument("host")
    on.add_argument("command", nargs=argparse.REMAINDER)
    for name, text in OPERATIONS.items():
        operation = add(name, _operate, text)
        operation.add_argument("host")
        operation.add_argument("numbers", type=float, nargs="*")
    return parser


def _mark() -> Path:
    return sweep.parent() / "flowlite-hosts"


def _is_up() -> bool:
    return (_mark() / "room.sock").exists() and sweep.ours(_mark())


def _current() -> Cluster:
    if not _is_up():
        raise RuntimeError("no hosts are up; `make hosts N=4` brings them up")
    return Cluster.attach(_mark().resolve())


def _up(asked: argparse.Namespace) -> int:
    if reason := why_not():
        raise RuntimeError(reason)
    if _is_up():
        raise RuntimeError("hosts are up already; `make hosts-down` takes them away")
    cluster = Cluster(asked.count, owned=False)
    _mark().unlink(missing_ok=True)
    _mark().symlink_to(cluster.directory)
    home = cluster.directory / "flow-home"
    home.mkdir(mode=0o700)
    names = ", ".join(f'"{host.name}"' for host in cluster)
    (home / "config.toml").write_text(
        f'provider = "ssh"\n\n[ssh]\nconfig_file = "{cluster.ssh_config}"\n\n'
        f"[ssh.pools.{POOL}]\nhosts = [{names}]\n"
    )
    print(f"up: {', '.join(f'{host.name} ({host.address})' for host in cluster)}")
    print(
        "make hosts-shell                       a shell on the laptop beside them, with `flow` set up"
    )
    print("python -m flowlite.testing.hosts --help           what can be done to them")
    print("make hosts-down                        take everything away")
    return 0


def _down(asked: argparse.Namespace) -> int:
    if _is_up():
        _current().close()
    _mark().unlink(missing_ok=True)
    with sweep.one_at_a_time():
        sweep.sweep()
    return 0


def _list(asked: argparse.Namespace) -> int:
    for host in _current():
        print(f"{host.name}  {host.address}  {'up' if host.alive else 'down'}")
    return 0


def _shell(asked: argparse.Namespace) -> int:
    shell = os.environ.get("SHELL", "/bin/sh")
    text = (
        "This shell is on the laptop. `flow run -N 2 -- hostname` runs on the hosts; `exit` leaves."
    )
    print(text, flush=True)
    return _become(_current(), [shell], PS1="laptop$ ")


def _on_laptop(asked: argparse.Namespace) -> int:
    return _become(_current(), asked.command)


def _become(cluster: Cluster, command: list[str], **variables: str) -> int:
    environment = cluster.client_environment()
    bin_directory = Path(sys.executable).parent
    environment |= {
        "FLOW_HOME": str(cluster.directory / "flow-home"),
        "PATH": f"{bin_directory}{os.pathsep}{environment.get('PATH', '')}",
        "PYTHONPATH": str(ROOT),
        **variables,
    }
    argv = ["nsenter", f"--net={cluster.laptop.network}", "--", *command]
    os.execvpe(argv[0], argv, environment)


def _on_host(asked: argparse.Namespace) -> int:
    command = _host(_current(), asked.host).command(asked.command)
    os.execvp(command[0], command)


def _operate(asked: argparse.Namespace) -> int:
    cluster = _current()
    target: Host | Laptop = cluster.laptop if asked.host == "laptop" else _host(cluster, asked.host)
    operation = getattr(target, asked.operation.replace("-", "_"), None)
    if operation is None:
        raise ValueError(f"the laptop cannot {asked.operation}")
    numbers = _numbers_of(operation)
    fewest = sum(not word.startswith("[") for word in numbers)
    if not fewest <= len(asked.numbers) <= len(numbers):
        raise ValueError(f"usage: {' '.join((asked.operation, 'HOST', *numbers))}")
    operation(*asked.numbers)
    return 0


def _numbers_of(operation: Callable[..., None]) -> list[str]:
    """The numbers that an operation takes, as in a usage line: `MS`, `[LOSS_PERCENT]`."""
    return [
        each.name.upper() if each.default is each.empty else f"[{each.name.upper()}]"
        for each in inspect.signature(operation).parameters.values()
        if each.kind is each.POSITIONAL_OR_KEYWORD
    ]


def _host(cluster: Cluster, name: str) -> Host:
    for host in cluster:
        if host.name == name:
            return host
    raise ValueError(f"no host {name!r}; there are {', '.join(host.name for host in cluster)}")


if __name__ == "__main__":
    sys.exit(main())
