"""The client of a node's step daemon (`slurm_step/daemon.py`): its address, and requests as lines of JSON.

Its socket is a name in the abstract namespace, derived from the path of its home: paths on clusters are long, and not
all file systems there support sockets. Both sides check the user id of the other, which the kernel gives.
"""

from __future__ import annotations

import errno
import json
import os
import socket

from ..host_lease import requests
from ..system import peer_credentials

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

SECONDS = 30.0
"""Within this time a step daemon answers. It forks an agent within some milliseconds."""
_LONGEST_NAME = 70


def instance_id(job: str | int, restart: int, nodeid: int) -> str:
    """Returns an instance id such as `7.00.00002`. These ids sort in the order of the job's nodes."""
    return f"{job}.{restart:02d}.{nodeid:05d}"


def home_of(node_dir: str, instance: str) -> str:
    """Returns the node home of an instance, which also holds its step daemon's files."""
    return f"{node_dir.rstrip('/')}/{instance}"


def address(home: str) -> str:
    """Returns the socket name on which a step daemon listens."""
    name = os.path.realpath(home)
    if len(os.fsencode(name)) > _LONGEST_NAME:
        # Imported here because it is slow to import.
        import hashlib

        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    return f"\0flowlite-step-daemon-{os.getuid()}-{name}"


class Line:
    """A connection to the step daemon of one home."""

    def __init__(self, home: str) -> None:
        self._home = home
        self._renewing: socket.socket | None = None

    def hello(self) -> dict[str, Any] | None:
        """Returns the facts that the step daemon reports, or None if there is none."""
        try:
            return self.ask({"do": "hello"})
        except OSError:
            return None

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Sends a request and returns the answer. Raises OSError if the step daemon is missing or gives no answer."""
        with self._connect() as line:
            line.settimeout(SECONDS)
            line.sendall(json.dumps(dict(request)).encode() + b"\n")
            text = requests.read_line(line)
        if not text:
            raise OSError(errno.ECONNRESET, f"the step daemon of {self._home} has ended")
        found = json.loads(text)
        assert isinstance(found, dict)
        return found

    def renew(self) -> None:
        """Reports that the client is alive. Does not wait, and ignores a missing step daemon."""
        try:
            if self._renewing is None:
                self._renewing = self._connect()
            self._renewing.send(b'{"do": "renew"}\n', socket.MSG_DONTWAIT)
        except OSError:
            if self._renewing is not None:
                self._renewing.close()
            self._renewing = None

    def _connect(self) -> socket.socket:
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            line.settimeout(SECONDS)
            line.connect(address(self._home))
            if not peer_credentials.is_ours(line):
                raise OSError(
                    errno.EPERM, f"another user listens as the step daemon of {self._home}"
                )
        except OSError as error:
            line.close()
            if error.errno == errno.ECONNREFUSED:
                text = f"the step daemon of {self._home} is not there"
                raise ConnectionRefusedError(errno.ECONNREFUSED, text) from None
            raise
        return line
