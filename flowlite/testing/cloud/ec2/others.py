"""The other services that a launcher calls and moto lacks: prices, quotas, SSM parameters of images."""

from __future__ import annotations

import json
from typing import Any

from flowlite.testing.cloud.ec2 import images
from flowlite.testing.cloud.ec2.market import DISK_PRICE, ON_DEMAND, QUOTAS, Market
from flowlite.testing.cloud.ec2.names import ACCOUNT, OTHER_ACCOUNT, OTHER_USER_ARN, USER_ARN
from flowlite.testing.cloud.serving import Reply

_REGION_NAMES = {
    "us-east-1": "US East (N. Virginia)",
    "us-east-2": "US East (Ohio)",
    "us-west-1": "US West (N. California)",
    "us-west-2": "US West (Oregon)",
    "eu-west-1": "EU (Ireland)",
    "eu-central-1": "EU (Frankfurt)",
    "ap-northeast-1": "Asia Pacific (Tokyo)",
}
_CALLER = (
    '<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><GetCallerIdentityResult>'
    "<Arn>{arn}</Arn><UserId>AIDAFLOWLITEINTHEBOX</UserId><Account>{account}</Account>"
    "</GetCallerIdentityResult></GetCallerIdentityResponse>"
)


class Others:
    """Answers calls in JSON, or returns None for calls that moto answers."""

    def __init__(self, market: Market) -> None:
        self._market = market

    def answer(
        self, action: str, region: str, asked: dict[str, Any], *, elsewhere: bool = False
    ) -> Reply | None:
        """The reply to a call such as `pricing:GetProducts`.

        Args:
            elsewhere: Whether it is made with a key of the other account.
        """
        match action:
            case "pricing:GetProducts":
                return reply(self._products(asked))
            case "servicequotas:GetServiceQuota" | "servicequotas:GetAWSDefaultServiceQuota":
                return self._quota(region, asked)
            case "servicequotas:ListServiceQuotas":
                if asked.get("ServiceCode") != "ec2":
                    return None
                return reply({"Quotas": [self._show(region, code) for code in QUOTAS]})
            case "ssm:GetParameter":
                value = images.parameter(str(asked.get("Name")), region)
                return (
                    value and reply({"Parameter": _parameter(asked["Name"], value, region)})
                ) or None
            case "sts:GetCallerIdentity":
                arn, account = (OTHER_USER_ARN, OTHER_ACCOUNT) if elsewhere else (USER_ARN, ACCOUNT)
                said = _CALLER.format(arn=arn, account=account)
                return 200, [("Content-Type", "text/xml")], said.encode()
            case "ssm:GetParameters":
                return self._parameters(region, asked)
        return None

    def _products(self, asked: dict[str, Any]) -> dict[str, Any]:
        wanted = asked.get("Filters", [])
        if asked.get("ServiceCode") != "AmazonEC2":
            return {"FormatVersion": "aws_v1", "PriceList": []}
        found = []
        for region, name in _REGION_NAMES.items():
            products = [self._product(kind, region, name) for kind in ON_DEMAND]
            for product in [*products, _disk_product(region, name)]:
                about = product["product"]
                attributes = {"productFamily": about["productFamily"], **about["attributes"]}
                if all(_matches(attributes, each) for each in wanted):
                    found.append(json.dumps(product))
        start = int(asked.get("NextToken") or 0)
        most = int(asked.get("MaxResults") or 100)
        page: dict[str, Any] = {"FormatVersion": "aws_v1", "PriceList": found[start : start + most]}
        if start + most < len(found):
            page["NextToken"] = str(start + most)
        return page

    def _product(self, kind: str, region: str, location: str) -> dict[str, Any]:
        sku = kind.upper().replace(".", "").replace("-", "") + region.upper().replace("-", "")
        price = {"USD": f"{self._market.price(kind, region):.10f}"}
        dimension = {
            "unit": "Hrs",
            "description": f"${price['USD']} per On Demand Linux {kind} Instance Hour",
            "beginRange": "0",
            "endRange": "Inf",
            "pricePerUnit": price,
        }
        term = {
            "sku": sku,
            "effectiveDate": "2025-11-01T00:00:00Z",
            "priceDimensions": {f"{sku}.JRTCKXETXF.6YS6EN2CT7": dimension},
            "termAttributes": {},
        }
        attributes = {
            "instanceType": kind,
            "location": location,
            "regionCode": region,
            "locationType": "AWS Region",
            "servicecode": "AmazonEC2",
            "operatingSystem": "Linux",
            "tenancy": "Shared",
            "capacitystatus": "Used",
            "preInstalledSw": "NA",
            "licenseModel": "No License required",
            "marketoption": "OnDemand",
            "operation": "RunInstances",
            "currentGeneration": "Yes",
        }
        return {
            "product": {"productFamily": "Compute Instance", "sku": sku, "attributes": attributes},
            "serviceCode": "AmazonEC2",
            "terms": {"OnDemand": {f"{sku}.JRTCKXETXF": term}},
            "version": "20251101000000",
        }

    def _quota(self, region: str, asked: dict[str, Any]) -> Reply | None:
        if asked.get("ServiceCode") != "ec2":
            return None
        code = str(asked.get("QuotaCode"))
        if code not in QUOTAS:
            return refusal("NoSuchResourceException", "The requested quota does not exist.")
        return reply({"Quota": self._show(region, code)})

    def _show(self, region: str, code: str) -> dict[str, Any]:
        return {
            "ServiceCode": "ec2",
            "ServiceName": "Amazon Elastic Compute Cloud (Amazon EC2)",
            "QuotaArn": f"arn:aws:servicequotas:{region}:{ACCOUNT}:ec2/{code}",
            "QuotaCode": code,
            "QuotaName": QUOTAS[code],
            "Value": self._market.quotas[code],
            "Unit": "None",
            "Adjustable": True,
            "GlobalQuota": False,
        }

    def _parameters(self, region: str, asked: dict[str, Any]) -> Reply | None:
        values = {name: images.parameter(name, region) for name in asked.get("Names", [])}
        if not any(values.values()):
            return None
        found = [_parameter(name, value, region) for name, value in values.items() if value]
        missing = [name for name, value in values.items() if not value]
        return reply({"Parameters": found, "InvalidParameters": missing})


