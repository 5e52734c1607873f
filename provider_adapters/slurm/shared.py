"""The shared directory of the login node and all nodes: its content, and the test whether it is really shared.

SHARED/blobs/<sha256>      flowlite's program, bundles, sources: content named by its hash, sent once
SHARED/probe-<nonce>       written on the login side; a node that finds the nonce in it sees the same directory
SHARED/output/<job>.txt    the output of the job itself, which is little
SHARED/volumes/<name>/     volumes
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowlite.connect.values import File
from flowlite.errors import ProviderError
from flowlite.node.system import ownership
from flowlite.node.system.atomic_files import place
from flowlite.state import clock
from provider_adapters.slurm.login import last_line
from provider_adapters.ssh.volumes import CREATE

if TYPE_CHECKING:
    from provider_adapters.slurm.login import SlurmLogin

# How long a directory is believed not to be shared. That it is shared is believed until a node reports otherwise.
_DISPROVED_SECONDS = 3600.0


def expanded(path: str, home: str, uid: int) -> str:
    """A path of the settings with the user's home and id filled in, valid on the login node and all nodes."""
    whole = f"{home}{path[1:]}" if path.startswith("~") else path
    return whole.replace("%u", str(uid))


def check(login: SlurmLogin, directory: str) -> None:
    """Raises ProviderError if another user has made the directory first, in one such as /scratch.

    On a login node that is another machine, the program that is started from it looks at more than that.
    """
    if not login.target and (why := ownership.taken(directory)):
        raise ProviderError(
            f"{why}, another user, who could replace your volumes there; set shared_dir under [slurm] to another "
            "directory"
        )


def bring(login: SlurmLogin, directory: str, program: Path, sha256: str, nonce: str) -> None:
    """Writes the files that nodes look for. Content that is there by its hash is not sent again. Raises as `check`."""
    check(login, directory)
    files = [
        File(f"{directory}/blobs/{sha256}", program, 0o700, sha256),
        File(f"{directory}/probe-{nonce}", nonce.encode()),
        File(f"{directory}/output/.made", b""),
        File(f"{directory}/step-daemons/.made", b""),
    ]
    login.connection.put_many(files)


def make_volumes(login: SlurmLogin, directory: str, names: Sequence[str]) -> None:
    """Creates the missing directories of volumes. Raises ProviderError."""
    paths = [f"{directory}/volumes/{name}" for name in names]
    done = login.run(["sh", "-c", CREATE, "sh", *paths])
    if done.code:
        raise ProviderError(f"volumes cannot be made on {login.name}: {last_line(done)}")


class SharedDirectoryEvidence:
    """What earlier jobs have shown about the shared directory of a cluster."""

    def __init__(self, login: SlurmLogin, home: Path) -> None:
        self._file = home / f"shared-{login.key}.json"

    def of(self, directory: str) -> bool | None:
        """Whether the nodes see the directory; None if unknown."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            told: dict[str, Any] = json.loads(self._file.read_bytes())
            if told["directory"] != directory:
                return None
            if not told["shared"] and clock.now() - float(told["at"]) > _DISPROVED_SECONDS:
                return None
            return bool(told["shared"])
        return None

    def keep(self, directory: str, shared: bool) -> None:
        """Records what the nodes of a job have reported."""
        told = {"directory": directory, "shared": shared, "at": clock.now()}
        with suppress(OSError):
            place(json.dumps(told).encode(), str(self._file))

    def forget(self) -> None:
        """Drops the record."""
        with suppress(OSError):
            self._file.unlink()
