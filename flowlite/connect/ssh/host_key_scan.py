"""Fetches the key of a host without logging in."""

from __future__ import annotations

from flowlite.connect.ssh.host_keys import HostKey
from flowlite.connect.ssh.link import Link
from flowlite.connect.ssh.targets import SshTarget
from flowlite.connect.ssh.transport import shown


def fetch(target: SshTarget) -> HostKey:
    """The key that a host presents now. Jump hosts must be known; nothing is sent to the host itself.

    Raises:
        NodeUnreachable: The host does not answer.
    """
    link = Link(target)
    transport = None
    try:
        transport = link.greet()
        return shown(transport)
    finally:
        if transport is not None:
            transport.close()
        link.shut()
