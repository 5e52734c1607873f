"""Where a node's step daemon (slurm_step/daemon.py) is found, and what is said to it: a line of JSON each way.

Its socket is a name in the abstract namespace, made from the path of its home, since file systems of clusters have long
paths and not always sockets. Both sides look at the user id that the kernel gives for the other.
"""

from __future__ import annotations

import errno
import json
import os
import socket

from ..system import peer_credentials

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

SECONDS = 30.0
"""Within which a step daemon answers; to fork an agent takes it some milliseconds."""
_LONGEST_NAME = 70


def instance_id(job: str | int, restart: int, nodeid: int) -> str:
    """`7.00.00002`: sorted as the nodes of the job are."""
    return f"{job}.{restart:02d}.{nodeid:05d}"


def home_of(node_dir: str, instance: str) -> str:
    """The node home of an instance; its step daemon's files lie there, too."""
    return f"{node_dir.rstrip('/')}/{instance}"


def address(home: str) -> str:
    """The name a step daemon listens at."""
    name = os.path.realpath(home)
    if len(os.fsencode(name)) > _LONGEST_NAME:
        # Slow to import.
        import hashlib

        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    return f"\0flowlite-anchor-{os.getuid()}-{name}"


class Line:
    """The way to the step daemon of one home."""

    def __init__(self, home: str) -> None:
        self._home = home
        self._renewing: socket.socket | None = None

    def hello(self) -> dict[str, Any] | None:
        """What it says of itself; None if it is not there."""
        try:
            return self.ask({"do": "hello"})
        except OSError:
            return None

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Its answer. Raises OSError if it is not there, or gives none."""
        with self._connect() as line:
            line.settimeout(SECONDS)
            line.sendall(json.dumps(dict(request)).encode() + b"\n")
            text = b""
            while not text.endswith(b"\n"):
                data = line.recv(1 << 16)
                if not data:
                    raise OSError(errno.ECONNRESET, f"the anchor of {self._home} has ended")
                text += data
        found = json.loads(text)
        assert isinstance(found, dict)
        return found

    def renew(self) -> None:
        """Its client lives. Does not wait, and does no harm if nobody is there."""
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
                raise OSError(errno.EPERM, f"another user listens as the anchor of {self._home}")
        except OSError as error:
            line.close()
            if error.errno == errno.ECONNREFUSED:
                text = f"the anchor of {self._home} is not there"
                raise ConnectionRefusedError(errno.ECONNREFUSED, text) from None
            raise
        return line
