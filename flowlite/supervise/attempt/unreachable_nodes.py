"""Ends what runs on nodes that did not answer when they were to be ended.

A supervisor does not wait for an unreachable host: it gives the host up, and its task goes on or ends. What runs there
ends by itself after some minutes. To end it as soon as the host answers, a background process tries again and again,
one for each provider of a FLOW_HOME, until nothing that was given up is left.

    FLOW_HOME/revisiting-PROVIDER        exists while something is left; locked by the process that tries
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flowlite.errors import FlowError
from flowlite.node.system import file_lock
from flowlite.provider import Provider, get_provider
from flowlite.settings.provider_settings import ProviderSettings
from flowlite.supervise.background import run_detached

# Often at first, since most outages are short.
_EVERY, _EVERY_LATER = 3.0, 20.0
_SOON_SECONDS = 600.0
_PREFIX = "revisiting-"


def begin_if_left(home: Path, provider: Provider) -> None:
    """Starts the background process if the provider has given up any instance. Reads only files."""
    with suppress(FlowError, OSError):
        if provider.has_left():
            _file(home, provider.name).touch(mode=0o600)
            run_detached(home, __name__)


def begin_again(home: Path) -> None:
    """Starts the background process again for all providers, if it was killed. Reads only a directory."""
    with suppress(OSError):
        for path in home.glob(f"{_PREFIX}*"):
            with _alone(path) as alone:
                pass
            if alone:
                run_detached(home, __name__)
                return


def main() -> None:
    """Entry point of the background process. Reports nothing, since what does not answer ends by itself."""
    home = Path(os.environ["FLOW_HOME"])
    names = [path.name.removeprefix(_PREFIX) for path in home.glob(f"{_PREFIX}*")]
    threads = [threading.Thread(target=_revisit, args=(home, name)) for name in names]
    for thread in threads:
        thread.start()
    # No thread can be started any more once the main thread has ended.
    for thread in threads:
        thread.join()


def _revisit(home: Path, name: str) -> None:
    with suppress(FlowError, ImportError, OSError):
        # How the hosts are reached was recorded at launch, so no settings are needed.
        revisit(home, get_provider(home, ProviderSettings(name)))


def revisit(home: Path, provider: Provider) -> None:
    """Tries to end what was given up until nothing of it is left, unless another process does.

    Raises:
        FlowError: The provider's records cannot be read.
    """
    path, began = _file(home, provider.name), time.monotonic()
    while True:
        with _alone(path) as alone:
            if not alone:
                return
            while provider.has_left():
                with suppress(FlowError, OSError):
                    provider.revisit()
                if provider.has_left():
                    soon = time.monotonic() - began < _SOON_SECONDS
                    time.sleep(_EVERY if soon else _EVERY_LATER)
            # Also if nothing was left from the start: every command would begin this process again.
            path.unlink(missing_ok=True)
        # Checked again without the lock: an instance given up just before the release relied on this process.
        if not provider.has_left():
            return


def _file(home: Path, provider: str) -> Path:
    return home / f"{_PREFIX}{provider}"


@contextmanager
def _alone(path: Path) -> Iterator[bool]:
    """Locks the file. Yields False if another process has the lock."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            alone = file_lock.take(descriptor)
        except OSError:
            alone = False
        yield alone
    finally:
        os.close(descriptor)
