"""This user's runtime directory on this machine, for sockets of fork servers, locks, and the use of GPUs.

It is `flowlite-UID` in the directory for temporary files. If another user has created that, it is a directory in the
user's home, which no other user can take. All processes of the user find the same directory.

This module is also sent to hosts as text, and runs there on Python 3.6 (`provider_adapters/ssh/hosts.py`).
"""

import errno
import os
import stat

from . import ownership

LONGEST_PATH = 100
"""The longest path of a socket, with some reserve."""
LONGEST_NAME = 33
"""The longest name of a file in the directory."""


class NoRuntimeDirectory(OSError):
    """No directory is safe from other users; the text says why, and what to do."""


def find() -> str:
    """Returns the directory, and creates it if needed. Raises NoRuntimeDirectory."""
    wrong = []
    for each in _places():
        why = _make(each)
        if not why:
            return str(each)
        wrong.append(why)
    advice = "remove what is there, or set TMPDIR to a directory of your own"
    raise NoRuntimeDirectory(errno.EPERM, f"{'; '.join(wrong)}: {advice}")


def problem() -> str:
    """Returns why the first candidate cannot be used; "" if it can."""
    return _make(_places()[0])


def _places() -> list:  # type: ignore[type-arg]
    name = f"flowlite-{os.getuid()}"
    base = os.environ.get("TMPDIR") or "/tmp"
    if not _is_short(os.path.join(base, name)) or not os.access(base, os.W_OK):
        base = "/tmp"
    found = [os.path.join(base, name)]
    # Hosts may share their home directories.
    in_home = os.path.join(_home(), ".cache", "flowlite-" + os.uname().nodename.split(".")[0])
    return [*found, in_home] if _is_short(in_home) else found


def _is_short(directory: str) -> bool:
    return len(directory) + 1 + LONGEST_NAME <= LONGEST_PATH


def _home() -> str:
    """The home from the user database, since variables may differ between the processes of one user."""
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_dir
    except (ImportError, KeyError):
        return os.path.expanduser("~")


def _make(directory: str) -> str:
    """Creates a directory if needed. Returns why it cannot be used, or ""."""
    try:
        above = os.path.dirname(directory)
        if not os.path.isdir(above):
            os.mkdir(above, 0o700)
        os.mkdir(directory, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        return f"{directory} cannot be made: {error.strerror}"
    status = os.lstat(directory)
    if status.st_uid != os.getuid():
        return f"{directory} belongs to uid {status.st_uid}"
    if not stat.S_ISDIR(status.st_mode) or stat.S_IMODE(status.st_mode) & 0o077:
        return f"{directory} is open to others"
    return ownership.problem(directory)
