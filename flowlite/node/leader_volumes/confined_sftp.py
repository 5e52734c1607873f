"""One `sftp-server`, confined to one directory: its client can reach that directory and nothing else.

Before it starts, this process gets its own root: an empty file system in memory with a copy of the program and its
libraries, /dev/null, and the directory at /volume. From there nothing else of the machine can be reached. There is no
/proc, and no capability to mount one. An ordinary user can do this in a user namespace.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from pathlib import Path

from ..mount_namespace import namespace
from ..system import libc

INSIDE = "/volume"
"""The path of the directory for the server's client."""
_PLACES = (
    "/usr/lib/openssh/sftp-server",
    "/usr/libexec/openssh/sftp-server",
    "/usr/lib/ssh/sftp-server",
    "/usr/libexec/sftp-server",
    "/usr/lib/sftp-server",
)
_LISTING_SECONDS = 10.0
_PATH = re.compile(r"(?:=>\s*|^\s*)(/\S+)\s+\(0x", re.MULTILINE)
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38
_LAST_CAPABILITY = 63


class NotConfined(OSError):
    """The server cannot be confined here, or there is none; the text says why."""


def find_server() -> str:
    """Returns the path of sftp-server. Raises NotConfined."""
    found = next((path for path in _PLACES if os.access(path, os.X_OK)), None)
    if found is None:
        raise NotConfined(
            f"there is no sftp-server here ({', '.join(_PLACES[:2])}, …); it comes with the OpenSSH server"
        )
    return found


def libraries(listing: str) -> list[str]:
    """Returns the files that a program needs, from the output of `ldd`."""
    return list(dict.fromkeys(_PATH.findall(listing)))


def serve(directory: str, stage: Path) -> None:
    """Replaces this process with an sftp-server for a directory, on standard input and output.

    Args:
        stage: An empty directory, on which the new root is built; it stays empty for other processes.

    Raises:
        NotConfined: It cannot be confined.
    """
    program = find_server()
    try:
        needed = _needed(program)
        uid, gid = os.getuid(), os.getgid()
        if refused := namespace.enter_private():
            raise NotConfined(f"this user may not have a mount namespace here: {refused}")
        _build_root(stage, program, needed, directory, f"flowlite:x:{uid}:{gid}::{INSIDE}:/")
        _enter_root(stage)
        _give_up_power()
        os.execve("/sftp-server", ["sftp-server", "-d", INSIDE], {"PATH": "/"})
    except NotConfined:
        raise
    except (OSError, subprocess.SubprocessError) as error:
        raise NotConfined(f"sftp-server cannot be shut into {directory}: {error}") from error


def _needed(program: str) -> list[str]:
    listed = subprocess.run(
        ["ldd", program], capture_output=True, text=True, timeout=_LISTING_SECONDS, check=True
    )
    found = libraries(listed.stdout)
    # Older C libraries look up the user through a separate library.
    lookup = [str(Path(path).with_name("libnss_files.so.2")) for path in found if "libc.so" in path]
    return [*found, *(path for path in lookup if os.path.exists(path))]


def _build_root(stage: Path, program: str, needed: list[str], directory: str, user: str) -> None:
    calls = libc.Libc()
    calls.mount("tmpfs", str(stage), "tmpfs", libc.NOSUID_NODEV, "mode=755,size=64m")
    shutil.copy(program, stage / "sftp-server")
    for path in needed:
        copy = stage / path.lstrip("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    (stage / "etc").mkdir(exist_ok=True)
    (stage / "etc" / "passwd").write_text(f"{user}\n")
    (stage / "etc" / "nsswitch.conf").write_text("passwd: files\n")
    (stage / "dev").mkdir()
    (stage / "dev" / "null").touch()
    calls.mount("/dev/null", str(stage / "dev" / "null"), None, libc.MS_BIND)
    inside = stage / INSIDE.lstrip("/")
    inside.mkdir()
    calls.mount(os.path.realpath(directory), str(inside), None, libc.MS_BIND | libc.MS_REC)


def _enter_root(stage: Path) -> None:
    namespace.pivot(str(stage))
    read_only = libc.MS_REMOUNT | libc.MS_BIND | libc.MS_RDONLY | libc.NOSUID_NODEV
    libc.Libc().mount(None, "/", None, read_only)
    os.chdir(INSIDE)


def _give_up_power() -> None:
    """Drops all capabilities, also for programs started from here, even as root."""
    library = ctypes.CDLL(None, use_errno=True)
    for number in range(_LAST_CAPABILITY + 1):
        library.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)
    library.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    namespace.drop_capabilities()
