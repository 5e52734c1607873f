"""Shows volumes at the paths that the user chose, without changing the machine.

If there is no directory at a path, and the agent may not create one (`mount_points.py`), only the processes of the
mount namespace see one. macOS and hardened containers have no mount namespaces.
"""

from __future__ import annotations

import os
import stat
import sys

from ..system import ownership
from ..system.libc import (
    CLONE_NEWNS,
    MNT_DETACH,
    MS_BIND,
    MS_RDONLY,
    MS_REC,
    MS_REMOUNT,
    MS_SLAVE,
    NOSUID_NODEV,
    Libc,
)
from .unmount import is_mounted, mounted_below

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

_CLONE_NEWUSER = 0x10000000
# Flags that a remount must repeat to keep them: `statvfs` flag to `mount` flag.
_KEPT_FLAGS = {2: 2, 4: 4, 8: 8, 1024: 1024, 2048: 2048, 4096: 1 << 21}
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CAPABILITY_VERSION_3 = 0x20080522


class MountError(OSError):
    """A volume cannot be shown at its path; the text says why and what to do."""


def show(
    volumes: Iterable[Mapping[str, Any]], hide_nothing_of: Iterable[str] = ()
) -> list[dict[str, str]]:
    """Shows every volume at its path, to this process and its future children. The caller must be single-threaded.

    Args:
        volumes: {"name", "path", "source"} each; `source` is the directory that holds the data. If other directories
            hold the same data, `alike` is a pattern for them: an existing link to one of them is accepted. With
            `read_only` the volume cannot be written to.
        hide_nothing_of: Paths that must stay visible (the node's own directory).

    Returns:
        For each volume {"name", "path", "how"}: how is "same", "namespace" or "link".

    Raises:
        MountError: One of them cannot be shown.
    """
    shown: list[dict[str, str]] = []
    refused: str | None = None
    wanted = sorted(volumes, key=lambda each: len(each["path"]))
    for volume in wanted:
        # Before this process enters a user namespace, where all other users look the same.
        _refuse_what_another_has_made(volume["name"], os.path.normpath(volume["path"]))
    for volume in wanted:
        name, path, source = volume["name"], os.path.normpath(volume["path"]), volume["source"]
        if not os.path.isdir(source):
            raise MountError(f"volume {name!r}: its directory {source} is not there")
        sealed = bool(volume.get("read_only")) and not os.statvfs(source).f_flag & os.ST_RDONLY
        if os.path.realpath(path) == os.path.realpath(source) and not sealed:
            how = "same"
        else:
            for kept in hide_nothing_of:
                if os.path.realpath(kept).startswith(os.path.realpath(path).rstrip("/") + "/"):
                    raise MountError(
                        f"volume {name!r} at {path} would hide {kept}, where this task itself lives; "
                        "choose another path for the volume"
                    )
            if refused is None:
                refused = enter_private()
            how = _show_one(name, path, source, refused, str(volume.get("alike", "")), sealed)
        shown.append({"name": name, "path": path, "how": how})
    if refused == "" and os.geteuid() != 0:
        drop_capabilities()
    return shown


def _refuse_what_another_has_made(name: str, path: str) -> None:
    """Raises MountError for what another user has made in /tmp, say: a mount there goes when they remove it."""
    if why := ownership.taken(path):
        raise MountError(
            f"volume {name!r} cannot be shown at {path}: {why}, another user, who could put something else there "
            "while workers use it; choose another path for the volume"
        )


def _show_one(name: str, path: str, source: str, refused: str, alike: str, sealed: bool) -> str:
    """Shows one volume.

    Args:
        refused: Why this process has no private mount namespace; "" if it has one.
        sealed: Whether the volume has to be made read-only.

    Raises:
        MountError: It cannot be shown.
    """
    if not refused:
        try:
            _bind_at(path, source)
            if sealed:
                for point in dict.fromkeys((path, *mounted_below(path))):
                    _remount_read_only(point)
            return "namespace"
        except OSError as error:
            refused = f"mounting it failed: {error}"
    if sealed:
        raise MountError(
            f"volume {name!r} cannot be shown read-only at {path}: {refused}. A link would let workers write there"
        )
    try:
        _link_at(path, source, alike)
    except OSError as error:
        raise MountError(
            f"volume {name!r} cannot be shown at {path}: {refused}; and no link can be made there "
            f"({error.strerror or error}). Choose a path whose parent you can write to, such as one "
            "below your home directory"
        ) from error
    return "link"


def _link_at(path: str, source: str, alike: str) -> None:
    if os.path.islink(path):
        if os.path.realpath(path) == os.path.realpath(source):
            return
        if alike and _shows_the_same(path, alike):
            return
        if _led_to_the_same_volume(path, source):
            _replace_link(path, source)
            return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    try:
        os.symlink(os.path.abspath(source), path)
    except FileExistsError:
        if os.path.isdir(path) and not os.path.islink(path) and not os.listdir(path):
            os.rmdir(path)
            os.symlink(os.path.abspath(source), path)
        elif os.path.realpath(path) != os.path.realpath(source):
            raise


def _shows_the_same(path: str, alike: str) -> bool:
    """Whether a link leads to another node's mount of the same volume on this machine. Removes a dangling link."""
    from fnmatch import fnmatchcase

    target = os.readlink(path)
    if not fnmatchcase(target, alike):
        return False
    if is_mounted(target):
        return True
    os.unlink(path)
    return False


def _led_to_the_same_volume(path: str, source: str) -> bool:
    """Whether a link dangles, and led to the volume of this name in a FLOW_HOME that is gone."""
    if os.path.exists(path) or not os.path.islink(path):
        return False
    before, now = os.readlink(path).split("/"), os.path.abspath(source).split("/")
    return before[-2:] == now[-2:]


