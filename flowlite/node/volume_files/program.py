"""Carries out one request about the files of a volume.

Standard input has a line of JSON, {"root", "do", ...}, and then the content to write. Standard output gets a line of
JSON, and then the content that was asked for. All paths are relative to the root, and must not lead out of it.

    {"do": "list", "path"}                    -> {"entries": [[name, size, modified, "file" | "directory" | "other"]]}
    {"do": "tree", "path"}                    -> {"single", "files": [[path, size, modified, executable]], "others"}
    {"do": "read", "files": [[path, offset, most]]}
                     -> {"sizes": [bytes that follow], "states": [[size, modified, inode], afterwards; [] for a file
                        that is gone]}, contents
    {"do": "digest", "files": [path]}         -> {"sha256": [hexadecimal, or "" for a file that cannot be read]}
    {"do": "state", "files": [[path, size, modified, version]]}
                                              -> {"have": [bytes that are there; -1 for a file that seems complete]}
    {"do": "write", "files": [[path, size, modified, version, executable, offset, length]]}, contents  -> {}
    {"do": "remove", "path", "recursive"}     -> {"files": their number}

Times are in nanoseconds. A version tells a file from others of its path, size and time. A file that is being written
has a name of its own, made of all these, and gets its final name when it is complete. "state" removes what was left
of other versions of these files. A failure is {"failed": text, "errno": number}.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import stat
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO

MOST_FILES = 100_000
# A partial file that has not grown for as long was left by a transfer that has ended.
_ABANDONED_SECONDS = 120.0


class RequestRefused(Exception):
    """The request cannot be carried out; the text says why."""


def main(source: BinaryIO, out: BinaryIO) -> int:
    """Reads one request and writes its answer."""
    request = json.loads(source.readline())
    content: list[bytes] = []
    try:
        answer = VolumeFiles(request["root"]).do(request, source, content)
    except RequestRefused as error:
        answer = {"failed": str(error), "errno": errno.EINVAL}
    except OSError as error:
        where = error.filename or request.get("path") or ""
        answer = {
            "failed": f"{where}: {error.strerror or error}",
            "errno": error.errno or errno.EIO,
        }
    out.write(json.dumps(answer).encode() + b"\n")
    out.writelines(content)
    out.flush()
    return 0


class VolumeFiles:
    """The directory of one volume."""

    def __init__(self, root: str) -> None:
        self._root = os.path.realpath(root)

    def do(self, request: dict[str, Any], source: BinaryIO, content: list[bytes]) -> dict[str, Any]:
        """Carries out a request. Content to return is added to `content`. Raises RequestRefused, OSError."""
        what = request["do"]
        if not os.path.isdir(self._root):
            raise RequestRefused("it does not exist")
        if what == "list":
            return {"entries": self._list(request["path"])}
        if what == "tree":
            return self._tree(request["path"])
        if what == "read":
            found = [self._read_unless_gone(*each) for each in request["files"]]
            content += [each for each, _ in found]
            return {
                "sizes": [len(each) for each in content],
                "states": [state for _, state in found],
            }
        if what == "digest":
            return {"sha256": [self._digest(path) for path in request["files"]]}
        if what == "state":
            self._remove_abandoned(request["files"])
            return {"have": [self._have(*each) for each in request["files"]]}
        if what == "write":
            for each in request["files"]:
                self._write(source, *each)
            return {}
        if what == "remove":
            return {"files": self._remove(request["path"], bool(request["recursive"]))}
        raise RequestRefused(f"{what} is not known here")

    def _place(self, path: str) -> str:
        """Returns the absolute path. Raises RequestRefused if it leads out of the volume, also through a link."""
        if path.startswith("/") or ".." in path.split("/") or "\0" in path:
            raise RequestRefused(f"{path} leads out of the volume")
        place = os.path.normpath(os.path.join(self._root, path))
        above = os.path.realpath(os.path.dirname(place)) if place != self._root else self._root
        if above != self._root and not above.startswith(os.path.join(self._root, "")):
            raise RequestRefused(f"{path} leads out of the volume through a link")
        return place

    def _list(self, path: str) -> list[list[Any]]:
        place = self._place(path)
        if not stat.S_ISDIR(os.lstat(place).st_mode):
            return [_entry(os.path.basename(place), os.lstat(place))]
        found = []
        for entry in sorted(os.scandir(place), key=lambda each: each.name)[:MOST_FILES]:
            try:
                found.append(_entry(entry.name, entry.stat(follow_symlinks=False)))
            except OSError:
                continue
        return found

    def _tree(self, path: str) -> dict[str, Any]:
        place = self._place(path)
        status = os.lstat(place)
        if stat.S_ISREG(status.st_mode):
            return {"single": True, "files": [_file(os.path.basename(place), status)], "others": 0}
        if not stat.S_ISDIR(status.st_mode):
            raise RequestRefused(f"{path} is neither a file nor a directory")
        files: list[list[Any]] = []
        others = 0

        def unread(error: OSError) -> None:
            nonlocal others
            if error.filename == place:
                raise error
            others += error.errno != errno.ENOENT

        for directory, below, names in os.walk(place, onerror=unread):
            below.sort()
            # Links to directories are among the directories.
            for name in (*below, *sorted(names)):
                whole = os.path.join(directory, name)
                try:
                    status = os.lstat(whole)
                except OSError:
                    continue
                if stat.S_ISREG(status.st_mode):
                    if not _is_partial(name):
                        files.append(_file(os.path.relpath(whole, place), status))
                elif not stat.S_ISDIR(status.st_mode):
                    others += 1
            if len(files) > MOST_FILES:
                raise RequestRefused(
                    f"{path} has more than {MOST_FILES:,} files; give a directory below"
                )
        return {"single": False, "files": files, "others": others}

    def _read_unless_gone(self, path: str, offset: int, most: int) -> tuple[bytes, list[int]]:
        try:
            return self._read(path, offset, most)
        except FileNotFoundError:
            return b"", []

    def _read(self, path: str, offset: int, most: int) -> tuple[bytes, list[int]]:
        descriptor = os.open(
            self._place(path), os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        )
        with open(descriptor, "rb", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise RequestRefused(f"{path} is no file any more")
            file.seek(offset)
            content = bytearray()
            while len(content) < most and (block := file.read(most - len(content))):
                content += block
            # Afterwards: a part of a file that is replaced or rewritten meanwhile belongs to no version of it.
            status = os.fstat(descriptor)
        return bytes(content), [status.st_size, status.st_mtime_ns, status.st_ino]

    def _digest(self, path: str) -> str:
        digest = hashlib.sha256()
        offset = 0
        try:
            while block := self._read(path, offset, 1 << 24)[0]:
                digest.update(block)
                offset += len(block)
        except (OSError, RequestRefused):
            return ""
        return digest.hexdigest()

    def _have(self, path: str, size: int, modified: int, version: str) -> int:
        place = self._place(path)
        try:
            status = os.lstat(place)
            if (
                stat.S_ISREG(status.st_mode)
                and status.st_size == size
                and status.st_mtime_ns == modified
            ):
                return -1
        except OSError:
            pass
        try:
            return os.lstat(_partial(place, size, modified, version)).st_size
        except OSError:
            return 0

    def _remove_abandoned(self, files: list[list[Any]]) -> None:
        """Removes partial files of other versions of these files, whose sources have changed since."""
        current = {_partial(self._place(path), *version) for path, *version in files}
        names: dict[str, set[str]] = {}
        for partial in current:
            directory, name = os.path.split(partial)
            names.setdefault(directory, set()).add(_of_partial(name))
        for directory, wanted in names.items():
            try:
                found = [e for e in os.scandir(directory) if _of_partial(e.name) in wanted]
            except OSError:
                continue
            for entry in found:
                try:
                    age = time.time() - entry.stat(follow_symlinks=False).st_ctime
                    if entry.path not in current and age > _ABANDONED_SECONDS:
                        os.unlink(entry)
                except OSError:
                    continue

    def _write(
        self,
        source: BinaryIO,
        path: str,
        size: int,
        modified: int,
        version: str,
        executable: bool,
        offset: int,
        length: int,
    ) -> None:
        place = self._place(path)
        self._make(os.path.dirname(place))
        partial = _partial(place, size, modified, version)
        descriptor = os.open(
            partial, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666
        )
        try:
            if os.fstat(descriptor).st_size < offset:
                raise RequestRefused(f"{path} was changed by another program while it was sent")
            left = length
            while left > 0:
                block = source.read(min(left, 1 << 20))
                if not block:
                    raise RequestRefused(f"{path}: only a part of it arrived")
                while block:
                    written = os.pwrite(descriptor, block, offset)
                    offset, left, block = offset + written, left - written, block[written:]
            if offset < size:
                return
            os.ftruncate(descriptor, size)
            if executable:
                os.fchmod(descriptor, os.fstat(descriptor).st_mode | 0o100)
            os.utime(descriptor, ns=(modified, modified))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(partial, place)

    def _make(self, directory: str) -> None:
        try:
            os.makedirs(directory, exist_ok=True)
        except FileExistsError:
            raise RequestRefused(f"{os.path.relpath(directory, self._root)} is a file") from None

    def _remove(self, path: str, recursive: bool) -> int:
        place = self._place(path)
        if place == self._root:
            raise RequestRefused("that is the volume itself; `flow volumes delete` deletes it")
        if not stat.S_ISDIR(os.lstat(place).st_mode):
            os.unlink(place)
            return 1
        if not recursive:
            raise RequestRefused(f"{path} is a directory; add --recursive")
        count = sum(len(names) for _, _, names in os.walk(place))
        shutil.rmtree(place)
        return count


def _entry(name: str, status: os.stat_result) -> list[Any]:
    kind = "other"
    if stat.S_ISDIR(status.st_mode):
        kind = "directory"
    elif stat.S_ISREG(status.st_mode):
        kind = "file"
    return [name, status.st_size, status.st_mtime_ns, kind]


def _file(path: str, status: os.stat_result) -> list[Any]:
    return [path, status.st_size, status.st_mtime_ns, bool(status.st_mode & stat.S_IXUSR)]


def _partial(place: str, size: int, modified: int, version: str) -> str:
    directory, name = os.path.split(place)
    # File systems limit the bytes of a name, and a character may have four.
    short = os.fsencode(name)[:150].decode("utf-8", "ignore")
    return os.path.join(directory, f".{short}.{size:x}-{modified:x}-{version}.part")


def _of_partial(name: str) -> str:
    """Returns the beginning of a partial file's name, which all versions of a file share; "" for other names."""
    match = re.fullmatch(r"(\..*\.)[0-9a-f]+--?[0-9a-f]+-[^.]*\.part", name, re.DOTALL)
    return match[1] if match else ""


def _is_partial(name: str) -> bool:
    return name.startswith(".") and name.endswith(".part")


if __name__ == "__main__":
    sys.exit(main(sys.stdin.buffer, sys.stdout.buffer))
