"""The files of this machine that are sent to the nodes of a task: its project, and the files of `files=`.

They are found and checked before machines are launched. A project that is too large, and a command that names a file
which will not be on the nodes, are refused with the reason.
"""

from __future__ import annotations

import os
import posixpath
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

from flowlite.bundle.project import is_installed_file
from flowlite.bundle.project_files import (
    ProjectListing,
    find_root,
    largest,
    list_files,
)
from flowlite.errors import BundleError, ConfigError
from flowlite.node.config import python_command
from flowlite.node.config.command_wrappers import wrapped
from flowlite.node.quick_dataclass import dataclass
from flowlite.node.serialization.pickling import unwrap
from flowlite.node.system.byte_sizes import human_size
from flowlite.settings.suggest import did_you_mean
from flowlite.spec.launchers import SHELLS

if TYPE_CHECKING:
    from flowlite.provider import Plan
    from flowlite.spec import TaskConfig

# A shell command with these characters may change its directory, or create the files that it names.
_SHELL = re.compile(r"[;&|<>()$`\n]")
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class FilesToSend:
    """The files that are sent to the nodes of a task.

    Attributes:
        listing: The project's files.
        others: Files from elsewhere, by path below the project's root.
        start: The working directory, relative to the root; "." for the root.
    """

    listing: ProjectListing
    others: Mapping[str, Path]
    start: str

    @property
    def sizes(self) -> dict[str, int]:
        """Each file that is sent, with its size in bytes."""
        return self.listing.files | {path: _size(file) for path, file in self.others.items()}

    def why_not(self, path: str) -> str | None:
        """The reason why a path that the command names will not exist on a node; None if it will.

        Args:
            path: Relative to the working directory.
        """
        below = posixpath.normpath(posixpath.join(self.start, path))
        if below.startswith("../") or below == "..":
            return f"it lies outside of the project {self.listing.root}"
        inside = f"{below}/"
        if self.listing.has(below) or any(f"{p}/".startswith(inside) for p in self.others):
            return None
        return self.listing.why_not(below)


def find(
    config: TaskConfig, plan: Plan, most: int, earlier: Mapping[str, Any] | None = None
) -> FilesToSend | None:
    """Finds the files to send with a task; None if there are none.

    Args:
        config: The task.
        plan: Where it runs.
        most: Most bytes that may be sent.
        earlier: The project of the task whose call is repeated, which is sent as it is now.

    Raises:
        BundleError: The files are too large, or cannot be read.
        ConfigError: The options name files that cannot be sent, or the command names a file that will not be there.
    """
    if plan.options.get("workdir") is not None:
        return None
    here = _directory_again(earlier) if earlier else os.getcwd()
    found = _find(config, here, _directory_of(config) or here)
    _check_command(config, found, here)
    if found is not None:
        _check_size(found, most)
    return found


def stays_behind(config: TaskConfig) -> list[str]:
    """The files that a command names and that other machines would not have, as sentences."""
    here = os.getcwd()
    named = dict.fromkeys(_named_files(config, here))
    if not named or config.directory_on_node is not None:
        return []
    try:
        found = _find(config, here, here)
    except ConfigError:
        return []
    if found is None:
        return []
    missing = {path: why for path in named if (why := found.why_not(path))}
    return [
        f"{path} would not travel to another machine: {why}"
        for path, why in list(missing.items())[:_MOST_NAMED]
    ]


def _find(config: TaskConfig, here: str, directory: str) -> FilesToSend | None:
    """Finds the files of the project that `directory` is in. Workers start where `here` is in it, or at its root."""
    if config.sync is False and not config.files:
        return None
    root = find_root(directory)
    if config.sync is False or root is None:
        if config.sync:
            raise ConfigError(
                f"sync: {directory} is no project, but a home directory or one that everybody may write to; put the "
                "files that belong together into a directory of their own"
            )
        if not config.files:
            return None
        listing = ProjectListing(directory)
    else:
        listing = list_files(root)
    start = os.path.relpath(os.path.realpath(here), listing.root)
    if start == ".." or start.startswith("../"):
        start = "."
    if config.workdir is not None:
        start = _start_in(config.workdir, start, listing)
    others = _others(config.files, start, listing.left_out)
    return FilesToSend(listing, others, start) if listing.files or others or listing.links else None


