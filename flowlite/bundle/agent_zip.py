"""The node agent as one file: `flowlite/node` zipped under the name `flowlite_node`.

    __main__.py                       runs flowlite_node.__main__.main()
    flowlite_node/**/*.py, *.pyc
    packed/cloudpickle/*.py, *.pyc    for nodes without cloudpickle: `packed` is last in `sys.path`
    packed/flowlite/*.py, *.pyc       what modules that use the decorator need, for nodes without flowlite

The bytecode is not checked against the source (PEP 552). Pythons of another minor version ignore it and use the source.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import marshal
import os
import struct
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from flowlite.errors import FlowError, StoreError
from flowlite.in_worker.on_node import CARRIED
from flowlite.node.system.atomic_files import write_atomically
from flowlite.settings.flow_home import explain_os_error

_FORMAT = 3
_MAIN = """\
import sys

sys.path.append(__file__.rpartition("/")[0] + "/packed")

from flowlite_node.__main__ import main

if __name__ == "__main__":
    raise SystemExit(main())
"""
# Flags of a .pyc (PEP 552): identified by the source's hash, which is not checked.
_UNCHECKED_HASH = 0b01
# Version 2 of marshal writes no references. References would make the bytes depend on other objects of the process.
_MARSHAL = 2


class AgentZip(NamedTuple):
    """The agent's zipapp. The file is named by its hash."""

    path: Path
    sha256: str


def build_agent_zip(home: Path) -> AgentZip:
    """Returns `home/agents/<sha256>.pyz`, which is rebuilt if the sources have changed.

    `python agent.pyz ...` runs `flowlite_node.__main__.main()`, whose int (or None) is the exit code.

    Raises:
        StoreError: The file cannot be written.
    """
    files = dict(_files())
    key = _key(files)
    directory = home / "agents"
    index = directory / "index.json"
    known = _cached(index, key)
    if known is not None:
        return known
    data = _zip(files)
    sha256 = hashlib.sha256(data).hexdigest()
    path = directory / f"{sha256}.pyz"
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        # With the mode that it has on a node, a local node gets a hard link.
        write_atomically(path, data, 0o700)
        write_atomically(index, json.dumps({"key": key, "sha256": sha256}))
    except OSError as error:
        raise StoreError(
            f"the node agent cannot be written: {explain_os_error(home, error)}"
        ) from error
    return AgentZip(path, sha256)


def _files() -> Iterator[tuple[str, str]]:
    """Yields (name in the zip, file on disk) for all Python files of the zip."""
    for name, directory in (
        ("flowlite.node", "flowlite_node"),
        ("cloudpickle", "packed/cloudpickle"),
    ):
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            raise FlowError(
                f"the package {name} is not installed completely: install flowlite again"
            )
        yield from _sources(spec.submodule_search_locations[0], directory)
    house = Path(__file__).parents[1]
    for module in CARRIED:
        name = f"{module.replace('.', '/')}.py"
        yield f"packed/flowlite/{name}", str(house / name)


def _sources(directory: str, name: str) -> Iterator[tuple[str, str]]:
    """Yields (name in the zip, file on disk) for the Python files of a package and its subpackages."""
    with os.scandir(directory) as entries:
        for entry in sorted(entries, key=lambda each: each.name):
            if entry.name.endswith(".py"):
                yield f"{name}/{entry.name}", entry.path
            elif entry.is_dir() and entry.name != "__pycache__":
                yield from _sources(entry.path, f"{name}/{entry.name}")


def _key(files: dict[str, str]) -> str:
    """A key that changes whenever the time or size of a source file does."""
    facts: list[object] = [_FORMAT, sys.version_info[:3]]
    for name, path in files.items():
        status = os.stat(path)
        facts.append((name, path, status.st_mtime_ns, status.st_size))
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _cached(index: Path, key: str) -> AgentZip | None:
    try:
        known = json.loads(index.read_bytes())
        if known["key"] != key:
            return None
        path = index.parent / f"{known['sha256']}.pyz"
        data = path.read_bytes()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if hashlib.sha256(data).hexdigest() != known["sha256"]:
        return None
    return AgentZip(path, known["sha256"])


def _zip(files: dict[str, str]) -> bytes:
    import zipfile

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:

        def add(name: str, content: bytes, compression: int) -> None:
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.create_system, entry.external_attr = 3, 0o644 << 16
            entry.compress_type = compression
            archive.writestr(entry, content)

        add("__main__.py", _MAIN.encode(), zipfile.ZIP_STORED)
        for name, path in files.items():
            source = Path(path).read_bytes()
            # The bytecode is read at every start, so it is not compressed; the source is read for tracebacks only.
            add(f"{name}c", _bytecode(source, name), zipfile.ZIP_STORED)
            add(name, source, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _bytecode(source: bytes, name: str) -> bytes:
    code = compile(source, name, "exec", dont_inherit=True)
    head = importlib.util.MAGIC_NUMBER + struct.pack("<I", _UNCHECKED_HASH)
    slices: dict[bytes, Any] = {}
    body = marshal.dumps(_without_slices(code, slices), _MARSHAL)
    for stand_in, each in slices.items():
        body = body.replace(marshal.dumps(stand_in, _MARSHAL), marshal.dumps(each))
    return head + importlib.util.source_hash(source) + body


def _without_slices(constant: Any, slices: dict[bytes, Any]) -> Any:
    """Puts stand-ins in the place of slices, which Python 3.14 has among its constants and only version 5 can write."""
    if isinstance(constant, types.CodeType):
        return constant.replace(co_consts=_without_slices(constant.co_consts, slices))
    if isinstance(constant, tuple):
        return tuple(_without_slices(each, slices) for each in constant)
    if not isinstance(constant, slice):
        return constant
    stand_in = b"\0slice %d\0" % len(slices)
    slices[stand_in] = constant
    return stand_in
