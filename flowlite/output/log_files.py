"""The files with the output of workers: their names, and the format of the index beside each.

A file holds the bytes of one stream as the worker wrote them. Its index is a sequence of records (offset, Unix time):
"bytes from this offset on were seen at this time". `supervise/attempt/log_writer.py` writes both; `stream_file.py`
reads them.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import NamedTuple

INDEX_RECORD = struct.Struct("<Qd")
KINDS = ("setup", "out", "err")
"""The kinds of streams, in the order in which they are shown."""
_NAME = re.compile(r"a(\d+)\.n(\d+)\.r(\d+)\.(out|err|setup)")


class Stream(NamedTuple):
    """Identifies a stream of a worker. `kind` is "out", "err", or "setup" for a node's `setup=`."""

    attempt: int
    node: int
    rank: int
    kind: str

    @classmethod
    def of_file(cls, name: str) -> Stream | None:
        """Returns the stream that a file with this name holds; None if it holds none."""
        found = _NAME.fullmatch(name)
        return cls(int(found[1]), int(found[2]), int(found[3]), found[4]) if found else None

    @property
    def file(self) -> str:
        """Name of its file."""
        return f"a{self.attempt}.n{self.node}.r{self.rank}.{self.kind}"


def index_of(log: Path) -> Path:
    """Returns the path of the index of a log file."""
    return log.with_name(f"{log.name}.idx")
