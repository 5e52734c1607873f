"""Coming back to nodes that did not answer when they were to end.

A supervisor does not wait for a host that cannot be reached: it gives it up, and its task goes on or is over. What runs
there ends by itself after some minutes. So that it ends as soon as the host can be reached, a process of its own looks
again and again, one for each provider of a FLOW_HOME, until nothing is left that was given up.

    FLOW_HOME/revisiting-PROVIDER        there as long as something is left; locked by the process that looks
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flowlite.errors import FlowError
from flowlite.provider import Provider, get_provider
from flowlite.settings.provider_settings import ProviderSettings
from flowlite.supervise.background import run_detached

# At first often, since most outages are short.
_EVERY, _EVERY_LATER = 3.0, 20.0
_SOON_SECONDS = 600.0
_PREFIX = "revisiting-"


def begin_if_left(home: Path, provider: Provider) -> None:
    """Has somebody come back to what a provider has given up, if there is anything. Costs a look at files."""
    with suppress(FlowError, OSError):
        if provider.has_left():
            _file(home, provider.name).touch(mode=0o600)
            run_detached(home, __name__)


def begin_again(home: Path) -> None:
    """The same for all providers, where the process that looked was killed. Costs a look at a directory."""
    with suppress(OSError):
        for path in home.glob(f"{_PREFIX}*"):
            with _alone(path) as alone:
                pass
            if alone:
                run_detached(home, __name__)
                return


def main() -> None:
    """The process of its own. Says nothing: what does not answer ends by itself."""
    home = Path(os.environ["FLOW_HOME"])
    names = [path.name.removeprefix(_PREFIX) for path in home.glob(f"{_PREFIX}*")]
    threads = [threading.Thread(target=_revisit, args=(home, name)) for name in names]
    for thread in threads:
        thread.start()
    # No thread can be started any more once this one has ended.
    for thread in threads:
        thread.join()


def _revisit(home: Path, name: str) -> None:
    with suppress(FlowError, ImportError, OSError):
        # How they are reached was noted when they were launched; no setting says it.
        revisit(home, get_provider(home, ProviderSettings(name)))


def revisit(home: Path, provider: Provider) -> None:
    """Comes back to what was given up until nothing of it is left, unless somebody else does.

    Raises:
        FlowError: The provider's notes cannot be read.
    """
    path, began = _file(home, provider.name), time.monotonic()
    # Whoever gives something up while we leave finds us here still, and relies on us: so it is looked again.
    while provider.has_left():
        with _alone(path) as alone:
            if not alone:
                return
            while provider.has_left():
                with suppress(FlowError, OSError):
                    provider.revisit()
                if provider.has_left():
                    soon = time.monotonic() - began < _SOON_SECONDS
                    time.sleep(_EVERY if soon else _EVERY_LATER)
            path.unlink(missing_ok=True)


def _file(home: Path, provider: str) -> Path:
    return home / f"{_PREFIX}{provider}"


@contextmanager
def _alone(path: Path) -> Iterator[bool]:
    """Whether nobody else has the file, which is then ours."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)
