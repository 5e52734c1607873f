"""Files to and from a host, with commands that every host has: `cat`, `tail`, `tar`, `mv`."""

from __future__ import annotations

import errno
import os
import posixpath
import secrets
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flowlite.connect.bounded import HASHED_PER_SECOND, MOST_JSON, Tail, too_long
from flowlite.connect.courier_answer import Answer
from flowlite.connect.ssh import courier
from flowlite.connect.ssh.commands import Run
from flowlite.connect.ssh.link import Link
from flowlite.connect.ssh.quoting import quote, readable
from flowlite.connect.values import File
from flowlite.errors import NodeUnreachable
from flowlite.node.quick_dataclass import dataclass
from flowlite.node.system.atomic_files import NOT_REGULAR

_BLOCK = 256 * 1024
# A file operation in which nothing moves for this long counts as hung; hashing existing files gets longer.
_STALL_SECONDS = 60.0
# Exit statuses of the scripts below.
_ABSENT, _NO_ACCESS, _DIRECTORY, _PARTIAL, _NO_TAR, _SPECIAL, _FAILED = 44, 45, 46, 47, 48, 49, 74
_REASONS = {
    _ABSENT: "it is not there",
    _NO_ACCESS: "this user may not read it",
    _DIRECTORY: "it is a directory",
    _SPECIAL: NOT_REGULAR,
}
# About how many bytes are sent to a courier in one request.
_SMALL = 256 * 1024

_HEAD = b"""umask 077;LC_ALL=C;export LC_ALL
fail(){ exit 74;}
dir(){ [ -d "$1" ]||mkdir -p "$1"||fail;}
has(){ [ -f "$2" ]||return 1
if [ $3 -gt 4000000 ]&&command -v openssl;then h=$(openssl dgst -sha256 -r <"$2")
elif command -v sha256sum;then h=$(sha256sum <"$2");elif command -v shasum;then h=$(shasum -a 256 <"$2")
else return 1;fi >/dev/null 2>&1;[ "${h%% *}" = "$1" ];}
place(){ [ ! -d "$2" ]||{ echo "$2 is a directory" >&2;exit 46;};mv -f "$1" "$2"||fail;}
linked(){ if [ -x "$1" ]&&[ "$4" = x ]||[ ! -x "$1" ]&&[ "$4" != x ];then ln "$1" "$2" 2>/dev/null||cp -p "$1" "$2"
else cp "$1" "$2"&&chmod "$5" "$2";fi||fail;place "$2" "$3";rm -f "$2";touch -c "$1";}
"""


@dataclass(slots=True)
class _Upload:
    """One file that is being sent. `number` identifies it in the script; `partial` is its temporary name."""

    number: int
    file: File
    partial: str
    size: int

    @property
    def place(self) -> str:
        """The final path of the content: in the cache, or the target."""
        return f"{self.file.cache}/{self.file.sha256}" if self.file.cache else self.file.target


def put_files(link: Link, files: Sequence[File]) -> None:
    """Writes files atomically, in one command. Those with a hash are sent only if they are missing.

    Raises:
        NodeUnreachable: The host does not answer.
        OSError: A file cannot be read here, or not be written on the host.
    """
    uploads = [_upload(number, file) for number, file in enumerate(files)]
    if not uploads or _put_by_courier(link, uploads):
        return
    with link.session() as channel:
        run = Run(link, channel)
        run.begin(_script(uploads), len(uploads) > 8)
        hashed = [u.size for u in uploads if u.file.sha256]
        pieces = _moving(link, run, _STALL_SECONDS + sum(hashed) / HASHED_PER_SECOND)
        errors = _tail(link)
        chosen = uploads
        if hashed:
            wanted = _first_line(link, pieces, errors)
            if wanted is None:
                raise _error(link, run.code(), errors, uploads)
            chosen = [u for u in uploads if str(u.number) in wanted.split()]
        content = _Content(chosen, archive=len(uploads) > 1)
        run.feed(content, sum(u.size for u in chosen) <= 8192)
        for _, block in pieces:
            errors.add(block)
        if content.error is not None:
            raise content.error
        if run.code() == _NO_TAR:
            errors.clear()
        elif run.code():
            raise _error(link, run.code(), errors, uploads)
        else:
            return
    for file in files:
        put_files(link, [file])


