"""`mount.nfs4` for machines whose kernel has no NFS: a directory that all of them see stands for each server."""

from __future__ import annotations

from pathlib import Path

_HELPER = """#!/bin/sh
# mount.nfs4 ADDRESS:/ DIRECTORY -o OPTIONS
set -e
echo "$0 $*" >> {log}
[ "$3" = -o ] || {{ echo "mount.nfs4: no options" >&2; exit 1; }}
case ",$4," in *,nfsvers=4.1,*) ;; *) echo "mount.nfs4: not version 4.1" >&2; exit 1 ;; esac
place={servers}/$(echo "$1" | tr ':/' '__')
[ -d "$place" ] || {{ echo "mount.nfs4: Connection timed out for $1" >&2; exit 32; }}
exec mount --bind "$place" "$2"
"""


def helper(directory: Path, servers: Path) -> Path:
    """Puts it into a directory, to be put into PATH; gives the file in which its command lines are noted.

    Args:
        servers: Directory of the servers, as the machine sees it. One that has no directory there (`serve`) is dead.
    """
    log = servers / "mounts.log"
    file = directory / "mount.nfs4"
    text = _HELPER.format(log=log, servers=servers)
    # Whoever runs it meanwhile finds all of it or nothing.
    new = file.with_suffix(".new")
    new.write_text(text)
    new.chmod(0o755)
    new.rename(file)
    return log


def serve(servers: Path, address: str, export: str = "/") -> Path:
    """A server there is; its export."""
    place = servers / f"{address}:{export}".replace(":", "_").replace("/", "_")
    place.mkdir(parents=True, exist_ok=True)
    return place
