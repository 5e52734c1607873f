"""A small shared record: a JSON file that one process at a time reads and rewrites."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flowlite.errors import ProviderError
from flowlite.node.system.atomic_files import write_atomically


class LockedRecord:
    """Entries by key. `change` holds an exclusive lock and writes atomically. Both raise ProviderError."""

    def __init__(
        self, path: Path, advice: str = "remove it when no task runs here any more"
    ) -> None:
        """
        Args:
            advice: What to do with a file that is damaged.
        """
        self._path = path
        self._advice = advice

    def read(self) -> dict[str, Any]:
        """All entries, as last written."""
        try:
            return dict(json.loads(self._path.read_bytes()))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError) as error:
            raise ProviderError(f"{self._path} cannot be read ({error}); {self._advice}") from error

    @contextmanager
    def change(self) -> Iterator[dict[str, Any]]:
        """Yields all entries, to be changed in place; they are written at the end of the block unless it raises."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise ProviderError(f"{self._path.parent} cannot be written: {error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            entries = self.read()
            before = json.dumps(entries)
            yield entries
            after = json.dumps(entries)
            if after != before:
                try:
                    write_atomically(self._path, after)
                except OSError as error:
                    raise ProviderError(f"{self._path} cannot be written: {error}") from error
        finally:
            os.close(lock)