def _put_by_courier(link: Link, uploads: Sequence[_Upload]) -> bool:
    """Has a courier write the small files and check those that exist. False if it cannot."""
    listed, content = [], b""
    for upload in uploads:
        file, size = upload.file, None
        if file.sha256 is None:
            if not isinstance(file.content, bytes) or len(content) > _SMALL:
                return False
            content, size = content + file.content, upload.size
        cached = {"sha256": file.sha256, "cache": file.cache}
        listed.append({"target": file.target, "mode": file.mode, "size": size, **cached})
    answer = _ask_courier(link, {"do": "put", "files": listed}, content)
    return answer is not None and "errno" not in answer[0]


def _ask_courier(
    link: Link,
    request: Mapping[str, Any],
    content: bytes = b"",
    *,
    timeout: float | None = None,
) -> Answer | None:
    timeout = timeout or _STALL_SECONDS
    try:
        return courier.ask(link, request, content, timeout=timeout)
    except TimeoutError:
        raise _stands_still(link, timeout) from None


def _upload(number: int, file: File) -> _Upload:
    upload = _Upload(number, file, "", file.check())
    head, _, name = upload.place.rpartition("/")
    upload.partial = f"{head}/.{name[:200]}.{secrets.token_hex(4)}.part"
    return upload


def _script(uploads: Sequence[_Upload]) -> bytes:
    """The script that reports which files are needed, receives them, and moves each to its target."""
    lines = [_HEAD]
    places: dict[str, None] = {}
    for upload in uploads:
        for path in (upload.place, upload.file.target):
            places[posixpath.dirname(path)] = None
    lines += [b"dir %s\n" % quote(place) for place in places]
    partials = b" ".join(quote(u.partial) for u in uploads)
    lines.append(
        b"trap 'rm -f %s' EXIT;trap fail HUP INT TERM\nn=\n" % partials.replace(b"'", b"'\\''")
    )
    for upload in uploads:
        lines.append(_question(upload))
    lines.append(b'echo "need$n"\n')
    lines.append(_take_one(uploads[0]) if len(uploads) == 1 else _TAKE_ALL)
    for upload in uploads:
        lines.append(_placing(upload))
    lines.append(b"trap - EXIT\nexit 0")
    return b"".join(lines)


def _question(upload: _Upload) -> bytes:
    file = upload.file
    if file.sha256 is None:
        return b'n="$n %d"\n' % upload.number
    there = b"has %s %s %d" % (quote(file.sha256), quote(upload.place), upload.size)
    return b'%s||n="$n %d"\n' % (there, upload.number)


def _take_one(upload: _Upload) -> bytes:
    partial = quote(upload.partial)
    mode = (
        b"chmod %o %s||fail\n" % (upload.file.mode, partial) if upload.file.mode != 0o600 else b""
    )
    return b'if [ "$n" ];then cat >%s||fail;[ $(wc -c <%s) -eq %d ]||exit 47\n%sfi\n' % (
        partial,
        partial,
        upload.size,
        mode,
    )


_TAKE_ALL = b"""if [ "$n" ];then command -v tar >/dev/null||exit 48
(cd /&&tar -xpomf -)||exit 74;fi
"""


def _placing(upload: _Upload) -> bytes:
    """The part of the script that moves a received file to its target and links it from the cache."""
    partial, target, place = (
        quote(path) for path in (upload.partial, upload.file.target, upload.place)
    )
    text = b'case "$n " in *" %d "*)place %s %s;;esac\n' % (upload.number, partial, place)
    if not upload.file.cache:
        return text
    execute = b"x" if upload.file.mode & 0o100 else b"-"
    link = quote(f"{upload.file.target}.{secrets.token_hex(4)}.part")
    return text + b"[ %s -ef %s ]||linked %s %s %s %s %o\n" % (
        place,
        target,
        place,
        link,
        target,
        execute,
        upload.file.mode,
    )


class _Content:
    """The bytes to send: one file unchanged, or an archive of several."""

    def __init__(self, uploads: Sequence[_Upload], *, archive: bool) -> None:
        self._uploads = uploads
        self._archive = archive
        self.error: OSError | None = None

    def __iter__(self) -> Iterator[bytes]:
        try:
            small = bytearray()
            for upload in self._uploads:
                if self._archive:
                    small += _header(upload)
                for block in upload.file.blocks(upload.size):
                    small += block
                    if len(small) >= _BLOCK:
                        yield bytes(small)
                        small.clear()
                if self._archive:
                    small += bytes(-upload.size % 512)
            if self._archive and self._uploads:
                small += bytes(1024)
            yield bytes(small)
        except OSError as error:
            # The content that was sent has the wrong length, so the host keeps none of it.
            self.error = error


