"""The files of a volume, in a directory of this machine or of one that can be reached."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator, Sequence
from typing import Any

from flowlite.api.volume_files.files import Changed, Entry, Moved, Source, Tree, copied_without
from flowlite.connect import fetching, programs
from flowlite.connect.base import Connection
from flowlite.connect.bounded import HASHED_PER_SECOND, MOST_OUTPUT
from flowlite.errors import FlowError, NodeUnreachable, NotFound, ProviderError
from flowlite.supervise.attempt.outputs import packs
from flowlite.supervise.attempt.outputs.manifest import OutputFile, is_inside
from flowlite.supervise.attempt.outputs.output_directory import NameTaken, OutputDirectory

_PROGRAM = programs.NODE / "volume_files" / "program.py"
_SECONDS = 600.0
# Bytes of content, and files, in one request. An answer must stay below the bound of a command's output.
_AT_ONCE = MOST_OUTPUT // 2
# Bytes of a list of as many files as a directory may have (`MOST_FILES` of the program).
_LONGEST_ANSWER = 16 << 20
_MOST_FILES = 1000
# Large files are read and written in parts of this size.
_PART = _AT_ONCE


class _Gone(NotFound):
    """The file was removed after it was listed."""


class MachineVolume:
    """A volume on a machine."""

    def __init__(
        self, name: str, connection: Connection, command: Sequence[str], directory: str
    ) -> None:
        """`command` has the words that run Python there, and `directory` is that of the volume there."""
        self.name = name
        self._connection = connection
        self._command = (*command, "-I", "-S", "-c", _PROGRAM.read_text())
        self._root = directory

    def entries(self, path: str) -> list[Entry]:
        answer, _ = self._ask({"do": "list", "path": path})
        return [
            Entry(str(name), int(size), int(modified) / 1e9, str(kind))
            for name, size, modified, kind in answer["entries"]
        ]

    def is_directory(self, path: str) -> bool:
        if not path:
            return True
        parent, _, name = path.rpartition("/")
        try:
            found = self.entries(parent)
        except NotFound:
            if not parent:
                raise
            return False
        return any(each.name == name and each.kind == "directory" for each in found)

    def tree(self, path: str) -> Tree:
        answer, _ = self._ask({"do": "tree", "path": path})
        files = []
        for relative, size, modified, program in answer["files"]:
            if not isinstance(relative, str) or not is_inside(relative):
                raise ProviderError(f"the volume {self.name}: a path leads out of it")
            files.append(OutputFile(relative, int(size), int(modified), bool(program)))
        return Tree(answer["single"] is True, tuple(files), int(answer["others"]))

    def get(
        self, path: str, tree: Tree, destination: OutputDirectory, name: str, moved: Moved
    ) -> list[str]:
        compared = destination.compare(
            {name or file.path: file for file in tree.files},
            lambda files: self._digests([(tree.path_of(file, path), file.size) for file in files]),
        )
        moved(sum(file.size for file in compared.here))
        taken, changed = compared.taken, []
        for group in packs.groups(compared.lacking):
            if len(group) > 1 or group[0].size < _PART:
                others, less = self._get_small(path, tree, group, destination, name, moved)
                taken += others
                changed += less
                continue
            file = group[0]
            try:
                destination.take(
                    name or file.path,
                    file,
                    self._source(path, tree, file),
                    lambda staged, file=file: fetching.fetch(  # type: ignore[misc]
                        lambda offset: self._parts(path, tree, file, offset, moved),
                        staged,
                        file.size,
                    ),
                )
            except NameTaken as error:
                taken.append(str(error))
            except Changed:
                changed.append(file.path)
            except _Gone:
                # As one that was removed before the list was made.
                if tree.single:
                    raise
        if not taken:
            destination.finish()
        if changed:
            raise copied_without(changed, tree, f"the volume {self.name}", "changed")
        return taken

    def put(self, sources: list[Source], moved: Moved) -> None:
        for begin in range(0, len(sources), _MOST_FILES):
            group = sources[begin : begin + _MOST_FILES]
            asked = [[each.path, each.size, each.modified_ns, each.version] for each in group]
            have = self._ask({"do": "state", "files": asked})[0]["have"]
            lacking = [
                (each, int(there)) for each, there in zip(group, have, strict=True) if there != -1
            ]
            for _, there in lacking:
                moved(there)
            alike = [each for each, there in zip(group, have, strict=True) if there == -1]
            digests = self._digests([(each.path, each.size) for each in alike])
            for each, digest in zip(alike, digests, strict=True):
                if each.digest() == digest:
                    moved(each.size)
                else:
                    lacking.append((each, 0))
            self._send(lacking, moved)

    def remove(self, path: str, *, recursive: bool) -> int:
        answer, _ = self._ask({"do": "remove", "path": path, "recursive": recursive})
        return int(answer["files"])

    # Transfers

    def _source(self, path: str, tree: Tree, file: OutputFile) -> str:
        return f"{self.name} {self._root}/{tree.path_of(file, path)}"

    def _digests(self, files: Sequence[tuple[str, int]]) -> list[str]:
        """The sha256 of each file, given by path and size; "" if it cannot be read."""
        found: list[str] = []
        for begin in range(0, len(files), _MOST_FILES):
            group = files[begin : begin + _MOST_FILES]
            asked = {"do": "digest", "files": [path for path, _ in group]}
            seconds = _SECONDS + sum(size for _, size in group) / HASHED_PER_SECOND
            found += map(str, self._ask(asked, seconds=seconds)[0]["sha256"])
        return found

    def _get_small(
        self,
        path: str,
        tree: Tree,
        group: Sequence[OutputFile],
        destination: OutputDirectory,
        name: str,
        moved: Moved,
    ) -> tuple[list[str], list[str]]:
        """Returns the paths here that another file has, and those of files that have changed since they were listed."""
        asked = [[tree.path_of(file, path), 0, file.size + 1] for file in group]
        answer, content = self._ask({"do": "read", "files": asked})
        come = []
        changed = []
        position = 0
        for file, size, state in zip(group, answer["sizes"], answer["states"], strict=True):
            if not state:
                if tree.single:
                    raise self._gone(file)
            elif size != file.size:
                changed.append(file.path)
            else:
                source = self._source(path, tree, file)
                come.append((name or file.path, file, source, content[position : position + size]))
            position += size
        taken = destination.take_all(come)
        moved(position)
        return taken, changed

    def _parts(
        self, path: str, tree: Tree, file: OutputFile, offset: int, moved: Moved
    ) -> Iterator[bytes]:
        moved(offset)
        first: int | None = None
        while offset < file.size:
            asked = [tree.path_of(file, path), offset, min(_PART, file.size - offset)]
            answer, content = self._ask({"do": "read", "files": [asked]})
            if not answer["states"][0]:
                raise self._gone(file)
            size, modified, inode = answer["states"][0]
            first = inode if first is None else first
            # A log that grows keeps what was listed. Parts of two versions of another file would be neither of them.
            grown = size > file.size and inode == first
            # Without content, it has become shorter.
            if not content or (not grown and (size, modified) != (file.size, file.modified_ns)):
                raise Changed(file.path)
            yield content
            offset += len(content)
            moved(len(content))

    def _gone(self, file: OutputFile) -> _Gone:
        return _Gone(f"the volume {self.name}: {file.path} was removed while it was copied")

    def _send(self, lacking: Sequence[tuple[Source, int]], moved: Moved) -> None:
        asked: list[list[Any]] = []
        content: list[bytes] = []
        size = 0

        def flush() -> None:
            nonlocal size
            if asked:
                self._ask({"do": "write", "files": asked}, b"".join(content))
                moved(size)
            asked.clear()
            content.clear()
            size = 0

        for each, offset in lacking:
            while True:
                part = _read(each, offset, min(_PART, each.size - offset))
                if size + len(part) > _AT_ONCE:
                    flush()
                head = [each.path, each.size, each.modified_ns, each.version, each.program]
                asked.append([*head, offset, len(part)])
                content.append(part)
                size += len(part)
                offset += len(part)
                if offset >= each.size:
                    break
        flush()

    def _ask(
        self, request: dict[str, Any], content: bytes = b"", *, seconds: float = _SECONDS
    ) -> tuple[dict[str, Any], bytes]:
        head = json.dumps({"root": self._root, **request}).encode() + b"\n"
        try:
            done = self._connection.run(
                self._command, input=head + content, timeout=seconds, most=_LONGEST_ANSWER
            )
        except TimeoutError as error:
            raise NodeUnreachable(str(error)) from error
        line, _, rest = done.stdout.partition(b"\n")
        try:
            answer = json.loads(line)
            failed = answer.get("failed")
        except (ValueError, AttributeError):
            raise ProviderError(
                f"the files of the volume {self.name} cannot be reached: {done.last_words}"
            ) from None
        if failed is not None:
            text = f"the volume {self.name}: {str(failed)[:1000]}"
            absent = answer.get("errno") in (errno.ENOENT, errno.ENOTDIR)
            raise NotFound(text) if absent else FlowError(text)
        return answer, rest


def _read(source: Source, offset: int, size: int) -> bytes:
    """Reads a part of a file. Raises FlowError if the file has changed since it was listed."""
    with source.local.open("rb") as file:
        file.seek(offset)
        content = file.read(size)
    status = source.local.stat()
    if len(content) != size or (status.st_size, status.st_mtime_ns) != (
        source.size,
        source.modified_ns,
    ):
        raise FlowError(f"{source.local} was changed while it was sent; run it again")
    return content
