"""A Ray cluster on the nodes of a gang, for one task. Node 0 is the head, and the cluster ends with the task.

`ray start` on each node starts Ray's processes and returns when they are up. They are below the node's reaper, like all
processes that an exec server starts, and are ended by it. `ray stop` is never used: it would also end Ray processes of
other tasks.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..system import node_facts, processes, runtime_dir
from ..system.atomic_files import write_atomically
from .context import GangContext
from .remote_exec import CommandFailed, ask
from .requirements import python_on

_ATTEMPTS = 4
_MOST_AT_ONCE = 32
_FATAL = re.compile(r"\[[^]]* [CE] \d+ \d+\]")
_LONGEST_WORDS = 700
_PREFIX, _OWNER = "ray-", "flowlite-owner"
_OF_ANOTHER = frozenset({"RAY_ADDRESS", "RAY_TMPDIR", "RAY_AUTH_TOKEN"})
"""Variables of another cluster, which must not be joined."""
_PORTS = (
    "dashboard-agent-listen-port",
    "dashboard-agent-grpc-port",
    "runtime-env-agent-port",
    "metrics-export-port",
)
"""Ports chosen here, since Ray waits only 15 s for its processes to choose them: too little on a busy machine."""
_PROGRAM = """
import importlib.util, sys
from ray.scripts.scripts import main
port = sys.argv.pop(1)
if port and importlib.util.find_spec("grpc"):
    sys.argv.append(f"--ray-client-server-port={port}")
main()
"""
"""Ray accepts that option only if grpc is installed. Without it, Ray would use a port that another task may have."""


def gather(place: GangContext) -> dict[str, str]:
    """Starts the cluster. Returns the variables of the call. Raises OSError with the reason of a failure."""
    address = place.addresses[0]
    head = ""

    def begin() -> None:
        nonlocal head
        port, clients = free_ports(address, 2)
        ask(place, 0, _own("head", str(port), str(clients)))
        head = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"

    def join(node: int) -> None:
        _insist(
            lambda: ask(place, node, _own("join", head)),
            f"node {node} does not join the Ray cluster",
        )

    _insist(begin, "the head of the Ray cluster does not start")
    with ThreadPoolExecutor(max_workers=_MOST_AT_ONCE) as pool:
        list(pool.map(join, range(1, place.config.num_nodes)))
    return {"RAY_ADDRESS": head, **proof(place)}


def _insist(work: Callable[[], object], what: str) -> None:
    """Retries: a port may just have been taken, and Ray itself gives up on a busy machine."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            work()
            return
        except CommandFailed as error:
            sys.stderr.write(f"{what} (attempt {attempt}): {error}\n")
            if attempt == _ATTEMPTS:
                raise OSError(f"{what}: {error}") from error


def proof(place: GangContext) -> dict[str, str]:
    """Returns variables that limit Ray (2.52 and later) to processes of this task, and writes the file they name."""
    path = place.paths.directory / "ray-token"
    token = hmac.digest(place.paths.secret.read_bytes(), b"flowlite ray 1", "sha256").hex()
    write_atomically(path, token)
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(path)}


def _own(*arguments: str) -> list[str]:
    """Returns the command line of this module's program, at its path on the node that runs it."""
    return ["/bin/sh", "-c", 'exec "$FLOW_GANG/bin/flow-ray" "$@"', "flow-ray", *arguments]


def start_command(
    place: GangContext,
    arguments: Sequence[str],
    *,
    python: str,
    gpus: int,
    cores: int,
    ports: Mapping[str, int],
    temporary: str,
) -> list[str]:
    """Returns the command line of `ray start` on this node.

    Args:
        arguments: ("head", port, port for Ray's clients) or ("join", address of the head).
        python: The Python that has Ray.
        ports: For Ray's processes, by the names of their options.
        temporary: Directory of its sockets and logs; short, since the path of a socket may have 107 bytes.
    """
    role, where, *clients = arguments
    address = place.addresses[place.rank]
    start = [python, "-c", _PROGRAM, *clients]
    head = ["--head", f"--port={where}", "--include-dashboard=false"]
    return [
        *(start if role == "head" else [*start, ""]),
        "start",
        *(head if role == "head" else [f"--address={where}"]),
        f"--node-ip-address={address}",
        *(f"--{name}={port}" for name, port in ports.items()),
        # Otherwise each node uses the same range, which several nodes of one machine cannot share.
        "--min-worker-port=0",
        "--max-worker-port=0",
        f"--temp-dir={temporary}",
        f"--num-cpus={cores}",
        f"--num-gpus={gpus}",
        "--disable-usage-stats",
    ]


