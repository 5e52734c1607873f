"""The process on the leader that serves volumes to the other nodes, each through a confined `sftp-server`.

`share-server ATTEMPT_DIR PID`, started by the agent (`agent_side.py`). Its standard input is a pipe that only the agent
holds; it ends when the pipe does. It reports one line of JSON: {"event": "serving", "port": n}, or {"event": "failed",
"why": text}.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
from pathlib import Path

from ..config.agent_config import AgentConfig, AttemptPaths
from ..protocol.framing import VOLUME_ROLE
from ..protocol.listener import Listener
from ..protocol.stream import Stream
from ..sidecar.process_side import report, wait_for_agent
from ..system import processes
from .confined_sftp import NotConfined, find_server, serve

_TRIAL_SECONDS = 20.0
_INIT = b"\0\0\0\5\1\0\0\0\3"
"""The first packet of SFTP. The first packet of the reply has type `_VERSION`."""
_VERSION = 2


class Server:
    """Serves the shared volumes of one attempt."""

    def __init__(self, config: AgentConfig, paths: AttemptPaths) -> None:
        self._volumes = {
            str(volume["name"]): str(volume["source"])
            for volume in config.volumes
            if volume.get("share") == "sshfs"
        }
        # Each server mounts its own root there, in its own mount namespace.
        self._stage = paths.directory / "share-root"
        self._door = Listener(config, paths, VOLUME_ROLE, self._volumes.__contains__)

    def run(self) -> None:
        """Serves until standard input ends."""
        self._stage.mkdir(mode=0o700, exist_ok=True)
        for name, directory in self._volumes.items():
            os.makedirs(directory, mode=0o700, exist_ok=True)
            self._try(name)
        report("serving", port=self._door.open(self._serve))
        wait_for_agent()

    def _try(self, name: str) -> None:
        """Checks in advance that a confined server answers. Raises NotConfined."""
        find_server()
        trial = self._start(name, subprocess.PIPE, subprocess.PIPE, subprocess.PIPE)
        assert trial.stdin is not None
        assert trial.stdout is not None
        with contextlib.suppress(OSError):
            # The input stays open: the server does not answer once it has ended.
            trial.stdin.write(_INIT)
            trial.stdin.flush()
        ready, _, _ = select.select([trial.stdout], [], [], _TRIAL_SECONDS)
        answer = os.read(trial.stdout.fileno(), 4096) if ready else b""
        trial.kill()
        _, said = trial.communicate()
        if len(answer) < 5 or answer[4] != _VERSION:
            raise NotConfined(said.decode(errors="replace").strip()[-300:] or "it does not start")

    def _serve(self, stream: Stream, volume: str, _: str) -> None:
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                child = self._start(volume, theirs.fileno(), theirs.fileno(), None)
            stream.bridge(ours.fileno(), ours.fileno())
        child.kill()
        child.wait()

    def _start(
        self, volume: str, source: int, sink: int, errors: int | None
    ) -> subprocess.Popen[bytes]:
        command = processes.own_command(
            sys.executable,
            "share-sftp",
            self._volumes[volume],
            str(self._stage),
            str(os.getpid()),
            flags=("-I", "-S"),
        )
        return subprocess.Popen(
            command, stdin=source, stdout=sink, stderr=errors, cwd="/", start_new_session=True
        )


def main(arguments: list[str]) -> int:
    """`share-server ATTEMPT_DIR PID`: runs the server for the agent with that process id."""
    processes.die_with_parent(int(arguments[1]))
    paths = AttemptPaths(Path(arguments[0]))
    try:
        Server(AgentConfig.from_json(paths.config.read_bytes()), paths).run()
        code = 0
    except NotConfined as error:
        report("failed", why=str(error))
        code = 1
    except (OSError, ValueError) as error:
        report("failed", why=f"volumes cannot be served: {error}")
        code = 2
    sys.stderr.flush()
    os._exit(code)


def serve_one(arguments: list[str]) -> int:
    """`share-sftp DIRECTORY STAGE PID`: becomes the sftp-server of a directory."""
    processes.die_with_parent(int(arguments[2]))
    try:
        serve(arguments[0], Path(arguments[1]))
    except NotConfined as error:
        sys.stderr.write(f"{error}\n")
    return 1
