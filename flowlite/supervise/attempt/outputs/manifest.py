"""A node's list of the files to fetch, checked before it is used."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flowlite.connect.base import Connection
from flowlite.connect.bounded import MOST_OUTPUT, parse_json
from flowlite.connect.values import Completed
from flowlite.errors import AnswerTooLong, NodeUnreachable, NotFound, ProviderError
from flowlite.node.outputs.listing import ABSENT, IGNORED, MOST_FILES
from flowlite.node.outputs.patterns import expression, roots
from flowlite.node.project_files.links import conflict, leads_out
from flowlite.node.protocol.json_shapes import count, integer
from flowlite.node.quick_dataclass import dataclass
from flowlite.terminal import UNSAFE

_LIST_SECONDS = 120.0
# Bytes of a list: of as many files as are fetched from a node, with paths of 600 bytes.
_LONGEST_LIST = 64 << 20
_LONGEST_PATH = 4000
# A part of a path has 255 bytes at most, and a file has a longer name while it is fetched.
_LONGEST_PART = 240
# `str.isprintable` also rejects wide spaces and joined emoji, which many file names have.
_CONTROL = re.compile(rf"[\t\n\u2028\u2029]|{UNSAFE.pattern}")
UNREADABLE = "files that cannot be read"
"""Why files are left out that the node lists, but may not read."""


@dataclass(frozen=True, slots=True)
class OutputFile:
    """One file on a node.

    Attributes:
        path: Relative to the working directory.
        size: Bytes.
        modified_ns: Time of its last modification there.
        program: Whether it is executable.
        version: What else tells it from other files of the same path, size and time, if anything does.
    """

    path: str
    size: int
    modified_ns: int
    program: bool
    version: str = ""


@dataclass(frozen=True, slots=True)
class OutputManifest:
    """The files to fetch from one node.

    Attributes:
        root: The directory on the node that paths are relative to.
        files: The files.
        links: Links within the working directory: path and target.
        place: Identifies the directory; equal for two nodes that share it.
        left_out: Number of files that are not fetched, by reason.
        single: Whether the requested path is a file.
    """

    root: str
    files: tuple[OutputFile, ...]
    links: tuple[tuple[str, str], ...]
    place: str
    left_out: dict[str, int]
    single: bool = False

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def request(
    connection: Connection,
    program: Sequence[str],
    asked: Mapping[str, Any],
    seconds: float,
    *,
    most: int = MOST_OUTPUT,
) -> Completed:
    """Asks the agent's program on a node about its files. Raises NodeUnreachable if it takes too long."""
    question = json.dumps(asked).encode()
    try:
        return connection.run([*program, "outputs"], input=question, timeout=seconds, most=most)
    except TimeoutError as error:
        raise NodeUnreachable(str(error)) from error


def ask(
    connection: Connection,
    program: Sequence[str],
    *,
    home: str,
    patterns: Sequence[str] = (),
    path: str | None = None,
) -> OutputManifest:
    """Asks a node for its list of files.

    Args:
        program: Command that runs the agent's zipapp there.
        patterns: As in `outputs=`.
        path: Instead of patterns: a file, or a directory with everything in it.

    Raises:
        NodeUnreachable: The node does not answer.
        NotFound: There is nothing at the path.
        ProviderError: The node cannot list its files, or its answer is invalid.
    """
    which = {"patterns": list(patterns)} if path is None else {"path": path}
    try:
        done = request(
            connection, program, {"home": home, **which}, _LIST_SECONDS, most=_LONGEST_LIST
        )
    except AnswerTooLong:
        raise ProviderError(
            f"its list of files is longer than {_LONGEST_LIST >> 20} MiB; bring fewer, or pack them into an archive"
        ) from None
    if done.code != 0:
        if done.code == ABSENT and path is not None:
            raise NotFound(done.last_words)
        raise ProviderError(f"its files cannot be listed: {done.last_words}")
    try:
        return read(done.stdout, _asked(patterns) if path is None else None)
    except (ValueError, KeyError, TypeError) as error:
        raise ProviderError(f"its list of files is none that an agent makes: {error}") from None


