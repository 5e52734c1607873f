"""Adapters with the settings that hold here and now: for submitting, and for commands that concern no task.

Whatever concerns a task that exists takes `provider_of_task` (provider.py), which has the settings of its submission.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from flowlite.provider import adapter_class, get_provider
from flowlite.settings.settings import home, load_settings

if TYPE_CHECKING:
    from flowlite.provider import Provider
    from flowlite.settings.provider_settings import ProviderSettings


def settings_here(name: str) -> ProviderSettings:
    """The settings of a provider as they hold in this directory and environment.

    Raises:
        ConfigError: A file has an unknown name or a wrong value.
        NotFound: There is no such provider.
    """
    return adapter_class(name).freeze(load_settings(), os.environ)


def adapter(name: str) -> Provider:
    """The adapter of that name. Raises as `settings_here` does."""
    return get_provider(home(), settings_here(name))
