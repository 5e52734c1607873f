"""Records what a module asks of its process while it is imported: the working directory, arguments, temporary files.

A fork server runs in `/`, without a script and its arguments. During an import, this module replaces some functions of
`os` and `builtins`, `sys.argv` and `__main__` by stand-ins. They record each request and the module that makes it.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType
    from typing import Any

DIRECTORY = "the working directory"
ARGUMENTS = "the arguments"
MAIN_FILE = "the file of the main module"
TEMPORARY = "a temporary file"
"""A file or directory of `tempfile`. The first rank to end would remove it for all others."""
_WITH_PATH = ("stat", "lstat", "listdir", "scandir", "open", "access", "mkdir")
# The functions that make temporary files. Others of tempfile open one only to see whether a directory can be used.
_MAKE_TEMPORARY = ("mkdtemp", "_mkstemp_inner", "TemporaryFile")


class _Function:
    """A stand-in for a function. It equals that one (`os.supports_fd` has functions), and is no method of a class."""

    def __init__(self, function: Callable[..., Any], look: Callable[..., None]) -> None:
        self.function, self._look = function, look

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self._look(sys._getframe(1), *arguments, **options)
        return self.function(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.function, name)

    def __eq__(self, other: object) -> bool:
        return other is self or other == self.function

    def __hash__(self) -> int:
        return hash(self.function)


class _Arguments(list[str]):
    """`sys.argv`, which tells when it is read."""

    look: Callable[[FrameType], None]

    def __getitem__(self, index: Any) -> Any:
        self.look(sys._getframe(1))
        return list.__getitem__(self, index)

    def __iter__(self) -> Iterator[str]:
        self.look(sys._getframe(1))
        return list.__iter__(self)

    def __len__(self) -> int:
        self.look(sys._getframe(1))
        return list.__len__(self)


class _Main(types.ModuleType):
    """The class of `__main__` while something is imported."""

    look: Callable[[FrameType], None]

    def __getattribute__(self, name: str) -> Any:
        if name == "__file__":
            _Main.look(sys._getframe(1))
        return types.ModuleType.__getattribute__(self, name)


@contextlib.contextmanager
def watched(
    note: Callable[[str, FrameType | None], None], file: Callable[..., None]
) -> Iterator[None]:
    """A context in which one module is imported.

    Args:
        note: Called with what is asked for, a constant of this module, and the frame that asks.
        file: Called with the relative path of a file that is asked for, and that frame.
    """

    def look_at_path(frame: FrameType, path: Any = ".", *_: Any, **options: Any) -> None:
        asking: FrameType | None = frame
        maker = None
        while asking is not None and asking.f_globals.get("__name__") in ("tempfile", __name__):
            maker, asking = maker or asking.f_code.co_name, asking.f_back
        if maker in _MAKE_TEMPORARY:
            note(TEMPORARY, asking)
        elif options.get("dir_fd") is None and isinstance(path, str | bytes | os.PathLike):
            name = os.fsdecode(path)
            if name.rstrip("/") == ".":
                note(DIRECTORY, frame)
            # Names of code that comes from no file look like `<frozen os>`.
            elif name and not name.startswith(("/", "<")):
                file(name, frame)

    places = [*((os, each) for each in _WITH_PATH), (builtins, "open"), (io, "open")]
    stand_ins = [
        (place, name, _Function(getattr(place, name), look_at_path)) for place, name in places
    ]
    stand_ins.append((os, "getcwd", _Function(os.getcwd, lambda frame: note(DIRECTORY, frame))))
    arguments, main, before = sys.argv, sys.modules.get("__main__"), frozenset(sys.modules)
    given = _Arguments(arguments)
    given.look = lambda frame: note(ARGUMENTS, frame)
    _Main.look = lambda frame: note(MAIN_FILE, frame)
    plain = type(main) is types.ModuleType
    for place, name, stand_in in stand_ins:
        setattr(place, name, stand_in)
    sys.argv = given
    if plain and main is not None:
        main.__class__ = _Main
    try:
        yield
    finally:
        if plain and main is not None:
            main.__class__ = types.ModuleType
        if sys.argv is given:
            sys.argv = arguments
        for place, name, stand_in in stand_ins:
            # What has been put there by the import stays.
            if getattr(place, name) is stand_in:
                setattr(place, name, stand_in.function)
        for name in [each for each in sys.modules if each not in before]:
            _take_back(getattr(sys.modules[name], "__dict__", {}), given, note)


def _take_back(
    names: dict[str, Any], arguments: _Arguments, note: Callable[[str, FrameType | None], None]
) -> None:
    """Gives a module that has imported a stand-in (`from os import getcwd`) the function itself."""
    for name, value in list(names.items()):
        if type(value) is _Function:
            names[name] = value.function
        elif value is arguments:
            note(ARGUMENTS, None)