def look(
    connection: Connection, program: Sequence[str], *, home: str, path: str
) -> tuple[str, bool]:
    """Returns the absolute path on a node for a given path, and whether it is a directory. Raises as `ask`."""
    asked = {"home": home, "path": path, "look": True}
    done = request(connection, program, asked, _LIST_SECONDS)
    try:
        found = parse_json(done.stdout)
        return str(found["path"]), found["directory"] is True
    except (ValueError, KeyError, TypeError):
        raise ProviderError(f"it does not say where that is: {done.last_words}") from None


def _asked(wanted: Sequence[str]) -> Callable[[str], bool]:
    """Tells whether a node that was asked for these patterns may list a path.

    A file such as `.git/hooks/pre-commit` or `sitecustomize.py` would be run where it was brought to.
    """
    fits, tops = expression(wanted), roots(wanted)

    def asked(path: str) -> bool:
        # As on the node: directories such as `.git` are left out below the beginnings of the patterns.
        below = (path[len(top) :] for top in tops if not top or f"{path}/".startswith(f"{top}/"))
        return fits.fullmatch(path) is not None and any(
            IGNORED.isdisjoint(part.casefold() for part in rest.split("/")[:-1]) for rest in below
        )

    return asked


def read(answer: bytes, asked: Callable[[str], bool] | None = None) -> OutputManifest:
    """Parses the answer of a node. Raises ValueError, KeyError or TypeError if it is invalid.

    Args:
        asked: Whether it was asked for a path; None if it was asked for all that is there.
    """
    if answer.count(b"\n") > MOST_FILES + 1:
        raise ValueError(f"it has more than {MOST_FILES:,} entries")
    first, *lines = answer.removesuffix(b"\n").split(b"\n")
    head = parse_json(first)
    if not isinstance(head, dict):
        raise ValueError("it does not begin with an object")
    if head.get("too_many"):
        raise ValueError(
            "more files fit outputs= than are brought (100,000 from a node); pack them into an archive, or "
            "write them into a volume"
        )
    root = str(head["root"])
    if not root.startswith("/"):
        raise ValueError("its directory is no absolute path")
    left_out: dict[str, int] = {}
    for why, number in list(dict(head["left_out"]).items())[:10]:
        count(number)
        left_out[str(why)[:200]] = number
    files: list[OutputFile] = []
    links: list[tuple[str, str]] = []
    for line in lines:
        found = parse_json(line)
        if not isinstance(found, list) or len(found) not in (2, 4):
            raise ValueError("an entry is neither a file nor a link")
        path = found[0]
        if not isinstance(path, str) or not is_inside(path):
            raise ValueError("a path leads out of the working directory, or is none")
        if asked is not None and not asked(path):
            raise ValueError(f"{path[:200]!r} was not asked for")
        if not _can_be_named(path):
            why = "files with names that are too long, or no printable text"
            left_out[why] = left_out.get(why, 0) + 1
        elif len(found) == 4:
            files.append(_file(path, *found[1:]))
        else:
            target = found[1]
            if not isinstance(target, str) or leads_out(path, target):
                raise ValueError("a link leads out of the working directory")
            links.append((path, target))
    if wrong := conflict([*(file.path for file in files), *(path for path, _ in links)]):
        raise ValueError(wrong)
    single = head.get("single") is True
    if single and (links or len(files) > 1 or any("/" in file.path for file in files)):
        raise ValueError("more than one file stands for a file")
    place = str(head["place"])[:_LONGEST_PATH]
    return OutputManifest(root, tuple(files), tuple(links), place, left_out, single)


def is_inside(path: str) -> bool:
    """Whether a relative path is normalised and does not leave its directory."""
    parts = path.split("/")
    plain = all(part not in ("", ".", "..") for part in parts)
    return plain and "\0" not in path and len(path) <= _LONGEST_PATH


def _can_be_named(path: str) -> bool:
    try:
        encoded = path.encode("utf-8")
    except UnicodeEncodeError:
        return False
    if _CONTROL.search(path):
        return False
    return all(len(part) <= _LONGEST_PART for part in encoded.split(b"/"))


def _file(path: str, size: object, modified_ns: object, program: object) -> OutputFile:
    count(size)
    # Files may be from before 1970.
    integer(modified_ns)
    return OutputFile(path, int(str(size)), int(str(modified_ns)), bool(program))