def _directory_of(config: TaskConfig) -> str | None:
    """The directory of the function's file, whose project is sent; None if there is none, as for a command."""
    call = config.call
    if config.command is None and call is not None:
        code = getattr(unwrap(call.function), "__code__", None)
        file = str(getattr(code, "co_filename", ""))
        if file and os.path.isfile(file) and not is_installed_file(file):
            return os.path.dirname(os.path.abspath(file))
    return None


def _directory_again(earlier: Mapping[str, Any]) -> str:
    """The directory of this machine that the workers of an earlier task started in a copy of. Raises ConfigError."""
    directory = os.path.join(str(earlier["root"]), str(earlier["start"]))
    if not os.path.isdir(directory):
        raise ConfigError(
            f"the project of the earlier task is not here any more: there is no directory {directory}; leave out "
            "--now, or submit the task anew"
        )
    return os.path.normpath(directory)


def _start_in(workdir: str, start: str, listing: ProjectListing) -> str:
    inside = posixpath.normpath(posixpath.join(start, workdir))
    if inside == ".." or inside.startswith("../"):
        raise ConfigError(f"workdir: {workdir} leads out of the project {listing.root}")
    if not os.path.isdir(os.path.join(listing.root, inside)):
        raise ConfigError(f"workdir: the project {listing.root} has no directory {inside}")
    return inside


def _others(files: Mapping[str, str], start: str, left_out: dict[str, str]) -> dict[str, Path]:
    """The files of `files=`, by path below the project's root, with all files of the directories among them.

    What is not sent of these directories is added to `left_out`, with the reason.
    """
    found: dict[str, Path] = {}
    for place, source in files.items():
        target = posixpath.normpath(posixpath.join(start, place))
        path = Path(os.path.abspath(os.path.expanduser(source)))
        if target.startswith("../") or target == "..":
            raise ConfigError(f"files: {place} leads out of the project")
        if path.is_dir():
            for each in _below(path):
                where = f"{target}/{each.relative_to(path).as_posix()}"
                if each.is_file():
                    found[where] = each
                elif each.is_dir():
                    left_out[where] = "it is a link to a directory, which files= does not follow"
                else:
                    left_out[where] = "it is neither a file nor a directory"
        elif path.is_file():
            found[target] = path
        else:
            raise ConfigError(f"files: {place}: there is no file {path}")
    return found


def _below(directory: Path) -> Iterator[Path]:
    """All that is below a directory, but for the directories themselves. Raises BundleError."""

    def refuse(error: OSError) -> None:
        raise BundleError(f"files: {error.filename} cannot be read: {error.strerror}") from error

    for above, below, names in os.walk(directory, onerror=refuse):
        below.sort()
        links = (name for name in below if os.path.islink(os.path.join(above, name)))
        yield from (Path(above, name) for name in sorted([*names, *links]))


# Limits


