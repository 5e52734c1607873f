"""Checks credentials, permissions, network and quotas, without launching anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from flowlite.errors import ConfigError, FlowError, PermissionRefused
from flowlite.provider import Finding
from provider_adapters.aws import policy, requests
from provider_adapters.aws.catalog import quotas
from provider_adapters.aws.catalog.instance_types import Machine, MachineRequirements
from provider_adapters.aws.context import Context
from provider_adapters.aws.errors import refusal
from provider_adapters.aws.images import find_image
from provider_adapters.aws.pages import PAGE
from provider_adapters.aws.planning import Planner
from provider_adapters.aws.service import Service

# EC2's answer to a dry run of a request that is permitted.
_WOULD = "DryRunOperation"
_TYPE = "c7i.large"
_NO_IMAGE = "ami-00000000000000000"


class Checking:
    """The findings for `flow providers check`, one after the other."""

    def __init__(self, context: Context, planner: Planner) -> None:
        self._context = context
        self._planner = planner
        self._clients = context.clients

    def findings(self) -> list[Finding]:
        """All findings. If a failure makes further checks pointless, it is the last one."""
        found = []
        for finding in self._all():
            found.append(finding)
            if not finding.ok and finding.what in ("credentials", "region"):
                break
        return found

    def _all(self) -> Iterator[Finding]:
        try:
            regions, _ = self._planner.regions(None)
        except ConfigError as error:
            yield Finding("region", False, str(error))
            return
        region = regions[0]
        yield self._credentials(region)
        yield Finding("region", True, ", ".join(regions))
        image, finding = self._image(region)
        yield finding
        subnet, finding = self._subnets(region)
        yield finding
        yield self._of("listing (ec2:DescribeInstances)", lambda: self._list(region))
        yield from self._dry_runs(region, image, subnet)
        yield from self._on_ours(region)
        yield self._of("prices (pricing:GetProducts)", lambda: self._price(region))
        yield from self._quotas(region)

    def _of(self, what: str, look: Callable[[], str]) -> Finding:
        try:
            return Finding(what, True, look())
        except FlowError as error:
            return Finding(what, False, str(error))

    def _credentials(self, region: str) -> Finding:
        def look() -> str:
            told = Service.of(self._clients, "sts", region).call("GetCallerIdentity")
            found = self._clients.session.get_credentials()
            return f"{told['Arn']} of account {told['Account']}, from {found.method}"

        return self._of("credentials", look)

    def _list(self, region: str) -> str:
        ours = requests.describe(tag__flowlite__home=self._context.home_id)
        Service.of(self._clients, "ec2", region).call("DescribeInstances", **ours, MaxResults=PAGE)
        return ""

    def _image(self, region: str) -> tuple[str, Finding]:
        machine = Machine(_TYPE, 2, 4.0)
        try:
            image = find_image(
                self._context.catalog(region), self._clients, self._context.settings, machine
            )
        except FlowError as error:
            return "", Finding("image (ssm:GetParameter, ec2:DescribeImages)", False, str(error))
        return str(image["id"]), Finding("image", True, f"{image['id']} {image['name']}".strip())

    def _subnets(self, region: str) -> tuple[dict[str, str], Finding]:
        try:
            subnets = self._planner.subnets(region)
        except FlowError as error:
            return {}, Finding("subnets (ec2:DescribeSubnets)", False, str(error))
        zones = ", ".join(each["zone"] for each in subnets)
        return subnets[0], Finding("subnets", True, f"in {zones}")

    def _price(self, region: str) -> str:
        machines = [
            m
            for m in self._context.catalog(region).machines(MachineRequirements())
            if m.name == _TYPE
        ]
        prices = self._context.catalog(region).prices([_TYPE])
        return f"{_TYPE}: ${prices[_TYPE]:.4f} per hour" if prices and machines else "none known"

    # Permissions, with dry runs

    def _dry_runs(self, region: str, image: str, subnet: dict[str, str]) -> Iterator[Finding]:
        ec2 = self._clients("ec2", region)
        tags = {"flowlite:home": self._context.home_id, "flowlite:task": "check"}
        order = requests.LaunchRequest(
            instance_type=_TYPE,
            count=1,
            least=1,
            image=image or _NO_IMAGE,
            root_device="/dev/sda1",
            root_gb=100,
            zone=subnet.get("zone", f"{region}a"),
            subnet=subnet.get("subnet", ""),
            groups=(),
            user_data="",
            tags=tags,
        )
        run = requests.run_instances(order)
        for each in run["NetworkInterfaces"]:
            del each["Groups"]
        vpc = subnet.get("vpc", "")
        calls: list[tuple[str, Any, dict[str, Any]]] = [
            ("ec2:RunInstances", ec2.run_instances, run),
            (
                "ec2:CreateSecurityGroup",
                ec2.create_security_group,
                requests.security_group("flowlite-check", vpc, tags),
            ),
            (
                "ec2:CreatePlacementGroup",
                ec2.create_placement_group,
                requests.placement_group("flowlite-check", tags),
            ),
        ]
        for action, call, request in calls:
            yield self._dry_run(action, call, request, region)

    def _on_ours(self, region: str) -> Iterator[Finding]:
        """What is permitted for our own resources only, which EC2 does not tell of any other."""
        unchecked = list(policy.ON_OURS)
        if machine := self._machine(region):
            terminate = self._clients("ec2", region).terminate_instances
            unchecked.remove("ec2:TerminateInstances")
            yield self._dry_run(
                "ec2:TerminateInstances", terminate, {"InstanceIds": [machine]}, region
            )
        yield Finding(
            "not checked",
            True,
            f"{', '.join(unchecked)}: EC2 answers only for resources of flowlite that exist; `flow aws policy` "
            "prints what is needed",
        )

    def _machine(self, region: str) -> str:
        """A machine of this FLOW_HOME; "" if none is listed."""
        ours = requests.describe(
            tag__flowlite__home=self._context.home_id, instance_state_name=requests.ALIVE
        )
        with suppress(FlowError):
            ec2 = Service.of(self._clients, "ec2", region)
            told = ec2.call("DescribeInstances", **ours, MaxResults=PAGE)
            found = [each for group in told["Reservations"] for each in group["Instances"]]
            return str(found[0]["InstanceId"]) if found else ""
        return ""

    def _dry_run(self, action: str, call: Any, request: dict[str, Any], region: str) -> Finding:
        try:
            call(**request, DryRun=True)
        except Exception as error:
            said = refusal(error, action)
            if said is None:
                raise
            if said.code == _WOULD:
                return Finding(action, True, "allowed")
            found = said.error(region)
            if isinstance(found, PermissionRefused):
                return Finding(action, False, str(found))
            # Permissions are checked before anything else, so this one exists.
            return Finding(action, True, f"allowed, as far as EC2 tells ({said.code})")
        return Finding(action, True, "allowed")

    # Quotas

    def _quotas(self, region: str) -> Iterator[Finding]:
        for example in ("p5.48xlarge", "g6.xlarge", _TYPE):
            for spot in (False, True):
                quota = quotas.quota_of(example, spot)
                if quota is None:
                    continue
                value = quotas.allowed(self._clients, region, quota)
                told = "AWS does not tell (servicequotas:GetServiceQuota)"
                yield Finding(
                    f"quota {quota.code}",
                    # A quota of zero for one kind is no error of the configuration.
                    True,
                    f"{quota.name}: {told if value is None else f'{value:g} vCPUs'}",
                )
