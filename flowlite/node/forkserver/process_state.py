"""What an import changes in its process that a forked worker does not have.

A worker is forked with most of what imports have done. The exceptions are here: the kernel does not pass timers on,
`random` seeds itself again after a fork, and each worker sets signals and its working directory itself. A module that
has set one of them when it was imported is left to the ranks.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys

from ..system import processes
from ..worker import renewed_modules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# The signals that a worker sets (worker/worker.py, worker/script.py). Others are inherited.
_SET_BY_WORKERS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCHLD,
    signal.SIGPIPE,
    signal.SIGXFSZ,
)
# The handlers of SIGINT that a Python has at its start.
_NOT_SET = (signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler)
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
# The generator of `random` has so many words of state, and replaces them all when it has given that many.
_WORDS = 624
_MOST_DRAWN = 100


class ProcessState:
    """The state of this process before an import, as far as workers do not inherit it."""

    def __init__(self) -> None:
        masks = _masks()
        self._signals = {number: _handling(number, masks) for number in _SET_BY_WORKERS}
        self._timers = _running()
        self._directory = _directory()
        self._random = _state_of_random()
        self._path = list(sys.path)
        self._children = processes.children_of_mine() or set()

    def change(self, *, before_script: bool = False) -> str:
        """Returns what has been done to this process since, as the predicate of a sentence; "" for nothing.

        Args:
            before_script: Whether a Python would do it, too, before it puts the script's directory first in `sys.path`.
        """
        masks = _masks()
        for number, before in self._signals.items():
            if _handling(number, masks) != before:
                return f"handles {number.name}"
        if _running() != self._timers:
            return "sets a timer"
        if _directory() != self._directory:
            return "changes the working directory"
        if not before_script and sys.path[: len(self._path)] != self._path:
            return "puts something first in sys.path"
        if (processes.children_of_mine() or set()) - self._children:
            return "starts a process"
        seeded = _is_numpy_seeded() or renewed_modules.is_torch_seeded()
        if seeded or _was_seeded(self._random, _state_of_random()):
            return "seeds random numbers, or takes very many"
        return ""


def change_before_site_ended() -> str:
    """Returns what .pth files have done to this process, which was started in `/`; "" for nothing.

    Call it in a held Python before the fork server sets any signal.
    """
    masks = _masks()
    if signal.getsignal(signal.SIGINT) not in _NOT_SET:
        return "handles SIGINT"
    for number in _SET_BY_WORKERS:
        # Which signals are ignored, Python has inherited.
        if number != signal.SIGINT and _is_in(number, masks.get("SigCgt", 0)):
            return f"handles {number.name}"
    if _running():
        return "sets a timer"
    return "changes the working directory" if _directory() != "/" else ""


def _handling(number: int, masks: dict[str, int]) -> tuple[Any, ...]:
    """What happens at a signal. `faulthandler` and libraries in C handle signals without Python's knowledge."""
    return signal.getsignal(number), *(_is_in(number, mask) for mask in masks.values())


def _is_in(number: int, mask: int) -> bool:
    return bool(mask >> (number - 1) & 1)


def _masks() -> dict[str, int]:
    """The signals that this process catches and ignores, as the kernel has them; nothing where it does not tell."""
    found = {}
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name in ("SigCgt", "SigIgn"):
                found[name] = int(value, 16)
    return found


def _running() -> tuple[int, ...]:
    return tuple(each for each in _TIMERS if signal.getitimer(each)[0])


def _directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""


def _state_of_random() -> Any:
    """The state of the generator of `random`; None if a module of the project has that name."""
    getstate = getattr(random, "getstate", None)
    return None if getstate is None else getstate()


def _is_numpy_seeded() -> bool:
    """Whether the global generator of numpy has another seed than the one from the kernel that it begins with."""
    generator = getattr(sys.modules.get("numpy.random.mtrand"), "_rand", None)
    bits = getattr(generator, "_bit_generator", None)
    # After `seed()` it has no sequence of seeds any more.
    return bits is not None and getattr(bits, "_seed_seq", bits) is None


def _was_seeded(before: Any, after: Any) -> bool:
    """Whether a generator was given another state, rather than asked for some numbers."""
    if before == after:
        return False
    twin = random.Random()
    twin.setstate(before)
    for _ in range(_MOST_DRAWN):
        if twin.getstate()[1][:_WORDS] == after[1][:_WORDS]:
            return False
        twin.getrandbits(32 * _WORDS)
    return True
