"""The Python installations of this machine, with their versions."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

from ..system import processes
from ..system.atomic_files import names_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_ASK_SECONDS = 10.0
_SAY = "import sys; sys.stdout.write('%s-%d.%d.%d' % ((sys.implementation.name,) + sys.version_info[:3]))"
_SAID = re.compile(r"([a-z]+)-(\d+\.\d+\.\d+)")
_NAME = re.compile(r"(?:python|pypy)3(?:\.\d+)?")
# Common locations of Pythons that are not on PATH, below the home directory and elsewhere.
_AT_HOME = (
    ".local/share/uv/python",
    ".pyenv/versions",
    "miniconda3",
    "miniforge3",
    "mambaforge",
    "anaconda3",
)
_ELSEWHERE = ("/usr/bin", "/usr/local/bin", "/opt/conda/bin", "/opt/homebrew/bin")


def matches(version: str, wanted: str) -> bool:
    """Whether version 3.11.7 satisfies a request for 3.11, or for 3.11.7."""
    return version == wanted or version.startswith(f"{wanted}.")


def version_here() -> str:
    """Returns the version of the running Python."""
    return ".".join(map(str, sys.version_info[:3]))


def version_of(python: str) -> str | None:
    """Asks a Python for its version, `3.11.7` or `pypy-3.11.7`; None if it does not run (a shim, a broken link)."""
    if os.path.realpath(python) == os.path.realpath(sys.executable):
        return version_here()
    try:
        asked = processes.run_within(_ASK_SECONDS, [python, "-I", "-S", "-c", _SAY])
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = _SAID.fullmatch(asked.stdout.decode("ascii", "replace"))
    if asked.returncode != 0 or said is None:
        return None
    # Compiled code and pickled functions are not portable between implementations, so another one matches nothing.
    return said[2] if said[1] == "cpython" else said[0]


def find(
    wanted: str, first: Iterable[str] = (), directories: Iterable[str] = ()
) -> tuple[str, str] | None:
    """Finds a Python of that version on this machine, as (path, version).

    Args:
        wanted: "3.11", or "3.11.7" for exactly that one.
        first: Preferred paths, in order.
        directories: More directories with installations, searched last.
    """
    minor = ".".join(wanted.split(".")[:2])
    name = f"python{minor}"
    named = [path for each in (name, "python3", "python") if (path := shutil.which(each))]
    installed = [path for path in _installed(directories) if os.path.basename(path) == name]
    seen: set[str] = set()
    for path in (*(each for each in first if each), *named, *installed):
        if path in seen:
            continue
        seen.add(path)
        version = version_of(path)
        if version is not None and matches(version, wanted):
            return path, version
    return None


def known(directories: Iterable[str] = ()) -> list[str]:
    """Lists the Pythons here, for people: `3.12.1 (/usr/bin/python3.12)` each, without shims and duplicates."""
    found: dict[str, str] = {}
    for path in (sys.executable, *_on_path(), *_installed(directories)):
        real = os.path.realpath(path)
        if path and real not in found:
            version = version_of(path)
            if version is not None:
                found[real] = f"{version} ({path})"
    return sorted(
        set(found.values()), key=lambda each: [int(n) for n in re.findall(r"\d+", each)[:3]]
    )


def _on_path() -> Iterator[str]:
    for directory in os.environ.get("PATH", os.defpath).split(":"):
        # Shims only refer to other installations, and are slow to answer.
        if os.path.basename(directory) != "shims":
            yield from _in(directory)


def _installed(directories: Iterable[str]) -> Iterator[str]:
    home = os.path.expanduser("~")
    for each in (*(os.path.join(home, name) for name in _AT_HOME), *directories):
        yield from _in(os.path.join(each, "bin"))
        for name in sorted(names_in(each), reverse=True):
            yield from _in(os.path.join(each, name, "bin"))
    for each in _ELSEWHERE:
        yield from _in(each)


def _in(directory: str) -> Iterator[str]:
    for name in sorted(names_in(directory), reverse=True):
        path = os.path.join(directory, name)
        if _NAME.fullmatch(name) and os.access(path, os.X_OK):
            yield path
