"""Requests to the holder of a host's lease (`lease_holder.py`), and what is known of a holder of another user.

Any user of the host can take the name. An answer is therefore read only from a process of the same user. For any other
process, only the kernel's information counts: that the name is taken, and by which user. `ask` returns None if the name
is free, else the answer of this user's holder, or

    {"ok": false, "other": true, "held": {"state": "foreign", "uid", "user"}}   another user has the name
    {"ok": false, "held": {"state": "silent", "uid", "user"}}                   this user's holder does not answer

This module is also sent to hosts as text, and runs there on Python 3.6 (`provider_adapters/ssh/hosts.py`).
"""

import json
import os
import socket
import sys

from ..system import peer_credentials

MARKER = "FLOW_LEASE"
"""Variable of every process that belongs to a lease: `name/id`."""
ANSWER_SECONDS = 15.0
"""Longest wait for an answer. A release waits until the last process has ended."""
_MOST_BYTES = 1 << 20


def address(name: str) -> str:
    """Returns the socket address of a name: abstract names begin with a zero byte."""
    if not sys.platform.startswith("linux"):
        raise OSError("hosts are leased on Linux only; this one runs " + sys.platform)
    return "\0" + name


def ask(
    request: dict,  # type: ignore[type-arg]
    name: str,
    seconds: float = 0.0,
) -> "dict | None":  # type: ignore[type-arg]
    """Returns the holder's answer, or None if the host is free.

    A holder that does not answer (it is suspended, or its host is overloaded) still holds the host.

    Args:
        seconds: How long to wait; 0 for `ANSWER_SECONDS`.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(seconds or ANSWER_SECONDS)
        try:
            connection.connect(address(name))
        except ConnectionRefusedError:
            # The name is free, or is bound without a listener. This user's own holder is about to listen.
            owner = peer_credentials.owner_of_name(address(name))
            return None if owner in (-1, os.getuid()) else _foreign(owner)
        except OSError:
            return _unheard(peer_credentials.owner_of_name(address(name)))
        uid = peer_credentials.uid_of(connection)
        if uid != os.getuid():
            return _foreign(uid)
        try:
            connection.sendall(json.dumps(request).encode() + b"\n")
            answer = read_line(connection)
        except socket.timeout:  # noqa: UP041 - until Python 3.10 this is no TimeoutError
            return _unheard(uid)
        except OSError:
            answer = b""
    # No answer: the holder ended meanwhile, and the host is free, or about to be.
    return json.loads(answer.decode()) if answer else None


def read_line(connection: socket.socket, most: int = _MOST_BYTES) -> bytes:
    """Returns one line, or b"" if the connection ends before it is complete, or it is longer than `most`."""
    got = b""
    while not got.endswith(b"\n"):
        block = connection.recv(65536)
        if not block or len(got) > most:
            return b""
        got += block
    return got


def user_name(uid: int) -> str:
    """Returns a user's name, or `uid N` if there is none."""
    try:
        import pwd

        return pwd.getpwuid(uid).pw_name
    except (ImportError, KeyError):
        return f"uid {uid}"


def _foreign(uid: int) -> dict:  # type: ignore[type-arg]
    return {"ok": False, "other": True, "held": {"state": "foreign", **_who(uid)}}


def _unheard(uid: int) -> dict:  # type: ignore[type-arg]
    """Returns what is known of a holder that does not answer."""
    if uid not in (-1, os.getuid()):
        return _foreign(uid)
    return {"ok": False, "held": {"state": "silent", **(_who(uid) if uid >= 0 else {})}}


def _who(uid: int) -> dict:  # type: ignore[type-arg]
    return {"uid": uid, "user": user_name(uid)}
