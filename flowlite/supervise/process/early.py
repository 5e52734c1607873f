"""What the process of a supervisor does first if it has been started ahead of its task, before it imports the rest."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from flowlite.provider.registry import adapter_class
from flowlite.supervise.process.supervisor_process import AHEAD


def begin() -> None:
    """Imports the adapter, and has it start what its nodes will probably need while this process imports."""
    if sys.argv[1] == AHEAD:
        # A provider that cannot be imported is reported when the task is known.
        with contextlib.suppress(Exception):
            adapter_class(sys.argv[2]).start_ahead(Path(os.environ["FLOW_HOME"]))
