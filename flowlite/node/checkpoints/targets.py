"""The targets that checkpoints are copied to: a directory, or a bucket. Both have the same interface, and both block.

A name is a relative path in plain ASCII, with slashes. A file made by `write` or `upload` is complete or absent.
"""

from __future__ import annotations

import contextlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Protocol, TypeVar

from ..s3 import client as s3
from ..s3 import multipart_upload
from ..s3.multipart_upload import MultipartUpload
from ..s3.node_credential import node_credential
from ..system import atomic_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Answer = TypeVar("Answer")

_BLOCK = 1 << 20
_PARTIAL = ".part"
_PARTS_AT_ONCE = 4
_TRIES = 4
_FIRST_PAUSE = 0.5
_TRANSFER_SECONDS = 120.0
# A manifest has some 400 bytes for each file.
_MOST_READ = 1 << 30
_OWN_SECONDS = 240.0
"""A cloud renews the credential of a machine five minutes before the old one expires."""


class TargetError(OSError):
    """The target cannot be used; the text says which, why, and what to do."""


class Target(Protocol):
    """The interface of a target. All methods raise TargetError."""

    name: str

    def check(self) -> None:
        """Checks that it can be read and written."""

    def sizes(self, below: str) -> dict[str, int]:
        """Returns sizes by name of all files whose name begins with `below` (a directory, with its slash)."""

    def read(self, name: str) -> bytes:
        """Reads a small file. Raises FileNotFoundError if there is none."""

    def write(self, name: str, content: bytes) -> None:
        """Writes a small file at once."""

    def upload(self, source: Path, name: str, size: int) -> None:
        """Uploads a file."""

    def download(self, name: str, target: Path, size: int) -> None:
        """Downloads a file, replacing `target`. Raises FileNotFoundError if there is none."""

    def delete(self, names: list[str]) -> None:
        """Deletes files; missing ones are no error."""

    def discard_interrupted(self, directory: str) -> None:
        """Deletes what uploads to a directory have left that were interrupted. None may be under way there."""


def place_of(sync: str, storage: Path) -> Target:
    """Returns the target that `sync` names. Raises TargetError."""
    if not sync.startswith("s3://"):
        return DirectoryTarget(Path(sync))
    try:
        return BucketTarget(s3.Store.open(storage, "checkpoint"))
    except s3.S3Error as error:
        raise TargetError(f"{sync} cannot be opened: {error}") from error


class DirectoryTarget:
    """A directory that outlives the nodes, such as one on a network file system."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.name = str(root)

    def check(self) -> None:
        try:
            atomic_files.make(str(self._root))
            # Others may be able to write there, too, and could have put a link in the place of a name that they guess.
            probe = self._root / f".flowlite-check-{os.urandom(6).hex()}"
            descriptor = atomic_files.begin(str(probe))
            try:
                atomic_files.write(descriptor, b"flowlite")
            finally:
                os.close(descriptor)
            probe.unlink()
        except OSError as error:
            raise TargetError(
                f"checkpoints cannot be copied to {self.name}: {error.strerror or error}. Give checkpoint.sync a "
                "directory that this user can write to on every node"
            ) from error

    def sizes(self, below: str) -> dict[str, int]:
        found = self._with_partial_files(below)
        return {name: size for name, size in found.items() if not name.endswith(_PARTIAL)}

    def _with_partial_files(self, below: str) -> dict[str, int]:
        found = {}
        try:
            for directory, _, names in os.walk(self._root / below, onerror=_unless_gone):
                for name in names:
                    path = os.path.join(directory, name)
                    with contextlib.suppress(FileNotFoundError):
                        found[os.path.relpath(path, self._root)] = os.lstat(path).st_size
        except OSError as error:
            raise TargetError(f"{self.name} cannot be read: {error.strerror or error}") from error
        return found

    def read(self, name: str) -> bytes:
        return (self._root / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        with self._new(name) as descriptor:
            atomic_files.write(descriptor, content)

    def upload(self, source: Path, name: str, size: int) -> None:
        with open(source, "rb", buffering=0) as file, self._new(name) as descriptor:
            while block := file.read(_BLOCK):
                atomic_files.write(descriptor, block)

    def download(self, name: str, target: Path, size: int) -> None:
        with open(self._root / name, "rb", buffering=0) as source, _emptied(target) as file:
            while block := source.read(_BLOCK):
                file.write(block)

    def delete(self, names: list[str]) -> None:
        for name in names:
            path = self._root / name
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise TargetError(f"{path} cannot be deleted: {error.strerror}") from error
            for above in path.parents[: name.count("/") - 1]:
                try:
                    above.rmdir()
                except OSError:
                    break

    def discard_interrupted(self, directory: str) -> None:
        found = self._with_partial_files(f"{directory}/")
        self.delete([name for name in found if name.endswith(_PARTIAL)])

    @contextlib.contextmanager
    def _new(self, name: str) -> Iterator[int]:
        """Yields a file that gets its name once it is complete and on the disk."""
        path = self._root / name
        try:
            atomic_files.make(str(path.parent))
            with atomic_files.new(path) as descriptor:
                yield descriptor
                os.fsync(descriptor)
        except OSError as error:
            if isinstance(error, TargetError):
                raise
            raise TargetError(f"{path} cannot be written: {error.strerror or error}") from error


def _emptied(target: Path) -> IO[bytes]:
    """Opens an empty file. A link in its place is refused: others may be able to write to its directory."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    return open(os.open(target, flags, 0o600), "wb")


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


