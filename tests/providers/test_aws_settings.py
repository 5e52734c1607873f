"""What can be set for EC2, how boto3 is given it, and what is remembered of a region. No network."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flowlite.api.adapters import adapter, settings_here
from flowlite.cli import main
from flowlite.errors import ConfigError, PermissionRefused, ProviderError
from provider_adapters.aws import network
from provider_adapters.aws.catalog import quotas, zone_order
from provider_adapters.aws.catalog.instance_types import Machine, MachineRequirements
from provider_adapters.aws.catalog.regions import FILES, Catalog
from provider_adapters.aws.policy import policy
from provider_adapters.aws.session import Clients
from provider_adapters.aws.settings import AwsSettings


def read(home: Path, text: str) -> AwsSettings:
    (home / "config.toml").write_text(f"[aws]\n{text}\n")
    return AwsSettings.read(settings_here("aws"))


def test_everything_can_be_set(flow_home: Path) -> None:
    found = read(
        flow_home,
        """
        region = ["us-east-1", "eu-west-1"]
        zones = "us-east-1a"
        profile = "research"
        ami = "ami-0123456789abcdef0"
        subnet = ["subnet-0a", "subnet-0b"]
        security_group = "sg-0a"
        root_gb = 500
        instance_profile = "arn:aws:iam::123456789012:instance-profile/train"
        placement_group = true
        capacity_block = "cr-0a"
        public_ip = false
        user = "ubuntu"
        lease = "15m"
        boot_timeout = "30m"
        endpoint_url = "http://127.0.0.1:5000"
        jump = "ubuntu@bastion"
        ssh_from = ["203.0.113.7/32", "2001:db8::/64"]
        listing_lag = 60
        prices = { "p5.48xlarge" = 44 }
        """,
    )
    assert found.region == ("us-east-1", "eu-west-1")
    assert found.zones == ("us-east-1a",)
    assert found.lease == 900
    assert found.prices == {"p5.48xlarge": 44.0}
    assert found.ssh_from == ("203.0.113.7/32", "2001:db8::/64")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('regoin = "us-east-1"', "did you mean 'region'"),
        ('instance_type = "p5"', "has no setting 'instance_type'"),
        ('region = "us-moon"', "a region, as in"),
        ('ami = "latest"', "ami-0123456789abcdef0"),
        ("root_gb = 1", "8 to 64000"),
        ('public_ip = "yes"', "true or false"),
        ('lease = "1s"', "at least 60 s"),
        ('ssh_from = "everywhere"', "networks, as in"),
        ('endpoint_url = "localhost"', "an address"),
        ("prices = 3", "dollars per hour by type"),
        ('prices = {"p5-48xlarge" = 44.0}', "'p5-48xlarge' is neither"),
        ("prices = {gp2 = 0.1}", "those of storage as 'gp3' and 'efs'; 'gp2' is neither"),
        ('capacity_block = "cr-1"\ncapacity_reservation = "cr-2"', "exclude each other"),
    ],
)
def test_a_mistake_is_named_with_its_file(flow_home: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)) as raised:
        read(flow_home, text)
    assert "[aws]" in str(raised.value)


# boto3


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    return monkeypatch


def test_endpoints_are_those_of_boto_users(variables: pytest.MonkeyPatch) -> None:
    assert Clients(AwsSettings()).endpoint("ec2", "eu-west-1").startswith("https://ec2.eu-west-1")
    variables.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:5000")
    assert Clients(AwsSettings()).endpoint("ec2", "eu-west-1") == "http://127.0.0.1:5000"
    own = AwsSettings(endpoint_url="http://127.0.0.1:7000")
    assert Clients(own).endpoint("ec2", "eu-west-1") == "http://127.0.0.1:7000"


def test_profiles_are_those_of_boto_users(variables: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config").write_text("[profile research]\nregion = eu-north-1\n")
    config = str(tmp_path / "config")
    own = AwsSettings(profile="research", shared_config_file=config)
    assert Clients(own).region == "eu-north-1"
    with pytest.raises(ConfigError, match="nobody"):
        _ = Clients(AwsSettings(profile="nobody", shared_config_file=config)).session


def test_a_launch_is_sent_once_and_everything_else_again(variables: pytest.MonkeyPatch) -> None:
    clients = Clients(AwsSettings())
    once = clients("ec2", "us-east-1", once=True).meta.config.retries
    again = clients("ec2", "us-east-1").meta.config.retries
    assert once["total_max_attempts"] == 1
    assert 1 < again["total_max_attempts"] <= 5
    assert clients("ec2", "us-east-1") is clients("ec2", "us-east-1")


def test_without_credentials_it_says_how_to_get_some(variables: pytest.MonkeyPatch) -> None:
    variables.delenv("AWS_ACCESS_KEY_ID")
    variables.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(PermissionRefused, match="aws sso login"):
        Clients(AwsSettings())("ec2", "us-east-1")


# The catalog


TOLD: dict[str, Any] = {
    "InstanceType": "p5.48xlarge",
    "VCpuInfo": {"DefaultVCpus": 192},
    "MemoryInfo": {"SizeInMiB": 2097152},
    "GpuInfo": {"Gpus": [{"Name": "H100", "Count": 8, "MemoryInfo": {"SizeInMiB": 81920}}]},
    "NetworkInfo": {
        "EfaSupported": True,
        "EfaInfo": {"MaximumEfaInterfaces": 32},
        "NetworkCards": [
            {"NetworkCardIndex": 1, "InterfaceTypes": ["efa-only"]},
            {"NetworkCardIndex": 0, "InterfaceTypes": ["interface", "efa"]},
        ],
    },
    "ProcessorInfo": {"SupportedArchitectures": ["x86_64"]},
    "SupportedUsageClasses": ["on-demand", "spot", "capacity-block"],
}


def test_a_type_is_read_as_ec2_tells_it() -> None:
    found = Machine.from_api(TOLD)
    assert (found.gpu, found.gpus, found.gpu_memory_gb) == ("h100", 8, 80)
    assert (found.family, found.generation) == ("p", 5)
    assert found.cards == (("interface", "efa"), ("efa-only",))
    assert Machine.from_json(json.loads(json.dumps(found.to_json()))) == found


@pytest.mark.parametrize(
    ("gpu", "kind", "memory"),
    [
        ({"Name": "A10G", "Count": 4, "MemoryInfo": {"SizeInMiB": 22888}}, "a10g", 24),
        ({"Name": "L40S", "Count": 1, "MemoryInfo": {"SizeInMiB": 45776}}, "l40s", 48),
        ({"Name": "B200", "Count": 8, "MemoryInfo": {"SizeInMiB": 183359}}, "b200", 180),
        ({"Name": "RTX PRO Server 6000", "Count": 1, "MemoryInfo": {"SizeInMiB": 98304}}, "rtxpro6000", 96),
        ({"Name": "Radeon Pro V520", "Count": 1, "MemoryInfo": {"SizeInMiB": 8192}}, "", 0),
        # A part of a GPU is none.
        ({"Name": "L4", "Count": 1, "GpuPartitionSize": 0.5, "MemoryInfo": {"SizeInMiB": 11444}}, "", 0),
    ],
)  # fmt: skip
def test_gpus_are_named_as_in_gpu_strings(gpu: dict[str, Any], kind: str, memory: int) -> None:
    found = Machine.from_api({**TOLD, "GpuInfo": {"Gpus": [gpu]}})
    assert (found.gpu, found.gpu_memory_gb) == (kind, memory)
    assert found.accelerated


class Counting(Catalog):
    """A catalog whose questions are counted."""

    asked: list[tuple[str, ...]]

    def _ask_types(self, gpu: bool) -> list[dict[str, Any]]:
        self.asked.append(("types",))
        return [Machine.from_api(TOLD).to_json()]

    def _ask_prices(self, types: Any) -> dict[str, float]:
        self.asked.append(("prices", *types))
        return {"p5.48xlarge": 55.04}


def counting(home: Path, settings: AwsSettings | None = None) -> Counting:
    given = settings or AwsSettings()
    made = Counting(home, Clients(given), given, "us-east-1")
    made.asked = []
    return made


def test_what_a_region_has_is_asked_once(flow_home: Path) -> None:
    first = counting(flow_home)
    assert first.machines(MachineRequirements(gpu=None)) == first.machines(
        MachineRequirements(gpu=None)
    )
    assert first.prices(["p5.48xlarge", "g6.xlarge"]) == {"p5.48xlarge": 55.04}
    assert first.asked == [("types",), ("prices", "p5.48xlarge", "g6.xlarge")]
    again = counting(flow_home)
    again.machines(MachineRequirements(gpu=None))
    # Also that there is no price; only what is new is asked.
    again.prices(["p5.48xlarge", "g6.xlarge", "g5.xlarge"])
    assert again.asked == [("prices", "g5.xlarge")]


def test_what_is_too_old_is_asked_again(flow_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counting(flow_home).prices(["p5.48xlarge"])
    later = time.time() + 2 * 86400
    monkeypatch.setattr(time, "time", lambda: later)
    again = counting(flow_home)
    again.prices(["p5.48xlarge"])
    assert again.asked


def test_a_rehearsal_and_the_real_thing_are_kept_apart(flow_home: Path) -> None:
    counting(flow_home).prices(["p5.48xlarge"])
    other = counting(flow_home, AwsSettings(endpoint_url="http://127.0.0.1:5000"))
    other.prices(["p5.48xlarge"])
    assert other.asked


def test_own_prices_come_before_the_list(flow_home: Path) -> None:
    found = counting(flow_home, AwsSettings(prices={"p5.48xlarge": 44.0}))
    assert found.prices(["p5.48xlarge"]) == {"p5.48xlarge": 44.0}
    assert found.asked == []


def test_a_price_of_a_type_that_does_not_exist_is_told(flow_home: Path) -> None:
    """Only where that is certain: other families may be sold in another region."""
    names = ("p5.48xlage", "p5.48xlarge", "p4d.24xlarge", "c7i.metal-24xl", "c7i.lrage", "gp3")
    catalog = counting(flow_home, AwsSettings(prices=dict.fromkeys(names, 1.0)))
    assert catalog.notes_on_prices() == [], "it has not asked for types yet, and does not for that"
    for gpu, name in (("gpus", "p5.48xlarge"), ("cpus", "c7i.large")):
        machine = Machine(name, 2, 4.0).to_json()
        catalog.remembered(gpu, 60.0, lambda machine=machine: [machine])  # type: ignore[misc]
    assert [note.partition(" has a price for ")[2] for note in catalog.notes_on_prices()] == [
        "'p5.48xlage', and us-east-1 has no such type; it has no effect; did you mean 'p5.48xlarge'?",
        "'c7i.lrage', and us-east-1 has no such type; it has no effect; did you mean 'c7i.large'?",
    ]


def test_a_broken_file_is_asked_anew(flow_home: Path) -> None:
    counting(flow_home).prices(["p5.48xlarge"])
    (path,) = (flow_home / "aws" / "catalog").iterdir()
    path.write_text("{")
    again = counting(flow_home)
    assert again.prices(["p5.48xlarge"])
    assert again.asked


# Zones, quotas, addresses


def site(zone: str) -> zone_order.Site:
    return zone_order.Site(zone[:-1], zone, "subnet-0a", "vpc-0a", 1.0, {})


SITES = [site(zone) for zone in ("us-east-1a", "us-east-1b", "us-west-2a")]


@pytest.mark.parametrize(
    ("options", "order"),
    [
        ({}, ["us-east-1a", "us-east-1b", "us-west-2a"]),
        ({"tried": {"us-east-1/us-east-1a"}}, ["us-east-1b", "us-west-2a"]),
        # A gang is in one region.
        ({"beside": "us-west-2/us-west-2a"}, ["us-west-2a"]),
        ({"beside": "us-east-1/us-east-1b"}, ["us-east-1b", "us-east-1a"]),
        ({"beside": "us-east-1/us-east-1b", "must_be_beside": True}, ["us-east-1b"]),
        # Somewhere else in the region comes before another region.
        (
            {"refused_lately": {"us-east-1/us-east-1a", "us-east-1/us-east-1b"}},
            ["us-east-1a", "us-east-1b", "us-west-2a"],
        ),
        ({"refused_lately": {"us-east-1/us-east-1a"}}, ["us-east-1b", "us-east-1a", "us-west-2a"]),
    ],
)
def test_the_order_of_zones(options: dict[str, Any], order: list[str]) -> None:
    assert [each.zone for each in zone_order.order(SITES, **options)] == order


def test_pauses_grow_up_to_five_minutes() -> None:
    assert [zone_order.pause(rounds) for rounds in range(6)] == [15, 30, 60, 120, 240, 300]


@pytest.mark.parametrize(
    ("instance_type", "spot", "code"),
    [
        ("p5.48xlarge", False, "L-417A185B"),
        ("p6-b200.48xlarge", False, "L-417A185B"),
        ("p4d.24xlarge", True, "L-7212CCBC"),
        ("p5en.48xlarge", True, "L-C4BD4855"),
        ("g6e.xlarge", False, "L-DB2E81BA"),
        ("g6e.xlarge", True, "L-3819A6DF"),
        ("c7i.large", False, "L-1216C47A"),
        ("m7i.large", True, "L-34B43A08"),
        # What is not known is not made up.
        ("p6-b200.48xlarge", True, None),
        ("trn1.2xlarge", False, None),
        ("inf2.xlarge", False, None),
    ],
)
def test_which_quota_a_type_counts_against(
    instance_type: str, spot: bool, code: str | None
) -> None:
    found = quotas.quota_of(instance_type, spot)
    assert (found and found.code) == code


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:5000", "http://localhost:4566/"])
def test_in_a_rehearsal_our_own_address_is_the_way_out(endpoint: str) -> None:
    assert re.fullmatch(r"\d+(\.\d+){3}", network.own_address(endpoint))


def test_an_address_that_is_not_known_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "CHECK_IP", "http://127.0.0.1:9/")
    with pytest.raises(ProviderError, match="ssh_from"):
        network.own_address("https://ec2.us-east-1.amazonaws.com")


def test_networks_that_were_set_are_taken(flow_home: Path) -> None:
    settings = AwsSettings(ssh_from=("203.0.113.0/24",))
    assert network.callers(Clients(settings), settings, "us-east-1", "vpc-0a") == ["203.0.113.0/24"]


# The policy


@pytest.mark.parametrize("partition", ["aws", "aws-cn", "aws-us-gov"])
def test_the_policy_fits_into_a_managed_one(partition: str) -> None:
    # IAM's limit, blanks not counted.
    found = policy(partition=partition)
    assert len(json.dumps(found, separators=(",", ":"))) <= 6144


@pytest.mark.parametrize(
    ("set_by", "region", "partition"),
    [
        ("settings", "us-east-1", "aws"),
        ("settings", "cn-north-1", "aws-cn"),
        ("variable", "us-gov-west-1", "aws-us-gov"),
        ("nothing", "", "aws"),
    ],
)
def test_the_policy_is_one_of_the_partition_of_the_region(
    flow_home: Path, variables: pytest.MonkeyPatch, set_by: str, region: str, partition: str
) -> None:
    """IAM refuses a policy with resources of another partition."""
    if set_by == "settings":
        (flow_home / "config.toml").write_text(f'[aws]\nregion = "{region}"\n')
    if set_by == "variable":
        variables.setenv("AWS_DEFAULT_REGION", region)
    provider: Any = adapter("aws")
    text = json.dumps(provider.policy())
    assert set(re.findall(r"arn:([^:]*):", text)) == {partition}


def test_nothing_is_made_or_ended_without_our_tag() -> None:
    for statement in policy()["Statement"]:
        for action in statement["Action"]:
            risky = re.search(r":(Terminate|Delete|Cancel|Run)", action)
            free = statement["Sid"] in ("LaunchFrom", "MountIn")
            assert "Condition" in statement or not risky or free, action
            assert "*" not in action


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str], flow_home: Path) -> None:
    assert main(["aws", "policy"]) == 0
    assert json.loads(capsys.readouterr().out) == policy()


def product(name: str, **price: str) -> str:
    """An entry of a price list."""
    dimension = {"unit": "Hrs", "pricePerUnit": price}
    terms = {"OnDemand": {"x": {"priceDimensions": {"y": dimension}}}}
    return json.dumps({"product": {"attributes": {"instanceType": name}}, "terms": terms})


class PriceLists:
    """Clients whose only service is the price list; remembers the regions it was asked in."""

    def __init__(self, partition: str, listed: list[str]) -> None:
        self.asked: list[str] = []
        self._partition = partition
        self._listed = listed

    def partition(self, region: str) -> str:
        return self._partition

    def __call__(self, service: str, region: str) -> Any:
        self.asked.append(region)
        pages = SimpleNamespace(paginate=lambda **_: [{"PriceList": self._listed}])
        return SimpleNamespace(get_paginator=lambda operation: pages)


def test_prices_in_yuan_become_dollars(flow_home: Path) -> None:
    settings = AwsSettings(cny_per_usd=7.0)
    clients: Any = PriceLists("aws-cn", [product("p4d.24xlarge", CNY="210.0")])
    catalog = Catalog(flow_home, clients, settings, "cn-north-1")
    assert catalog.prices(["p4d.24xlarge"]) == {"p4d.24xlarge": 30.0}
    assert clients.asked == ["cn-northwest-1"]
    # Another rate holds at once, and not when what is remembered is too old.
    another = Catalog(flow_home, clients, AwsSettings(cny_per_usd=6.0), "cn-north-1")
    assert another.prices(["p4d.24xlarge"]) == {"p4d.24xlarge": 35.0}


def test_govcloud_has_no_price_list(flow_home: Path) -> None:
    own = AwsSettings(prices={"p4d.24xlarge": 39.33})
    clients: Any = PriceLists("aws-us-gov", [])
    catalog = Catalog(flow_home, clients, own, "us-gov-west-1")
    assert catalog.prices(["p4d.24xlarge", "g5.xlarge"]) == {"p4d.24xlarge": 39.33}
    assert (catalog.disk_price(), catalog.storage_price(FILES)) == (0.08, None)
    (note,) = catalog.notes_on_prices()
    assert "disks of us-gov-west-1" in note
    assert "'gp3' = … under [aws.prices]" in note
    own = AwsSettings(prices={"gp3": 0.096, "efs": 0.36})
    catalog = Catalog(flow_home, clients, own, "us-gov-west-1")
    assert (catalog.disk_price(), catalog.storage_price(FILES)) == (0.096, 0.36)
    assert catalog.notes_on_prices() == []
    assert clients.asked == []


def test_partitions_are_those_of_botocore(variables: pytest.MonkeyPatch) -> None:
    clients = Clients(AwsSettings())
    known = {"us-east-1": "aws", "cn-north-1": "aws-cn", "us-gov-east-1": "aws-us-gov"}
    assert {region: clients.partition(region) for region in known} == known
