"""A network file server: one directory, for every machine that can reach its address.

    python -m flowlite.testing.hosts.file_server ADDRESS PORT DIRECTORY

It stands in for an NFS server, since kernels of test machines may lack NFS: each connection is served by an
`sftp-server`, and `mount.nfs4` on the machines runs `sshfs` without SSH. Like NFS, a write on one machine is visible on
the others at once, and an address that does not answer cannot be mounted. Unlike NFS, locks are local to each machine.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

from flowlite.node.leader_volumes.confined_sftp import find_server
from flowlite.testing.hosts import system

PORT = 2049
_PATIENCE = 30
_CLIENT = f"""\
#!/bin/sh
# mount.nfs4 ADDRESS:/ DIRECTORY -o OPTIONS
[ "$3" = -o ] || {{ echo "mount.nfs4: no options" >&2; exit 1; }}
case ",$4," in *,nfsvers=4.1,*) ;; *) echo "mount.nfs4: not version 4.1" >&2; exit 1 ;; esac
fresh=attr_timeout=0,entry_timeout=0,negative_timeout=0,ac_attr_timeout=0,dir_cache=no
# A mount of the kernel would leave no process behind that belongs to whoever asked for it.
env -i PATH="$PATH" timeout --foreground {_PATIENCE} sshfs "${{1%%:*}}:" "$2" </dev/null >/dev/null 2>&1 \\
    -o "directport={PORT},allow_other,default_permissions,reconnect,fsname=$1,$fresh" && exit 0
echo "mount.nfs4: Connection timed out for $1" >&2
exit 32
"""


def write_client(programs: Path) -> None:
    """Installs `mount.nfs4` into a directory of programs, if this machine has what it needs."""
    if shutil.which("sshfs") is not None:
        file = programs / "mount.nfs4"
        file.write_text(_CLIENT)
        file.chmod(0o755)


def main() -> None:
    """Serves until killed."""
    address, port, directory = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    program = find_server()
    # The kernel reaps ended children.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.create_server((address, port), backlog=64) as listener:
        sys.stdout.write("listening\n")
        sys.stdout.flush()
        while True:
            client, _ = listener.accept()
            with client:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                subprocess.Popen(
                    [program, "-d", directory],
                    stdin=client.fileno(),
                    stdout=client.fileno(),
                    stderr=subprocess.DEVNULL,
                    preexec_fn=system.die_with_parent,
                )


if __name__ == "__main__":
    main()
