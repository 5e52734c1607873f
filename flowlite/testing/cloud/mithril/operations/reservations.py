"""The operations on reservations, which can be made and listed, but provide no machines."""

from __future__ import annotations

from typing import Any

from flowlite.state import clock
from flowlite.testing.cloud.mithril.errors import business, missing
from flowlite.testing.cloud.mithril.forms import money, new_fid, stamp
from flowlite.testing.cloud.mithril.records import Reservation
from flowlite.testing.cloud.mithril.request import Request, page
from flowlite.testing.cloud.mithril.world import USER, World


class Reservations:
    """Operations. Call them with the world's lock held."""

    def __init__(self, world: World) -> None:
        self._world = world

    def get_reservations(self, request: Request) -> tuple[int, Any]:
        """The reservations of a project."""
        project = request.query["project"]
        status = request.query.get("status")
        self._world.project_of(project)
        found = [
            each
            for each in self._world.listed(self._world.reservations)
            if each["project"] == project
            and (not status or each["status"] == status)
            and all(
                each[name] == request.query[name]
                for name in ("instance_type", "region")
                if name in request.query
            )
        ]
        sorting = {"created_at": "created_at", "status": "status"}
        return 200, page(request, found, sorting, self._world.rules.page_size)

    def create_reservation(self, request: Request) -> tuple[int, Any]:
        """Creates a reservation, which is pending until its start."""
        project = request.body["project"]
        instance_type = request.body["instance_type"]
        region = request.body["region"]
        start, end = request.moment("start_time"), request.moment("end_time")
        quantity = request.body["instance_quantity"]
        name = request.body["name"]
        specification = request.body["launch_specification"]
        request.checked()
        self._world.project_of(project)
        auction = self._world.auction_of(instance_type, region)
        if not max(start, clock.wall() - 60) < end or quantity < 1:
            raise business("A reservation needs an end after its start, and at least one instance")
        cents = auction.instance_type.spot_cents * 2
        shown = {
            "name": name,
            "project": project,
            "created_by": USER,
            "deactivated_at": None,
            "instance_quantity": quantity,
            "instance_type": instance_type,
            "region": region,
            "instances": [],
            "launch_specification": specification,
            "status": "Pending",
            "start_time": stamp(start),
            "end_time": stamp(end),
            "total_price": money(int(cents * quantity * (end - start) / 3600)),
            "unit_price": money(cents),
        }
        record = Reservation(fid=new_fid("res"), shown=shown)
        self._world.add(self._world.reservations, record)
        return 201, record.model()

    def get_reservation_history(self, request: Request) -> tuple[int, Any]:
        """The events of a reservation."""
        record = self._world.reservations.get(request.path["reservation_fid"])
        if record is None:
            raise missing("Reservation")
        event = {"timestamp": stamp(record.created_at), "event_type": "Placed"}
        return 200, {"reservation_fid": record.fid, "events": [event]}
