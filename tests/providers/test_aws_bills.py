"""What flowlite says that a gang on EC2 has cost, beside the bill that the box writes for the account."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable

import pytest

from flowlite.api.adapters import adapter
from flowlite.provider import Instance, LaunchIntent, Plan
from flowlite.state import clock
from flowlite.state.store import InstanceRecord
from flowlite.supervise.money.billing import Billing
from flowlite.supervise.money.cost import MONTH_SECONDS, cost_of, is_upper_bound, volume_cost
from tests.helpers import eventually
from tests.providers.aws_client import SECONDS, TYPE, Client

pytestmark = pytest.mark.timeout(900)
CENT = 0.01


class Payer:
    """Keeps the accounts of one task as the supervisor does."""

    def __init__(self, aws: Client, **options: object) -> None:
        self.aws = aws
        self.intent = aws.intent(**options)
        self.plan = Plan.from_json(self.intent.plan)
        self.accounts = Billing("aws", self.plan.price_per_hour)
        self.rows: dict[str, InstanceRecord] = {}

    def launch(self, number: int = 1, count: int = 2) -> list[Instance]:
        token = f"t1-launch-{number}"
        plan = self.intent.plan | {"num_instances": count}
        found = self.aws.launch(LaunchIntent(token, "t1", count, plan))
        self.accounts.note(found)
        self.rows |= {each.id: self.accounts.record(each, None) for each in found}
        return found

    def look(self) -> None:
        self.accounts.note(adapter("aws").list_instances("t1"))
        rows = {name: self.accounts.corrected(row) for name, row in self.rows.items()}
        self.rows = {k: r if r.ended_at is None else self.rows[k] for k, r in rows.items()}

    def end(self, instances: Iterable[Instance]) -> None:
        mine = list(instances)
        names = {each.id for each in mine}
        adapter("aws").terminate(mine)

        def ended() -> bool:
            listed = adapter("aws").list_instances("t1")
            self.accounts.note(listed)
            left = [each for each in listed if each.id in names and each.state != "ended"]
            # EC2 may not have known a new machine when it was to end, or have failed.
            adapter("aws").terminate(left)
            return not left

        eventually(ended, timeout=SECONDS, every=0.1, what="ended")
        self.close(names)

    def close(self, names: Iterable[str]) -> None:
        for name in names:
            self.rows[name] = self.accounts.ended(self.rows[name], clock.now())

    def cost(self) -> float:
        return cost_of(self.rows.values(), clock.now())

    def bill(self) -> float:
        return sum(each["instance"] + each["extras"] for each in self.aws.box.aws.bill())


def test_a_gang_on_demand_for_a_few_seconds_is_charged_a_minute(aws: Client) -> None:
    payer = Payer(aws)
    payer.end(payer.launch())
    minute = (payer.plan.price_per_hour + payer.plan.extras_per_hour) * 2 / 60
    assert payer.cost() == pytest.approx(payer.bill(), abs=1e-4)
    assert payer.cost() >= minute * 0.999
    assert not is_upper_bound(payer.rows.values())


def test_all_disks_of_an_image_are_on_the_bill_and_go_with_the_machine(aws: Client) -> None:
    image = aws.box.aws.image({"/dev/sdf": 2000}, "Red Hat Enterprise Linux")
    aws.settings(f'ami = "{image}"')
    payer = Payer(aws)
    assert f"the software of {image} (Red Hat Enterprise Linux)" in payer.plan.not_included
    assert any("/dev/sdf: 2000 GB" in note for note in payer.plan.notes)
    payer.end(payer.launch())
    assert payer.cost() == pytest.approx(payer.bill(), abs=1e-4)
    assert aws.box.aws.leftovers()["volumes"] == []
    # Those of AWS's images are charged for as the plan says.
    aws.settings("")
    assert Payer(aws).plan.not_included == ("traffic out of AWS",)


def test_every_attempt_of_a_task_is_on_the_bill(aws: Client) -> None:
    payer = Payer(aws)
    for attempt in (1, 2, 3):
        payer.end(payer.launch(number=attempt))
    assert len(payer.rows) == 6
    assert payer.cost() == pytest.approx(payer.bill(), abs=1e-4)
    assert not is_upper_bound(payer.rows.values())


@pytest.mark.parametrize(
    "settings", ["root_gb = 900", "root_gb = 900\npublic_ip = false\nssh_from = '10.0.0.0/8'"]
)
def test_disks_and_addresses_are_in_it(aws: Client, settings: str) -> None:
    aws.settings(settings)
    payer = Payer(aws)
    assert payer.plan.extras_per_hour > 0.09
    if "public_ip" in settings:
        # Nothing is launched: private machines cannot be reached from this laptop.
        without = payer.plan.extras_per_hour
        aws.settings("root_gb = 900")
        assert Payer(aws).plan.extras_per_hour == pytest.approx(without + 0.005)
        return
    payer.end(payer.launch())
    assert payer.cost() == pytest.approx(payer.bill(), abs=1e-4)


def test_a_spot_price_that_moves_while_nobody_looks_is_charged(aws: Client) -> None:
    payer = Payer(aws, spot=True, max_price_per_hour=5000.0)
    found = payer.launch()
    zone = str(found[0].data["zone"])
    for price in (1800.0, 600.0):
        begun = time.monotonic()
        aws.box.aws.spot_price(TYPE, zone, price)
        eventually(lambda since=begun: time.monotonic() - since > 2.0, timeout=10)
    payer.end(found)
    # EC2 tells times in its listing by whole seconds: at these prices a second costs half a dollar.
    second = 1800.0 / 3600 * 2
    assert payer.cost() == pytest.approx(payer.bill(), abs=2 * second)
    assert payer.cost() > 2 * 2.0 * 1800.0 / 3600


def test_a_machine_that_was_replaced_is_on_the_bill(aws: Client) -> None:
    payer = Payer(aws)
    first = payer.launch()
    payer.end(first[:1])
    second = payer.launch(number=2, count=1)
    payer.end([*first[1:], *second])
    assert len(payer.rows) == 3
    assert payer.cost() == pytest.approx(payer.bill(), abs=1e-4)


def test_a_block_costs_its_disks_only(aws: Client) -> None:
    name = aws.box.aws.reserve(TYPE, "us-east-1d", 2, block=True)
    aws.settings(f'capacity_block = "{name}"')
    payer = Payer(aws, max_run_time_hours=0.01)
    aws.waiting(payer.intent, "still starting")
    # The supervisor notes what machines cost while they boot, too.
    assert {each.price_per_hour for each in adapter("aws").list_instances("t1")} == {0.0}
    found = payer.launch()
    payer.look()
    payer.end(found)
    assert payer.plan.price_per_hour == 0.0
    assert payer.cost() == pytest.approx(payer.bill(), abs=1e-4)
    assert payer.plan.is_paid
    assert 0.0 < payer.bill() <= (payer.plan.worst_case_cost or 0.0)


# A listing that lagged by chance would be believed, since none is reckoned with.
@pytest.mark.no_random_faults
def test_what_ended_unseen_and_is_forgotten_is_a_bound_that_holds(aws: Client) -> None:
    aws.settings('listing_lag = "0s"')
    payer = Payer(aws, max_cost=0.2)
    names = [each.id for each in payer.launch()]
    for name in names:
        aws.box.aws.die(name)
    states = lambda: {each["state"] for each in aws.box.aws.instances()}  # noqa: E731
    eventually(lambda: states() == {"terminated"}, timeout=SECONDS)
    aws.box.aws.forget_ended()
    # Another supervisor, a night later.
    later = Payer(aws, max_cost=0.2)
    later.rows = {
        name: dataclasses.replace(row, launched_at=row.launched_at - 8 * 3600)
        for name, row in payer.rows.items()
    }
    deadline = {row.data["ends_by"] - 8 * 3600 for row in payer.rows.values()}
    later.rows = {
        name: dataclasses.replace(row, data={**row.data, "ends_by": min(deadline)})
        for name, row in later.rows.items()
    }
    later.look()
    later.close(names)
    assert is_upper_bound(later.rows.values())
    assert later.bill() - 1e-4 <= later.cost() <= 0.2 + CENT


def test_what_is_listed_as_ended_is_exact_however_late_one_looks(aws: Client) -> None:
    payer = Payer(aws)
    names = [each.id for each in payer.launch()]
    aws.end_machines()
    later = Payer(aws)
    later.rows = dict(payer.rows)
    later.look()
    later.close(names)
    assert not is_upper_bound(later.rows.values())
    assert later.cost() == pytest.approx(later.bill(), abs=1e-4)


def test_a_disk_costs_by_the_month_from_its_creation_to_its_deletion(aws: Client) -> None:
    provider = adapter("aws")
    made = provider.create_volume("data", 8000, "block")
    assert made.price_per_month == pytest.approx(8000 * 0.08)
    begun = time.monotonic()
    eventually(lambda: time.monotonic() - begun > 3.0, timeout=10)
    before = volume_bill(aws)
    cost = volume_cost(provider.list_volumes()[0], clock.now())
    second = 8000 * 0.08 / MONTH_SECONDS
    assert cost is not None
    # EC2 may tell the time of the creation by whole seconds.
    assert before - second <= cost <= volume_bill(aws) + second
    assert cost > 2 * second
    provider.delete_volume("data")
    assert provider.list_volumes() == []
    ended = volume_bill(aws)
    assert ended >= cost - second
    begun = time.monotonic()
    eventually(lambda: time.monotonic() - begun > 1.0, timeout=10)
    assert volume_bill(aws) == ended


def volume_bill(aws: Client) -> float:
    return sum(float(each["dollars"]) for each in aws.box.aws.volume_bill())
