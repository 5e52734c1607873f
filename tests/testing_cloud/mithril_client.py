"""A client for the tests of the fake Mithril: one call a line."""

from __future__ import annotations

from typing import Any

import httpx

from flowlite.testing.cloud.mithril.box import MithrilBox
from tests.helpers import eventually

TYPE, REGION = "h100-80gb.sxm.8x", "us-central1-a"
PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJtest tester"


class Client:
    """Calls the API with the account's key."""

    def __init__(self, cloud: MithrilBox, key: str | None = None) -> None:
        self.cloud = cloud
        facts = cloud.facts()
        self.project = facts["project_fid"]
        headers = {"Authorization": f"Bearer {key or facts['api_key']}"}
        self.http = httpx.Client(base_url=cloud.url, headers=headers, timeout=20, trust_env=False)

    def get(self, path: str, **query: Any) -> Any:
        """A listing or a thing, which must be there."""
        reply = self.http.get(f"/v2/{path}", params=query)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def of_project(self, path: str, **query: Any) -> Any:
        """A listing of the project."""
        return self.get(path, project=self.project, **query)

    def type_fid(self, name: str = TYPE, region: str = REGION) -> str:
        """The id of a type in a region."""
        types = {each["fid"] for each in self.get("instance-types") if each["name"] == name}
        auctions = self.get("spot/availability")
        found = [a["instance_type"] for a in auctions if a["region"] == region]
        return next(fid for fid in found if fid in types)

    def ssh_key(self, name: str = "laptop") -> str:
        """The id of a key of that name, made if need be."""
        for key in self.of_project("ssh-keys"):
            if key["name"] == name:
                return str(key["fid"])
        given = {"project": self.project, "name": name, "public_key": PUBLIC_KEY}
        return str(self.http.post("/v2/ssh-keys", json=given).json()["fid"])

    def wish(self, name: str = "one", **changes: Any) -> dict[str, Any]:
        """The body of a request for a bid."""
        specification = {
            "volumes": [],
            "ssh_keys": [self.ssh_key()],
            "startup_script": "#!/bin/sh\n",
        }
        specification |= changes.pop("launch_specification", {})
        wish = {
            "project": self.project,
            "region": REGION,
            "instance_type": self.type_fid(region=changes.get("region", REGION)),
            "limit_price": "$20.00",
            "instance_quantity": 2,
            "name": name,
            "launch_specification": specification,
        }
        return {**wish, **changes}

    def try_bid(self, name: str = "one", **changes: Any) -> httpx.Response:
        """Asks for a bid, whatever comes of it."""
        return self.http.post("/v2/spot/bids", json=self.wish(name, **changes))

    def bid(self, name: str = "one", **changes: Any) -> str:
        """The id of a new bid."""
        reply = self.try_bid(name, **changes)
        assert reply.status_code == 201, reply.text
        return str(reply.json()["fid"])

    def status(self, bid: str) -> str:
        """A bid's status."""
        return str(self.get(f"spot/bids/{bid}")["status"])

    def machines(self, bid: str) -> list[dict[str, Any]]:
        """All instances a bid ever had."""
        return list(self.of_project("instances", bid_fid_in=bid, limit=100)["data"])

    def statuses(self, bid: str) -> set[str]:
        """What they are."""
        return {each["status"] for each in self.machines(bid)}

    def running(self, name: str = "one", **changes: Any) -> str:
        """The id of a bid whose machines run."""
        bid = self.bid(name, **changes)
        eventually(lambda: self.statuses(bid) == {"STATUS_RUNNING"})
        return bid

    def wait_status(self, bid: str, status: str) -> None:
        """Waits until a bid is so."""
        eventually(lambda: self.status(bid) == status)
