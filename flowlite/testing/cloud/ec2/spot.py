"""Spot instances: the maximum price, the spot request of an instance, and interruption."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.models.core import TaggedEC2Resource
from moto.ec2.responses._base_response import EC2BaseResponse

from flowlite.testing.cloud.ec2.cloud import Cloud
from flowlite.testing.cloud.ec2.instance import RentedInstance
from flowlite.testing.cloud.ec2.market import ON_DEMAND
from flowlite.testing.cloud.ec2.names import Refusal, new_id
from flowlite.testing.cloud.timers import utc_now

PRODUCT = "Linux/UNIX"
_MESSAGES = {
    "fulfilled": "Your spot request is fulfilled.",
    "marked-for-termination": "Your Spot Instance is marked for termination.",
    "instance-terminated-by-user": "Spot Instance terminated due to user-initiated termination.",
    "instance-terminated-no-capacity": "Your Spot Instance was terminated because there is no Spot capacity available.",
    "request-canceled-and-instance-running": "Your Spot request is canceled, but your instance is still running.",
}


@dataclass(frozen=True)
class Request:
    """The spot options of a launch."""

    max_price: float
    kind: str
    zone: str
    lasting: bool
    behaviour: str

    @classmethod
    def of(cls, call: Any, zone: str) -> Request | None:
        """The spot options of a RunInstances call, or None for on-demand. Raises a refusal if the price is too low."""
        if call._get_param("InstanceMarketOptions.MarketType") != "spot":
            return None
        options = call._get_param("InstanceMarketOptions.SpotOptions") or {}
        kind = call._get_param("InstanceType", "m1.small")
        now = call.cloud.market.spot_price(kind, zone) or 0.0
        ceiling = call.cloud.market.price(kind, call.region) or now
        asked = float(options.get("MaxPrice") or ceiling)
        if asked < now:
            raise Refusal(
                "SpotMaxPriceTooLow",
                f"Your Spot request price of {asked:g} is lower than the minimum required Spot request fulfillment "
                f"price of {now:g}.",
            )
        lasting = options.get("SpotInstanceType") == "persistent"
        behaviour = options.get("InstanceInterruptionBehavior", "terminate")
        if behaviour != "terminate" and not lasting:
            raise Refusal(
                "InvalidParameterCombination",
                "A one-time request only supports the interruption behavior 'terminate'.",
            )
        return cls(asked, kind, zone, lasting, behaviour)


class SpotRequest(TaggedEC2Resource):
    """A spot request as shown by DescribeSpotInstanceRequests."""

    def __init__(self, backend: Any, request: Request, instance: RentedInstance) -> None:
        self.ec2_backend = backend
        self.id = self.spot_instance_request_id = new_id("sir")
        self.instance = instance
        self.instance_id = instance.id
        self.spot_price = f"{request.max_price:.6f}"
        self.type = "persistent" if request.lasting else "one-time"
        self.instance_interruption_behavior = request.behaviour
        self.product_description = PRODUCT
        self.launched_availability_zone = request.zone
        self.create_time = utc_now()
        self.state = "active"
        self._code = "fulfilled"
        self._updated = self.create_time

    @property
    def status(self) -> dict[str, Any]:
        """The status code, its message, and when it was set."""
        said = _MESSAGES.get(self._code, self._code)
        return {"Code": self._code, "Message": said, "UpdateTime": self._updated}

    def mark(self, code: str) -> None:
        """Sets the status code."""
        self._code, self._updated = code, utc_now()

    def close(self, reason: str) -> None:
        """Closes the request of an ended instance."""
        user = not reason.startswith("Server.")
        self.mark("instance-terminated-by-user" if user else "instance-terminated-no-capacity")
        if self.state == "active":
            self.state = "closed"


def open_request(
    backend: Any, request: Request, instance: RentedInstance, tags: dict[str, str]
) -> SpotRequest:
    """Creates the request for an instance that is being launched."""
    made = SpotRequest(backend, request, instance)
    made.add_tags(tags)
    backend.spot_instance_requests[made.id] = made
    instance.spot_instance_request_id = made.id
    instance.lifecycle = "spot"
    return made


class SpotMarket(EC2BaseResponse):
    """The calls on spot instances."""

    cloud: Cloud

    def cancel_spot_instance_requests(self) -> ActionResult:
        """CancelSpotInstanceRequests. The instances keep running."""
        cancelled = []
        for id in self._get_param("SpotInstanceRequestIds", []):
            request = self.ec2_backend.spot_instance_requests.get(id)
            if request is None:
                raise Refusal(
                    "InvalidSpotInstanceRequestID.NotFound",
                    f"The spot instance request ID '{id}' does not exist",
                )
            if request.state == "active":
                request.mark("request-canceled-and-instance-running")
            request.state = "cancelled"
            cancelled.append({"SpotInstanceRequestId": id, "State": "cancelled"})
        return ActionResult({"CancelledSpotInstanceRequests": cancelled})

    def describe_spot_price_history(self) -> ActionResult:
        """DescribeSpotPriceHistory: the current price and its changes back to the requested start."""
        filters = self._filters_from_querystring()
        kinds = self._get_param("InstanceTypes") or filters.get("instance-type") or list(ON_DEMAND)
        zone = self._get_param("AvailabilityZone")
        zones = [zone] if zone else filters.get("availability-zone")
        start, now = self._get_param("StartTime"), utc_now()
        history = []
        for offer in self.ec2_backend.describe_instance_type_offerings(
            "availability-zone", {"instance-type": list(kinds)}
        ):
            kind, place = offer["InstanceType"], offer["Location"]
            usual = self.cloud.market.usual_spot_price(kind, place)
            if usual is None or (zones and place not in zones):
                continue
            set_by_test = self.cloud.market.spot.get((kind, place), [])
            first = min([now, *(moment for moment, _ in set_by_test)])
            changes = [
                *reversed(set_by_test),
                (first - timedelta(minutes=7), usual),
                (first - timedelta(hours=9), usual * 0.97),
            ]
            for moment, price in changes:
                # The last change before the start is included, since it gives the price at the start.
                history.append(_entry(kind, place, price, moment))
                if start is not None and _moment(start) >= moment:
                    break
        return ActionResult({"SpotPriceHistory": history, "NextToken": ""})


def _entry(kind: str, zone: str, price: float, since: datetime) -> dict[str, Any]:
    return {
        "InstanceType": kind,
        "AvailabilityZone": zone,
        "ProductDescription": PRODUCT,
        "SpotPrice": f"{price:.6f}",
        "Timestamp": since,
    }


def _moment(given: Any) -> datetime:
    if isinstance(given, datetime):
        return given if given.tzinfo else given.replace(tzinfo=UTC)
    return datetime.fromisoformat(str(given).replace("Z", "+00:00"))
