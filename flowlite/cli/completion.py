"""Shell completion of the names of tasks, providers and states. It must never print or raise."""

from __future__ import annotations

from contextlib import suppress


def complete_task(incomplete: str) -> list[tuple[str, str]]:
    """Names and ids of tasks with this prefix, newest first, each with its status."""
    from flowlite.errors import FlowError
    from flowlite.settings import settings
    from flowlite.state.store import Store

    found: dict[str, str] = {}
    with suppress(FlowError, OSError):
        path = settings.home() / "state.db"
        if not path.exists():
            return []
        for task in Store(path, skip_damaged=True).list_tasks(limit=200):
            for word, about in ((task.name, task.state), (task.id, f"{task.name}, {task.state}")):
                if word.startswith(incomplete):
                    found.setdefault(word, about)
    return list(found.items())


def complete_provider(incomplete: str) -> list[str]:
    """Names of providers with this prefix."""
    from flowlite.provider import provider_names

    return [name for name in provider_names() if name.startswith(incomplete)]


def complete_state(incomplete: str) -> list[str]:
    """States of tasks with this prefix, and the two words that stand for several states."""
    from flowlite.state.records import STATES

    words = sorted({*STATES, "unfinished", "finished"})
    return [word for word in words if word.startswith(incomplete)]
