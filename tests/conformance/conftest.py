"""Which parts of the suite are for `pytest -m hours`: those that reach a machine as another provider does."""

from __future__ import annotations

import pytest

# Machines of clouds are reached as hosts are.
_REACHING = ("CommandTests", "FileTests", "StreamTests")
_CLOUDS = ("TestAws", "TestMithril")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and item.cls is not None:
            part = item.function.__qualname__.partition(".")[0]
            if item.cls.__name__ in _CLOUDS and part in _REACHING:
                item.add_marker(pytest.mark.hours)
