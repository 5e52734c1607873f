"""The provider's list of a task's instances, shared by those who ask for it at the same time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from flowlite.provider import Instance


class SharedListing:
    """Lists the instances of one task, one call at a time. Called in threads.

    Every node that does not answer is looked up in the list. A provider may have to ask all hosts of the task for it,
    so that many silent nodes of a large gang would ask for the same thing again and again.
    """

    def __init__(self, list_instances: Callable[[], list[Instance]]) -> None:
        self._list = list_instances
        self._one = threading.Lock()
        self._began = 0.0
        self._found: list[Instance] | Exception = []

    def get(self) -> list[Instance]:
        """Returns a list that was begun after this call. Raises what the provider raises."""
        asked = time.monotonic()
        with self._one:
            if self._began <= asked:
                self._began = time.monotonic()
                try:
                    self._found = self._list()
                except Exception as error:
                    self._found = error
            found = self._found
        if isinstance(found, Exception):
            raise found
        return found
