"""What is sent to Mithril, word for word, and what is read out of its answers."""

from __future__ import annotations

import re

import pytest

from provider_adapters.mithril import bids
from provider_adapters.mithril.rest import requests
from provider_adapters.mithril.rest.requests import Tags

HOME = "0123456789abcdef"


# Names


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("tabc-launch-1-1-0a1b2c3d", "flow-01234567-tabc-launch-1-1-0a1b2c3d"),
        ("T.x_1", "flow-01234567-t-x-1-f039e02e"),
    ],
)
def test_a_bid_is_named_after_its_call(call: str, name: str) -> None:
    assert requests.bid_name(HOME, call) == name


def test_names_are_within_what_the_api_takes_and_differ() -> None:
    calls = ["a" * n for n in range(1, 70)] + ["a" * n + "." for n in range(60)]
    names = [requests.bid_name(HOME, call) for call in calls]
    assert len(set(names)) == len(calls)
    for name in names:
        assert len(name) <= requests.LONGEST_NAME
        assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)


def test_names_of_another_home_are_not_ours() -> None:
    assert requests.is_ours("flow-01234567-x", HOME)
    assert requests.is_ours("flow-01234567", HOME)
    assert not requests.is_ours("flow-012345678-x", HOME)
    assert not requests.is_ours("flow-0123456", HOME)


# Tags


def test_tags_survive_the_listing() -> None:
    tags = Tags("tabcdefghij", HOME, "ada@desk", "tabcdefghij-launch-1", 7200.0)
    script = f"#!/bin/sh\n# flowlite-tags: soon\n{tags.comment()}\n"
    name = requests.bid_name(HOME, "tabcdefghij-launch-1-1-00000000")
    assert (
        requests.tags_of({"name": name, "launch_specification": {"startup_script": script}}) == tags
    )


DEEP = "[" * 9000
ODD_TIMES = ['"2h"', "NaN", "Infinity", "-1", "[]", "1e300"]


@pytest.mark.parametrize("seconds", ODD_TIMES)
def test_a_time_that_is_none_makes_no_tags(seconds: str) -> None:
    """Somebody else's bid is listed by each `flow gc` of the project, and must not be its end."""
    line = Tags("tabcdefghij", HOME, "ada@desk", "token", 1.0).comment()
    bid = {
        "name": "flow-01234567-tabcdefghij-launch-1-1-0a1b2c3d",
        "launch_specification": {
            "startup_script": line.replace('"seconds": 1', f'"seconds": {seconds}')
        },
    }
    assert requests.tags_of(bid) == Tags("tabcdefghij", "01234567")


def test_a_life_of_millennia_is_listed_as_a_long_one() -> None:
    line = Tags("tabcdefghij", HOME, "ada@desk", "token", 3.6e21).comment()
    name = "flow-01234567-tabcdefghij-launch-1-1-0a1b2c3d"
    found = requests.tags_of({"name": name, "launch_specification": {"startup_script": line}})
    assert found is not None
    assert found.owner == "ada@desk"
    assert found.seconds is not None
    assert 9e10 < found.seconds < 1e11


@pytest.mark.parametrize(
    "script",
    [
        None,
        "",
        "# flowlite-tags: {not json",
        "# flowlite-tags: {}",
        pytest.param(f"# flowlite-tags: {DEEP}", id="deep"),
    ],
)
def test_without_its_script_a_bid_is_known_by_its_name(script: str | None) -> None:
    bid = {
        "name": "flow-01234567-tabcdefghij-launch-1-1-0a1b2c3d",
        "launch_specification": {"startup_script": script},
    }
    assert requests.tags_of(bid) == Tags("tabcdefghij", "01234567")


@pytest.mark.parametrize(
    "name", ["flow", "training", "flow-xyz-1", "my-flow-01234567-t", "flow-0123456789"]
)
def test_bids_of_others_are_nobodys(name: str) -> None:
    comment = Tags("t", HOME).comment()
    assert (
        requests.tags_of({"name": name, "launch_specification": {"startup_script": comment}})
        is None
    )


# Bodies


def test_the_body_of_a_bid() -> None:
    body = requests.bid(
        project="proj_1",
        region="us-central1-a",
        instance_type="it_1",
        count=4,
        limit_price=25.6,
        ssh_keys=["sshkey_1"],
        volumes=["vol_1"],
    )
    assert requests.with_script({**body, "name": "flow-01234567-x"}, "#!/bin/sh\n") == {
        "project": "proj_1",
        "region": "us-central1-a",
        "instance_type": "it_1",
        "limit_price": "$25.60",
        "instance_quantity": 4,
        "name": "flow-01234567-x",
        "launch_specification": {
            "volumes": ["vol_1"],
            "ssh_keys": ["sshkey_1"],
            "startup_script": "#!/bin/sh\n",
        },
    }
    assert "startup_script" not in body["launch_specification"], "the first body stays as it was"


def test_other_bodies() -> None:
    assert requests.api_key("flow-x", 1_800_000_000.4) == {
        "name": "flow-x",
        "expires_at": "2027-01-15T08:00:00Z",
    }
    assert requests.ssh_key("proj_1", "flow-01234567", "ssh-ed25519 AAAA") == {
        "project": "proj_1",
        "name": "flow-01234567",
        "public_key": "ssh-ed25519 AAAA",
        "required": False,
    }
    assert requests.volume("proj_1", "us-central1-a", "ckpt", 99.5, "file") == {
        "name": "ckpt",
        "project": "proj_1",
        "disk_interface": "File",
        "region": "us-central1-a",
        "size_gb": 100,
    }


def test_queries() -> None:
    assert requests.bids_of("proj_1", name="x") == {"project": "proj_1", "name": "x"}
    assert requests.bids_of("proj_1", status="Open") == {"project": "proj_1", "status": "Open"}
    assert requests.instances_of("proj_1", ["bid_1", "bid_2"]) == {
        "project": "proj_1",
        "bid_fid_in": "bid_1,bid_2",
    }
    assert requests.price_of("it_1", "r", 1000)["instance_quantity"] == 256


# Reading


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("$25.60", 25.6),
        ("$1,025.60", 1025.6),
        ("12", 12.0),
        ("", None),
        (None, None),
        ("free", None),
    ],
)
def test_money_is_read(text: object, amount: float | None) -> None:
    assert requests.read_dollars(text) == amount


@pytest.mark.parametrize("amount", [0.01, 0.29, 1.1, 16.0, 25.6, 32.999, 1234.56])
def test_rounding_never_breaks_a_cap(amount: float) -> None:
    down, up = requests.round_down(amount), requests.round_up(amount)
    assert down <= amount + 1e-9
    assert up >= amount - 1e-9
    assert up - down < 0.0100001
    assert requests.read_dollars(requests.dollars(down)) == pytest.approx(down)


def test_times_are_read_with_and_without_a_zone() -> None:
    assert requests.unix("2027-01-15T08:00:00Z") == 1_800_000_000.0
    assert requests.unix("2027-01-15T09:00:00+01:00") == 1_800_000_000.0
    assert requests.unix("2027-01-15T08:00:00.5") == 1_800_000_000.5
    assert requests.unix(None) is None
    assert requests.unix("soon") is None


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("10.0.0.1", ("10.0.0.1", 22)),
        ("host.mithril.ai:2201", ("host.mithril.ai", 2201)),
        ("[2001:db8::1]:2222", ("2001:db8::1", 2222)),
        (None, None),
        ("", None),
    ],
)
def test_where_a_machine_is_reached(text: object, place: tuple[str, int] | None) -> None:
    assert bids.ssh_place(text) == place
