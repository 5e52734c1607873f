"""The file of the running program, as it was when its first function was decorated.

Nodes load it as their main module (`node/serialization/main_module.py`). Editing the file while the program runs does
not change what later calls send.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import types
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from flowlite.node.quick_dataclass import dataclass
from flowlite.node.serialization.main_module import PROGRAM

_LONGEST = 16 * 1024 * 1024
_noted: MainFile | None = None


@dataclass(frozen=True, eq=False)
class MainFile:
    """The file that `__main__` was loaded from.

    Attributes:
        module: `__main__`.
        path: The file.
        data: Its content, as bytes.
        text: Its source.
        sha256: Hash of its content.
        name: Name of the module, if it was started as one (`python -m`).
        argv: Arguments of the program, without its name.
        started: Whether the file was started as a program, so that its code under `if __name__ == "__main__":` runs.
    """

    module: types.ModuleType
    path: str
    data: bytes
    text: str
    sha256: str
    name: str | None
    argv: tuple[str, ...]
    started: bool

    @property
    def package(self) -> str:
        """The package that its relative imports start from."""
        return "" if self.name is None else self.name.rpartition(".")[0]

    @property
    def root(self) -> str:
        """The directory that it needs in `sys.path`."""
        above = os.path.dirname(self.path)
        for _ in range(self.package.count(".") + 1 if self.package else 0):
            above = os.path.dirname(above)
        return above


def note_main_file() -> MainFile | None:
    """The file of `__main__`; None if it has none, as in a notebook or an interactive session."""
    global _noted
    main = sys.modules.get("__main__")
    if main is None:
        return None
    if _noted is None or _noted.module is not main:
        _noted = _read(main)
    return _noted


def read_main_file(path: str, name: str | None, argv: Sequence[str]) -> MainFile:
    """Reads a file that will be loaded as the main module but not started (`node/serialization/main_module.py`).

    Raises:
        OSError: It cannot be read.
        SyntaxError: Its encoding is unknown.
        UnicodeDecodeError: It cannot be decoded with its encoding.
    """
    data = Path(path).read_bytes()
    return MainFile(
        sys.modules["__main__"],
        path,
        data,
        importlib.util.decode_source(data),
        hashlib.sha256(data).hexdigest(),
        name,
        tuple(argv),
        False,
    )


def set_main_file(file: MainFile) -> None:
    """Records a file that was loaded as the main module but not started."""
    global _noted
    _noted = replace(file, module=sys.modules["__main__"])


def _read(main: types.ModuleType) -> MainFile | None:
    path = getattr(main, "__file__", None)
    try:
        if not isinstance(path, str) or not 0 < os.path.getsize(path) < _LONGEST:
            return None
        spec = getattr(main, "__spec__", None)
        name = None if spec is None else spec.name
        file = read_main_file(os.path.abspath(path), name, sys.argv[1:])
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None
    main.__dict__[PROGRAM] = file.sha256
    return replace(file, module=main, started=True)
