"""Decides which functions and variables of the program's own file, which nodes load as `__main__`, a call sends.

A function or class of the file is sent by name, since the node loads the same file. The global variables that it uses
are sent with it if the program may have changed them since the file was loaded (`changed_globals.py`). A function
that the file does not have under its name (a lambda, a closure, one that was typed at a prompt) is sent by value,
with everything that it uses.
"""

from __future__ import annotations

import dis
import sys
import threading
import types
from collections.abc import Iterable, Iterator
from functools import _lru_cache_wrapper, cached_property, partial
from itertools import islice
from typing import Any

from flowlite.bundle import scan
from flowlite.bundle.changed_globals import Changes, changes_of
from flowlite.bundle.main_file import MainFile
from flowlite.errors import BundleError
from flowlite.node.serialization import pickling
from flowlite.node.serialization.main_module import compile_main

# How many levels of lists and dictionaries are searched for functions of the program.
_DEEPEST = 3
_MOST_ITEMS = 1000
_PLAIN = (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, type(None))


class MainProgram:
    """The running program, as nodes will load it.

    Attributes:
        file: Its file.
        code: The code that nodes run when they load it.
    """

    def __init__(self, file: MainFile) -> None:
        """Raises SyntaxError if the file is not valid Python."""
        self.file = file
        self.namespace: dict[str, Any] = file.module.__dict__
        self.code = compile_main(file.text, file.path)
        self._functions: dict[str, list[types.CodeType]] = {}
        self._classes: set[str] = set()
        self._index(self.code)
        self._bound = set(_stored(self.code))

    # References by name

    def holds(self, value: Any) -> bool:
        """Whether a node finds this same function or class in the file by its name."""
        name = getattr(value, "__qualname__", None)
        if not isinstance(name, str) or getattr(value, "__module__", None) != "__main__":
            return False
        held = pickling.held_under(self.file.module, name)
        if pickling.unwrap(held, until=value) is not value:
            return False
        if isinstance(value, type):
            return name in self._classes and self._has_methods_of_file(value)
        return name in self._functions and self._is_code_of_file(name, value)

    def is_of_file(self, function: types.FunctionType) -> bool:
        """Whether a function is defined by code of the file, so that its globals are those of the file."""
        return (
            function.__globals__ is self.namespace
            and function.__code__.co_filename == self._filename
        )

    @cached_property
    def _filename(self) -> str:
        # The name that the interpreter gives the file; under pdb and the like, it differs from the path.
        own = getattr(self.file.module, "__file__", None)
        return own if isinstance(own, str) else self.file.path

    def _is_code_of_file(self, name: str, function: Any) -> bool:
        seen = 0
        while function is not None and seen < 16:
            code = getattr(function, "__code__", None)
            if code in self._functions[name]:
                return True
            # Decorators that use functools.wraps set `__wrapped__`.
            function, seen = getattr(function, "__wrapped__", None), seen + 1
        return False

    def _has_methods_of_file(self, kind: type) -> bool:
        own = [
            each
            for name, each in vars(kind).items()
            if isinstance(each, types.FunctionType)
            and each.__qualname__ == f"{kind.__qualname__}.{name}"
            and each.__qualname__ in self._functions
        ]
        return not own or any(each.__code__ in self._functions[each.__qualname__] for each in own)

    def _index(self, code: types.CodeType) -> None:
        for constant in _code_loaded_by(code):
            if constant.co_name.startswith("<generic parameters"):
                self._index(constant)
            elif constant.co_flags & 0x2:
                self._functions.setdefault(constant.co_qualname, []).append(constant)
            else:
                self._classes.add(constant.co_qualname)
                self._index(constant)

    # Values to send

    def state_of(self, value: Any) -> dict[str, Any]:
        """The global variables, by name, that the node must set in `__main__` for this function or class."""
        names: set[str] = set()
        self._follow(value, names, set(), 0)
        return {
            name: self.namespace[name]
            for name in sorted(names)
            if name in self.namespace and self.must_send(name, self.namespace[name])
        }

    def attributes_of(self, kind: type) -> dict[str, Any]:
        """The plain attributes of a class of the file that may have changed since the file was loaded."""
        if type(kind) is not type or kind.__qualname__ not in self._changes.touched:
            return {}
        return {
            name: value
            for name, value in vars(kind).items()
            if not name.startswith("__") and isinstance(value, _PLAIN) and _can_travel(value)
        }

    def must_send(self, name: str, value: Any) -> bool:
        """Whether a global variable may have another value than the one that loading the file gives it."""
        if name.startswith("__") and name.endswith("__"):
            return False
        raw = pickling.unwrap(value)
        if isinstance(raw, types.FunctionType | type) and self.holds(raw):
            return raw.__name__ != name or (isinstance(raw, type) and bool(self.attributes_of(raw)))
        if name not in self._bound or name in self._changes.assigned:
            return True
        if isinstance(value, types.ModuleType | type):
            return False
        if self._changes.everything:
            return _can_travel(value)
        if name not in self._changes.touched:
            return False
        return not _is_immutable(value) and _can_travel(value)

    @cached_property
    def _changes(self) -> Changes:
        return changes_of(self.file.text) if self.file.started else Changes()

    def _follow(self, value: Any, names: set[str], seen: set[int], depth: int) -> None:
        """Collects the global names that a value's code uses, directly or through other code of the program."""
        value = pickling.unwrap(value)
        if id(value) in seen or depth > _DEEPEST:
            return
        if isinstance(value, type):
            if value.__module__ == "__main__":
                seen.add(id(value))
                for each in (type(value), *_attributes_of(value)):
                    self._follow(each, names, seen, 0)
        elif isinstance(value, dict | list | tuple | set | frozenset) and len(value) < _MOST_ITEMS:
            for each in value.values() if isinstance(value, dict) else value:
                self._follow(each, names, seen, depth + 1)
        elif _may_hold_code(value):
            seen.add(id(value))
            if isinstance(value, types.FunctionType) and value.__globals__ is self.namespace:
                for name in scan.global_names(value.__code__):
                    if name in self.namespace:
                        names.add(name)
                        self._follow(self.namespace[name], names, seen, 0)
            # What a decorator returns, of the file or of a library, calls the file's function.
            for each in _held_by(value):
                self._follow(each, names, seen, depth + (not _may_hold_code(each)))
        else:
            self._follow(type(value), names, seen, 0)
            of_file = type(value).__module__ == "__main__"
            for each in _instance_attributes(value):
                if _may_hold_code(each) or (of_file and _may_hold_objects(each)):
                    self._follow(each, names, seen, depth + 1)

    # Place of the call

    def refuse_top_level(self) -> None:
        """Raises BundleError if the call is made by a line that nodes would execute as well."""
        if not self.file.started:
            return
        main_thread = threading.main_thread().ident
        frame = sys._current_frames().get(main_thread) if main_thread is not None else None
        while frame is not None:
            if self._is_at_top_level(frame):
                raise BundleError(
                    f"{self.file.path}, line {frame.f_lineno}: a task is started at the top level of the file. Workers "
                    "load the file, and would come to this line, too; put it under "
                    '`if __name__ == "__main__":`'
                )
            frame = frame.f_back

    def _is_at_top_level(self, frame: types.FrameType) -> bool:
        """Whether a frame executes top-level code of the program that nodes execute as well."""
        return (
            frame.f_globals is self.namespace
            and frame.f_code.co_name == "<module>"
            and frame.f_code.co_filename == self._filename
            and _position(frame) in set(self.code.co_positions())
        )


