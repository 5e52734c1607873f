"""What a test of this room imports from a project that it made goes with it: the next test has projects of its own."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
_STAY = (sysconfig.get_path("stdlib"), sysconfig.get_path("platlib"), str(ROOT / "flowlite"))


@pytest.fixture(autouse=True)
def no_project_stays() -> Iterator[None]:
    """Forgets modules that lie neither in the standard library, nor among installed packages, nor in flowlite."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and not file.startswith(_STAY) and not file.startswith(str(ROOT / "tests")):
            del sys.modules[name]