def _check_size(found: FilesToSend, most: int) -> None:
    sizes = found.sizes
    total = sum(sizes.values())
    if total <= most:
        return
    size, limit = human_size(total), human_size(most)
    if size == limit:
        size, limit = f"{total:,} bytes", f"{most:,} bytes"
    raise BundleError(
        f"the project {found.listing.root} is too large to send: {len(sizes):,} files, {size}, and the "
        f"setting max_project_size is {limit}. The largest are {largest(sizes.items())}. Keep data "
        'on a volume (volumes={"/data": "NAME"}) or in a bucket (mounts={"/data": "s3://BUCKET"}); or name it in '
        '.gitignore or .flowignore, and send only what is needed of it with files={"small.csv": "./data/small.csv"}'
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise BundleError(f"the file {path} cannot be read: {error.strerror}") from error


# Files that a command names


def _check_command(config: TaskConfig, found: FilesToSend | None, here: str) -> None:
    """Refuses a command that names a file which exists here but will not be on the nodes."""
    if found is None and config.setup:
        # `setup` may create the file.
        return
    if isinstance(config.command, str) and _SHELL.search(config.command):
        return
    why: Callable[[str], str | None] = found.why_not if found else lambda _: _why_nothing(config)
    missing = {path: reason for path in _named_files(config, here) if (reason := why(path))}
    if not missing:
        _check_script(config, found, here)
        return
    path, reason = next(iter(missing.items()))
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    raise ConfigError(
        f"the command names {path}{more}, which is only on this machine: {reason}. {_send_it(path)}, or put it on a "
        "volume or in a bucket and name it by its path there"
    )


def _check_script(config: TaskConfig, found: FilesToSend | None, here: str) -> None:
    """Refuses a command that runs a script which is neither here nor among the files that are sent."""
    script = _script_of(config)
    if script is None or found is None or config.setup or os.path.isabs(script):
        return
    directory = os.path.normpath(os.path.join(here, config.workdir or "."))
    if found.why_not(script) is None or os.path.lexists(os.path.join(directory, script)):
        return
    beside = os.path.dirname(os.path.join(directory, script))
    names = os.listdir(beside) if os.path.isdir(beside) else []
    raise ConfigError(
        f"the command runs {script}, and there is no such file in {directory}"
        f"{did_you_mean(os.path.basename(script), names, closeness=0.8)}"
    )


def _script_of(config: TaskConfig) -> str | None:
    """The script that a command certainly runs from its working directory; None for any other command."""
    command = config.command
    if command is None or isinstance(command, str) or config.batch is not None:
        return None
    words = wrapped(command)
    before = command[: len(command) - len(words)]
    if not words or any(word.startswith(("-C", "--chdir")) for word in before):
        return None
    if python_command.is_python(words[0]):
        with suppress(python_command.NotForked):
            return python_command.parse(words).script or None
    elif os.path.basename(words[0]) in SHELLS and words[1:] and words[1][:1] not in "-+":
        script = words[1]
        # Some shells look for a name on the PATH, too, where an image, or a node as this machine, may have it.
        on_path = "/" not in script and (
            config.image is not None or "PATH" in config.environment or which(script) is not None
        )
        return None if on_path else script
    return None


def _send_it(path: str) -> str:
    if not path.startswith("../"):
        return f"Send it with --file {path}"
    name = posixpath.basename(path)
    return f"Send it with --file {name}={path}, and name it {name} in the command"


def _why_nothing(config: TaskConfig) -> str:
    if config.sync is False:
        return "nothing travels with sync=False (--no-sync)"
    return f"{os.getcwd()} is no project, but a home directory or one that everybody may write to"


def _named_files(config: TaskConfig, here: str) -> Iterator[str]:
    """The words of a command that are files on this machine, relative to the working directory.

    Args:
        here: The directory in whose copy the command starts, but for `workdir`.
    """
    if config.command is None or config.batch is not None:
        return
    words = list(_words(config.command))
    base = os.path.join(here, config.workdir or ".")
    for at, word in enumerate(words):
        candidates = [word, word.partition("=")[2]]
        if at and words[at - 1] == "-m":
            module = word.replace(".", "/")
            candidates = [f"{module}.py", f"{module}/__main__.py"]
        for each in candidates:
            if each and not os.path.isabs(each) and os.path.isfile(os.path.join(base, each)):
                yield posixpath.normpath(each)


def _words(command: Any) -> list[str]:
    if not isinstance(command, str):
        return list(command)
    try:
        return shlex.split(command)
    except ValueError:
        return []
