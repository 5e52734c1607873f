"""The account at Mithril: its API key, its project, and the SSH key that is registered there."""

from __future__ import annotations

import functools
import hashlib
import json
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowlite.errors import ConfigError, PermissionRefused
from flowlite.node.system.atomic_files import place
from flowlite.settings.suggest import did_you_mean
from provider_adapters.mithril.markets import Catalogue
from provider_adapters.mithril.rest import credentials, requests
from provider_adapters.mithril.rest.client import (
    ApiRefused,
    MithrilApi,
    OutcomeUnknown,
    Unreachable,
)
from provider_adapters.mithril.settings import MithrilSettings, read_settings

if TYPE_CHECKING:
    import httpx

    from flowlite.settings.credentials import Key
    from flowlite.settings.provider_settings import ProviderSettings


class Account:
    """Queries that concern the account rather than a single bid. Each is sent only when it is needed.

    Attributes:
        home: FLOW_HOME.
        directory: Directory of this adapter's files.
    """

    def __init__(
        self,
        home: Path,
        settings: ProviderSettings,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.home = home
        self._given = settings
        self.directory = home / "mithril"
        self._transport = transport
        self._lock = threading.RLock()
        self._api: MithrilApi | None = None
        self._project = ""

    @functools.cached_property
    def settings(self) -> MithrilSettings:
        """The checked settings. Raises ConfigError."""
        return read_settings(self._given)

    @property
    def has_key(self) -> bool:
        """Whether an API key is configured. Raises PermissionRefused for one that others can read."""
        return credentials.is_wanted(self.settings.api_key_file, self.home)

    @property
    def api(self) -> MithrilApi:
        """The API client, with the account's key. Raises PermissionRefused."""
        with self._lock:
            if self._api is None:
                key = self._find_key()
                if key is None:
                    how = credentials.how_to_give_one(self.home)
                    raise PermissionRefused(
                        f"no API key of Mithril was found: {how}{self._given.lacking()}"
                    )
                self._api = MithrilApi(
                    self.settings.api_url, key, transport=self._transport, key_now=self._key_now
                )
            return self._api

    def _find_key(self) -> Key | None:
        return credentials.find_key(self.settings.api_key_file, self.home)

    def _key_now(self, refused: str) -> Key | None:
        found = self._find_key()
        if found is None or found.value != refused:
            return found
        # The variables of a running supervisor cannot be changed.
        return credentials.find_key(self.settings.api_key_file, self.home, without_variable=True)

    @property
    def catalogue(self) -> Catalogue:
        """The markets with their prices."""
        return Catalogue(self.settings.api_url, lambda: self.api, self.directory / "markets.json")

    # The project

    @property
    def project(self) -> str:
        """Id of the project. Raises ConfigError if it is ambiguous."""
        with self._lock:
            if not self._project:
                self._project = self._look_up(self.settings.project)
            return self._project

    def _look_up(self, wanted: str) -> str:
        file = self.directory / "project.json"
        # In another account, the same name means another project.
        marks = f"{self.api.url}|{wanted}|{self._key_mark()}"
        with suppress(OSError, ValueError, KeyError, TypeError):
            kept = json.loads(file.read_bytes())
            if kept["of"] == marks:
                return str(kept["project"])
        found = choose_project(self.api.get("/v2/projects"), wanted)
        with suppress(OSError):
            place(json.dumps({"of": marks, "project": found}).encode(), str(file))
        return found

    def _key_mark(self) -> str:
        key = self._find_key()
        return hashlib.sha256(key.value.encode()).hexdigest()[:12] if key else ""

    # Our SSH key

    def ssh_key(self, public_key: str, home_id: str) -> str:
        """Id of our public key at Mithril; registers it if necessary.

        Raises:
            Unreachable: It is not known whether the key is registered; to be tried again.
        """
        known = self.registered(public_key)
        if known:
            return known
        body = requests.ssh_key(self.project, requests.ssh_key_name(home_id), public_key)
        try:
            return str(self.api.post("/v2/ssh-keys", body)["fid"])
        except (OutcomeUnknown, ApiRefused) as error:
            # Another task may have registered it in the meantime, so that its name is taken.
            found = self.registered(public_key)
            if found:
                return found
            if isinstance(error, ApiRefused):
                raise
            raise Unreachable(f"our SSH key is not registered yet: {error}") from error

    def forget_ssh_key(self, public_key: str) -> bool:
        """Removes our public key from Mithril if no bid uses it; returns whether it was removed."""
        known = self.registered(public_key)
        try:
            return bool(known) and self.api.delete(f"/v2/ssh-keys/{known}")
        except ApiRefused:
            # A bid that has not ended still needs it.
            return False

    def registered(self, public_key: str) -> str:
        """Id of our public key at Mithril, found by its content; "" if it is not registered."""
        listed = self.api.get("/v2/ssh-keys", {"project": self.project})
        wanted = public_key.split()[:2]
        same = (str(k["fid"]) for k in listed if str(k["public_key"]).split()[:2] == wanted)
        return next(same, "")


def choose_project(listed: list[dict[str, Any]], wanted: str) -> str:
    """Id of the project with that name or id, or of the only one. Raises ConfigError."""
    names = {str(each["name"]): str(each["fid"]) for each in listed}
    if wanted:
        if wanted in names.values():
            return wanted
        same = [str(each["fid"]) for each in listed if str(each["name"]) == wanted]
        if len(same) > 1:
            raise ConfigError(
                f"[mithril] project: this account has {len(same)} projects called {wanted!r}: give the id of one, "
                f"{' or '.join(same)}"
            )
        if wanted not in names:
            guess = did_you_mean(wanted, names) or f"; there is {', '.join(names) or 'none'}"
            raise ConfigError(f"[mithril] project: this account has no project {wanted!r}{guess}")
        return names[wanted]
    if len(listed) != 1:
        have = f"has {len(listed)} projects: {', '.join(names)}" if listed else "has no project"
        raise ConfigError(
            f"the account at Mithril {have}; name the one to use with `project` under [mithril], or MITHRIL_PROJECT"
        )
    return str(listed[0]["fid"])
