"""Which contents belong to a task, and which of them a node lacks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..project_files.make import lacking, read_manifest


class TaskContents:
    """The contents of a task on one node.

    Attributes:
        blobs: The directory of contents by hash.
        sizes: The size of each content, by its hash.
    """

    def __init__(self, order: Mapping[str, Any]) -> None:
        """
        Args:
            order: {"home", "blobs", "project", "more": {sha256: size}}. With "project", the contents of the manifest
                in `home` belong to the task.

        Raises:
            OSError: There is no manifest.
            ManifestError: It is invalid.
        """
        self.blobs = str(order["blobs"])
        self.sizes: dict[str, int] = dict(order["more"])
        if order["project"]:
            files = read_manifest(order["home"]).files
            self.sizes.update((entry.sha256, entry.size) for entry in files)

    def path(self, sha256: str) -> str:
        """Where a content is, or will be."""
        return os.path.join(self.blobs, sha256)

    def lacking(self) -> list[str]:
        """The contents that are not here."""
        return lacking(self.blobs, self.sizes)
