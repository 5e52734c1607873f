"""A cloud in a box for a person: `flow cloud-in-a-box`, or `python -m flowlite.testing.cloud [-- COMMAND …]`."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from flowlite.testing.cloud.box import CloudInABox, why_not
from flowlite.testing.hosts.cluster import ROOT

CANNOT = 5
_WELCOME = """\
A cloud in a box: {machines} machines, rented out by EC2 and Mithril on this machine. Nothing here costs anything.
This shell is on the client's laptop. `flow run --provider aws -- hostname` rents one; `exit` ends it all.
"""
_COUNTED = ("pending", "running")


def main(argv: list[str] | None = None) -> int:
    """Runs a shell or a command beside a box, and returns its exit code. The box is removed afterwards."""
    asked = _parser().parse_args(argv)
    if reason := why_not() or _missing():
        sys.stderr.write(f"cloud-in-a-box: {reason}\n")
        return CANNOT
    if asked.command and shutil.which(asked.command[0]) is None:
        sys.stderr.write(f"cloud-in-a-box: there is no program {asked.command[0]!r}\n")
        return CANNOT
    with CloudInABox(asked.machines, boot_seconds=asked.boot) as box:
        command = asked.command or [os.environ.get("SHELL", "/bin/sh")]
        if not asked.command:
            sys.stderr.write(_WELCOME.format(machines=asked.machines))
        code = _run(box, command)
        _tell_what_runs(box)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m flowlite.testing.cloud", description=__doc__)
    parser.add_argument("--machines", type=int, default=6, help="how many there are to rent")
    parser.add_argument("--boot", type=float, default=2.0, help="seconds that one takes to boot")
    parser.add_argument("command", nargs="*", help="what to run in place of a shell")
    return parser


def _missing() -> str:
    if importlib.util.find_spec("moto") is None:
        return "the EC2 API needs moto: pip install 'moto[ec2,efs,iam,s3,server,ssm,sts]'"
    return ""


def _run(box: CloudInABox, command: list[str]) -> int:
    home = box.directory / "flow-home"
    home.mkdir(mode=0o700)
    environment = box.client_environment()
    search = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"
    environment |= {"FLOW_HOME": str(home), "PATH": search, "PS1": "laptop$ "}
    if ROOT.name != "site-packages":
        environment["PYTHONPATH"] = str(ROOT)
    # Ctrl-C goes to the command as well, which handles it; this process must survive it.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    with box.enter():
        return subprocess.run(command, env=environment, check=False).returncode


def _tell_what_runs(box: CloudInABox) -> None:
    left = [i["id"] for i in box.aws.instances() if i["state"] in _COUNTED]
    left += [i["id"] for i in box.mithril.instances() if i["state"] not in _ENDED]
    if left:
        sys.stderr.write(
            f"Still rented when the box closed: {', '.join(left)}. In an account they would go on costing money.\n"
        )


_ENDED = ("STATUS_TERMINATED", "STATUS_ERROR", "STATUS_PREEMPTED")


if __name__ == "__main__":
    sys.exit(main())
