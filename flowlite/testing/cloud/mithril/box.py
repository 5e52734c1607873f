"""The controls of the fake Mithril: `box.mithril`, or `PaperMithril` without machines."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from flowlite.testing.cloud.mithril.ground import PaperGround
from flowlite.testing.cloud.mithril.service import Mithril
from flowlite.testing.cloud.mithril.world import Rules
from flowlite.testing.cloud.orders import Orders
from flowlite.testing.cloud.served import Served
from flowlite.testing.cloud.serving import Gate, http_server, obey


class MithrilBox(Served):
    """Inspects and controls Mithril in the box. Ids are those of bids (`bid_…`) and instances (`inst_…`)."""

    name = "mithril"
    module = "flowlite.testing.cloud.mithril"

    def wait_until_up(self) -> None:
        """Waits until the API answers. Raises RuntimeError if its process has ended."""
        super().wait_until_up()
        self.ask("port", port=self.port)

    def environment(self) -> dict[str, str]:
        """The environment variables that point a client to this API."""
        facts = self.facts()
        return {
            "MITHRIL_API_KEY": facts["api_key"],
            "MITHRIL_API_URL": self.url,
            "MITHRIL_PROJECT": facts["project"],
        }

    def facts(self) -> dict[str, str]:
        """The account's `api_key`; `project` and `project_fid`; `foreign_project` and `foreign_project_fid`."""
        return dict(self.ask("facts"))

    def rules(self, **changes: Any) -> dict[str, Any]:
        """Changes `world.Rules`, and returns all of them."""
        return dict(self.ask("rules", **changes))

    def bids(self) -> list[dict[str, Any]]:
        """All bids as the API shows them, with `id` and `cost`. Unlike listings, they are not affected by lag."""
        return list(self.ask("bids"))

    def live_bids(self) -> list[dict[str, Any]]:
        """The bids that can still cost something."""
        return [bid for bid in self.bids() if bid["status"] != "Terminated"]

    def bill(self) -> list[dict[str, Any]]:
        """The independently computed cost of each instance: {"id", "bid", "seconds", "since", "until", "dollars"}."""
        return list(self.ask("bill"))

    def volume_bill(self) -> list[dict[str, Any]]:
        """The independently computed cost of each volume: {"id", "seconds", "dollars"}."""
        return list(self.ask("volume_bill"))

    def volumes(self) -> list[dict[str, Any]]:
        """All volumes."""
        return list(self.ask("volumes"))

    def api_keys(self) -> list[dict[str, Any]]:
        """All keys of the account, with `good`."""
        return list(self.ask("api_keys"))

    def console(self, id: str) -> str:
        """The console output of an instance since its start."""
        return str(self.ask("console", id=id))

    def price(self, type: str, dollars: float, region: str = "") -> None:
        """Sets what others bid per instance-hour of a type ("*": of any). Bids below that are preempted."""
        self.ask("price", type=type, dollars=dollars, region=region)

    def capacity(self, type: str, n: int | None, region: str = "") -> None:
        """Sets how many machines of a type exist. None restores the first number."""
        self.ask("capacity", type=type, n=n, region=region)

    def quota(self, type: str, n: int, region: str = "") -> None:
        """Sets how many machines of a type the project may have; for "storage", GB."""
        self.ask("quota", type=type, n=n, region=region)

    def preempt(self, ids: Sequence[str], seconds: float, again_after: float = 0.0) -> None:
        """Preempts bids, with `seconds` of notice. They can win machines again `again_after` seconds after that."""
        self.ask("preempt", ids=list(ids), seconds=seconds, again_after=again_after)

    def relocate(self, id: str, seconds: float) -> None:
        """Replaces an instance with another machine, with `seconds` of notice."""
        self.ask("relocate", id=id, seconds=seconds)

    def die(self, id: str, state: str = "STATUS_ERROR") -> None:
        """Ends an instance at once. The API shows `state`; "STATUS_RUNNING" if Mithril has not noticed."""
        self.ask("die", id=id, state=state)

    def odd_boots(self, how: str, times: int = 1) -> None:
        """Sets that the next machines "never" start; run but stay "silent"; "die" soon after; or end in "error"."""
        self.ask("odd_boots", how=how, times=times)

    def boots(self, *outcomes: str) -> None:
        """Sets how the next machines start, in order: "runs", or as in `odd_boots`."""
        for each in outcomes:
            self.odd_boots(each)

    def expire_key(self, name: str = "account", seconds: float = 0.0) -> None:
        """Makes the keys with that name expire after `seconds`."""
        self.ask("expire_key", name=name, seconds=seconds)

    def new_key(self, name: str, seconds: float) -> str:
        """Creates a key of the account and returns its secret."""
        return str(self.ask("new_key", name=name, seconds=seconds))

    def auction(self) -> None:
        """Holds all auctions now."""
        self.ask("auction")


class PaperMithril(MithrilBox):
    """The same API in this process, on loopback, without machines: nothing answers at their addresses.

    Args:
        port: The port to listen on; 0 for any free one.
        capacity: The number of machines in every auction.
        rules: Values for `world.Rules`.
    """

    def __init__(self, port: int = 0, *, capacity: int = 8, **rules: Any) -> None:
        self.ground = PaperGround()
        self.service = Mithril(self.ground, capacity, Rules(**rules))
        self._orders = Orders()
        gate = Gate(self.service, self._orders, self.ground)
        self._listener = socket.create_server(("127.0.0.1", port), backlog=64)
        self._server = http_server(self.name, gate, self._listener)
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        self._thread.start()

    def wait_until_up(self) -> None:
        """Returns at once: the API is already up."""

    def ask(self, what: str, **arguments: Any) -> Any:
        """Calls an operation in this process, with arguments as they would arrive over a socket."""
        return obey(what, json.loads(json.dumps(arguments)), self.service, self._orders)

    def close(self) -> None:
        """Stops listening."""
        self._server.shutdown()
        self._server.server_close()
        self._listener.close()
        self._thread.join()
        self.service.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def capacity_of(directory: Path) -> int:
    """The number of machines in a box's cluster that can be rented."""
    hosts = json.loads((directory / "settings.json").read_text())["hosts"]
    return sum("public_address" in host for host in hosts)