def _header(upload: _Upload) -> bytes:
    info = tarfile.TarInfo(upload.partial.lstrip("/"))
    info.size = upload.size
    info.mode = upload.file.mode
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def _moving(link: Link, run: Run, stall: float) -> Iterator[tuple[str, bytes]]:
    """Yields the output of a file operation. Raises an error if nothing moves for `stall` seconds."""
    try:
        yield from run.pieces(stall=stall)
    except TimeoutError:
        raise _stands_still(link, stall) from None


def _tail(link: Link) -> Tail:
    return Tail(f"host {link.target.label}: what a command on its files says")


def _stands_still(link: Link, stall: float) -> NodeUnreachable:
    return NodeUnreachable(
        f"host {link.target.label}: it answers, but a command on its files stood still for {stall:.0f} s; a disk "
        "or a shared file system there may hang"
    )


def _first_line(link: Link, pieces: Iterator[tuple[str, bytes]], errors: Tail) -> str | None:
    text = b""
    for stream, block in pieces:
        if stream == "err":
            errors.add(block)
            continue
        text += block
        if len(text) > MOST_JSON:
            raise too_long(f"host {link.target.label}: which files it needs", MOST_JSON)
        if text.endswith(b"\n"):
            return text.decode().removeprefix("need")
    return None


def _error(link: Link, code: int, errors: Tail, uploads: Sequence[_Upload]) -> OSError:
    said = readable(bytes(errors))
    what = ", ".join(u.file.target for u in uploads[:3]) + (", …" if len(uploads) > 3 else "")
    if code == _PARTIAL:
        said = "only a part of it arrived"
    return os_error(link, f"cannot write {what}", said or f"exit status {code}", code)


def os_error(link: Link, what: str, said: str, code: int) -> OSError:
    """The error of a file operation on a host, of the type that the same operation would raise locally."""
    number = {
        _ABSENT: errno.ENOENT,
        _NO_ACCESS: errno.EACCES,
        _DIRECTORY: errno.EISDIR,
        _SPECIAL: errno.EINVAL,
    }.get(code)
    if number is None:
        known = (
            errno.ENOSPC,
            errno.EACCES,
            errno.EROFS,
            errno.EDQUOT,
            errno.EFBIG,
            errno.ENOTDIR,
            errno.EPERM,
            errno.ENOENT,
        )
        number = next((n for n in known if os.strerror(n).lower() in said.lower()), errno.EIO)
        if "size limit exceeded" in said.lower():
            # What a shell says of `cat` that a limit of the size of files (`ulimit -f`) has killed.
            number = errno.EFBIG
    return OSError(number, f"host {link.target.label}: {what}: {said}")


# Reading


def read_by_courier(
    link: Link, path: str, offset: int = 0, *, timeout: float | None = None
) -> bytes | None:
    """Returns the bytes of a small file from `offset` on; None if the courier is not there, or cannot read it.

    Raises:
        FileNotFoundError: The file does not exist.
        NodeUnreachable: The host does not answer.
    """
    answer = _ask_courier(link, {"do": "read", "path": path, "offset": offset}, timeout=timeout)
    if answer is None:
        return None
    if answer[0].get("errno") == errno.ENOENT:
        raise os_error(link, f"cannot read {path}", _REASONS[_ABSENT], _ABSENT)
    return None if "errno" in answer[0] else answer[1]


def read_file(link: Link, path: str, offset: int) -> Iterator[bytes]:
    """Yields the bytes of a file from `offset` to its end. Ends without an error only if all of them arrived.

    Raises:
        FileNotFoundError: The file does not exist.
        OSError: It cannot be read.
        NodeUnreachable: The connection broke.
    """
    content = read_by_courier(link, path, offset)
    if content is not None:
        yield content
        return
    name = quote(path)
    tool = b"cat" if offset == 0 else b"tail -c +%d" % (offset + 1)
    text = (
        b"LC_ALL=C;export LC_ALL;[ -e %s ]||exit 44;[ ! -d %s ]||exit 46;[ -f %s ]||exit 49;[ -r %s ]||exit 45;"
        b"exec %s <%s"
        % (
            name,
            name,
            name,
            name,
            tool,
            name,
        )
    )
    with link.session() as channel:
        run = Run(link, channel)
        run.begin(text, False)
        run.end_input()
        errors = _tail(link)
        for stream, block in _moving(link, run, _STALL_SECONDS):
            if stream == "out":
                yield block
            else:
                errors.add(block)
        code = run.code()
    if code:
        said = readable(bytes(errors))
        why = _REASONS.get(code, said or f"exit status {code}")
        raise os_error(link, f"cannot read {path}", why, code)
