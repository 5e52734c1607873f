"""Rewrites the environment, command line and name that /proc shows of this process.

All processes of a task are found by `FLOW_TASK_ID` in the environment in /proc. A reaper that is forked from a fork
server for many tasks has inherited that process's environment, so it first writes its own task there. The kernel reads
these bytes from the memory of the process, so this needs no privilege.
"""

from __future__ import annotations

import os

from . import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PADDING = "FLOW_WARM_PADDING"
"""A variable that only reserves space; `room` returns its value."""
_ROOM = 512
_ARGUMENTS_BEGIN, _ARGUMENTS_END, _ENVIRONMENT_BEGINS, _ENVIRONMENT_ENDS = 45, 46, 47, 48


_PR_SET_NAME, _PR_SET_MM, _PR_SET_MM_MAP = 15, 35, 14
# start_code, end_code, start_data, end_data, start_brk, then brk from sbrk(), then the start of the stack.
_MAP_FIELDS = (23, 24, 42, 43, 44)
_STACK = 25
_shown: list[object] = []


def become(name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Makes /proc show this process as one that was started with a command and environment, as far as the kernel lets.

    The kernel is given new memory for both (PR_SET_MM_MAP, which needs no privilege). Where it refuses, as much is
    written over the old ones as there is room for.
    """
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_NAME, os.fsencode(name)[:15] + b"\0", 0, 0, 0)
    words = b"".join(os.fsencode(word) + b"\0" for word in command)
    block = _block(environment)
    if not _map(words, block):
        mark(environment, command)


def _block(environment: Mapping[str, str]) -> bytes:
    """Returns an environment as the kernel has it. A value need not be UTF-8."""
    return b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items())


def _map(words: bytes, block: bytes) -> bool:
    """Points the kernel to new memory with a command line and environment."""
    import ctypes
    import mmap

    class Map(ctypes.Structure):
        _fields_ = (*((f"at{each}", ctypes.c_uint64) for each in range(11)), ("auxv", ctypes.c_uint64),
                    ("auxv_size", ctypes.c_uint32), ("exe", ctypes.c_uint32))  # fmt: skip

    fields = _own_stat()
    if not fields:
        return False
    # The kernel shows private memory only.
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, len(words) + len(block) + 1, private)
    memory.write(words + block)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    library = ctypes.CDLL(None)
    library.sbrk.restype = ctypes.c_void_p
    middle = begin + len(words)
    values = [*(fields[each] for each in _MAP_FIELDS), library.sbrk(0), fields[_STACK],
              begin, middle, middle, middle + len(block)]  # fmt: skip
    made = Map(*values, 0, 0, 0xFFFFFFFF)
    if library.prctl(_PR_SET_MM, _PR_SET_MM_MAP, ctypes.byref(made), ctypes.sizeof(made), 0) != 0:
        return False
    _shown.append(memory)
    _move_environment(middle, block)
    return True


def _move_environment(address: int, block: bytes) -> None:
    """Makes the C library read the environment from this block: programs look for their command line before it.

    `setproctitle` and others write their title there, as /proc shows it.
    """
    import ctypes

    places, at = [], address
    for each in block.split(b"\0")[:-1]:
        places.append(at)
        at += len(each) + 1
    array = (ctypes.c_void_p * (len(places) + 1))(*places, None)
    try:
        ctypes.c_void_p.in_dll(ctypes.CDLL(None), "environ").value = ctypes.addressof(array)
    except ValueError:
        return
    _shown.append(array)


def _own_stat() -> list[int]:
    """Returns the numbers of /proc/self/stat from the state on, for which 0 stands; [] where there is no such file."""
    try:
        with open("/proc/self/stat", "rb") as file:
            return [0, *map(int, file.read().rpartition(b")")[2].split()[1:])]
    except OSError:
        return []


def room() -> str:
    """Returns the value of `PADDING` for a process whose children will be marked."""
    return "." * _ROOM


def mark(variables: Mapping[str, str], command: Sequence[str] = ()) -> bool:
    """Makes /proc show these variables, and no others, as the environment that this process was started with.

    `os.environ` is not changed. Returns False, and changes nothing, if this is impossible.

    Args:
        command: The command line to show, if there is room for it.
    """
    if not processes.LINUX:
        return False
    import ctypes

    block = _block(variables)
    fields = _own_stat()
    if not fields:
        return False
    begin, end = fields[_ENVIRONMENT_BEGINS], fields[_ENVIRONMENT_ENDS]
    if not begin or end - begin < len(block):
        return False
    # getenv() in the C library must not read from the memory that is overwritten below.
    for name, value in os.environ.items():
        os.putenv(name, value)
    words = b"".join(os.fsencode(word) + b"\0" for word in command)
    first, last = fields[_ARGUMENTS_BEGIN], fields[_ARGUMENTS_END]
    if words and first and len(words) <= last - first:
        ctypes.memmove(first, words.ljust(last - first, b"\0"), last - first)
    # Last, because the process is found by it: whoever finds it then sees its command line.
    ctypes.memmove(begin, block.ljust(end - begin, b"\0"), end - begin)
    return True
