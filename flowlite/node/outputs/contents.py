"""Prints the contents of many small files, or the digests of files, for a client that asks for them in one request.

The request for contents is {"root", "read": [path, ...]}. For each file, the answer has a line of JSON, {"size"} or
{"errno"}, and then the content. The request for digests is {"root", "digest": [path, ...]}, and the answer has a line
for each file, {"sha256"} or {"errno"}.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Sequence
from typing import BinaryIO

from ..system import atomic_files

LARGEST = 1 << 20
"""Files that are larger by now are not printed: the client expected a small one."""


def write(root: str, paths: Sequence[str], out: BinaryIO) -> None:
    """Writes the contents of files, whose paths are relative to a directory."""
    for path in paths:
        try:
            content = atomic_files.read_small(os.path.join(root, path), LARGEST)
        except OSError as error:
            out.write(json.dumps({"errno": error.errno or errno.EIO}).encode() + b"\n")
        else:
            out.write(json.dumps({"size": len(content)}).encode() + b"\n")
            out.write(content)


def write_digests(root: str, paths: Sequence[str], out: BinaryIO) -> None:
    """Writes the digests of files, whose paths are relative to a directory."""
    for path in paths:
        try:
            with atomic_files.open_regular(os.path.join(root, path), os.O_NOFOLLOW) as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            found: dict[str, object] = {"errno": error.errno or errno.EIO}
        else:
            found = {"sha256": digest}
        out.write(json.dumps(found).encode() + b"\n")
