"""The directory that the login node and all nodes see: what lies there, and whether that is true.

SHARED/blobs/<sha256>      flowlite's program, bundles, sources: whatever is named by its hash; brought once
SHARED/probe-<nonce>       written on the login side; a node that finds the nonce in it sees the same directory
SHARED/output/<job>.txt    what the job itself says, which is little
SHARED/volumes/<name>/     volumes
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowlite.connect.base import File
from flowlite.errors import ProviderError
from flowlite.state import clock
from provider_adapters.slurm.login import last_line

if TYPE_CHECKING:
    from flowlite.connect.base import Connection
    from provider_adapters.slurm.login import SlurmLogin

# That it was not shared is believed so long; that it was, until a node says otherwise.
_DISPROVED_SECONDS = 3600.0


def expanded(path: str, home: str, uid: int) -> str:
    """A path of the settings as it is on the login node, and on all others."""
    whole = f"{home}{path[1:]}" if path.startswith("~") else path
    return whole.replace("%u", str(uid))


def bring(connection: Connection, directory: str, program: Path, sha256: str, nonce: str) -> None:
    """Puts what nodes look for. What is there already by its hash is not sent again."""
    files = [
        File(f"{directory}/blobs/{sha256}", program, 0o700, sha256),
        File(f"{directory}/probe-{nonce}", nonce.encode()),
        File(f"{directory}/output/.made", b""),
        File(f"{directory}/anchors/.made", b""),
    ]
    connection.put_many(files)


def make_volumes(login: SlurmLogin, directory: str, names: Sequence[str]) -> None:
    """Makes the directories of volumes that are not there yet. Raises ProviderError."""
    paths = [f"{directory}/volumes/{name}" for name in names]
    done = login.run(["mkdir", "-p", "--", *paths])
    if done.code:
        raise ProviderError(f"volumes cannot be made on {login.name}: {last_line(done)}")


class Proof:
    """What is known of the shared directory of a cluster from jobs of before."""

    def __init__(self, login: SlurmLogin, home: Path) -> None:
        self._file = home / f"shared-{login.key}.json"

    def of(self, directory: str) -> bool | None:
        """Whether the nodes see it; None if that is not known."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            told: dict[str, Any] = json.loads(self._file.read_bytes())
            if told["directory"] != directory:
                return None
            if not told["shared"] and clock.now() - float(told["at"]) > _DISPROVED_SECONDS:
                return None
            return bool(told["shared"])
        return None

    def keep(self, directory: str, shared: bool) -> None:
        """Remembers what the nodes of a job have said."""
        from flowlite.node.config.agent_config import write_atomically

        told = {"directory": directory, "shared": shared, "at": clock.now()}
        with suppress(OSError):
            write_atomically(self._file, json.dumps(told))

    def forget(self) -> None:
        """Nothing is known any more."""
        with suppress(OSError):
            self._file.unlink()
