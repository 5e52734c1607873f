"""The operations on instances, which are read-only: instances come and go with their bids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowlite.testing.cloud.mithril.errors import Refused, missing
from flowlite.testing.cloud.mithril.forms import stamp
from flowlite.testing.cloud.mithril.records import Instance
from flowlite.testing.cloud.mithril.request import Request, page
from flowlite.testing.cloud.mithril.world import World

_SORTING = {
    "created_at": "created_at",
    "instance_status": "status",
    "instance_type_fid": "instance_type",
}


class Listing:
    """Operations. Call them with the world's lock held."""

    def __init__(self, world: World) -> None:
        self._world = world

    def get_instances(self, request: Request) -> tuple[int, Any]:
        """The machines of a project, including those that have ended."""
        project = request.query["project"]
        statuses, orders, bids, reservations = (
            request.query.get(f"{name}_in")
            for name in ("status", "order_type", "bid_fid", "reservation_fid")
        )
        self._world.project_of(project)
        found = [
            each
            for each in self._world.listed(self._world.instances)
            if each["project"] == project
            and (not statuses or each["status"] in statuses)
            and (not orders or "Bid" in orders)
            and (bids is None or each["bid"] in bids)
            and (reservations is None or each["reservation"] in reservations)
            and all(
                each[name] == request.query[name]
                for name in ("instance_type", "region")
                if name in request.query
            )
        ]
        return 200, page(request, found, _SORTING, self._world.rules.page_size)

    def get_instance_status(self, request: Request) -> tuple[int, Any]:
        """The status of a machine, and when it will be taken away."""
        instance = self._world.instances.get(request.path["instance_fid"])
        if instance is None:
            raise missing("Instance")
        self._world.project_of(instance.project)
        return 200, {
            "fid": instance.fid,
            "name": instance.name,
            "status": instance.status,
            "bid": instance.bid,
            "reservation": None,
            "end_time": None if instance.end_time is None else stamp(instance.end_time),
        }

    def put_instance_status(self, request: Request) -> tuple[int, Any]:
        """Always refused: only machines of reservations can be started and stopped individually."""
        if any(fid not in self._world.instances for fid in request.body["instances"]):
            raise missing("Instance")
        raise Refused(501, "Spot bids are not yet supported")

    def get_instance_status_history(self, request: Request) -> tuple[int, Any]:
        """When each machine had which status."""
        return 200, self._histories(request, lambda instance: list(instance.statuses))

    def get_instance_pricing_history(self, request: Request) -> tuple[int, Any]:
        """The charges of each machine by period."""

        def events(instance: Instance) -> list[dict[str, Any]]:
            return [
                {
                    "price_cents": cents,
                    "start_time": stamp(start),
                    "end_time": None if end is None else stamp(end),
                }
                for cents, start, end in instance.periods
            ]

        return 200, self._histories(request, events)

    def _histories(
        self, request: Request, events: Callable[[Instance], list[dict[str, Any]]]
    ) -> dict[str, Any]:
        project = request.query["project"]
        self._world.project_of(project)
        wanted = {"fid": "instance_fid", "bid": "bid_fid", "reservation": "reservation_fid"}
        models = [each.model() for each in self._world.instances.values()]
        found = [
            model
            for model in models
            if model["project"] == project
            and all(model[k] == request.query[q] for k, q in wanted.items() if q in request.query)
        ]
        shown = page(request, found, {"created_at": "created_at"}, self._world.rules.page_size)
        histories = [
            {
                "instance_fid": model["fid"],
                "events": events(self._world.instances[model["fid"]]),
                "bid_fid": model["bid"],
                "reservation_fid": None,
            }
            for model in shown["data"]
        ]
        return {"instances": histories, "next_cursor": shown["next_cursor"]}