def _matches(attributes: dict[str, str], wanted: dict[str, str]) -> bool:
    """Whether a product matches a filter."""
    value = attributes.get(wanted["Field"])
    if wanted.get("Type") == "ANY_OF":
        return value in wanted["Value"].split(",")
    return value == wanted["Value"]


def _disk_product(region: str, location: str) -> dict[str, Any]:
    """The price list's product for gp3 disks, by GB and month."""
    sku = f"GP3{region.upper().replace('-', '')}"
    dimension = {
        "unit": "GB-Mo",
        "description": f"${DISK_PRICE:.3f} per GB-month of General Purpose (gp3) provisioned storage",
        "pricePerUnit": {"USD": f"{DISK_PRICE:.10f}"},
    }
    attributes = {
        "location": location,
        "regionCode": region,
        "servicecode": "AmazonEC2",
        "volumeApiName": "gp3",
        "volumeType": "General Purpose",
    }
    return {
        "product": {"productFamily": "Storage", "sku": sku, "attributes": attributes},
        "serviceCode": "AmazonEC2",
        "terms": {
            "OnDemand": {f"{sku}.X": {"sku": sku, "priceDimensions": {f"{sku}.X.Y": dimension}}}
        },
        "version": "20251101000000",
    }


def _parameter(name: str, value: str, region: str) -> dict[str, Any]:
    return {
        "Name": name,
        "Type": "String",
        "Value": value,
        "Version": 1,
        "LastModifiedDate": 1762000000.0,
        "ARN": f"arn:aws:ssm:{region}::parameter{name}",
        "DataType": "aws:ec2:image",
    }


def reply(value: dict[str, Any]) -> Reply:
    """A reply in the format of AWS's JSON services."""
    return 200, [("Content-Type", "application/x-amz-json-1.1")], json.dumps(value).encode()


def refusal(code: str, message: str, status: int = 400) -> Reply:
    """An error in the format of AWS's JSON services."""
    body = {"__type": code, "message": message}
    headers = [("Content-Type", "application/x-amz-json-1.1"), ("x-amzn-ErrorType", code)]
    return status, headers, json.dumps(body).encode()
