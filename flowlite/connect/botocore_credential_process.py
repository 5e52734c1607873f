"""The program that gives credentials of AWS (`credential_process` of a profile), with a bound on its time.

botocore waits for it without end, and its other failures are not told from defects. A program whose login is locked may
wait for a person who is not there, and some print a message, or nothing, instead of failing.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from botocore.exceptions import CredentialRetrievalError

# It may have somebody log in by a browser.
_SECONDS = 300.0


def bound(provider: Any) -> None:
    """Bounds the programs that a provider of credentials of botocore starts, by itself or for another profile."""
    if provider.METHOD == "custom-process":
        provider._popen = _Program
    builder = getattr(provider, "_profile_provider_builder", None)
    if (make := getattr(builder, "_create_process_provider", None)) is not None:

        def made(*args: Any, **options: Any) -> Any:
            found = make(*args, **options)
            bound(found)
            return found

        builder._create_process_provider = made  # type: ignore[union-attr]


class _Program:
    """What botocore uses of a process. It fails with an error of botocore only."""

    def __init__(self, argv: Sequence[str], **pipes: Any) -> None:
        if not argv:
            raise _failed("it is empty")
        try:
            self._process = subprocess.Popen(argv, **pipes)
        except OSError as error:
            raise _failed(f"{argv[0]} cannot be started: {error.strerror or error}") from None

    @property
    def returncode(self) -> int:
        """The exit status."""
        return int(self._process.returncode)

    def communicate(self) -> tuple[bytes, bytes]:
        """What it has printed, once it has ended."""
        try:
            out, said = self._process.communicate(timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            self._end()
            raise _failed(f"it has not ended within {_SECONDS:.0f} s") from None
        if self.returncode == 0 and not _is_object(out):
            # Not shown, since it may contain the secret.
            raise _failed("it printed something else than a credential")
        return out, said.decode("utf-8", "replace").encode()

    def _end(self) -> None:
        self._process.kill()
        for pipe in (self._process.stdout, self._process.stderr):
            # A process that it has started may hold them open.
            if pipe is not None:
                pipe.close()
        self._process.wait()


def _is_object(text: bytes) -> bool:
    with suppress(ValueError, RecursionError):
        return isinstance(json.loads(text), dict)
    return False


def _failed(why: str) -> CredentialRetrievalError:
    from botocore.exceptions import CredentialRetrievalError

    return CredentialRetrievalError(provider="credential_process", error_msg=why)
