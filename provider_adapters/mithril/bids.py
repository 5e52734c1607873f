"""A bid as Mithril lists it, with all machines it ever had."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from flowlite.node.quick_dataclass import dataclass
from provider_adapters.mithril.rest import requests
from provider_adapters.mithril.rest.client import ApiRefused, MithrilApi, NotThere
from provider_adapters.mithril.rest.response_format import understood

_SSH = re.compile(r"(?:\[([^\]]+)\]|([^:\s]+))(?::(\d+))?")
# A query with hundreds of ids is longer than servers accept.
_AT_A_TIME = 50


@dataclass(frozen=True, slots=True)
class Bid:
    """One bid.

    Attributes:
        status: "Open", "Allocated", "Preempting", "Terminated" or "Paused".
        machines: As the API lists them, by id; including those that are gone.
    """

    fid: str
    name: str
    status: str
    limit_price: float
    count: int
    region: str
    tags: requests.Tags | None
    machines: dict[str, dict[str, Any]]

    @property
    def over(self) -> bool:
        """Whether it costs nothing now and never will again."""
        return self.status == requests.TERMINATED and not self.live

    @property
    def live(self) -> dict[str, dict[str, Any]]:
        """Machines that are not gone."""
        return {
            name: machine
            for name, machine in self.machines.items()
            if machine["status"] not in requests.ENDED
        }

    @property
    def gone(self) -> dict[str, dict[str, Any]]:
        """Machines that are gone."""
        live = self.live
        return {name: machine for name, machine in self.machines.items() if name not in live}


def read_bid(data: Mapping[str, Any], machines: Iterable[Mapping[str, Any]]) -> Bid:
    """A bid from the API's entries of the bid and its machines."""
    return Bid(
        fid=str(data["fid"]),
        name=str(data["name"]),
        status=str(data["status"]),
        limit_price=requests.read_dollars(data["limit_price"]) or 0.0,
        count=int(data["instance_quantity"]),
        region=str(data.get("region") or ""),
        tags=requests.tags_of(data),
        machines={str(m["fid"]): _machine(m) for m in machines if m.get("bid") == data["fid"]},
    )


def _machine(data: Mapping[str, Any]) -> dict[str, Any]:
    return {**data, "name": str(data.get("name") or data["fid"]), "status": str(data["status"])}


@understood("bids")
def fetch(api: MithrilApi, project: str, fids: Iterable[str]) -> dict[str, Bid | None]:
    """Bids by their ids; None for one that the API does not know.

    Raises:
        ProviderError: The API does not answer, or the key may not use the project: then it may know no bid of it.
    """
    found: dict[str, Mapping[str, Any] | None] = {}
    for fid in dict.fromkeys(fids):
        try:
            found[fid] = api.get(f"/v2/spot/bids/{fid}")
        except NotThere:
            found[fid] = None
    # Those of unknown bids, too, so that the API says whether the key may use the project.
    machines = machines_of(api, project, list(found))
    return {fid: None if data is None else read_bid(data, machines) for fid, data in found.items()}


@understood("bids")
def named(api: MithrilApi, project: str, name: str) -> list[dict[str, Any]]:
    """All bids of a name, the oldest first; there is more than one only if a request was carried out twice."""
    listed = api.pages("/v2/spot/bids", requests.bids_of(project, name=name))
    same = [each for each in listed if each["name"] == name]
    return sorted(same, key=lambda each: (requests.unix(each["created_at"]) or 0.0, each["fid"]))


@understood("bids")
def ours(api: MithrilApi, project: str) -> dict[str, Bid]:
    """All bids of flowlite, from any FLOW_HOME, that may still cost money. Raises ProviderError."""
    found: dict[str, Mapping[str, Any]] = {}
    for status in requests.LIVE_BIDS:
        for data in api.pages("/v2/spot/bids", requests.bids_of(project, status=status)):
            if requests.tags_of(data) is not None:
                found[str(data["fid"])] = data
    machines = machines_of(api, project, list(found))
    return {fid: read_bid(data, machines) for fid, data in found.items()}


def end(api: MithrilApi, fid: str) -> None:
    """Ends a bid. A bid that has ended, or is unknown, is no error. Raises ProviderError."""
    try:
        api.delete(f"/v2/spot/bids/{fid}")
    except ApiRefused:
        # Some APIs refuse to end a bid that has ended.
        try:
            if api.get(f"/v2/spot/bids/{fid}")["status"] == requests.TERMINATED:
                return
        except NotThere:
            return
        raise


def set_limit(api: MithrilApi, fid: str, price: float) -> None:
    """Gives a bid another limit, in US dollars per instance and hour. Raises ProviderError."""
    api.patch(f"/v2/spot/bids/{fid}", requests.limit(price))


def machines_of(api: MithrilApi, project: str, fids: list[str]) -> list[dict[str, Any]]:
    """All machines of some bids, as listed."""
    found: list[dict[str, Any]] = []
    for at in range(0, len(fids), _AT_A_TIME):
        query = requests.instances_of(project, fids[at : at + _AT_A_TIME])
        found += api.pages("/v2/instances", query)
    return found


def ssh_place(destination: object) -> tuple[str, int] | None:
    """Host and port of `host`, `host:port` or `[address]:port`; None if not known yet."""
    match = _SSH.fullmatch(str(destination or "").strip())
    if match is None:
        return None
    return match[1] or match[2], int(match[3] or 22)
