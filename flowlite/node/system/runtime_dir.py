"""The runtime directory of this user on this machine: sockets of warm processes, locks, and who uses which GPU.

It is `flowlite-UID` in the directory for temporary files. Anybody may make that first; then it is a directory in the
user's home, which nobody else can take. All processes of the user come to the same one.

It is sent to hosts as text, too, and runs there on Python 3.6 (provider_adapters/ssh/hosts.py).
"""

import errno
import os
import stat

from . import ownership

LONGEST_PATH = 100
"""Of a socket, with some room left."""
LONGEST_NAME = 33
"""Of a file in the directory."""


class NoRuntimeDirectory(OSError):
    """There is none that is safe from other users; the text says why, and what to do."""


def find() -> str:
    """The directory, made if need be. Raises NoRuntimeDirectory."""
    wrong = []
    for each in _places():
        why = _make(each)
        if not why:
            return str(each)
        wrong.append(why)
    advice = "remove what is there, or set TMPDIR to a directory of your own"
    raise NoRuntimeDirectory(errno.EPERM, f"{'; '.join(wrong)}: {advice}")


def problem() -> str:
    """What is wrong with the first place, so that another one serves, if any; "" if nothing is."""
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
    """As the system has it: variables differ between the processes of one user."""
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_dir
    except (ImportError, KeyError):
        return os.path.expanduser("~")


def _make(directory: str) -> str:
    """Makes a directory, if it is not there; says why it will not do, or ""."""
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
