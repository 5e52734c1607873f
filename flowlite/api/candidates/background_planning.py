"""A background process that finishes the plan of a provider which did not answer in time.

`planning.py` starts it when its own process ends. The process discards the plan. The adapter stores the types, zones,
images and prices that it reads in FLOW_HOME, so the next plan needs no calls for them.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flowlite.api.candidates.planning import ask_patiently
from flowlite.errors import FlowError
from flowlite.provider import get_provider
from flowlite.settings.provider_settings import ProviderSettings
from flowlite.spec import TaskConfig


def main() -> None:
    """Entry point of the background process. Reports nothing: the next plan says what is wrong."""
    asked = json.load(sys.stdin)
    home = Path(os.environ["FLOW_HOME"])
    settings = ProviderSettings.from_json(asked["settings"])
    with suppress(FlowError, ImportError, OSError), _alone(home, settings.provider):
        provider = get_provider(home, settings)
        ask_patiently(TaskConfig.from_json(asked["config"]), provider)


@contextmanager
def _alone(home: Path, provider: str) -> Iterator[None]:
    """Keeps other processes of this kind away from a provider meanwhile. Raises BlockingIOError if there is one."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    descriptor = os.open(home / f"asking-{provider}", flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
