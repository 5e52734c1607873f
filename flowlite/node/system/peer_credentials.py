"""The user at the other end of a Unix socket, as the kernel reports it.

Any user of a machine can listen on a name in the abstract namespace, or connect to it. Both ends therefore check the
other end's user before they read.

This module is also sent to hosts as text, and runs there on Python 3.6 (`provider_adapters/ssh/hosts.py`).
"""

import errno
import os
import socket
import struct

_CREDENTIALS = struct.Struct("3i")
_ROOT = 0

# From linux/netlink.h, linux/sock_diag.h and linux/unix_diag.h.
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST_DUMP = 0x301
_ERROR, _DONE = 2, 3
_SHOW_NAME, _SHOW_UID = 0x01, 0x40
_NAME, _UID = 0, 7
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBHIIIII")
_MESSAGE_BYTES = 16
_ATTRIBUTE = struct.Struct("=HH")
_ALL = 0xFFFFFFFF
_ANSWER_SECONDS = 5.0
_BLOCK = 1 << 16


def uid_of(connection: socket.socket) -> int:
    """Returns the user id of the other end. Raises OSError if the kernel does not tell (only Linux does)."""
    if not hasattr(socket, "SO_PEERCRED"):
        raise OSError(errno.ENOTSUP, "this system does not tell who is at the other end")
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(found)[1])


def is_ours(connection: socket.socket) -> bool:
    """Whether the process at the other end belongs to this process's user."""
    return uid_of(connection) == os.getuid()


def may_be_trusted(connection: socket.socket) -> bool:
    """Whether the other end of a socket in this user's directory belongs to this user, or to root.

    Where the kernel does not tell, the mode of the directory keeps other users out.
    """
    return not hasattr(socket, "SO_PEERCRED") or uid_of(connection) in (os.getuid(), _ROOT)


def owner_of_name(address: str) -> int:
    """Returns the user who bound the socket of this abstract name ("\\0name"), even if it does not listen.

    -1 if there is none, or the kernel does not tell (before Linux 5.3).
    """
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as line:
            line.settimeout(_ANSWER_SECONDS)
            show = _SHOW_NAME | _SHOW_UID
            wanted = _REQUEST.pack(socket.AF_UNIX, 0, 0, _ALL, 0, show, _ALL, _ALL)
            length = _HEADER.size + len(wanted)
            line.sendall(_HEADER.pack(length, _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0) + wanted)
            return _find(line, os.fsencode(address))
    except (AttributeError, OSError, struct.error):
        return -1


def _find(line: socket.socket, name: bytes) -> int:
    """Searches the kernel's list of Unix sockets, which comes in several messages."""
    while True:
        block, begin = line.recv(_BLOCK), 0
        while begin < len(block):
            length, kind = _HEADER.unpack_from(block, begin)[:2]
            if kind in (_DONE, _ERROR) or length < _HEADER.size:
                return -1
            told = _attributes(block[begin + _HEADER.size + _MESSAGE_BYTES : begin + length])
            if told.get(_NAME) == name and _UID in told:
                return int(struct.unpack("=I", told[_UID])[0])
            begin += (length + 3) & ~3


def _attributes(block: bytes) -> dict:  # type: ignore[type-arg]
    """Returns the values of a message's attributes, by their number."""
    found, begin = {}, 0
    while begin + _ATTRIBUTE.size <= len(block):
        length, number = _ATTRIBUTE.unpack_from(block, begin)
        if length < _ATTRIBUTE.size:
            break
        found[number] = block[begin + _ATTRIBUTE.size : begin + length]
        begin += (length + 3) & ~3
    return found
