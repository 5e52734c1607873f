"""The `uv` program for a node's platform, from this machine or from the package index.

Programs are stored under FLOW_HOME/cache/uv, by platform. pip (or uv) checks a download against the hash that the index
gives, and the program is checked against the record in its wheel.
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from flowlite.connect.values import hash_of
from flowlite.errors import ProviderError
from flowlite.node.python_env import uv
from flowlite.node.system import atomic_files
from flowlite.node.system.atomic_files import write_atomically

_FETCH_SECONDS = 300.0
# pip's names of the platforms. The musl builds are linked statically and run with glibc, too.
_PIP_PLATFORMS = {
    "linux-x86_64": "musllinux_1_1_x86_64",
    "linux-aarch64": "musllinux_1_1_aarch64",
    "darwin-arm64": "macosx_11_0_arm64",
    "darwin-x86_64": "macosx_10_12_x86_64",
}
_UV_PLATFORMS = {
    "linux-x86_64": "x86_64-unknown-linux-musl",
    "linux-aarch64": "aarch64-unknown-linux-musl",
    "darwin-arm64": "aarch64-apple-darwin",
    "darwin-x86_64": "x86_64-apple-darwin",
}

_fetching = threading.Lock()
_finding = threading.Lock()


class Program(NamedTuple):
    """A uv program for one platform."""

    path: Path
    sha256: str


def programs_for(platform: str, home: Path) -> Iterator[Program]:
    """Yields uv programs for a platform (as `flowlite.node.python_env.uv.platform` names it), a local one first.

    Raises:
        ProviderError: There is no local program, and none can be fetched; the message says why.
    """
    own = uv_here() if platform == uv.platform() else None
    if own is not None:
        yield _kept(home, platform, own)
    name = "-".join(platform.split("-")[:2])
    if name not in _PIP_PLATFORMS:
        raise ProviderError(f"there is no uv for {platform}")
    # Many nodes are prepared in parallel; the first of them fetches the program for all.
    with _fetching:
        yield _known(home, name) or _fetch(home, name)


def uv_here() -> Path | None:
    """The uv of this machine: from the package `uv`, else from PATH."""
    try:
        from uv import find_uv_bin

        # Its first call fills the tables of sysconfig, which another thread would meet half filled (Python 3.11).
        with _finding:
            return Path(find_uv_bin())
    except (ImportError, FileNotFoundError):
        found = uv.own()
        return Path(found) if found else None


def _directory(home: Path) -> Path:
    return home / "cache" / "uv"


def _known(home: Path, name: str) -> Program | None:
    path = _directory(home) / name / "uv"
    try:
        sha256 = json.loads(path.with_name("uv.json").read_bytes())["sha256"]
        found = hash_of(path)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Program(path, found) if found == sha256 else None


def _kept(home: Path, platform: str, own: Path) -> Program:
    """This machine's program with its hash, which is cached because it takes long to compute."""
    facts = own.stat()
    key = [str(own), facts.st_size, facts.st_mtime_ns]
    note = _directory(home) / f"{platform}.json"
    try:
        known = json.loads(note.read_bytes())
        if known["key"] == key:
            return Program(own, str(known["sha256"]))
    except (OSError, ValueError, KeyError, TypeError):
        pass
    sha256 = hash_of(own)
    atomic_files.place(json.dumps({"key": key, "sha256": sha256}).encode(), str(note), 0o600)
    return Program(own, sha256)


def _fetch(home: Path, name: str) -> Program:
    directory = _directory(home)
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=directory, prefix=".fetch-") as place:
        program = _with_pip(Path(place), name) or _with_uv(Path(place), name)
        data = program.read_bytes()
    sha256 = hashlib.sha256(data).hexdigest()
    target = directory / name / "uv"
    atomic_files.place(data, str(target), 0o700)
    write_atomically(target.with_name("uv.json"), json.dumps({"sha256": sha256}))
    return Program(target, sha256)


def _with_pip(place: Path, name: str) -> Path | None:
    """Downloads the wheel with pip, as configured here; None if there is no pip."""
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    argv += ["--no-deps", "--only-binary", ":all:", "--platform", _PIP_PLATFORMS[name]]
    done = _run([*argv, "--dest", str(place), "uv"])
    if b"No module named pip" in done.stderr:
        return None
    wheels = list(place.glob("uv-*.whl"))
    if done.returncode != 0 or not wheels:
        raise _unfetched(name, done)
    return _unpack(wheels[0], place / "uv")


def _with_uv(place: Path, name: str) -> Path:
    """Installs the package into a separate directory with the uv of this machine."""
    here = uv_here()
    if here is None:
        raise ProviderError(
            f"uv for {name} cannot be fetched: neither pip nor uv is installed here. Install one of them "
            f"(`{sys.executable} -m ensurepip`), or install uv on the node"
        )
    argv = [str(here), "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"]
    argv += ["--python-platform", _UV_PLATFORMS[name], "--target", str(place / "package"), "uv"]
    done = _run(argv)
    found = place / "package" / "bin" / "uv"
    if done.returncode != 0 or not found.is_file():
        raise _unfetched(name, done)
    return found


def _unpack(wheel: Path, target: Path) -> Path:
    """Extracts the program from a wheel after checking it against the wheel's record."""
    with zipfile.ZipFile(wheel) as archive:
        member = next((m for m in archive.namelist() if m.endswith(".data/scripts/uv")), None)
        record = next((m for m in archive.namelist() if m.endswith(".dist-info/RECORD")), None)
        if member is None or record is None:
            raise ProviderError(f"{wheel.name} has no program in it")
        data = archive.read(member)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        line = f"{member},sha256={digest},"
        if not any(each.startswith(line) for each in archive.read(record).decode().splitlines()):
            raise ProviderError(f"{wheel.name} is damaged: {member} is not what its record says")
    target.write_bytes(data)
    return target


def _run(argv: list[str]) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            argv,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_FETCH_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ProviderError(f"{argv[0]} did not fetch uv within {_FETCH_SECONDS:.0f} s") from error


def _unfetched(name: str, done: subprocess.CompletedProcess[bytes]) -> ProviderError:
    said = uv.without_credentials(done.stderr.decode(errors="replace")).strip().splitlines()
    return ProviderError(
        f"uv for {name} cannot be fetched from the package index of this machine: {' '.join(said[-2:])[:400]}"
    )
