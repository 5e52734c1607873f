"""The regions of the account, and the instance types of the box: those with a price, where AWS has them."""

from __future__ import annotations

from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, InstanceTypeBackend
from moto.ec2.responses._base_response import EC2BaseResponse

from flowlite.testing.cloud.ec2.cloud import Cloud
from flowlite.testing.cloud.ec2.market import ON_DEMAND
from flowlite.testing.cloud.ec2.names import Refusal

PAGE = 100


def install() -> None:
    """Removes all other types from moto."""
    kept = [
        each for each in InstanceTypeBackend.instance_types if each["InstanceType"] in ON_DEMAND
    ]
    InstanceTypeBackend.instance_types[:] = kept
    for regions in INSTANCE_TYPE_OFFERINGS.values():
        for offers in regions.values():
            offers[:] = [offer for offer in offers if offer["InstanceType"] in ON_DEMAND]


class Catalogue(EC2BaseResponse):
    """The calls on regions and instance types."""

    cloud: Cloud

    def describe_regions(self) -> ActionResult:
        """DescribeRegions: those of the account, where moto lists those of every partition."""
        self.error_on_dryrun()
        named = self._get_param("RegionNames", [])
        if strange := sorted(set(named) - set(self.cloud.regions)):
            raise Refusal("InvalidParameterValue", f"Invalid region provided: {strange[0]}")
        found = self.ec2_backend.describe_regions(named or list(self.cloud.regions))
        return ActionResult({"Regions": found})

    def describe_instance_types(self) -> ActionResult:
        """DescribeInstanceTypes for this region, with pagination."""
        named = self._get_param("InstanceTypes", [])
        found = self.ec2_backend.describe_instance_types(named, self._filters_from_querystring())
        offers = self.ec2_backend.describe_instance_type_offerings("region")
        here = {offer["InstanceType"] for offer in offers}
        found = [each for each in found if each["InstanceType"] in here]
        return ActionResult(self._page("InstanceTypes", found))

    def _page(self, key: str, found: list[Any]) -> dict[str, Any]:
        token = self._get_param("NextToken") or "0"
        most = int(self._get_param("MaxResults") or PAGE)
        if not token.isdigit():
            raise Refusal("InvalidNextToken", "The NextToken value is not valid.")
        start = int(token)
        page: dict[str, Any] = {key: found[start : start + most]}
        if start + most < len(found):
            page["NextToken"] = str(start + most)
        return page
