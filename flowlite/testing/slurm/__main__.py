"""A Slurm for a person: `make slurm N=4`, or `python -m flowlite.testing.slurm COMMAND` (docs/testing.md)."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

from flowlite.testing.hosts import Host, sweep
from flowlite.testing.hosts.cluster import ROOT
from flowlite.testing.hosts.root import USER
from flowlite.testing.slurm.cluster import SlurmCluster, why_not

# Commands that take a node's name, and commands that take a job's number.
ON_NODES = {
    "drain": "let no new job onto a node",
    "undrain": "end that",
    "kill-node": "a power cut; Slurm finds out after a while",
    "revive": "start a node again after that",
}
ON_JOBS = {
    "cancel": "end a job behind everybody's back",
    "requeue": "have a job begin again, at once",
}
_CONFIGURATION = """\
provider = "slurm"

[slurm]
{login}shared_dir = "{shared}"
python = "{python}"
"""


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    asked = _parser().parse_args(argv)
    try:
        status: int = asked.run(asked)
    except (RuntimeError, ValueError) as error:
        print(f"slurm: {error}", file=sys.stderr)
        return 1
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m flowlite.testing.slurm", description=__doc__)
    parser.add_argument(
        "--name", default="slurm", help="which one, where there are several; default: slurm"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(
        name: str, run: Callable[[argparse.Namespace], int], text: str
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text)
        command.set_defaults(run=run, operation=name.replace("-", "_"))
        return command

    add("up", _up, "bring a Slurm up").add_argument("count", type=int, nargs="?", default=4)
    add("down", _down, "take it away")
    add("reset", _reset, "no jobs, no files, every node there")
    add("logs", _logs, "the last lines of every daemon")
    for name, run, text in (
        (
            "shell",
            _shell,
            "a shell on the laptop, which reaches Slurm through SSH to the login node",
        ),
        (
            "login-shell",
            _login_shell,
            "a shell that is on a login node, where Slurm's commands are",
        ),
        ("laptop", _shell, "run a command on the laptop"),
        ("login", _login_shell, "run a command as a login node does"),
    ):
        add(name, run, text).add_argument("command", nargs=argparse.REMAINDER)
    on = add("on", _on, "run a command on a host of it, as its ordinary user")
    on.add_argument("--root", action="store_true", help="as root")
    on.add_argument("host")
    on.add_argument("command", nargs=argparse.REMAINDER)
    for name, text in ON_NODES.items():
        add(name, _to_node, text).add_argument("host")
    for name, text in ON_JOBS.items():
        add(name, _to_job, text).add_argument("job", type=int)
    add("restart-controller", _restart, "end slurmctld and start it again")
    add("submit-higher", _submit_higher, "a job that takes all nodes from others")
    return parser


def _mark(name: str) -> Path:
    if not re.fullmatch(r"[A-Za-z0-9-]+", name):
        raise ValueError(f"--name {name}: letters, digits and dashes")
    return sweep.parent() / f"flowlite-slurm-{name}"


def _is_up(mark: Path) -> bool:
    return (mark / "room.sock").exists() and sweep.ours(mark)


def _current(asked: argparse.Namespace) -> SlurmCluster:
    mark = _mark(asked.name)
    if not _is_up(mark):
        raise RuntimeError(
            f"no Slurm of the name {asked.name!r} is up; `up` brings one up: "
            f"python -m flowlite.testing.slurm --name {asked.name} up 4"
        )
    return SlurmCluster.attach(mark.resolve())


def _up(asked: argparse.Namespace) -> int:
    mark = _mark(asked.name)
    if reason := why_not():
        raise RuntimeError(reason)
    if _is_up(mark):
        raise RuntimeError(
            f"a Slurm of the name {asked.name!r} is up already; `down` takes it away"
        )
    slurm = SlurmCluster(asked.count, owned=False)
    mark.unlink(missing_ok=True)
    mark.symlink_to(slurm.directory)
    for kind, login in (("laptop", f'login = "{slurm.login}"\n'), ("login", "")):
        home = slurm.directory / f"flow-home-{kind}"
        home.mkdir(mode=0o700)
        text = _CONFIGURATION.format(
            login=login, shared=slurm.shared / f"of-{kind}", python=sys.executable
        )
        (home / "config.toml").write_text(text)
    print(f"up: head {slurm.head.name} ({slurm.head.address}), nodes {', '.join(slurm.states())}")
    me = f"python -m flowlite.testing.slurm --name {asked.name}"
    print(f"{me} shell          on the laptop; `flow` goes through SSH to {slurm.login}")
    print(f"{me} login-shell    where sbatch and squeue are")
    print(f"{me} --help         what can be done to it")
    print(f"{me} down           take it away")
    return 0


def _down(asked: argparse.Namespace) -> int:
    mark = _mark(asked.name)
    if _is_up(mark):
        _current(asked).close()
    mark.unlink(missing_ok=True)
    with sweep.one_at_a_time():
        sweep.sweep()
    return 0


def _reset(asked: argparse.Namespace) -> int:
    _current(asked).reset()
    return 0


def _logs(asked: argparse.Namespace) -> int:
    print(_current(asked).logs())
    return 0


def _shell(asked: argparse.Namespace) -> int:
    slurm = _current(asked)
    return _become(slurm, asked.command, "laptop", slurm.hosts.client_environment())


def _login_shell(asked: argparse.Namespace) -> int:
    slurm = _current(asked)
    return _become(slurm, asked.command, "login", slurm.login_environment())


def _become(slurm: SlurmCluster, command: list[str], kind: str, environment: dict[str, str]) -> int:
    search = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"
    environment = {
        **environment,
        "FLOW_HOME": str(slurm.directory / f"flow-home-{kind}"),
        "PATH": search,
        "PYTHONPATH": str(ROOT),
        "PS1": f"{kind}$ ",
    }
    shell = _words(command) or [os.environ.get("SHELL", "/bin/sh")]
    argv = ["nsenter", f"--net={slurm.hosts.laptop.network}", "--", *shell]
    os.execvpe(argv[0], argv, environment)


def _words(command: list[str]) -> list[str]:
    return command[1:] if command[:1] == ["--"] else command


def _on(asked: argparse.Namespace) -> int:
    host = _host(_current(asked), asked.host)
    user = "root" if asked.root else USER
    command = _words(asked.command) or ["/bin/bash"]
    variables = {"HOME": "/root" if asked.root else f"/home/{USER}", "USER": user}
    line = host.command(command, user=user)
    os.execvpe(line[0], line, {**os.environ, **variables})


def _to_node(asked: argparse.Namespace) -> int:
    slurm = _current(asked)
    getattr(slurm, asked.operation)(_host(slurm, asked.host))
    return 0


def _to_job(asked: argparse.Namespace) -> int:
    getattr(_current(asked), asked.operation)(asked.job)
    return 0


def _restart(asked: argparse.Namespace) -> int:
    _current(asked).restart_controller()
    return 0


def _submit_higher(asked: argparse.Namespace) -> int:
    print(_current(asked).submit_higher())
    return 0


def _host(slurm: SlurmCluster, name: str) -> Host:
    for host in slurm.hosts:
        if host.name == name:
            return host
    raise ValueError(f"no host {name!r}; there are {', '.join(host.name for host in slurm.hosts)}")


if __name__ == "__main__":
    sys.exit(main())
