"""FSx for Lustre file systems, which users create themselves and name by id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowlite.errors import ConfigError, ProviderError
from provider_adapters.aws.service import Answered, BotoClients, Service
from provider_adapters.aws.storage.common import GROUP_NAME, VolumeState

OPTIONS = "relatime,flock"
_PORTS = "988 and 1018 to 1023"
_NO_SUCH = ("FileSystemNotFound", "ValidationException", "BadRequest")


class LustreSystems:
    """The file systems of one account in one region. None is ever created or deleted."""

    def __init__(self, clients: BotoClients) -> None:
        self._fsx = Service(clients, "fsx")
        self._ec2 = Service(clients, "ec2")

    def find(self, name: str) -> VolumeState | None:
        """The file system with that id; None if there is none. Raises ConfigError if it is of another type."""
        system = self._describe(name)
        if system is None:
            return None
        if system.get("FileSystemType") != "LUSTRE":
            raise ConfigError(
                f"volume {name!r} is a file system of FSx for {str(system.get('FileSystemType')).title()}; "
                "only those for Lustre can be mounted"
            )
        zone = self._zone(system)
        note = (
            f"volume {name} is FSx for Lustre{' in ' + zone if zone else ''}: its security group must let in TCP "
            f"{_PORTS} from the group {GROUP_NAME}"
        )
        return VolumeState({"kind": "lustre", "id": name}, note, zone)

    def reach(self, volume: Mapping[str, Any]) -> dict[str, Any]:
        """What a node needs to mount the file system. Raises ProviderError."""
        system = self._describe(str(volume["id"]))
        if system is None:
            raise ProviderError(f"volume {volume['name']!r}: there is no such file system any more")
        if system.get("Lifecycle", "AVAILABLE") not in ("AVAILABLE", "UPDATING"):
            raise ProviderError(
                f"volume {volume['name']!r} is {str(system['Lifecycle']).lower()}; `aws fsx describe-file-systems` "
                "says why"
            )
        return {
            "share": "lustre",
            "address": f"{system['DNSName']}@tcp",
            "export": f"/{system['LustreConfiguration']['MountName']}",
            "options": OPTIONS,
        }

    def _describe(self, name: str) -> dict[str, Any] | None:
        try:
            found = self._fsx.call("DescribeFileSystems", *_NO_SUCH, FileSystemIds=[name])
        except Answered:
            return None
        return next(iter(found["FileSystems"]), None)

    def _zone(self, system: Mapping[str, Any]) -> str:
        """The zone it is in; traffic to another zone is charged, and slower."""
        subnets = list(system.get("SubnetIds") or ())[:1]
        if not subnets:
            return ""
        found = self._ec2.call("DescribeSubnets", SubnetIds=subnets)["Subnets"]
        return str(found[0]["AvailabilityZone"]) if found else ""
