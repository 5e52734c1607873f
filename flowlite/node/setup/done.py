"""Records which setup a machine has completed, and decides which tasks may skip it.

The record `setup.json` in the node's directory is for further attempts of the same task on this node. On nodes that are
kept warm, a second record, of the machine, is for later tasks, as long as the node stays warm. It is not written if the
commands left something that belongs to this task only: changed files in its copy of the project, or an editable install
that points there.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from ..config.agent_config import AgentConfig, AttemptPaths
from ..system import file_lock, processes, runtime_dir
from ..system.atomic_files import write_atomically

# The keys of records begin with it: without it, what ran before an upgrade would run again.
_FORMAT = 1
# A working directory with more files counts as changed.
_MOST_FILES = 50_000
# Files that a command names count as its dependencies up to this size.
_MOST_BYTES = 16 << 20
_DEPENDENCY_FILES = (
    *("requirements.txt", "pyproject.toml", "setup.py", "setup.cfg", "uv.lock", "poetry.lock"),
    *("pdm.lock", "Pipfile.lock", "environment.yml", "constraints.txt"),
)

Listing = dict[str, tuple[int, int, int]]
"""Files of a directory by relative path: size, time of the last change, inode."""


class Done(NamedTuple):
    """A completed run of the setup.

    Attributes:
        run: The unique name of this run of the commands.
        ours: Whether it was run for this task, rather than for an earlier one.
    """

    run: str
    ours: bool


class Record:
    """The records of one setup on one node."""

    def __init__(self, config: AgentConfig, paths: AttemptPaths) -> None:
        """Raises OSError if this machine has no directory for records."""
        self._config = config
        self._home = paths.home
        self._workdir = Path(config.workdir or paths.home)
        if config.cache is not None:
            self._place = Path(config.cache).parent / "setup"
            self._place.mkdir(mode=0o700, parents=True, exist_ok=True)
        else:
            self._place = Path(runtime_dir.find())
        self._commands = hashlib.sha256(json.dumps(config.setup).encode()).hexdigest()[:32]
        self._key = self._hash()

    def find(self) -> Done | None:
        """Returns a completed run that is still valid for this task, or None."""
        own = _read(self._of_task)
        if self._key in (own.get("key"), own.get("key_before")):
            return Done(str(own.get("run")), True)
        place = self._of_machine(self._key)
        if self._config.warm_seconds > 0 and (shared := _read(place)):
            with suppress(OSError):
                if time.time() - place.stat().st_mtime <= self._config.warm_seconds:
                    return Done(str(shared.get("run")), False)
        return None

    def note(self, before: Listing | None) -> str:
        """Records that all commands have succeeded. Returns the name of this run.

        Args:
            before: The result of `listing` from before they ran.
        """
        # The commands may have changed a file on which the key depends.
        key_before, self._key = self._key, self._hash()
        found = {"key": self._key, "key_before": key_before, "run": os.urandom(8).hex()}
        write_atomically(self._of_task, json.dumps(found))
        if self._config.warm_seconds > 0 and self._serves_others(before):
            for key in {key_before, self._key}:
                write_atomically(self._of_machine(key), json.dumps(found))
        return found["run"]

    def still_used(self) -> None:
        """Restarts the time for which the machine's record is valid, when the node begins to be kept warm."""
        with suppress(OSError):
            os.utime(self._of_machine(self._key))

    def listing(self) -> Listing | None:
        """Lists the files of the task's copy of the project.

        Returns None if the working directory is not below the node's directory, or has too many files.
        """
        if not self._workdir.is_relative_to(self._home):
            return None
        found: Listing = {}
        # Only the project: the agent's own files beside it change all the time.
        root = self._home / "project"
        for directory, directories, files in os.walk(root):
            for name in (*directories, *files):
                path = os.path.join(directory, name)
                with suppress(OSError):
                    status = os.lstat(path)
                    is_directory = name in directories
                    facts = (status.st_size, status.st_mtime_ns, status.st_ino)
                    found[os.path.relpath(path, root)] = (0, 0, 0) if is_directory else facts
            if len(found) > _MOST_FILES:
                return None
        return found

    @contextmanager
    def lock(self) -> Iterator[int]:
        """Opens a file to lock with `take`, so that nodes of one machine run the same commands one after another."""
        path = self._place / f"setup-{self._commands}.lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    @property
    def _of_task(self) -> Path:
        return self._home / "setup.json"

    def _of_machine(self, key: str) -> Path:
        return self._place / f"setup-{key}.json"

    def _serves_others(self, before: Listing | None) -> bool:
        if not self._workdir.is_relative_to(self._home):
            return True
        unchanged = before is not None and before == self.listing()
        return unchanged and not self._points_home()

    def _points_home(self) -> bool:
        """Whether an installed package points into the directory of this task, as after `pip install -e`."""
        home, python = os.fsencode(str(self._home)), Path(self._config.python)
        places = [
            *python.parent.parent.glob("lib/python3*/site-packages"),
            *Path(os.path.expanduser("~/.local/lib")).glob("python3*/site-packages"),
            *Path("/usr/local/lib").glob("python3*/*-packages"),
        ]
        for place in places:
            for pattern in ("*.pth", "__editable__*", "*.egg-link"):
                for path in place.glob(pattern):
                    with suppress(OSError):
                        if home in path.read_bytes():
                            return True
        return False

    def _hash(self) -> str:
        """Hashes what the commands depend on: their text, variables, Python, files, the machine and its boot."""
        config = self._config
        own = self._workdir.is_relative_to(self._home)
        parts = [
            _FORMAT,
            config.setup,
            sorted(config.environment.items()),
            [config.python, os.path.realpath(config.python)],
            os.path.relpath(self._workdir, self._home) if own else str(self._workdir),
            self._files(),
            os.uname().nodename,
            processes.boot_id(),
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

    def _files(self) -> list[list[str]]:
        """Returns the files that the commands depend on, with their hashes."""
        manifest = self._home / "project.json"
        if manifest.is_file():
            return [["project", hashlib.sha256(manifest.read_bytes()).hexdigest()]]
        found = []
        for name in sorted({*_DEPENDENCY_FILES, *_words(self._config.setup)}):
            path = self._workdir / name
            with suppress(OSError, ValueError):
                if path.is_file() and path.stat().st_size <= _MOST_BYTES:
                    found.append([name, hashlib.sha256(path.read_bytes()).hexdigest()])
        return found


def take(descriptor: int) -> bool:
    """Tries to lock a descriptor. Returns whether it has the lock, or needs none."""
    try:
        return file_lock.take(descriptor)
    except OSError:
        # A network file system without locks. Only where the nodes share one machine do they need them.
        return True


def _words(commands: list[str]) -> Iterator[str]:
    for command in commands:
        try:
            words = shlex.split(command, comments=True)
        except ValueError:
            words = command.split()
        for word in words:
            yield word
            yield word.rpartition("=")[2]
            yield word.removeprefix("-r")


def _read(path: Path) -> dict[str, object]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