def main(directory: str, arguments: Sequence[str]) -> int:
    """Runs `gang ray ATTEMPT_DIR head PORT CLIENT_PORT` or `… join ADDRESS`, which runs `ray start`."""
    place = GangContext.read(directory)
    temporary = temporary_of(place.paths.directory)
    words = start_command(
        place,
        arguments,
        python=python_on(os.environ.get("PATH")) or sys.executable,
        gpus=gpus_of(place),
        cores=cores_of(place),
        ports=dict(zip(_PORTS, free_ports(place.addresses[place.rank], len(_PORTS)), strict=True)),
        temporary=temporary,
    )
    _tidy()
    os.makedirs(temporary, mode=0o700, exist_ok=True)
    # The parent process lives as long as the cluster may.
    owner = json.dumps(processes.identity(os.getppid()))
    write_atomically(Path(temporary, _OWNER), owner)
    environment = {name: value for name, value in os.environ.items() if name not in _OF_ANOTHER}
    code = subprocess.run(words, env={**environment, **proof(place)}, check=False).returncode
    if code:
        sys.stderr.write(f"{_last_words(Path(temporary))}\n")
        sys.stderr.flush()
        # The processes started so far are in this group; the next attempt starts from scratch.
        os.killpg(0, signal.SIGKILL)
    return 0


def _last_words(temporary: Path) -> str:
    """Returns why the raylet of the latest attempt failed, as far as its log tells."""
    logs = sorted(
        temporary.glob("session_2*/logs/raylet.out"), key=lambda each: each.stat().st_mtime
    )
    if not logs:
        return "Ray has written no log"
    lines = logs[-1].read_text(errors="replace").splitlines()
    fatal = [line for line in lines if _FATAL.match(line)]
    return " ".join((fatal or lines)[-1:])[:_LONGEST_WORDS]


def _tidy() -> None:
    """Removes directories of agents that were killed."""
    for each in Path(runtime_dir.find()).glob(f"{_PREFIX}*/{_OWNER}"):
        try:
            owner = json.loads(each.read_bytes())
            if processes.is_alive(int(owner["pid"]), owner["start"]):
                continue
        except (OSError, ValueError, KeyError, TypeError):
            continue
        shutil.rmtree(each.parent, ignore_errors=True)


def cores_of(place: GangContext) -> int:
    """The number of CPUs given to Ray: those asked for, else all of the machine, and at least one per process."""
    asked = (place.config.gang or {}).get("cpus")
    return max(int(asked or place.cores), place.config.processes_per_node)


def gpus_of(place: GangContext) -> int:
    """The number of GPUs given to Ray: those asked for, as far as they exist."""
    if not place.config.gpus:
        return 0
    return int(node_facts.gpus(place.config.visible_gpus)["count"])


def temporary_of(attempt: Path) -> str:
    """Returns Ray's directory on one node in one attempt, under a short name."""
    name = hashlib.sha256(os.fsencode(attempt)).hexdigest()[:10]
    return f"{runtime_dir.find()}/{_PREFIX}{name}"


def forget(attempt: Path) -> None:
    """Removes Ray's files, after all its processes have ended."""
    shutil.rmtree(temporary_of(attempt), ignore_errors=True)


def free_ports(address: str, count: int) -> list[int]:
    """Returns ports that are free here now."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.ExitStack() as held:
        found = []
        for _ in range(count):
            probe = held.enter_context(socket.socket(family, socket.SOCK_STREAM))
            probe.bind((address, 0))
            found.append(int(probe.getsockname()[1]))
    return found
