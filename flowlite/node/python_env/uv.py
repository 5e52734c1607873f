"""`uv` on the node: its path, its settings, and its results."""

from __future__ import annotations

import functools
import json
import logging
import os
import platform as machine
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from ..system import processes

log = logging.getLogger("flowlite.python")

_PROXIES = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"})
# Common locations of uv, which the PATH of a non-login shell may lack.
_PLACES = ("~/.local/bin/uv", "~/.cargo/bin/uv", "/usr/local/bin/uv")
# Variables of another environment that would mislead uv, or the Python it starts.
_ASTRAY = ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONHOME", "PYTHONPATH", "UV_PYTHON", "UV_TARGET")
_UNREACHABLE = re.compile(
    r"error sending request|dns error|tcp connect error|timed out|os error 1(?:01|10|11|13)\b"
)
# To the last @ before the path: a password may have one.
_CREDENTIALS = re.compile(r"//[^/\s]+@")
_WORDS = 600
DEFAULT_INDEX = "https://pypi.org/simple"


class UvResult(NamedTuple):
    """The result of a run of uv."""

    code: int
    out: str
    said: str

    @property
    def words(self) -> str:
        """A summary of its error output."""
        return in_short(self.said)

    @property
    def unreachable(self) -> bool:
        """Whether it failed because an index did not answer."""
        return _UNREACHABLE.search(self.said) is not None


class Uv:
    """uv with its settings.

    Args:
        path: The program.
        settings: Variables for it, as the function `settings` returns them.
        lock: A descriptor that uv inherits, so that the lock is held while uv writes, even if the agent has ended.
    """

    def __init__(self, path: str, settings: Mapping[str, str], lock: int) -> None:
        self._path = path
        self._settings = settings
        self._lock = lock

    @property
    def index(self) -> str:
        """The package index, for people."""
        names: tuple[str, ...] = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_FIND_LINKS")
        if self._settings.get("UV_NO_INDEX"):
            names = ("UV_FIND_LINKS",)
        found = next((self._settings[name] for name in names if self._settings.get(name)), None)
        return without_credentials(found or DEFAULT_INDEX)

    async def run(self, *arguments: str, program: str | None = None) -> UvResult:
        """Runs uv, or another program the same way, to its end. It is killed when its caller ends, for any reason."""
        code, out, err = await processes.run_group(
            program or self._path,
            *arguments,
            env=self._environment(),
            pass_fds=(self._lock,),
            preexec_fn=functools.partial(processes.die_with_parent, os.getpid()),
        )
        said = without_credentials(err.decode(errors="replace"))
        for line in said.splitlines():
            log.info("uv: %s", line)
        return UvResult(code, out.decode(errors="replace"), said)

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in _ASTRAY}
        ours = {
            "UV_NO_PROGRESS": "1",
            "UV_PYTHON_DOWNLOADS": "manual",
            "UV_PYTHON_INSTALL_BIN": "0",
        }
        return {**ours, **kept, **self._settings}


def own() -> str | None:
    """Returns the uv that this machine has itself."""
    found = shutil.which("uv")
    if found is not None:
        return found
    places = (os.path.expanduser(each) for each in _PLACES)
    return next((each for each in places if os.access(each, os.X_OK)), None)


def platform() -> str:
    """Returns the platform that a program must be built for to run here: `linux-x86_64-glibc`."""
    system = machine.system().lower()
    libc = f"-{machine.libc_ver()[0] or 'musl'}" if system == "linux" else ""
    return f"{system}-{machine.machine()}{libc}"


def settings(file: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Returns variables for uv: those sent with the task, then those of `environment=`.

    A directory that does not exist on this node cannot hold packages for it, and is left out.
    """
    try:
        brought = json.loads(file.read_bytes())
    except FileNotFoundError:
        brought = {}
    wished = {
        name: value
        for name, value in environment.items()
        if name.startswith("UV_") or name.upper() in _PROXIES
    }
    found = {**{str(name): str(value) for name, value in brought.items()}, **wished}
    for name, separator in (("UV_FIND_LINKS", ","), ("UV_INDEX", " "), ("UV_EXTRA_INDEX_URL", " ")):
        if name in found:
            here = [each for each in _split(found[name], separator) if _is_here(each)]
            found[name] = separator.join(here)
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        if name in found and not _is_here(found[name]):
            del found[name]
    return {name: value for name, value in found.items() if value}


def cache(place: Path) -> dict[str, str]:
    """Returns the variable that puts uv's cache at `place`, if uv cannot use its own; {} if it can.

    In pods, the home of a user without an account is `/`, or on a file system that is read-only.
    """
    if os.environ.get("UV_CACHE_DIR"):
        return {}
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not base.startswith("/"):
        base = os.path.join(os.path.expanduser("~"), ".cache")
    own = os.path.join(base, "uv")
    try:
        if own.startswith("/"):
            os.makedirs(own, mode=0o700, exist_ok=True)
            if os.access(own, os.W_OK):
                return {}
    except OSError:
        pass
    return {"UV_CACHE_DIR": str(place)}


def without_credentials(text: str) -> str:
    """Replaces names and passwords in URLs."""
    return _CREDENTIALS.sub("//***@", text)


def _split(value: str, separator: str) -> Sequence[str]:
    return [each for each in value.split(separator) if each.strip()]


def _is_here(place: str) -> bool:
    # An index may begin with a name: name=https://…
    place = re.sub(r"^[\w-]+=", "", place.strip())
    if place.startswith("file:"):
        return os.path.exists(unquote(urlsplit(place).path))
    return not place.startswith("/") or os.path.exists(place)


def in_short(said: str) -> str:
    """Returns uv's final error as one line: the first line and the last cause."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    starts = [at for at, line in enumerate(lines) if line.startswith(("error:", "×"))]
    told = lines[starts[-1] if starts else 0 :]
    # In between, every layer of the network stack repeats the same.
    causes = [line for line in told[1:] if not line.startswith("cause: error sending request")]
    kept = [*told[:1], *causes] if len(causes) < 3 else [told[0], causes[0], "…", causes[-1]]
    return " ".join(kept)[:_WORDS]
