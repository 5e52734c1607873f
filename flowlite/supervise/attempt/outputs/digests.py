"""Asks a node for the digests of its files, to compare them with files of the same size and time here."""

from __future__ import annotations

from collections.abc import Sequence

from flowlite.connect.base import Connection
from flowlite.connect.bounded import HASHED_PER_SECOND, parse_json
from flowlite.errors import ProviderError
from flowlite.supervise.attempt.outputs.manifest import OutputFile, request

_MOST_FILES = 1000
_SECONDS = 60.0


def fetch(
    connection: Connection, program: Sequence[str], root: str, files: Sequence[OutputFile]
) -> list[str]:
    """Returns the sha256 of each file in hexadecimal; "" if the node cannot read it.

    Args:
        program: Command that runs the agent's zipapp there.
        root: The directory on the node that paths are relative to.

    Raises:
        NodeUnreachable: The node does not answer.
        ProviderError: Its answer is invalid.
    """
    found = []
    for begin in range(0, len(files), _MOST_FILES):
        group = files[begin : begin + _MOST_FILES]
        asked = {"root": root, "digest": [file.path for file in group]}
        seconds = _SECONDS + sum(file.size for file in group) / HASHED_PER_SECOND
        done = request(connection, program, asked, seconds)
        try:
            answers = [parse_json(line) for line in done.stdout.splitlines()]
            found += [str(answer.get("sha256", "")) for answer in answers]
        except (ValueError, AttributeError) as error:
            raise ProviderError(f"it does not say what its files contain: {error}") from None
        if done.code != 0 or len(answers) != len(group):
            raise ProviderError(f"its files cannot be read: {done.last_words}")
    return found
