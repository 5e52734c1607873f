"""Changes what a Python interpreter is about to run, before it runs it.

The interpreter has the script or module of its command line in its configuration (PyConfig), and reads it from there
when `site` has been imported. A Python that is started with a placeholder can be given another target until then. The
strings are found by their contents and overwritten where they are, so no layout of any version is assumed. Memory is
read through /proc/self/mem, where a wrong address is an error and not a crash.
"""

from __future__ import annotations

import os
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_CONFIGURATION_BYTES = 1024
_RUNTIME_BYTES = 1 << 20
_WORD = 8
LONGEST = 4000
"""The longest path of a script, or name of a module, that there is room for."""


def placeholder(text: str, *, module: bool) -> str:
    """Returns what a Python is started with in the place of a script or module. Nothing has this name."""
    name = "".join(each if each.isalnum() else "_" for each in text)[:100]
    return f"{'' if module else '/'}held_by_flowlite_{name}".ljust(LONGEST + 1, "_")


class InterpreterTarget(NamedTuple):
    """Where the interpreter has the name of what it will run.

    Attributes:
        run: Address of the script's path, or of the module's name.
        argument: Address of the first of the script's arguments, which is the path as it was given; 0 for a module.
    """

    run: int
    argument: int

    def set(self, run: str, argument: str) -> None:
        """Writes another target over the placeholder, which has room for `LONGEST` characters."""
        import ctypes

        for place, text in ((self.run, run), (self.argument, argument)):
            if place:
                data = _encoded(text)
                ctypes.memmove(place, data, len(data))


def tell_command(words: Sequence[str]) -> None:
    """Makes `Py_GetArgcArgv` return these words. Nothing happens where the interpreter is not understood.

    `setproctitle` counts them to find the command line in memory.
    """
    import ctypes

    count, items = ctypes.c_int(), ctypes.c_void_p()
    try:
        ctypes.pythonapi.Py_GetArgcArgv(ctypes.byref(count), ctypes.byref(items))
        runtime = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
        memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    except (AttributeError, ValueError, OSError):
        return
    try:
        held = _read(memory, runtime, _RUNTIME_BYTES)
    finally:
        os.close(memory)
    wanted = _list_of(count.value, items.value or 0)
    at = held.find(wanted)
    if at < 0 or held.find(wanted, at + 1) >= 0:
        return
    # The interpreter frees them at its end.
    allocate = ctypes.CDLL(None).malloc
    allocate.restype, allocate.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    pointers = []
    for each in words:
        data = _encoded(each)
        pointers.append(allocate(len(data)))
        ctypes.memmove(pointers[-1], data, len(data))
    array = b"".join(each.to_bytes(_WORD, "little") for each in pointers)
    place = allocate(len(array))
    ctypes.memmove(place, array, len(array))
    ctypes.memmove(runtime + at, _list_of(len(pointers), place), len(wanted))


def _list_of(count: int, items: int) -> bytes:
    """Returns a list of texts as the interpreter has it (PyWideStringList)."""
    return count.to_bytes(_WORD, "little") + items.to_bytes(_WORD, "little")


def find(expected: str, *, module: bool) -> InterpreterTarget | None:
    """Returns where the interpreter has this placeholder; None if its configuration is not understood."""
    import ctypes

    try:
        get = ctypes.pythonapi._Py_GetConfig
        memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    except (AttributeError, OSError):
        return None
    get.restype = ctypes.c_void_p
    wanted = _encoded(expected)
    try:
        words = _read(memory, int(get()), _CONFIGURATION_BYTES)
        direct, indirect = set(), set()
        for at in range(0, len(words), _WORD):
            address = int.from_bytes(words[at : at + _WORD], "little")
            if _read(memory, address, len(wanted)) == wanted:
                direct.add(address)
            # `argv` is a list of pointers.
            address = int.from_bytes(_read(memory, address, _WORD), "little")
            if _read(memory, address, len(wanted)) == wanted:
                indirect.add(address)
    finally:
        os.close(memory)
    if len(direct) != 1 or len(indirect) != (0 if module else 1):
        return None
    return InterpreterTarget(direct.pop(), 0 if module else indirect.pop())


def _encoded(text: str) -> bytes:
    return f"{text}\0".encode("utf-32-le", "surrogatepass")


def _read(memory: int, address: int, count: int) -> bytes:
    try:
        return os.pread(memory, count, address)
    except (OSError, OverflowError):
        return b""
