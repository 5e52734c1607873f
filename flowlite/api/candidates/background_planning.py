"""A background process that finishes the plan of a provider which did not answer in time.

`planning.py` starts it when its own process ends. The process discards the plan. The adapter stores the types, zones,
images and prices that it reads in FLOW_HOME, so the next plan needs no calls for them.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path

from flowlite.api.candidates.planning import ask_patiently
from flowlite.errors import FlowError
from flowlite.provider import get_provider
from flowlite.settings import edited_files
from flowlite.settings.provider_settings import ProviderSettings
from flowlite.spec import TaskConfig


def main() -> None:
    """Entry point of the background process. Reports nothing: the next plan says what is wrong."""
    asked = json.load(sys.stdin)
    home = Path(os.environ["FLOW_HOME"])
    settings = ProviderSettings.from_json(asked["settings"])
    with (
        suppress(FlowError, ImportError, OSError),
        # Another process of this kind may be asking the provider.
        edited_files.locked(home / f"asking-{settings.provider}", wait=False),
    ):
        provider = get_provider(home, settings)
        ask_patiently(TaskConfig.from_json(asked["config"]), provider)
