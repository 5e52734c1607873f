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
import stat
from collections.abc import Sequence
from typing import BinaryIO

LARGEST = 1 << 20
"""Files that are larger by now are not printed: the client expected a small one."""


def write(root: str, paths: Sequence[str], out: BinaryIO) -> None:
    """Writes the contents of files, whose paths are relative to a directory."""
    for path in paths:
        try:
            content = _content(os.path.join(root, path))
        except OSError as error:
            out.write(json.dumps({"errno": error.errno or errno.EIO}).encode() + b"\n")
        else:
            out.write(json.dumps({"size": len(content)}).encode() + b"\n")
            out.write(content)


def write_digests(root: str, paths: Sequence[str], out: BinaryIO) -> None:
    """Writes the digests of files, whose paths are relative to a directory."""
    for path in paths:
        try:
            with _opened(os.path.join(root, path)) as file:
                digest = hashlib.sha256()
                while block := file.read(1 << 20):
                    digest.update(block)
        except OSError as error:
            found: dict[str, object] = {"errno": error.errno or errno.EIO}
        else:
            found = {"sha256": digest.hexdigest()}
        out.write(json.dumps(found).encode() + b"\n")


def _opened(path: str) -> BinaryIO:
    """Opens a regular file. Raises OSError, also if it is none."""
    # Opening must not block, even if a FIFO has taken the place of the file.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file")
    return os.fdopen(descriptor, "rb", buffering=0)


def _content(path: str) -> bytes:
    with _opened(path) as file:
        content = bytearray()
        while block := file.read(LARGEST + 1 - len(content)):
            content += block
            if len(content) > LARGEST:
                raise OSError(errno.EFBIG, "it has grown")
        return bytes(content)
