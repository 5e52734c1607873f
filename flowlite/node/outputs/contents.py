"""Prints the contents of many small files, for a client that fetches them in one request.

The request is {"root", "read": [path, ...]}. For each file, the answer has a line of JSON, {"size"} or {"errno"}, and
then the content.
"""

from __future__ import annotations

import errno
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


def _content(path: str) -> bytes:
    # Opening must not block, even if a FIFO has taken the place of the file.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(descriptor, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        content = bytearray()
        while block := file.read(LARGEST + 1 - len(content)):
            content += block
            if len(content) > LARGEST:
                raise OSError(errno.EFBIG, "it has grown")
        return bytes(content)