def _replace_link(path: str, source: str) -> None:
    """Changes a link's target atomically, since other nodes of this machine do the same at the same time."""
    beside = f"{path}.{os.getpid()}"
    os.symlink(os.path.abspath(source), beside)
    os.replace(beside, path)


def enter_private() -> str:
    """Enters a mount namespace that ends with its last process. Returns why that is refused; "" if it is not."""
    if sys.platform != "linux":
        return "this system has no mount namespaces"
    libc = Libc()
    uid, gid = os.geteuid(), os.getegid()
    try:
        try:
            if uid != 0:
                raise PermissionError
            libc.call("unshare", CLONE_NEWNS)
        except PermissionError:
            libc.call("unshare", _CLONE_NEWUSER | CLONE_NEWNS)
            for name, text in (
                ("setgroups", "deny"),
                ("uid_map", f"{uid} {uid} 1"),
                ("gid_map", f"{gid} {gid} 1"),
            ):
                with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                    file.write(text)
        libc.mount(None, "/", None, MS_REC | MS_SLAVE)
    except OSError as error:
        return str(error)
    return ""


def _bind_at(path: str, source: str) -> None:
    if not os.path.isdir(path):
        if os.path.lexists(path):
            raise MountError(f"{path} is there and is not a directory")
        _make_room(path)
    Libc().mount(os.path.realpath(source), path, None, MS_BIND | MS_REC)


def _remount_read_only(point: str) -> None:
    found = os.statvfs(point).f_flag
    kept = sum(flag for bit, flag in _KEPT_FLAGS.items() if found & bit)
    Libc().mount(None, point, None, MS_BIND | MS_REMOUNT | MS_RDONLY | kept)


def _make_room(path: str) -> None:
    """Creates a directory that only this namespace sees, without creating it on the machine.

    The directory above it is hidden by a copy. The copy is read-only, since what a worker writes there would be lost.
    """
    existing = os.path.dirname(path)
    while not os.path.isdir(existing):
        existing = os.path.dirname(existing)
    existing = os.path.realpath(existing)
    if existing == "/":
        _new_root(path)
        return
    below = os.open(existing, os.O_PATH | os.O_DIRECTORY)
    try:
        Libc().mount("tmpfs", existing, "tmpfs", NOSUID_NODEV, _tmpfs_options(existing))
        _mirror(f"/proc/self/fd/{below}", existing)
    finally:
        os.close(below)
    os.makedirs(path)
    _remount_read_only(existing)


def _new_root(path: str) -> None:
    libc = Libc()
    stage = _staging_directory()
    libc.mount("tmpfs", stage, "tmpfs", NOSUID_NODEV, _tmpfs_options("/"))
    _mirror("/", stage)
    os.makedirs(stage + path)
    here = os.getcwd()
    pivot(stage)
    # The mirrored tree contains the stage itself. Unmounting shows the original directory below it.
    libc.call("umount2", stage.encode(), MNT_DETACH)
    _remount_read_only("/")
    os.chdir(here)


def pivot(root: str) -> None:
    """Makes a mounted directory the root of this process, and its working directory. Raises OSError."""
    number = _SYS_PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise MountError(f"pivot_root is not known on {os.uname().machine}")
    libc, old = Libc(), ".before-flowlite"
    os.mkdir(os.path.join(root, old))
    libc.call("syscall", number, root.encode(), os.path.join(root, old).encode())
    os.chdir("/")
    libc.call("umount2", f"/{old}".encode(), MNT_DETACH)
    os.rmdir(f"/{old}")


def _staging_directory() -> str:
    # Not a top-level directory: an entry of the root cannot be mirrored onto a mount on itself.
    for each in ("/usr/share", "/usr/lib", "/var/lib", "/var/tmp"):
        if os.path.realpath(each) == each and os.path.isdir(each):
            return each
    raise MountError("there is no directory on which a new root could be built")


def _tmpfs_options(like: str) -> str:
    return f"mode={stat.S_IMODE(os.stat(like).st_mode):o}"


def _mirror(source: str, target: str) -> None:
    """Binds every entry of a directory into another directory, which is on an empty tmpfs."""
    libc = Libc()
    for name in os.listdir(source):
        entry, image = os.path.join(source, name), os.path.join(target, name)
        if os.path.islink(entry):
            os.symlink(os.readlink(entry), image)
            continue
        try:
            if os.path.isdir(entry):
                os.mkdir(image)
            else:
                os.close(os.open(image, os.O_WRONLY | os.O_CREAT, 0o600))
            libc.mount(entry, image, None, MS_BIND | MS_REC)
        except OSError as error:
            sys.stderr.write(f"flowlite: workers will not see {entry}: {error}\n")


def drop_capabilities() -> None:
    """Drops all capabilities. A user namespace grants all within it, and workers must have none, as before."""
    import ctypes

    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    none = (ctypes.c_uint32 * 6)()
    ctypes.CDLL(None, use_errno=True).capset(header, none)


def enter(pid: int) -> bool:
    """Enters the user and mount namespaces of another process. False if this process is already in them.

    Raises:
        OSError: The process is gone, or this process has no permission.
    """
    if sys.platform != "linux":
        return False
    libc = Libc()
    kinds = [
        (name, flag)
        for name, flag in (("user", _CLONE_NEWUSER), ("mnt", CLONE_NEWNS))
        if os.readlink(f"/proc/{pid}/ns/{name}") != os.readlink(f"/proc/self/ns/{name}")
    ]
    opened = [(os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY), flag) for name, flag in kinds]
    for descriptor, flag in opened:
        libc.call("setns", descriptor, flag)
        os.close(descriptor)
    if opened and os.geteuid() != 0:
        drop_capabilities()
    return bool(opened)
