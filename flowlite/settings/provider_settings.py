"""A snapshot of a provider's settings, which an adapter gets and a task keeps.

Adapters never read configuration files. The client reads them once, at submission, and freezes the settings into the
plan (`Plan.settings`), so that the supervisor, the clean-up and later commands see the same ones, wherever they run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from flowlite.errors import ConfigError
from flowlite.node.quick_dataclass import dataclass
from flowlite.settings.suggest import did_you_mean

Keys = tuple[str, ...]
# The origin of settings that are not set.
DEFAULT = "default"
SSH_CONFIG_VARIABLE = "FLOW_SSH_CONFIG"
"""Variable with the path of an OpenSSH configuration that replaces the usual files."""


@dataclass(frozen=True, slots=True)
class ProviderSettings:
    """The settings of one provider.

    Attributes:
        provider: Name of the provider.
        values: Its table, JSON only. Keys that are missing have their defaults.
        origins: Where each value was set, by its path of keys: a file, or a variable of the environment.
        credentials: Names of the variables that alone had the credentials at submission; "" if the credentials can be
            found elsewhere. The values themselves are never kept.
    """

    provider: str
    values: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[Keys, str] = field(default_factory=dict)
    credentials: str = ""

    def to_json(self) -> dict[str, Any]:
        """The settings as plain JSON values."""
        return {
            "provider": self.provider,
            "values": dict(self.values),
            "origins": [[list(keys), origin] for keys, origin in self.origins.items()],
            "credentials": self.credentials,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ProviderSettings:
        """Rebuilds settings from the result of `to_json`."""
        origins = {tuple(keys): str(origin) for keys, origin in data["origins"]}
        return cls(
            str(data["provider"]), dict(data["values"]), origins, str(data.get("credentials") or "")
        )

    def origin_of(self, *keys: str) -> str:
        """Where a value, or any value below it, was set; "" if it was not set."""
        return next((o for path, o in self.origins.items() if path[: len(keys)] == keys), "")

    @property
    def names_provider(self) -> bool:
        """Whether anything is set for this provider; `FLOW_SSH_CONFIG`, which is for all providers, does not count."""
        return any(self.origin_of(key) != SSH_CONFIG_VARIABLE for key in self.values)

    def rows(self) -> Iterator[tuple[str, Any, str]]:
        """Yields each value with its dotted name and its origin, for display."""
        for path, origin in self.origins.items():
            value: Any = self.values
            for key in path:
                value = value[key]
            yield ".".join((self.provider, *path)), value, origin
        if self.credentials:
            yield f"{self.provider} credentials", "not kept", self.credentials

    def lacking(self) -> str:
        """A sentence for errors about missing credentials, if the task was submitted with variables only; else ""."""
        if not self.credentials:
            return ""
        return (
            f". The task was submitted with those of the environment ({self.credentials}), which are kept nowhere: set "
            "them here as well"
        )

    def with_value(self, key: str, value: Any, origin: str) -> ProviderSettings:
        """A copy of these settings with one value added or replaced."""
        kept = {path: each for path, each in self.origins.items() if path[0] != key}
        return replace(self, values={**self.values, key: value}, origins={**kept, (key,): origin})

    def only(self, keys: Collection[str]) -> ProviderSettings:
        """A copy of these settings with only the given keys."""
        return replace(
            self,
            values={key: value for key, value in self.values.items() if key in keys},
            origins={path: each for path, each in self.origins.items() if path[0] in keys},
        )

    def with_absolute_paths(self, names: Collection[str]) -> ProviderSettings:
        """A copy of these settings with relative paths made absolute, relative to the file that sets them.

        `names` has the keys whose values are paths of this machine, at any depth.
        """
        if not names:
            return self

        def walk(value: Any, keys: Keys) -> Any:
            if isinstance(value, Mapping):
                return {key: walk(each, (*keys, key)) for key, each in value.items()}
            if isinstance(value, list):
                return [walk(each, keys) for each in value]
            if isinstance(value, str) and value.strip() and keys and keys[-1] in names:
                return absolute(value, self._directory_of(keys))
            return value

        return replace(self, values=walk(self.values, ()))

    def _directory_of(self, keys: Keys) -> Path:
        """The directory of the file that sets a value; the current directory for variables."""
        # Tables inside lists have the origin of the list.
        paths = (keys[:length] for length in range(len(keys), 0, -1))
        origin = next((self.origins[path] for path in paths if path in self.origins), "")
        return Path(origin).parent if os.path.isabs(origin) else Path.cwd()


def read_table(
    table: Mapping[str, Any],
    readers: Mapping[str, Callable[[Any], Any]],
    name: str,
    origin_of: Callable[[str], str],
) -> dict[str, Any]:
    """Reads and checks the values of a table.

    Args:
        readers: By key, what returns the value, or raises ValueError with what is allowed.
        name: The table in messages, such as "[aws]".
        origin_of: Returns where the value of a key was set: a file, or a variable of the environment.

    Raises:
        ConfigError: An unknown key or an invalid value; the message says where it is.
    """
    found = {}
    for key, value in table.items():
        origin = origin_of(key)
        if key not in readers:
            known = did_you_mean(key, readers) or f"; known: {', '.join(readers)}"
            raise ConfigError(f"{origin}: {name} has no setting {key!r}{known}")
        try:
            found[key] = readers[key](value)
        except ValueError as error:
            # A variable has a name, and no other value in it.
            where = origin if origin.isidentifier() else f"{origin}: {name} {key}"
            raise ConfigError(f"{where} is {value!r}; give {error}") from None
    return found


def absolute(text: str, directory: str | Path) -> str:
    """A path of a settings file: absolute, or relative to the directory of that file."""
    path = os.path.expanduser(text)
    return path if os.path.isabs(path) else os.path.normpath(os.path.join(directory, path))
