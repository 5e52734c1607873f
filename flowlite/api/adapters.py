"""Adapters with the current settings, for submission and for commands that are not about a task.

Code that works on an existing task uses `provider_of_task` (`provider.py`), which has the settings of its submission.
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
    """The settings of a provider in the current directory and environment. Raises ConfigError, NotFound."""
    return adapter_class(name).freeze(load_settings(), os.environ)


def adapter(name: str) -> Provider:
    """The adapter of a provider, with the current settings. Raises the errors of `settings_here`."""
    return get_provider(home(), settings_here(name))