class BucketTarget:
    """A bucket, or the part of it below a prefix."""

    def __init__(self, store: s3.Store) -> None:
        self._opened = store
        # A task without a credential uses the one of its nodes, which is renewed at intervals.
        self._own = store.credential is None
        self._asked = 0.0
        # Shared by all files, to limit the number of parts in memory.
        self._senders = ThreadPoolExecutor(_PARTS_AT_ONCE)
        self.name = store.url

    @property
    def _store(self) -> s3.Store:
        if self._own and time.monotonic() > self._asked + _OWN_SECONDS:
            self._asked = time.monotonic()
            found = node_credential()
            if found is not None:
                credential, source, _ = found
                self._opened = replace(self._opened, credential=credential, source=source)
        return self._opened

    def check(self) -> None:
        probe = f"check-{os.urandom(6).hex()}"
        what = "read"
        try:
            self._opened = self._store.located()
            what = "written to"
            self._request("PUT", probe, body=b"flowlite")
            what = "deleted from"
            self._request("DELETE", probe)
        except s3.S3Error as error:
            raise TargetError(
                f"checkpoints cannot be kept at {self.name}: it cannot be {what} with {self._store.source} at "
                f"{self._store.place}: {error}. It takes the rights to list, get, put and delete"
            ) from error

    def sizes(self, below: str) -> dict[str, int]:
        top = self._store.below
        with self._explained("listed", below):
            found = self._ask(lambda: list(self._store.list(top + below)))
        return {entry.key[len(top) :]: entry.size for entry in found}

    def read(self, name: str) -> bytes:
        key = self._store.key(name)
        with self._explained("read", name):
            return self._ask(
                lambda: b"".join(self._store.read(key, most=_MOST_READ, timeout=_TRANSFER_SECONDS))
            )

    def write(self, name: str, content: bytes) -> None:
        with self._explained("written", name):
            self._request("PUT", name, body=content)

    def upload(self, source: Path, name: str, size: int) -> None:
        with self._explained("written", name), open(source, "rb", buffering=0) as file:
            if size <= multipart_upload.PART:
                self._request("PUT", name, body=_exactly(file, 0, size))
            else:
                self._upload_parts(file, name, size)

    def resume_upload(
        self, source: Path, name: str, size: int, moved: Callable[[int], None]
    ) -> None:
        """Uploads a large file. If that is interrupted, its parts stay in the bucket, and the next upload uses them.

        Args:
            moved: Called with the bytes of each part that the bucket has; from any thread.
        """
        key = self._store.key(name)
        begun = [each for each in self._unfinished(name) if each.key == key]
        with self._explained("written", name), open(source, "rb", buffering=0) as file:
            if not begun or not self._continue(begun[-1], file, size, moved):
                upload = MultipartUpload.begin(self._request_key, key)
                upload.complete(
                    upload.send(partial(_exactly, file), size, self._senders, {}, moved)
                )

    def _continue(
        self, upload: MultipartUpload, file: IO[bytes], size: int, moved: Callable[[int], None]
    ) -> bool:
        """Completes an upload that was interrupted. Returns whether the server can."""
        counted: list[int] = []

        def count(size: int) -> None:
            counted.append(size)
            moved(size)

        try:
            sent = upload.sent()
            upload.complete(upload.send(partial(_exactly, file), size, self._senders, sent, count))
        except s3.S3Error as error:
            if error.may_pass:
                raise
            # Another client ended it meanwhile, or the file has changed and this server does not replace a part.
            with contextlib.suppress(s3.S3Error):
                upload.abort()
            moved(-sum(counted))
            return False
        return True

    def discard_unfinished(self, name: str, *, below: bool) -> set[str]:
        """Deletes the parts of interrupted uploads of a file, or of all files below a directory. Returns the names."""
        key = self._store.key(name)
        found = [
            each
            for each in self._unfinished(name)
            if each.key == key or (below and each.key.startswith(f"{key}/"))
        ]
        with self._explained("deleted", name):
            for each in found:
                each.abort()
        return {each.key[len(self._store.below) :] for each in found}

    def discard_interrupted(self, directory: str) -> None:
        self.discard_unfinished(directory, below=True)

    def _unfinished(self, below: str) -> list[MultipartUpload]:
        try:
            return MultipartUpload.unfinished(self._request_key, self._store.key(below))
        except s3.S3Error as error:
            # Listing uploads needs a permission of its own. Some servers answer NoSuchUpload if there are none.
            if error.status == 403 or error.code == "NoSuchUpload":
                return []
            raise self._failed("listed", below, error) from error

    def download(self, name: str, target: Path, size: int) -> None:
        with _emptied(target) as file:
            before = -1
            while before < file.tell():
                before = file.tell()
                try:
                    self._ask(lambda: self._download_rest(name, file, size))
                    return
                except s3.S3Error as error:
                    # A proxy that closes every connection after some time must not make a long download fail.
                    if file.tell() == before or not error.may_pass:
                        raise self._failed("read", name, error) from error

    def delete(self, names: list[str]) -> None:
        for name in names:
            with self._explained("deleted", name):
                self._request("DELETE", name)

    def _download_rest(self, name: str, file: IO[bytes], size: int) -> None:
        for block in self._store.read(
            self._store.key(name), file.tell(), timeout=_TRANSFER_SECONDS
        ):
            file.write(block)
        if file.tell() < size:
            # A connection that breaks looks like the end of the file.
            raise s3.S3Error(f"the connection ended after {file.tell()} of {size} bytes")

    def _upload_parts(self, file: IO[bytes], name: str, size: int) -> None:
        upload = MultipartUpload.begin(self._request_key, self._store.key(name))
        try:
            read, unheard = partial(_exactly, file), lambda _: None
            upload.complete(upload.send(read, size, self._senders, {}, unheard))
        except BaseException:
            with contextlib.suppress(s3.S3Error):
                upload.abort()
            raise

    def _request(self, method: str, name: str, body: bytes = b"") -> s3.Response:
        return self._request_key(method, self._store.key(name), {}, body)

    def _request_key(
        self, method: str, key: str, query: Mapping[str, str], body: bytes
    ) -> s3.Response:
        return self._ask(
            lambda: self._store.request(method, key, query, body=body, timeout=_TRANSFER_SECONDS)
        )

    def _ask(self, ask: Callable[[], Answer]) -> Answer:
        """Calls a function, with patience, and in the region of the bucket if the answer gives it."""
        try:
            return patiently(ask)
        except s3.S3Error as error:
            # A copier in the place of a killed one does not call `check`, which finds the region.
            if not self._opened.is_elsewhere(error):
                raise
            self._opened = replace(self._opened, region=error.region)
            return patiently(ask)

    @contextlib.contextmanager
    def _explained(self, what: str, name: str) -> Iterator[None]:
        """Turns errors of S3 into those of a target."""
        try:
            yield
        except s3.S3Error as error:
            raise self._failed(what, name, error) from error

    def _failed(self, what: str, name: str, error: s3.S3Error) -> OSError:
        text = f"{self.name}/{name} cannot be {what} with {self._store.source}: {error}"
        if error.status == 404 and what == "read":
            return FileNotFoundError(text)
        return TargetError(text)


def patiently(ask: Callable[[], Answer]) -> Answer:
    """Retries with growing pauses, where that may help."""
    pause = _FIRST_PAUSE
    for left in reversed(range(_TRIES)):
        try:
            return ask()
        except s3.S3Error as error:
            if not left or not error.may_pass:
                raise
        time.sleep(pause)
        pause *= 2
    raise AssertionError("the last try returns or raises")


def _exactly(file: IO[bytes], start: int, size: int) -> bytes:
    """Reads exactly `size` bytes. If the file became shorter, it was changed, and the upload is not used."""
    content = bytearray()
    while len(content) < size:
        block = os.pread(file.fileno(), size - len(content), start + len(content))
        if not block:
            raise TargetError("the file has become shorter while it was copied")
        content += block
    return bytes(content)
