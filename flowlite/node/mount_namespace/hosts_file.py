"""A hosts file for the task, so that workers do not wait for a name server to resolve their peers.

torch looks up the name of every peer of its store, by the peer's address as an IPv6 socket shows it. Few machines have
it in their hosts file, so a name server is asked. One that does not answer delays each start by 5 s or more, at random.
If this process may have its own mounts (as root; a user namespace is not worth it), `/etc/hosts` becomes a copy to
which the gang's addresses are added. The machine's own file is never changed.
"""

from __future__ import annotations

import os
import sys

from ..system.atomic_files import write_atomically
from ..system.libc import CLONE_NEWNS, MS_BIND, MS_REC, MS_SLAVE, Libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

HOSTS = "/etc/hosts"
_ADDED = "# the gang, by flowlite\n"


def own_hosts(path: str) -> bool:
    """Mounts a copy of the hosts file, made at `path`, over it, for this process and its future children."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return False
    libc = Libc()
    try:
        with open(HOSTS, "rb") as file:
            text = file.read()
        # As the machine's own: what workers start as other users reads it, too, through the mount.
        write_atomically(path, text.rstrip() + b"\n", 0o644)
        libc.call("unshare", CLONE_NEWNS)
        libc.mount(None, "/", None, MS_REC | MS_SLAVE)
        libc.mount(path, HOSTS, None, MS_BIND)
    except OSError:
        return False
    return True


def add_gang(path: str, addresses: Sequence[str]) -> None:
    """Adds the nodes' addresses, by rank, to the file of `own_hosts`. Every node that shares it may call this again."""
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        known = file.read()
    known = known.partition(_ADDED)[0]
    lines = "".join(f"{each}\n" for each in lines_for(addresses))
    # Written in place: the mount shows this inode, and would not show a file that replaced it.
    with open(path, "r+", encoding="utf-8", errors="surrogateescape") as file:
        file.write(known + _ADDED + lines)
        file.truncate()


def gang_is_known() -> bool:
    """Whether the hosts file that this process sees contains the gang's nodes."""
    try:
        with open(HOSTS, encoding="utf-8", errors="surrogateescape") as file:
            return _ADDED in file
    except OSError:
        return False


def lines_for(addresses: Sequence[str]) -> list[str]:
    """Returns lines of a hosts file: each address (IPv4 also in its IPv6 form), with the name of its first node."""
    lines = []
    for address in dict.fromkeys(addresses):
        name = f"flow-node-{list(addresses).index(address)}"
        if ":" not in address:
            lines.append(f"::ffff:{address} {name}")
        if not address.startswith("127."):
            lines.append(f"{address} {name}")
    return lines
