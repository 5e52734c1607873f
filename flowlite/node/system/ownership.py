"""Whether other users can change files in a directory, by the rule of sshd for a user's files (StrictModes).

A directory and all its parents must belong to root or to this user, and must not be writable by others. A directory
with the sticky bit, such as /tmp, may be writable, since others cannot rename or remove foreign files there. Symbolic
links on the path must belong to root or to this user as well.

This module is also sent to nodes as text, and runs there on Python 3.6 (`flowlite/connect/programs.py`,
`provider_adapters/ssh`).
"""

import os
import stat

_ROOT = 0
_MOST_LINKS = 40
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def problem(directory: str, *within: str) -> str:
    """Returns why others can change files in a directory, which need not exist yet; "" if they cannot.

    Args:
        within: Names of directories in it that are checked as well, if they exist.
    """
    found = _on_the_way(os.path.abspath(directory))
    for name in within:
        found = found or _of(os.path.join(directory, name))
    return found


def taken(path: str) -> str:
    """Returns which other user has made what is at a path in a directory where all may create files, such as /tmp.

    They can remove it at any time and make something else of that name. "" if nobody else has.
    """
    try:
        # There is no path if the current directory was removed.
        path = os.path.abspath(path)
        found, above = os.lstat(path), os.stat(os.path.dirname(path))
    except OSError:
        return ""
    everybodys = above.st_mode & stat.S_ISVTX and above.st_mode & stat.S_IWOTH
    if not everybodys or _is_trusted(found.st_uid):
        return ""
    return f"{path} belongs to uid {found.st_uid}"


def _on_the_way(path: str) -> str:
    rest, here, links = [each for each in path.split("/") if each], "/", 0
    while True:
        found = _of(here)
        if found or not rest:
            return found
        here = os.path.join(here, rest.pop(0))
        try:
            to = os.readlink(here)
        except OSError:
            continue
        found, links = _of(here), links + 1
        if found or links > _MOST_LINKS:
            return found or here + " leads in circles"
        here = "/" if to.startswith("/") else os.path.dirname(here)
        rest = [each for each in os.path.normpath(to).split("/") if each] + rest


def _of(path: str) -> str:
    """Returns what is wrong with one directory or link; "" if it does not exist."""
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        return f"{path} cannot be looked at: {error.strerror}"
    if not _is_trusted(found.st_uid):
        return f"{path} belongs to uid {found.st_uid}"
    link, sticky = stat.S_ISLNK(found.st_mode), found.st_mode & stat.S_ISVTX
    if found.st_mode & _OTHERS_WRITE and not link and not sticky:
        return f"{path} can be written by others (mode {stat.S_IMODE(found.st_mode):04o})"
    return ""


def _is_trusted(uid: int) -> bool:
    if uid in (_ROOT, os.getuid()):
        return True
    try:
        # In a rootless container, files of the machine's root show the overflow user id.
        with open("/proc/self/uid_map") as file:
            rootless = all(line.split()[1] != "0" for line in file)
        with open("/proc/sys/kernel/overflowuid") as file:
            return rootless and uid == int(file.read())
    except (OSError, ValueError, IndexError):
        return False
