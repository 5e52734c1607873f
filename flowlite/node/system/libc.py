"""System calls that Python 3.11 does not have, and the flags of mount(2) and clone(2)."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CLONE_NEWNS = 0x00020000
MS_RDONLY = 1
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_SLAVE = 1 << 19
NOSUID_NODEV = 2 | 4
MNT_DETACH = 2


class Libc:
    """The few system calls that Python 3.11 does not have."""

    def __init__(self) -> None:
        import ctypes

        self._ctypes = ctypes
        self._library = ctypes.CDLL(None, use_errno=True)

    def call(self, name: str, *arguments: Any) -> int:
        """Calls a C function; a negative result becomes OSError."""
        result = int(getattr(self._library, name)(*arguments))
        if result < 0:
            number = self._ctypes.get_errno()
            raise OSError(number, f"{name}: {os.strerror(number)}")
        return result

    def mount(
        self, source: str | None, target: str, kind: str | None, flags: int, data: str = ""
    ) -> None:
        self.call(
            "mount",
            source.encode() if source is not None else None,
            target.encode(),
            kind.encode() if kind is not None else None,
            self._ctypes.c_ulong(flags),
            data.encode(),
        )
