"""Plans, prices, offers, volumes, settings and credentials: all that is decided before anything is bid."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flowlite.errors import (
    CapExceeded,
    ConfigError,
    ProviderError,
)
from flowlite.node.attached_volumes.disks import format_command
from flowlite.provider import Plan
from flowlite.spec import TaskConfig
from flowlite.supervise.money import price_text
from provider_adapters.mithril import costs, disks, planning
from provider_adapters.mithril.context import deadline_seconds
from provider_adapters.mithril.markets import Market, Price, markets_of
from provider_adapters.mithril.nodekey import ENDING_SECONDS
from provider_adapters.mithril.offers import offers_of
from provider_adapters.mithril.settings import MithrilSettings

pytest.importorskip("httpx")


def market(**changes: Any) -> Market:
    given: dict[str, Any] = {
        "type_id": "it_1",
        "name": "h100-80gb.sxm.8x",
        "region": "us-central1-a",
        "price": 16.0,
        "capacity": 8,
        "gpu": "h100",
        "gpus": 8,
        "gpu_memory_gb": 80,
        "socket": "SXM5",
        "cpus": 192,
        "memory_gb": 1800.0,
        "network": "InfiniBand",
    }
    return Market(**{**given, **changes})


MARKETS = [
    market(),
    market(type_id="it_2", region="eu-central1-a", price=14.0, capacity=1),
    market(type_id="it_3", name="h100-80gb.sxm.1x", gpus=1, price=2.0, network=""),
    market(
        type_id="it_4",
        name="a100-40gb.sxm.8x",
        gpu="a100",
        gpu_memory_gb=40,
        socket="SXM4",
        price=8.0,
    ),
]


def plan(
    *,
    markets: list[Market] = MARKETS,
    price: Price | None = None,
    volumes: list[dict[str, Any]] | None = None,
    settings: MithrilSettings | None = None,
    **options: Any,
) -> Plan:
    config = TaskConfig(provider="mithril", **{"command": ["true"], "gpu": "h100:8", **options})
    return planning.make_plan(
        config,
        settings or MithrilSettings(),
        "proj_1",
        markets,
        volumes or [],
        lambda market, count: price or Price(market.price, 5.0),
    )


# The price


@pytest.mark.parametrize(
    ("priority", "cap", "limit"),
    [
        ("low", 32.0, 16.0),
        ("med", 32.0, 24.0),
        ("high", 32.0, 32.0),
        ("low", None, 16.0),
        ("med", None, 24.0),
        ("high", None, 32.0),
        ("med", 16.0, 16.0),
        ("high", 16.01, 16.01),
        ("med", 10.0, 10.0),
        ("med", 10.009, 10.0),
    ],
)
def test_the_bid_lies_between_the_price_and_the_cap(
    priority: str, cap: float | None, limit: float
) -> None:
    assert planning.limit_price(Price(16.0, 5.0), priority, cap) == limit


def test_a_cap_below_what_may_be_bid_is_refused() -> None:
    with pytest.raises(CapExceeded, match=r"\$4\.00.*below \$5\.00"):
        plan(max_price_per_hour=4.0)


def test_the_plan_says_what_is_bid_and_what_it_can_come_to() -> None:
    made = plan(num_instances=4, max_price_per_hour=20.0, max_run_time_hours=2, priority="high")
    assert (made.region, made.instance_type, made.price_per_hour) == (
        "us-central1-a",
        "h100-80gb.sxm.8x",
        16.0,
    )
    assert made.spot
    assert made.price_cap == made.options["limit_price"] == 20.0
    # The time until the ranks start is charged, too.
    hours = 2 + made.start_seconds / 3600
    assert made.worst_case_cost == pytest.approx(4 * 20.0 * hours)
    said = price_text.worst_case(made)
    assert ", or more if this machine is lost for good before the nodes are up" in said
    assert "the bid is $20.00" in made.notes[0]
    assert Plan.from_json(json.loads(json.dumps(made.to_json()))) == made


@pytest.mark.parametrize(
    ("node_key", "words"),
    [
        ("script", ", or more if all nodes die at once while this machine is lost"),
        (False, "no node can end the bid (node_key = false)"),
    ],
)
def test_when_caps_are_no_bound_depends_on_who_can_end_the_bid(
    node_key: bool | str, words: str
) -> None:
    made = plan(settings=MithrilSettings(node_key=node_key), max_cost=20.0)
    assert words in price_text.worst_case(made)


def test_a_cap_below_the_price_is_a_bid_that_waits() -> None:
    made = plan(max_price_per_hour=9.0)
    assert made.price_per_hour == made.price_cap == 9.0
    assert "below the present price of $14.00: it waits" in made.notes[0]


def test_bids_are_always_spot() -> None:
    assert plan(spot=True).spot
    with pytest.raises(ConfigError, match="spot=False"):
        plan(spot=False)


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({}, None),
        ({"max_run_time_hours": 1}, 3600 + 1800 + 3600),
        # What is not paid for must have ended by then.
        ({"max_cost": 24.0, "max_price_per_hour": 16.0}, 24 / 16 * 3600 - ENDING_SECONDS),
        (
            {"max_cost": 2.0, "max_run_time_hours": 50, "max_price_per_hour": 16.0},
            450 - ENDING_SECONDS,
        ),
        (
            {"max_cost": 99.0, "max_run_time_hours": 1, "max_price_per_hour": 16.0},
            3600 + 1800 + 3600,
        ),
    ],
)
def test_the_machines_own_deadline(options: dict[str, Any], seconds: float | None) -> None:
    made = plan(markets=MARKETS[:1], **options)
    assert deadline_seconds(made, 1800.0) == (
        seconds if seconds is None else pytest.approx(seconds)
    )


# The machine


def test_enough_free_machines_come_before_the_price() -> None:
    assert plan(num_instances=1).region == "eu-central1-a"
    assert plan(num_instances=2).region == "us-central1-a"
    note = plan(num_instances=2, region="eu-central1-a").notes[1]
    assert note.startswith("1 of 2 machines are free in eu-central1-a")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gpu": "h100:4"}, "has 8 GPUs, and 4 were asked for"),
        ({"gpu": "h200:8"}, "has 8 × h100-80gb sxm5"),
        ({"gpu": "a100-80gb:8"}, "its GPUs have 40 GB, not 80"),
        ({"gpu": "h100.pcie.8x"}, "socket SXM5, not pcie"),
        ({"region": "mars"}, "no machines in mars; it has them in eu-central1-a, us-central1-a"),
        ({"memory": 4000}, "1800 GB of memory, not 4000"),
        ({"cpu": 500}, "192 cores, not 500"),
        ({"internode_interconnect": "RoCE"}, "InfiniBand between nodes, not RoCE"),
        ({"gpu": "a100:8", "intranode_interconnect": "SXM5"}, "SXM4 between its GPUs, not SXM5"),
        ({"markets": []}, "lists none"),
    ],
)
def test_what_does_not_fit_is_said_of_the_nearest(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(**options)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"intranode_interconnect": "NVLink"},
        {"internode_interconnect": "InfiniBand"},
        {"internode_interconnect": "Ethernet"},
        {"gpu": "h100-80gb.sxm.8x"},
        {"region": "us-central1-a"},
    ],
)
def test_what_fits(options: dict[str, Any]) -> None:
    assert plan(**options).instance_type == "h100-80gb.sxm.8x"


def test_without_gpus_the_cheapest_machine_is_taken_and_said() -> None:
    made = plan(gpu=None)
    assert (made.instance_type, made.gpus_per_node) == ("h100-80gb.sxm.1x", 0)
    assert any("no gpu= was asked for" in note for note in made.notes)


def test_markets_are_read_from_kinds_and_auctions() -> None:
    kind = {
        "fid": "it_9", "name": "rtx", "num_cpus": 8, "ram_gb": 64, "num_gpus": 2,
        "gpu_type": "NVIDIA RTX 4090", "gpu_memory_gb": 24, "gpu_socket": "PCIe", "network_type": None,
    }  # fmt: skip
    auctions = [
        {"instance_type": "it_9", "region": "r", "capacity": 3, "last_instance_price": "$1,000.50"},
        {"instance_type": "it_8", "region": "r", "capacity": 3, "last_instance_price": "$1.00"},
        {"instance_type": "it_9", "region": "q", "capacity": 3, "last_instance_price": "?"},
    ]
    (found,) = markets_of([kind], auctions)
    assert (found.gpu, found.gpus, found.price, found.capacity) == ("rtx4090", 2, 1000.5, 3)
    (other,) = markets_of([{**kind, "gpu_type": "Quantum 9000"}], auctions)
    assert other.gpu == "quantum 9000"


@pytest.mark.parametrize("odd", [{"num_gpus": None}, {"gpu_memory_gb": "many"}, {"gpu_type": ...}])
def test_a_kind_that_cannot_be_read_takes_no_other_away(odd: dict[str, Any]) -> None:
    kind = {
        "fid": "it_9", "name": "rtx", "num_cpus": 8, "ram_gb": 64, "num_gpus": 2,
        "gpu_type": "NVIDIA RTX 4090", "gpu_memory_gb": 24, "gpu_socket": "PCIe",
    }  # fmt: skip
    new = {k: v for k, v in {**kind, "fid": "it_8", **odd}.items() if v is not ...}
    auctions = [
        {"instance_type": fid, "region": "r", "capacity": 3, "last_instance_price": "$1.00"}
        for fid in ("it_8", "it_9", None)
    ]
    assert [each.type_id for each in markets_of([new, kind], auctions)] == ["it_9"]


# Offers


def test_offers_are_sorted_by_price_and_say_what_is_free() -> None:
    found = offers_of(MARKETS, "h100:8", 2)
    assert [(o.region, o.available) for o in found] == [
        ("eu-central1-a", False),
        ("us-central1-a", True),
    ]
    assert all(o.spot and o.fits for o in found)
    assert "waits for the auction" in found[0].note


def test_where_nothing_fits_the_nearest_are_shown_with_the_reason() -> None:
    found = offers_of(MARKETS, "h100:4", 1)
    assert found
    assert not any(o.fits or o.available for o in found)
    assert found[0].instance_type == "h100-80gb.sxm.1x"
    assert found[0].note == "left out: has 1 GPUs, and 4 were asked for; machines are rented whole"


def test_nothing_is_sold_on_demand() -> None:
    found = offers_of(MARKETS, "h100:8", 1, spot=False)
    assert found
    assert not any(o.fits for o in found)


# Volumes of a plan


def volume(name: str = "ckpt", **changes: Any) -> dict[str, Any]:
    given = {
        "fid": "vol_1", "name": name, "region": "eu-central1-a", "capacity_gb": 100, "interface": "File",
        "bids": [], "reservations": [],
    }  # fmt: skip
    return {**given, **changes}


def test_a_market_within_the_cap_comes_before_one_with_free_machines() -> None:
    dear = market(region="us-central1-a", price=30.0)
    markets = [dear, *(market(region=f"us-central{n}-a", price=16.0, capacity=0) for n in (2, 3))]
    found = plan(markets=markets, max_price_per_hour=18.0)
    assert (found.region, found.price_per_hour, found.unmet_price) == ("us-central2-a", 16.0, None)
    waiting = plan(markets=[dear], max_price_per_hour=18.0)
    assert (waiting.price_per_hour, waiting.unmet_price) == (18.0, 30.0)


def test_a_volume_draws_the_machines_to_its_region() -> None:
    made = plan(num_instances=4, volumes=[volume()])
    assert made.region == "us-central1-a", "nobody asked for the volume"
    config = {"/ckpt": "ckpt"}
    made = _with_volumes(config, [volume()], num_instances=4)
    assert made.region == "eu-central1-a"
    (mount,) = made.options["volumes"]
    assert (mount["id"], mount["path"], mount["interface"]) == ("vol_1", "/ckpt", "file")


def _with_volumes(asked: dict[str, Any], there: list[dict[str, Any]], **options: Any) -> Plan:
    config = TaskConfig(
        provider="mithril", **{"command": ["true"], "gpu": "h100:8", "volumes": asked, **options}
    )
    return planning.make_plan(
        config,
        MithrilSettings(),
        "proj_1",
        MARKETS,
        there,
        lambda m, n: Price(m.price, 1.0),
        lambda interface: {"eu-central1-a"} if interface == "block" else set(),
        lambda volume: tuple(volume["bids"]),
    )


def test_one_that_is_missing_is_made_and_that_is_said() -> None:
    made = _with_volumes({"/ckpt": {"name": "ckpt", "size_gb": 499.5}}, [])
    assert made.options["volumes"][0]["id"] == ""
    (note,) = (each for each in made.notes if "made with 500 GB" in each)
    assert "$40.00 per month until `flow volumes delete ckpt --provider mithril`" in note
    assert made.not_included == ("the volume ckpt ($40.00 per month)",)


def test_one_that_is_there_keeps_its_size_and_that_is_said() -> None:
    words = "ckpt existed already, and keeps its size of 100 GB"
    sizes = {
        size: _with_volumes({"/c": {"name": "ckpt", "size_gb": size}}, [volume()])
        for size in (300, 100)
    }
    assert {size: words in made.notes for size, made in sizes.items()} == {300: True, 100: False}
    assert words not in _with_volumes({"/c": "ckpt"}, [volume()]).notes


@pytest.mark.parametrize(
    ("asked", "there", "words"),
    [
        ({"/d": "ckpt"}, [], "give size_gb"),
        ({"/d": "ckpt"}, [], "`flow volumes create ckpt --size-gb 100 --provider mithril`"),
        ({"/d": {"name": "ckpt", "interface": "block"}}, [volume()], "has the interface 'file'"),
        (
            {"/d": {"name": "ckpt", "interface": "block"}},
            [volume(interface="Block", bids=["bid_7"])],
            "in use (bid_7)",
        ),
        ({"/a": "ckpt", "/b": "two"}, [volume(), volume("two", region="q")], "different regions"),
    ],
)
def test_volumes_that_cannot_be_used(
    asked: dict[str, Any], there: list[dict[str, Any]], words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        _with_volumes(asked, there)
    assert words in str(caught.value)


def test_a_new_volume_is_planned_where_its_interface_exists() -> None:
    disk = {"/d": {"name": "disk", "size_gb": 10, "interface": "block"}}
    made = _with_volumes(disk, [])
    assert made.region == "us-central1-a", "eu-central1-a costs less, and has no disks"
    assert "left out: eu-central1-a has no block volumes" in made.notes
    made = _with_volumes({"/d": {"name": "files", "size_gb": 10}}, [])
    assert made.region == "eu-central1-a"
    assert not any("left out" in note for note in made.notes)
    # One that exists is where it is, whatever is said of new ones.
    assert _with_volumes(disk, [volume("disk", interface="Block")]).region == "eu-central1-a"


def test_no_region_for_a_new_volume_is_refused_with_those_that_have_it() -> None:
    disk = {"/d": {"name": "disk", "size_gb": 10, "interface": "block"}}
    with pytest.raises(ConfigError) as caught:
        _with_volumes(disk, [], region="eu-central1-a")
    assert "eu-central1-a has no block volumes" in str(caught.value)
    assert "take another region (us-central1-a)" in str(caught.value)


def test_a_volume_and_a_region_that_do_not_meet() -> None:
    with pytest.raises(ConfigError, match="the region is us-central1-a"):
        _with_volumes({"/d": "ckpt"}, [volume()], region="us-central1-a")


# Disks of a machine

LISTING = """\
NAME="vda" TYPE="disk" SIZE="107374182400" MOUNTPOINT="" PKNAME="" FSTYPE="" LABEL=""
NAME="vda1" TYPE="part" SIZE="107373182400" MOUNTPOINT="/" PKNAME="vda" FSTYPE="ext4" LABEL="root"
NAME="nvme0n1" TYPE="disk" SIZE="107374182400" MOUNTPOINT="/mnt/local" PKNAME="" FSTYPE="xfs" LABEL=""
NAME="vdb" TYPE="disk" SIZE="107374182400" MOUNTPOINT="" PKNAME="" FSTYPE="" LABEL=""
NAME="vdc" TYPE="disk" SIZE="500000000000" MOUNTPOINT="" PKNAME="" FSTYPE="ext4" LABEL="a-very-l-5aae9f0"
"""


def test_a_new_disk_is_known_by_its_size_and_an_old_one_by_its_label() -> None:
    free = disks.free_disks(LISTING)
    assert [disk.device for disk in free] == ["/dev/vdb", "/dev/vdc"]
    wanted = [
        {"name": "scratch", "size_gb": 100},
        {"name": "a-very-long-name-indeed", "size_gb": 500},
    ]
    assert disks.assign(free, wanted) == {
        "scratch": {"device": "/dev/vdb", "size_bytes": 107374182400},
        "a-very-long-name-indeed": {"device": "/dev/vdc", "size_bytes": 500000000000},
    }


def test_volumes_whose_names_begin_alike_are_different_disks() -> None:
    train, val = "imagenet-shards-train", "imagenet-shards-val"

    def listing(*labels: str) -> list[disks.Disk]:
        return [
            disks.Disk(f"/dev/vd{letter}", 100 * 10**9, "ext4" if label else "", label)
            for letter, label in zip("bc", labels, strict=True)
        ]

    def devices(*labels: str) -> list[str]:
        wanted = [{"name": train, "size_gb": 100}, {"name": val, "size_gb": 100}]
        return [each["device"] for each in disks.assign(listing(*labels), wanted).values()]

    first, second = (format_command("ext4", "", name)[-2] for name in (train, val))
    assert max(len(first), len(second)) <= 16
    assert devices(first, "") == ["/dev/vdb", "/dev/vdc"]
    assert devices(second, first) == ["/dev/vdc", "/dev/vdb"]


@pytest.mark.parametrize(("name", "size"), [("other", 500), ("other", 120), ("other", 50)])
def test_in_doubt_no_disk_is_taken(name: str, size: int) -> None:
    with pytest.raises(ProviderError, match="is not certain"):
        disks.assign(disks.free_disks(LISTING), [{"name": name, "size_gb": size}])


# Costs


def test_prices_that_move_are_added_up_to_the_second() -> None:
    start = "2026-01-01T00:00:00Z"
    prices = [
        {
            "instance_fid": "inst_1",
            "events": [
                {"price_cents": 1000, "start_time": start, "end_time": "2026-01-01T00:30:00Z"},
                {"price_cents": 2000, "start_time": "2026-01-01T00:30:00Z", "end_time": None},
            ],
        },
        {"instance_fid": "inst_2", "events": []},
    ]
    began = costs.requests.unix(start) or 0.0
    schedule = ((began, 10.0), (began + 1800, 20.0))
    running = costs.charged(prices, {})
    assert running == {"inst_1": costs.Charged(began, 0.0, 20.0, schedule)}
    over = costs.charged(prices, {"inst_1": began + 2700})
    assert over == {"inst_1": costs.Charged(began, began + 2700, 20.0, schedule)}


def test_a_pause_is_not_charged() -> None:
    def period(first: int, last: int) -> dict[str, Any]:
        times = {
            "start_time": f"2026-01-01T00:0{first}:00Z",
            "end_time": f"2026-01-01T00:0{last}:00Z",
        }
        return {"price_cents": 100, **times}

    (found,) = costs.charged(
        [{"instance_fid": "a", "events": [period(5, 9), period(1, 3)]}], {}
    ).values()
    assert [(at - found.since, price) for at, price in found.prices] == [(0, 1), (120, 0), (240, 1)]
    assert found.until - found.since == 480


def test_a_price_that_stays_is_one_period() -> None:
    times = [f"2026-01-01T00:0{minute}:00Z" for minute in (0, 2, 4, 6)]
    events = [
        {"price_cents": cents, "start_time": since, "end_time": until}
        for cents, since, until in zip((100, 100, 200), times, times[1:], strict=False)
    ]
    (found,) = costs.charged([{"instance_fid": "a", "events": events}], {}).values()
    assert [(at - found.since, price) for at, price in found.prices] == [(0, 1), (240, 2)]
    assert found.until - found.since == 360


def test_an_instance_has_ended_when_its_last_state_says_so() -> None:
    def event(second: int, status: str) -> dict[str, str]:
        return {"timestamp": f"2026-01-01T00:00:{second:02d}Z", "status": status}

    states = [
        {
            "instance_fid": "a",
            "events": [event(9, "STATUS_TERMINATED"), event(1, "STATUS_RUNNING")],
        },
        {"instance_fid": "b", "events": [event(1, "STATUS_PAUSED"), event(2, "STATUS_RUNNING")]},
        {
            "instance_fid": "c",
            "events": [
                event(1, "STATUS_PAUSED"),
                event(2, "STATUS_RUNNING"),
                event(3, "STATUS_ERROR"),
            ],
        },
    ]
    began = costs.requests.unix("2026-01-01T00:00:00Z") or 0.0
    assert {name: at for name, at, _ in costs.ends(states)} == {"a": began + 9, "c": began + 3}


def test_a_machine_that_was_taken_as_it_was_given_has_cost_nothing() -> None:
    at = "2026-01-01T00:01:00Z"
    events = [{"price_cents": 100, "start_time": at, "end_time": at}]
    (found,) = costs.charged([{"instance_fid": "a", "events": events}], {}).values()
    assert found.until == found.since == costs.requests.unix(at)
    assert found.prices == ((found.since, 1.0),)
