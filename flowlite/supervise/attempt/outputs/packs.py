"""Small files of a node, fetched many at a time: a request for each would take longer than its content.

`agent.pyz outputs` answers a request for files with one line of JSON for each, {"size"} or {"errno"}, followed by its
content (`node/outputs/contents.py`). A pack that does not arrive completely is dropped, so its limit is also what an
interruption costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flowlite.connect.base import Connection
from flowlite.connect.bounded import MOST_OUTPUT, parse_json
from flowlite.errors import ProviderError
from flowlite.supervise.attempt.outputs.manifest import OutputFile, request

PACKED_BELOW = 1 << 20
"""Files of this size and more are fetched one by one, so that an interrupted fetch resumes within them."""
# An answer must stay below the bound of a command's output.
_MOST_BYTES = MOST_OUTPUT // 2
_MOST_FILES = 1000
# The contents, and a line for each.
_LONGEST_ANSWER = _MOST_BYTES + _MOST_FILES * 100
_SECONDS = 600.0


def groups(files: Sequence[OutputFile]) -> Iterator[list[OutputFile]]:
    """Yields all files in the groups that they are fetched in: packs of small files, and large files alone."""
    pack: list[OutputFile] = []
    size = 0
    for file in files:
        if file.size >= PACKED_BELOW:
            yield [file]
            continue
        if pack and (size + file.size > _MOST_BYTES or len(pack) == _MOST_FILES):
            yield pack
            pack, size = [], 0
        pack.append(file)
        size += file.size
    if pack:
        yield pack


def fetch(
    connection: Connection, program: Sequence[str], root: str, files: Sequence[OutputFile]
) -> list[bytes | None]:
    """Fetches the contents of a pack.

    Args:
        program: Command that runs the agent's zipapp there.
        root: The directory on the node that paths are relative to.

    Returns:
        The content of each file; None if the node does not have it as it was listed.

    Raises:
        NodeUnreachable: The node does not answer, or not completely.
        ProviderError: The node cannot read its files.
    """
    asked = {"root": root, "read": [file.path for file in files]}
    done = request(connection, program, asked, _SECONDS, most=_LONGEST_ANSWER)
    if done.code != 0:
        raise ProviderError(f"its files cannot be read: {done.last_words}")
    try:
        return parse(done.stdout, files)
    except (ValueError, KeyError, TypeError) as error:
        raise ProviderError(f"what it sends is no pack of files: {error}") from None


def parse(answer: bytes, files: Sequence[OutputFile]) -> list[bytes | None]:
    """Splits the answer of a node. Raises ValueError, KeyError or TypeError if it is invalid."""
    found: list[bytes | None] = []
    position = 0
    for file in files:
        end = answer.find(b"\n", position)
        if end < 0:
            raise ValueError(f"it ends before {file.path}")
        head = parse_json(answer[position:end])
        position = end + 1
        if "errno" in head:
            found.append(None)
            continue
        size = head["size"]
        if not isinstance(size, int) or not 0 <= size <= len(answer) - position:
            raise ValueError(f"{file.path} has a size of {size!r}")
        content = answer[position : position + size]
        position += size
        found.append(content if size == file.size else None)
    if position != len(answer):
        raise ValueError("it has more than was asked for")
    return found
