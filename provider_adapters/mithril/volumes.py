"""Volumes of Mithril: shared file systems ("File") and disks for one machine ("Block"), each in one region.

flowlite uses a name only once in a project, so the outcome of creating a volume is settled by looking for its name.
Mithril does not promise to refuse a name that is taken, and its listings lag. Each request is therefore recorded before
it is sent, and no other one for the name follows until its volume is listed, or would be:

    FLOW_HOME/mithril/volumes/<project>-<region>-<name>.json    {"at": time, "volume": the answer, if there was one}
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowlite.errors import ConfigError, NotFound, PermissionRefused, ProviderError
from flowlite.provider import VolumeInfo
from flowlite.state import clock
from provider_adapters.durable import make_directory, write_durably
from provider_adapters.mithril.planning import VOLUME_PRICE
from provider_adapters.mithril.rest import requests
from provider_adapters.mithril.rest.client import ApiRefused, OutcomeUnknown, Unreachable

if TYPE_CHECKING:
    from provider_adapters.mithril.account import Account

_VOLUMES = "/v2/volumes"
_LOOK = 2.0
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,62}[a-z0-9])?")
# No disk has this serial: the disks are identified by their device.
_NO_SERIAL = "none"
# The members of the API's regions that say whether a region has volumes of an interface.
_ENABLED = {"block": "block_storage_enabled", "file": "fileshare_storage_enabled"}


class Volumes:
    """The volumes of the project."""

    def __init__(self, account: Account) -> None:
        self._account = account

    def listed(self) -> list[dict[str, Any]]:
        """The API's entries without deleted volumes. Raises ProviderError."""
        found = self._account.api.get(_VOLUMES, {"project": self._account.project})
        return [each for each in found if not each.get("deleted_at")]

    def infos(self) -> list[VolumeInfo]:
        """All volumes by name, with their users and costs."""
        found = [info_of(each, self.users(each)) for each in self.listed()]
        return sorted(found, key=lambda info: info.name)

    def create(
        self, name: str, size_gb: float | None, interface: str, region: str | None = None
    ) -> VolumeInfo:
        """Creates a volume in a region, or returns the existing one of that name.

        Args:
            region: None for the region of the settings.
        """
        check_name(name)
        there = self._named(name)
        if there is None:
            if size_gb is None:
                raise ConfigError(
                    f"volume {name!r}: say how large it is to be (`--size-gb 100`); each GB costs "
                    f"{requests.dollars(VOLUME_PRICE)} per month"
                )
            there = self._make(name, size_gb, interface, region or self._region(interface))
        elif str(there["interface"]).lower() != interface:
            raise ConfigError(
                f"volume {name!r} exists, with the interface {str(there['interface']).lower()!r} and not {interface!r}"
            )
        elif region and there["region"] != region:
            raise ConfigError(
                f"volume {name!r} exists, in {there['region']} and not in {region}; a name means one volume at Mithril"
            )
        return info_of(there, self.users(there))

    def delete(self, name: str) -> None:
        """Deletes a volume and its content. Raises NotFound, and ProviderError if it is in use."""
        there = self._named(name)
        if there is None:
            raise NotFound(f"Mithril has no volume {name!r} in this project")
        if users := self.users(there):
            raise ProviderError(
                f"the volume {name} is in use by {', '.join(users)}, and was not deleted; end that first "
                "(`flow cancel`)"
            )
        self._request_of(name, str(there["region"])).unlink(missing_ok=True)
        try:
            self._account.api.delete(f"{_VOLUMES}/{there['fid']}")
        except ApiRefused as error:
            raise ProviderError(f"the volume {name} was not deleted: {error}") from error

    def ensure(self, wanted: Sequence[Mapping[str, Any]], region: str) -> list[str]:
        """Ids of the volumes of a plan; creates those that are missing.

        Raises:
            LaunchPending: It is not known whether a volume was created.
            ProviderError: A volume is no longer available as planned.
        """
        if not wanted:
            return []
        by_name = {str(each["name"]): each for each in self.listed()}
        found = []
        for each in wanted:
            name, size = str(each["name"]), float(each["size_gb"])
            there = by_name.get(name)
            if there is None:
                if each["id"]:
                    raise ProviderError(f"the volume {name} was deleted after the task was planned")
                there = self._make(name, size, str(each["interface"]), region)
                by_name[name] = there
            elif there["region"] != region:
                raise ProviderError(
                    f"the volume {name} lies in {there['region']}, and the bid is for {region}; submit again"
                )
            found.append(str(there["fid"]))
        return found

    def regions_without(self, interface: str) -> set[str]:
        """The regions that are known to have no volumes of an interface.

        The API documents this only for the regions that also have machines without GPUs. A region that is not in that
        list may refuse a volume when it is made, before a bid is placed.
        """
        try:
            listed = self._account.api.get("/v2/cpu/regions")
        except (ApiRefused, PermissionRefused):
            return set()
        enabled = _ENABLED[interface]
        return {str(each["name"]) for each in listed if not each.get(enabled, True)}

    # Helpers

    def _named(self, name: str) -> dict[str, Any] | None:
        same = [each for each in self.listed() if each["name"] == name]
        if len(same) > 1:
            where = ", ".join(str(each["region"]) for each in same)
            raise ProviderError(f"there are several volumes {name!r} ({where}); rename all but one")
        return same[0] if same else None

    def _make(self, name: str, size_gb: float, interface: str, region: str) -> dict[str, Any]:
        check_name(name)
        body = requests.volume(self._account.project, region, name, size_gb, interface)
        request = self._request_of(name, region)
        if (asked := self._asked(request)) is not None:
            return asked
        try:
            make_directory(request.parent)
            write_durably(request, json.dumps({"at": clock.now()}))
        except OSError as error:
            raise ProviderError(
                f"{request} cannot be written: {error.strerror or error}"
            ) from error
        try:
            made = dict(self._account.api.post(_VOLUMES, body))
        except OutcomeUnknown as error:
            there = self._named(name)
            if there is not None:
                return there
            raise Unreachable(
                f"whether the volume {name} was made is not known: {error}"
            ) from error
        except ApiRefused as error:
            request.unlink(missing_ok=True)
            there = self._named(name)
            if there is not None and there["region"] == region:
                return there
            raise ProviderError(
                f"the volume {name} cannot be made in {region}: {error}. If there are no {interface} volumes in that "
                "region, choose another one"
            ) from error
        except ProviderError:
            request.unlink(missing_ok=True)
            raise
        with suppress(OSError):
            write_durably(request, json.dumps({"at": clock.now(), "volume": made}))
        return made

    def _request_of(self, name: str, region: str) -> Path:
        """The file that records the last request for a volume."""
        directory = self._account.directory / "volumes"
        return directory / f"{self._account.project}-{region}-{name}.json"

    def _asked(self, request: Path) -> dict[str, Any] | None:
        """The volume of a recorded request that listings may not show yet; None if there is no such request.

        Raises:
            Unreachable: It is not known whether the volume was created.
        """
        try:
            noted = json.loads(request.read_bytes())
            age = clock.now() - float(noted["at"])
            made = noted.get("volume")
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if age > self._account.settings.listing_lag:
            return None
        if made is None:
            raise Unreachable(
                "whether the volume was made is not known yet; it is looked up", retry_after=_LOOK
            )
        return dict(made)

    def _region(self, interface: str) -> str:
        asked = self._account.settings.region
        if asked:
            return asked
        known = {market.region for market in self._account.catalogue.markets()}
        regions = sorted(known - self.regions_without(interface))
        raise ConfigError(
            f"a {interface} volume belongs to one region, and only machines in that region can use it: give one of "
            f"{', '.join(regions)} (`--region`), or set `region` under [mithril]; or let the first task make it, with "
            "size_gb"
        )

    def users(self, volume: Mapping[str, Any]) -> tuple[str, ...]:
        """The users of a volume: our tasks, and other bids and reservations.

        Listings lag, so that an entry may still name a bid that has ended. Each bid is therefore asked for itself.
        """
        held = map(str, volume.get("reservations", ()))
        bids = (self._user_of(str(fid)) for fid in volume.get("bids", ()))
        return tuple(sorted({*held, *filter(None, bids)}))

    def _user_of(self, fid: str) -> str:
        """The task of a bid, in words, or its id if it is of no task or unknown; "" if it has ended."""
        try:
            bid = self._account.api.get(f"/v2/spot/bids/{fid}")
        except ProviderError:
            return fid
        if bid["status"] == requests.TERMINATED:
            return ""
        tags = requests.tags_of(bid)
        return f"task {tags.task}" if tags is not None and tags.task else fid


