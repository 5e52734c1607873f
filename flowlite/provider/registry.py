"""Finds adapters by their entry points in the group `flowlite.providers`."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from flowlite.errors import FlowError, NotFound
from flowlite.provider.contract import Provider
from flowlite.settings import entry_points
from flowlite.settings.provider_settings import ProviderSettings
from flowlite.settings.suggest import did_you_mean


class SubmittedTask(Protocol):
    """What is read of a task in the store."""

    @property
    def provider(self) -> str: ...

    @property
    def plan(self) -> Mapping[str, Any]: ...


def provider_names() -> list[str]:
    """Returns the names of all adapters that can be loaded, sorted."""
    return sorted(entry_points.adapters())


def adapter_class(name: str) -> type[Provider]:
    """Returns the adapter of that name.

    Raises:
        NotFound: No adapter is announced under the name. The message lists the known ones.
    """
    found = entry_points.adapters().get(name)
    if found is None:
        known = provider_names()
        raise NotFound(
            f"no provider {name!r}{did_you_mean(name, known, 0.7)}; known: {', '.join(known) or 'none'}"
            + (
                ""
                if known
                else f". No package with entry points of the group {entry_points.GROUP!r} is "
                "installed; a source checkout of flowlite has them after `pip install -e .`"
            )
        )
    adapter: type[Provider] = found.load()
    return adapter


def get_provider(home: Path, settings: ProviderSettings) -> Provider:
    """Creates the adapter for these settings. Raises NotFound."""
    return adapter_class(settings.provider)(home, settings)


def settings_of_task(record: SubmittedTask) -> ProviderSettings:
    """Returns the settings of its provider that a task was submitted with."""
    frozen = record.plan.get("settings")
    return ProviderSettings.from_json(frozen) if frozen else ProviderSettings(record.provider)


def provider_of_task(record: SubmittedTask, home: Path) -> Provider:
    """Creates the adapter for an existing task, with the settings the task was submitted with. Raises NotFound."""
    return get_provider(home, settings_of_task(record))


def adapters_problem(error: Exception) -> str:
    """What an adapter has raised, in words. Of an error that it should not raise, they say where that was."""
    if isinstance(error, FlowError | ImportError | OSError):
        return str(error) or type(error).__name__
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"its adapter failed: {type(error).__name__}: {error} ({where.filename}:{where.lineno})"
