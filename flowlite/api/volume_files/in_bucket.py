"""The files of an S3 bucket, or of the part of it below a prefix."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TypeVar

from flowlite.api.volume_files.files import Changed, Entry, Moved, Source, Tree, copied_without
from flowlite.connect import fetching
from flowlite.errors import ConfigError, FlowError, NotFound, ProviderError
from flowlite.node.checkpoints.targets import BucketTarget, TargetError, patiently
from flowlite.node.s3.client import S3Error, S3Object, Store
from flowlite.node.s3.multipart_upload import PART
from flowlite.supervise.attempt.outputs.manifest import OutputFile, is_inside
from flowlite.supervise.attempt.outputs.output_directory import NameTaken, OutputDirectory

Value = TypeVar("Value")

_SECONDS = 120.0
# Bytes of one request for a part of an object.
_RANGE = 16 << 20
# Systems that allow no MD5 allow it for this.
_md5 = partial(hashlib.md5, usedforsecurity=False)
# Sizes of parts of flowlite, and of other programs by default: the AWS CLI and boto3, rclone, s3cmd, mc and others.
_PART_SIZES = dict.fromkeys((PART, *(mib << 20 for mib in (5, 8, 15, 16, 32, 64, 128))))


def open_bucket(url: str) -> BucketFiles:
    """Opens a bucket with the credentials of this machine. `url` is `s3://BUCKET`, without a path.

    Raises ConfigError, NotFound, ProviderError.
    """
    from flowlite.bucket_credentials import account_of

    account = account_of()
    store = Store.of(
        {
            "url": url,
            "endpoint_url": account.endpoint_url,
            "region": account.region,
            "credential": asdict(account.credential) if account.credential else None,
            "source": account.source,
        }
    )
    files = BucketFiles(store)
    return BucketFiles(files.asking(partial(patiently, store.located)))


class BucketFiles:
    """One bucket. Directories are the parts of keys before slashes."""

    def __init__(self, store: Store) -> None:
        self._store = replace(store, prefix="")
        self._target = BucketTarget(self._store)
        self.name = f"s3://{store.bucket}"

    def asking(self, ask: Callable[[], Value]) -> Value:
        """Calls a function. Raises ProviderError or NotFound for errors of S3."""
        try:
            return ask()
        except TargetError as error:
            raise ProviderError(str(error)) from error
        except S3Error as error:
            text = f"{self.name}: {error}, with {self._store.source} at {self._store.place}"
            raise NotFound(text) if error.status == 404 else ProviderError(text) from error

    def entries(self, path: str) -> list[Entry]:
        below = f"{path}/" if path else ""
        found: dict[str, Entry] = {}
        # Not all that lies below: a data set may have millions of objects.
        for each in self._objects(path, folded=True):
            if each.key == path:
                name = PurePosixPath(path).name
                return [Entry(name, each.size, _time(each.modified), "file")]
            first, slash, _ = each.key[len(below) :].partition("/")
            if slash:
                found.setdefault(first, Entry(first, 0, None, "directory"))
            elif first:
                found[first] = Entry(first, each.size, _time(each.modified), "file")
        if not found and path:
            raise NotFound(f"{self.name}: there is no {path}")
        return sorted(found.values(), key=lambda entry: entry.name)

    def is_directory(self, path: str) -> bool:
        if not path:
            return True
        return next(self._listed(f"{path}/", 1), None) is not None

    def tree(self, path: str) -> Tree:
        files = []
        others = 0
        for each in self._objects(path):
            if each.key == path:
                return Tree(True, (_file(PurePosixPath(path).name, each),))
            relative = each.key[len(path) + 1 if path else 0 :]
            # Consoles create empty objects as folders, and keys may be no paths at all.
            if is_inside(relative):
                files.append(_file(relative, each))
            else:
                others += 1
        if not files and path:
            raise NotFound(f"{self.name}: there is no {path}")
        return Tree(False, tuple(files), others)

    def get(
        self, path: str, tree: Tree, destination: OutputDirectory, name: str, moved: Moved
    ) -> list[str]:
        taken: list[str] = []
        changed: list[str] = []
        for file in tree.files:
            place = name or file.path
            if destination.has(place, file) and _fits(destination.root / place, file.version):
                moved(file.size)
                continue
            key = tree.path_of(file, path)

            def read(offset: int, key: str = key, file: OutputFile = file) -> Iterator[bytes]:
                moved(offset)
                return self._read(key, offset, file, moved)

            try:
                destination.take(
                    place,
                    file,
                    f"{self.name} {self._store.place} {key}",
                    lambda staged, read=read, size=file.size: fetching.fetch(  # type: ignore[misc]
                        read, staged, size
                    ),
                )
            except NameTaken as error:
                taken.append(str(error))
            except Changed:
                # The others are copied still: a task that runs may write its next checkpoint at any time.
                changed.append(file.path)
        if not taken:
            destination.finish()
        if changed:
            raise copied_without(changed, tree, self.name, "replaced or removed")
        return taken

    def put(self, sources: list[Source], moved: Moved) -> None:
        for each in sources:
            try:
                each.path.encode()
            except UnicodeEncodeError:
                # Before anything is sent.
                raise FlowError(
                    f"{self.name}: {each.path} cannot be a key, which is UTF-8; rename the file"
                ) from None
        for each in sources:
            if self._has(each):
                moved(each.size)
            else:
                self.asking(lambda each=each: self._upload(each, moved))  # type: ignore[misc]

    def _upload(self, source: Source, moved: Moved) -> None:
        if source.size > PART:
            self._target.resume_upload(source.local, source.path, source.size, moved)
        else:
            self._target.upload(source.local, source.path, source.size)
            moved(source.size)

    def remove(self, path: str, *, recursive: bool) -> int:
        if not path:
            raise ConfigError(f"{self.name} is the bucket itself, which flowlite does not empty")
        keys = [each.key for each in self._objects(path)]
        single = keys == [path]
        if keys and not single and not recursive:
            raise FlowError(f"{self.name}: {path} is a directory; add --recursive")
        unfinished = self.asking(lambda: self._target.discard_unfinished(path, below=recursive))
        removed = keys if single else [key for key in keys if key != path]
        if not removed and not unfinished:
            raise NotFound(f"{self.name}: there is no {path}")
        self.asking(lambda: self._target.delete(removed))
        return len({*removed, *unfinished})

    def _has(self, source: Source) -> bool:
        """Whether the object has the content of the file, as far as its checksum tells."""
        found = [each for each in self._listed(source.path, 1) if each.key == source.path]
        return bool(found) and found[0].size == source.size and _fits(source.local, found[0].etag)

    def _objects(self, path: str, *, folded: bool = False) -> Iterator[S3Object]:
        """The object of that key, or all below it as a directory; `folded` is that of `Store.list`."""
        if not path:
            yield from self._listed("", None, folded=folded)
            return
        yield from (each for each in self._listed(path, 1) if each.key == path)
        yield from self._listed(f"{path}/", None, folded=folded)

    def _listed(self, below: str, most: int | None, *, folded: bool = False) -> Iterator[S3Object]:
        found = self._store.list(
            below, most=most, folded=folded, timeout=_SECONDS, through=patiently
        )
        while (each := self.asking(lambda: next(found, None))) is not None:
            yield each

    def _read(self, key: str, offset: int, file: OutputFile, moved: Moved) -> Iterator[bytes]:
        size = file.size
        while offset < size:
            last = min(offset + _RANGE, size) - 1
            headers = {"range": f"bytes={offset}-{last}"}
            ask = partial(self._store.request, "GET", key, headers=headers, timeout=_SECONDS)
            try:
                found = self.asking(partial(patiently, ask))
            except NotFound as error:
                # Not if it is the bucket that is gone.
                if isinstance(error.__cause__, S3Error) and error.__cause__.code == "NoSuchKey":
                    raise Changed(key) from error
                raise
            # Parts of two versions would be neither of them.
            etag = found.headers.get("etag", "").strip('"')
            if etag and file.version and etag != file.version:
                raise Changed(key)
            # Not every server answers with the status of a part (206).
            asked = found.headers.get("content-range", "").startswith(f"bytes {offset}-")
            whole = offset == 0 and len(found.body) == size
            if not found.body or not (asked or whole):
                raise ProviderError(f"{self.name}: {key} cannot be read in parts")
            yield found.body
            offset += len(found.body)
            moved(len(found.body))


def _file(path: str, found: S3Object) -> OutputFile:
    written = _time(found.modified)
    return OutputFile(path, found.size, int((written or 0.0) * 1e9), False, found.etag)


def _fits(local: Path, etag: str) -> bool:
    """Whether the etag of an object is that of a file's content. False if that cannot be told.

    It is the MD5 of the content; for an object in parts, the MD5 of the MD5s of the parts, and their number. For some
    encrypted objects it is neither.
    """
    _, dash, number = etag.partition("-")
    if not dash:
        with local.open("rb") as file:
            return hashlib.file_digest(file, _md5).hexdigest() == etag
    size = local.stat().st_size
    fitting = (each for each in _PART_SIZES if number == str(-(-size // each)))
    return any(_etag_in_parts(local, each) == etag for each in fitting)


def _etag_in_parts(local: Path, part: int) -> str:
    digests = []
    with local.open("rb") as file:
        while block := file.read(part):
            digests.append(_md5(block).digest())
    return f"{_md5(b''.join(digests)).hexdigest()}-{len(digests)}"


def _time(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None
