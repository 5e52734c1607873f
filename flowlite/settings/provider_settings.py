"""A provider's settings at one moment, as values: what an adapter gets, and what a task keeps of them for good.

Adapters never read configuration files. Whoever submits reads them once; the settings that were found are frozen into
the plan (`Plan.settings`), so that supervisor, clean-up and later commands see the same ones, wherever they run.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

Keys = tuple[str, ...]
# The origin of what nobody has set.
DEFAULT = "default"
SSH_CONFIG_VARIABLE = "FLOW_SSH_CONFIG"
"""Variable with the OpenSSH configuration that is used in place of the usual files."""


@dataclass(frozen=True, slots=True)
class ProviderSettings:
    """The settings of one provider.

    Attributes:
        provider: Name of the provider.
        values: Its table, JSON only. What is not in it has its default.
        origins: Where each value was set, by its keys from the outside in: a file, or a variable of the environment.
        credentials: Variables in whose values alone the credentials of whoever submitted were, by name; "" if they are
            to be found otherwise. The values themselves are never kept.
    """

    provider: str
    values: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[Keys, str] = field(default_factory=dict)
    credentials: str = ""

    def to_json(self) -> dict[str, Any]:
        """A dict of plain JSON values."""
        return {
            "provider": self.provider,
            "values": dict(self.values),
            "origins": [[list(keys), origin] for keys, origin in self.origins.items()],
            "credentials": self.credentials,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ProviderSettings:
        """Rebuilds from `to_json`."""
        origins = {tuple(keys): str(origin) for keys, origin in data["origins"]}
        return cls(
            str(data["provider"]), dict(data["values"]), origins, str(data.get("credentials") or "")
        )

    def origin_of(self, *keys: str) -> str:
        """Where a value was set, or any value below it; "" if nowhere."""
        return next((o for path, o in self.origins.items() if path[: len(keys)] == keys), "")

    @property
    def names_provider(self) -> bool:
        """Whether anything is set for this provider. OpenSSH's configuration of the environment is for all of them."""
        return any(self.origin_of(key) != SSH_CONFIG_VARIABLE for key in self.values)

    def rows(self) -> Iterator[tuple[str, Any, str]]:
        """Each value with its dotted name and its origin, for people."""
        for path, origin in self.origins.items():
            value: Any = self.values
            for key in path:
                value = value[key]
            yield ".".join((self.provider, *path)), value, origin
        if self.credentials:
            yield f"{self.provider} credentials", "not kept", self.credentials

    def lacking(self) -> str:
        """What to add where no credentials are found that whoever submitted had in the environment; else ""."""
        if not self.credentials:
            return ""
        return (
            f". The task was submitted with those of the environment ({self.credentials}), which are kept nowhere: set "
            "them here as well"
        )

    def with_value(self, key: str, value: Any, origin: str) -> ProviderSettings:
        """These settings with one value set, or set otherwise."""
        kept = {path: each for path, each in self.origins.items() if path[0] != key}
        return replace(self, values={**self.values, key: value}, origins={**kept, (key,): origin})

    def only(self, keys: Collection[str]) -> ProviderSettings:
        """These settings without all but some values."""
        return replace(
            self,
            values={key: value for key, value in self.values.items() if key in keys},
            origins={path: each for path, each in self.origins.items() if path[0] in keys},
        )

    def with_absolute_paths(self, names: Collection[str]) -> ProviderSettings:
        """These settings with paths of this machine made absolute, against the file that they stand in.

        Args:
            names: Keys whose values are such paths, at any depth.
        """
        if not names:
            return self

        def walk(value: Any, keys: Keys) -> Any:
            if isinstance(value, Mapping):
                return {key: walk(each, (*keys, key)) for key, each in value.items()}
            if isinstance(value, list):
                return [walk(each, keys) for each in value]
            if isinstance(value, str) and value.strip() and keys and keys[-1] in names:
                return _absolute(value, self._directory_of(keys))
            return value

        return replace(self, values=walk(self.values, ()))

    def _directory_of(self, keys: Keys) -> Path:
        """The directory of the file that a value stands in; the current one for variables."""
        # Tables inside lists have the origin of the list.
        paths = (keys[:length] for length in range(len(keys), 0, -1))
        origin = next((self.origins[path] for path in paths if path in self.origins), "")
        return Path(origin).parent if os.path.isabs(origin) else Path.cwd()


def _absolute(text: str, directory: Path) -> str:
    path = os.path.expanduser(text)
    return path if os.path.isabs(path) else os.path.normpath(directory / path)