def _position(frame: types.FrameType) -> tuple[int | None, ...]:
    """Lines and columns of a frame's current instruction. `if __name__ == "__main__": f.remote()` may be one line."""
    # `f_lasti` is in bytes; an instruction takes two.
    return next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))


def _attributes_of(kind: type) -> Iterator[Any]:
    """The attributes of a class of the file, and of its bases in the file, that may be or hold functions."""
    for base in kind.__mro__:
        if base.__module__ != "__main__":
            continue
        for each in vars(base).values():
            # Of properties, cached ones too, partial methods, static methods and class methods.
            for name in ("fget", "fset", "func", "__func__"):
                if (inner := getattr(each, name, None)) is not None and _may_hold_code(inner):
                    yield inner
            if _may_hold_code(each) or isinstance(each, type):
                yield each


def _may_hold_code(value: Any) -> bool:
    """Whether this is a function, or something that a library makes of one: a cache, a partial, a bound method."""
    return isinstance(value, types.FunctionType | types.MethodType | partial | _lru_cache_wrapper)


def _may_hold_objects(value: Any) -> bool:
    """Whether this is an object of the file, or a container of such."""
    return (
        isinstance(value, dict | list | tuple | set | frozenset)
        or type(value).__module__ == "__main__"
    )


def _held_by(value: Any) -> Iterator[Any]:
    """What a function, or something made of one, uses besides global variables."""
    if isinstance(value, types.MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, types.FunctionType):
        yield from (value.__defaults__ or (), value.__kwdefaults__ or {})
        for cell in value.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:
                continue  # it is empty
    if (wrapped := getattr(value, "__wrapped__", None)) is not None:
        yield wrapped


def _instance_attributes(value: Any) -> list[Any]:
    """Returns the attributes of an object itself, without running code of its class."""
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return []
    return list(own.values()) if isinstance(own, dict) and len(own) < _MOST_ITEMS else []


def _stored(code: types.CodeType) -> Iterable[str]:
    return {
        each.argval
        for each in dis.get_instructions(code)
        if each.opname in ("STORE_NAME", "STORE_GLOBAL")
    }


def _code_loaded_by(code: types.CodeType) -> Iterator[types.CodeType]:
    """The functions and classes that instructions make. Python 3.11 has more: those under a false `if`."""
    for each in dis.get_instructions(code):
        if each.opcode in dis.hasconst and isinstance(each.argval, types.CodeType):
            yield each.argval


def _is_immutable(value: Any) -> bool:
    """Whether a value cannot have been changed in place."""
    if hasattr(value, "__dict__"):
        return False
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _can_travel(value: Any) -> bool:
    try:
        pickling.dumps(value)
    except Exception:
        return False
    return True
