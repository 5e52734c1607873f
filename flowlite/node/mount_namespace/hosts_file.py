"""A hosts file of the task's own, so that no worker waits for a name server to tell it who its peers are.

torch asks for the name of every peer of its store, by the address as an IPv6 one sees it. Few machines have that in
their hosts file, so a name server is asked, and one that does not answer costs each start 5 s or more, at random.
Where this process may have mounts of its own (as root; not worth a user namespace), its `/etc/hosts` becomes a copy to
which the addresses of the gang are added. The machine's own file is never touched.
"""

from __future__ import annotations

import os
import sys

from ..system.libc import CLONE_NEWNS, MS_BIND, MS_REC, MS_SLAVE, Libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

HOSTS = "/etc/hosts"
_ADDED = "# the gang, by flowlite\n"


def own_hosts(path: str) -> bool:
    """Put a copy of the hosts file, made at `path`, in its place for this process and what it starts from now on."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return False
    libc = Libc()
    try:
        with open(HOSTS, encoding="utf-8", errors="surrogateescape") as file:
            text = file.read()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        with open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(f"{text.rstrip()}\n")
        os.chmod(path, 0o644)
        libc.call("unshare", CLONE_NEWNS)
        libc.mount(None, "/", None, MS_REC | MS_SLAVE)
        libc.mount(path, HOSTS, None, MS_BIND)
    except OSError:
        return False
    return True


def add_gang(path: str, addresses: Sequence[str]) -> None:
    """Add the nodes' addresses, by rank, to the file of `own_hosts`. May be called again, by every node on it."""
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        known = file.read()
    known = known.partition(_ADDED)[0]
    lines = "".join(f"{each}\n" for each in lines_for(addresses))
    # In place: the mount shows this file, and not whatever might come under its name.
    with open(path, "r+", encoding="utf-8", errors="surrogateescape") as file:
        file.write(known + _ADDED + lines)
        file.truncate()


def gang_is_known() -> bool:
    """Whether the hosts file that this process sees has the nodes of the gang."""
    try:
        with open(HOSTS, encoding="utf-8", errors="surrogateescape") as file:
            return _ADDED in file
    except OSError:
        return False


def lines_for(addresses: Sequence[str]) -> list[str]:
    """Lines of a hosts file: each address, as itself and as IPv6 sees an IPv4 one, with the name of its first rank."""
    lines = []
    for address in dict.fromkeys(addresses):
        name = f"flow-node-{list(addresses).index(address)}"
        if ":" not in address:
            lines.append(f"::ffff:{address} {name}")
        if not address.startswith("127."):
            lines.append(f"{address} {name}")
    return lines
