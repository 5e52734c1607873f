"""The Python that the workers run in: one found on the node, or an environment that is made once for all tasks.

The request is `AgentConfig.python_spec`:

    {"python": "3.11", "requirements": None | "text of a requirements file", "uv": path of uv on this node,
      "why_no_uv": why uv could not be copied here, "upon": id of the image whose packages it has, too,
      "setup": hash of the commands that will install more into it}

Environments are in one directory, named by the hash of their inputs:

    envs/<hash>/            the environment; `flowlite.json` in it is written last and marks it as complete
    envs/<hash>.lock        held shared by agents that use it, and exclusively while it is made or removed
    envs/python/            Pythons that were installed because the node had none of that version
    envs/cache/             the cache of uv, where uv cannot have it in the home directory
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ..config.agent_config import AgentConfig, AttemptPaths
from ..system.atomic_files import names_in, write_atomically
from ..worker.environment import path_with
from . import interpreters, uv

_FORMAT = 1
_MADE = "flowlite.json"
_LOOK_AGAIN = 0.05
UNUSED_SECONDS = 14 * 86400.0
"""When an environment is made, those not used for this long are removed."""
EXIT_NO_ENVIRONMENT = 79
ERROR_MARK = "flowlite-environment: "
FALLBACK = "~/.flowlite-node/envs"


class PythonError(OSError):
    """There is no Python for the workers; the text says what was found, what is missing, and what to do."""


class Ready(NamedTuple):
    """A Python for the workers. While `lock` is open, its environment is not removed."""

    python: str
    lock: int | None = None


async def ready(config: AgentConfig, paths: AttemptPaths) -> Ready:
    """Finds or makes the Python that `config.python_spec` asks for.

    Raises:
        PythonError: It does not exist and cannot be made.
    """
    spec = config.python_spec
    if spec is None:
        return Ready(config.python or sys.executable)
    own = config.python or sys.executable
    place = directory(spec, config.cache)
    found = await asyncio.to_thread(_find, spec, own, place)
    if found is not None and spec.get("requirements") is None:
        return Ready(found[0])
    settings = {**uv.cache(place / "cache"), **uv.settings(paths.packages, config.environment)}
    if found is not None and is_whole(path := place / key(spec, *found, place)):
        return await _make(path, spec, found[0], None, settings)
    tool = _uv(spec)
    python, version = found or await _install(spec, tool, place, settings)
    if spec.get("requirements") is None:
        return Ready(python)
    return await _make(place / key(spec, python, version, place), spec, python, tool, settings)


def look(spec: Mapping[str, Any], cache: str | None, own: str) -> dict[str, Any]:
    """Returns what exists here: {"ready": whether nothing has to be made, "uv": this machine's own, "platform"}."""
    place = directory(spec, cache)
    found = _find(spec, own, place)
    done = found is not None and (
        spec.get("requirements") is None or is_whole(place / key(spec, *found, place))
    )
    return {"ready": done, "uv": uv.own(), "platform": uv.platform()}


def directory(spec: Mapping[str, Any], cache: str | None) -> Path:
    """Returns the directory of this node's environments."""
    if spec.get("directory"):
        return Path(spec["directory"])
    return Path(cache).parent / "envs" if cache else Path(FALLBACK).expanduser()


def key(spec: Mapping[str, Any], python: str, version: str, place: Path) -> str:
    """Returns the name of an environment: a hash of all its inputs."""
    parts = [
        _FORMAT,
        # Console scripts name their Python by its path. In a directory that was moved or copied they would find
        # none, or one of another environment.
        str(place),
        version,
        os.path.realpath(python),
        uv.platform(),
        sorted(requirement_lines(spec.get("requirements") or "")),
        spec.get("upon", ""),
    ]
    if spec.get("setup"):
        # Environments with setup commands are not shared with other tasks.
        parts.append(spec["setup"])
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def requirement_lines(text: str) -> list[str]:
    """Returns the lines of a requirements file, without blank lines and comments."""
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def is_whole(path: Path) -> bool:
    """Whether an environment is complete, and its Python still exists."""
    try:
        # After a loss of power, what was written just before may be empty: the mark, and the packages.
        marked = (path / _MADE).stat().st_size > 0
    except OSError:
        return False
    return marked and os.access(path / "bin" / "python", os.X_OK)


def packages_of(python: str) -> list[str]:
    """Returns the packages of an environment made here, as `name==version`; [] for any other Python."""
    try:
        made = json.loads((Path(python).parent.parent / _MADE).read_bytes())
        return [str(each) for each in made["packages"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def clean(place: Path, older_than: float) -> list[str]:
    """Removes environments that are not in use and were last used longer ago than this, in seconds.

    What is left of one that an agent began before it was killed is removed at once. Returns their names.
    """
    removed = []
    for path in _environments(place):
        lock = _lock(path)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not is_whole(path) or time.time() - _last_used(path) > older_than:
                _remove(path)
                removed.append(path.name)
        except OSError:
            continue  # in use
        finally:
            os.close(lock)
    return removed


# Making environments


async def _make(
    path: Path, spec: Mapping[str, Any], python: str, tool: str | None, settings: Mapping[str, str]
) -> Ready:
    """Returns the environment at `path`, after making it unless it is complete already."""
    lock = await _wait_for(path)
    try:
        if not is_whole(path):
            _remove(path)
            try:
                await _fill(path, spec, python, uv.Uv(tool or _uv(spec), settings, lock))
            except OSError:
                # It may be most of what fills the disk.
                with suppress(OSError):
                    await asyncio.to_thread(_remove, path)
                raise
        # Also where another agent has completed it just before this one got the lock to make it.
        fcntl.flock(lock, fcntl.LOCK_SH)
        os.utime(path / _MADE)
        return Ready(str(path / "bin" / "python"), lock)
    except BaseException as error:
        os.close(lock)
        if isinstance(error, OSError) and not isinstance(error, PythonError):
            raise PythonError(f"the environment {path} cannot be made: {error}") from error
        raise


async def _fill(path: Path, spec: Mapping[str, Any], python: str, tool: uv.Uv) -> None:
    began = time.monotonic()
    wanted = str(spec["requirements"])
    upon = ["--system-site-packages"] if spec.get("upon") else []
    made = await tool.run("venv", "--quiet", *upon, "--python", python, str(path))
    if made.code != 0:
        raise PythonError(f"the environment {path} cannot be made with {python}: {made.words}")
    inside = str(path / "bin" / "python")
    if requirement_lines(wanted):
        file = path / "requirements.txt"
        file.write_text(wanted, encoding="utf-8")
        done = await tool.run("pip", "install", "--python", inside, "--requirement", str(file))
        if done.code != 0:
            raise PythonError(_why_not(wanted, done, tool))
    if spec.get("setup"):
        # ensurepip brings its own pip. Where it fails, `uv pip` or another pip is used (`node/setup/run.py`).
        await tool.run("-m", "ensurepip", "--default-pip", program=inside)
    listed = await tool.run("pip", "freeze", "--quiet", "--python", inside)
    note = {
        "python": python,
        "requirements": requirement_lines(wanted),
        "packages": sorted(listed.out.split("\n")[:-1]),
        "seconds": round(time.monotonic() - began, 3),
    }
    write_atomically(path / _MADE, json.dumps(note, indent=1))
    clean(path.parent, UNUSED_SECONDS)


async def _install(
    spec: Mapping[str, Any], tool: str, place: Path, settings: Mapping[str, str]
) -> tuple[str, str]:
    """Installs a Python of that version on the node, for all tasks."""
    wanted, target = str(spec["python"]), place / "python"
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = await _wait_for(target)
    try:
        found = await asyncio.to_thread(interpreters.find, wanted, (), (str(target),))
        if found is not None:
            return found
        done = await uv.Uv(tool, settings, lock).run(
            "python", "install", "--install-dir", str(target), wanted
        )
        found = await asyncio.to_thread(interpreters.find, wanted, (), (str(target),))
        if done.code != 0 or found is None:
            raise PythonError(f"{_no_python(spec, place)}. Installing it failed: {done.words}")
        return found
    finally:
        os.close(lock)


def _uv(spec: Mapping[str, Any]) -> str:
    brought = spec.get("uv")
    tool = brought if brought and os.access(brought, os.X_OK) else uv.own()
    if tool is None:
        what = "an environment cannot be made on this node without uv"
        why = spec.get("why_no_uv") or "it was not brought along"
        raise PythonError(f"{what}: {why}; install uv on the node, or where you submit from")
    return tool


def _find(spec: Mapping[str, Any], own: str, place: Path) -> tuple[str, str] | None:
    return interpreters.find(str(spec["python"]), (own,), (str(place / "python"),))


def _no_python(spec: Mapping[str, Any], place: Path) -> str:
    wanted = spec["python"]
    have = ", ".join(interpreters.known((str(place / "python"),))) or "none"
    return (
        f"Python {wanted} is needed on this node, and it has {have}. Install python{wanted} there, submit from one of "
        "those versions, or run in a container (image=) that has it"
    )


def _why_not(wanted: str, done: uv.UvResult, tool: uv.Uv) -> str:
    named = [line for line in requirement_lines(wanted) if not line.startswith("-")]
    shown = uv.without_credentials(", ".join(named[:8]))
    if done.unreachable:
        return (
            f"dependencies ({shown}) cannot be installed on this node: {tool.index} cannot be reached from it "
            f"({done.words}). Give the node access to a package index (UV_DEFAULT_INDEX where you submit from names "
            "another), or install the packages in the node's own Python and leave dependencies out"
        )
    return f"dependencies ({shown}) cannot be installed on this node: {done.words}"


# Files and locks


def _lock(path: Path) -> int:
    return os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


async def _wait_for(path: Path) -> int:
    """Locks an environment: shared if it is complete, else exclusively, to make it.

    A second caller waits for the first, which may be downloading gigabytes, and then finds the environment complete.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = _lock(path)
    try:
        while True:
            how = fcntl.LOCK_SH if is_whole(path) else fcntl.LOCK_EX
            with suppress(BlockingIOError):
                fcntl.flock(lock, how | fcntl.LOCK_NB)
                if how == fcntl.LOCK_EX or is_whole(path):
                    return lock
                fcntl.flock(lock, fcntl.LOCK_UN)
            await asyncio.sleep(_LOOK_AGAIN)
    except BaseException as error:
        os.close(lock)
        if isinstance(error, OSError):
            raise PythonError(
                f"an environment cannot be made in {path.parent}: its file system has no locks ({error.strerror}), "
                "which keep two nodes from making it at the same time. Mount it with locks, or give the nodes a "
                "directory on a disk of their own (node_dir)"
            ) from error
        raise


def _environments(place: Path) -> Iterator[Path]:
    for name in sorted(names_in(place)):
        if len(name) == 32 and (place / name).is_dir():
            yield place / name


def _last_used(path: Path) -> float:
    try:
        return (path / _MADE).stat().st_mtime
    except FileNotFoundError:
        return path.stat().st_mtime


def _remove(path: Path) -> None:
    # The mark goes first, so that a partly removed environment does not count as complete.
    (path / _MADE).unlink(missing_ok=True)
    if path.exists():
        shutil.rmtree(path)


def main(arguments: list[str]) -> int:
    """`pythons`: reads a JSON object {"spec", "cache"} from standard input and prints the result of `look`.

    `pythons DIR ARGUMENTS...`: in a container, prepares the Python that DIR/agent.json and DIR/container.json ask for,
    and replaces this process with it, with these arguments.
    """
    if arguments:
        return _go_on(AttemptPaths(Path(arguments[0])), arguments[1:])
    asked = json.loads(sys.stdin.buffer.read())
    found = look(asked["spec"], asked.get("cache"), sys.executable)
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


def _go_on(paths: AttemptPaths, arguments: list[str]) -> int:
    config = AgentConfig.from_json(paths.config.read_bytes())
    config.python = sys.executable
    spec = json.loads((paths.directory / "container.json").read_bytes())
    config.python_spec = {**spec, "python": interpreters.version_here()}
    try:
        made = asyncio.run(ready(config, paths))
    except PythonError as error:
        sys.stderr.write(f"{ERROR_MARK}{error}\n")
        return EXIT_NO_ENVIRONMENT
    if made.lock is not None:
        # Inherited, so that the lock is held as long as any process uses the environment.
        os.set_inheritable(made.lock, True)
    path = path_with(made.python, os.environ.get("PATH"))
    os.execve(made.python, [made.python, *arguments], {**os.environ, "PATH": path or ""})