def check_name(name: str) -> None:
    """Raises ConfigError for a name that Mithril does not accept."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot name a volume at Mithril: a letter first, then a to z, 0 to 9 and dashes inside, "
            "at most 64"
        )


def info_of(volume: Mapping[str, Any], users: tuple[str, ...]) -> VolumeInfo:
    """The `VolumeInfo` of a volume."""
    size = float(volume["capacity_gb"])
    return VolumeInfo(
        name=str(volume["name"]),
        provider="mithril",
        interface=str(volume["interface"]).lower(),
        size_gb=size,
        location=str(volume["fid"]),
        region=str(volume["region"]),
        used_by=users,
        price_per_month=round(size * VOLUME_PRICE, 6),
        created_at=requests.unix(volume["created_at"]) or 0.0,
    )


def on_node(volume: Mapping[str, Any], disks: Mapping[str, Any]) -> dict[str, Any]:
    """A volume's settings on a machine, for `NodeSettings.volumes`. Mithril mounts file volumes itself.

    Args:
        disks: Which disk each block volume is, by its name.
    """
    found = {
        "name": volume["name"],
        "path": volume["path"],
        "interface": volume["interface"],
        "source": f"/mnt/{volume['name']}",
    }
    if disk := disks.get(str(volume["name"])):
        found |= {
            "share": "disk",
            "serial": _NO_SERIAL,
            "devices": [disk["device"]],
            "size_bytes": disk["size_bytes"],
            "filesystem": "ext4",
        }
    return found
