"""The fake Mithril with machines that are there: start-up script, user, volumes, signal, and the way to the API."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from flowlite.testing.cloud import CloudInABox
from flowlite.testing.cloud.mithril.fleet import SIGNAL
from tests.components import need
from tests.helpers import eventually
from tests.testing_cloud.mithril_client import REGION, Client

_SCRIPT = """\
#!/bin/bash
id -un
echo "on $(hostname)" >/mnt/data/$(hostname)
echo all done
"""


@pytest.fixture(scope="module")
def one_box() -> Iterator[CloudInABox]:
    need("hosts")
    with CloudInABox(machines=3, boot_seconds=0.2, clouds=("mithril",)) as box:
        yield box


@pytest.fixture
def box(one_box: CloudInABox) -> Iterator[CloudInABox]:
    one_box.mithril.rules(notice_seconds=30)
    with one_box.enter():
        yield one_box
    one_box.reset()


@pytest.fixture
def client(box: CloudInABox) -> Client:
    return Client(box.mithril)


def _bid(client: Client, box: CloudInABox, **changes: object) -> str:
    public = subprocess.run(
        ["ssh-keygen", "-y", "-f", str(box.cluster.key)], capture_output=True, text=True, check=True
    ).stdout
    key = {"project": client.project, "name": "mine", "public_key": public}
    fid = client.http.post("/v2/ssh-keys", json=key).json()["fid"]
    volume = {"name": "data", "disk_interface": "File", "region": REGION, "size_gb": 10}
    volume["project"] = client.project
    data = client.http.post("/v2/volumes", json=volume).json()["fid"]
    specification = {"volumes": [data], "ssh_keys": [fid], "startup_script": _SCRIPT}
    return client.running(launch_specification=specification, **changes)


def _ssh(box: CloudInABox, address: str, command: str) -> str:
    """What a command prints, run as the ordinary user, as soon as that is let in."""

    def run() -> subprocess.CompletedProcess[str] | None:
        done = _ssh_once(box, address, command)
        return done if done.returncode != 255 else None

    return eventually(run).stdout


def _ssh_once(box: CloudInABox, address: str, command: str) -> subprocess.CompletedProcess[str]:
    options = ["BatchMode=yes", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null"]
    words = ["ssh", "-F", "/dev/null", "-i", str(box.cluster.key)]
    for option in options:
        words += ["-o", option]
    return subprocess.run(
        [*words, f"ubuntu@{address}", command], capture_output=True, text=True, check=False
    )


def test_machines_run_the_script_as_root_and_let_the_keys_owner_in(
    box: CloudInABox, client: Client
) -> None:
    _bid(client, box)
    machines = box.mithril.instances()
    for machine in machines:
        eventually(lambda m=machine: "all done" in box.mithril.console(m["id"]))
        assert box.mithril.console(machine["id"]).startswith("root\n")
    who = _ssh(box, machines[0]["public_address"], "id -un; sudo -n id -un; cat /mnt/data/*")
    assert who.splitlines() == ["ubuntu", "root", "on one-1", "on one-2"]


def test_a_machine_reaches_the_api_where_the_laptop_does(box: CloudInABox, client: Client) -> None:
    bid = _bid(client, box, instance_quantity=1)
    (machine,) = box.mithril.instances()
    key = box.mithril.new_key("node", 60)
    _ssh(box, machine["public_address"], "true")
    # Once: the machine ends with its bid, perhaps before ssh is told how the command ended.
    call = (
        f"curl -s -X DELETE -H 'Authorization: Bearer {key}' {client.cloud.url}/v2/spot/bids/{bid}"
    )
    _ssh_once(box, machine["public_address"], call)
    eventually(lambda: client.status(bid) == "Terminated")
    called = [(a, p["api_key"]) for a, p in box.mithril.calls if a == "cancel_bid"]
    assert called == [("cancel_bid", "node")]


def test_a_machine_that_shuts_itself_down_is_paid_for_until_its_bid_ends(
    box: CloudInABox, client: Client
) -> None:
    bid = _bid(client, box, instance_quantity=1)
    (machine,) = box.mithril.instances()
    host = box.host(machine)
    eventually(lambda: "all done" in box.mithril.console(machine["id"]))
    host.exec(["poweroff"])
    eventually(lambda: not host.alive)
    (shown,) = box.mithril.instances()
    assert (shown["state"], shown["charged"]) == ("STATUS_RUNNING", True)
    assert client.status(bid) == "Allocated"
    client.http.delete(f"/v2/spot/bids/{bid}")
    eventually(lambda: not box.mithril.instances()[0]["there"])
    assert not box.mithril.instances()[0]["charged"]


def test_the_signal_lies_on_the_machine_until_it_may_stay_after_all(
    box: CloudInABox, client: Client
) -> None:
    _bid(client, box)
    for machine in box.mithril.instances():
        eventually(lambda m=machine: "all done" in box.mithril.console(m["id"]))
    files = [box.host(each).root / SIGNAL.lstrip("/") for each in box.mithril.instances()]
    box.mithril.price("*", 30)
    eventually(lambda: all(file.exists() for file in files))
    assert files[0].read_text().startswith("instance_status: STATUS_PREEMPTING\n")
    box.mithril.price("*", 10)
    eventually(lambda: not any(file.exists() for file in files))
    assert {each["state"] for each in box.mithril.instances()} == {"STATUS_RUNNING"}


def test_machines_that_are_taken_away_are_gone_and_new_ones_come(
    box: CloudInABox, client: Client
) -> None:
    bid = _bid(client, box, instance_quantity=3)
    box.mithril.preempt([bid], 0.2)
    client.wait_status(bid, "Open")

    def renewed() -> bool:
        states = [each["state"] for each in box.mithril.instances()]
        return sorted(states) == ["STATUS_PREEMPTED"] * 3 + ["STATUS_RUNNING"] * 3

    eventually(renewed)
    fresh = [each for each in box.mithril.instances() if each["there"]]
    for machine in fresh:
        eventually(lambda m=machine: "all done" in box.mithril.console(m["id"]))


def test_a_machine_that_dies_is_dead(box: CloudInABox, client: Client) -> None:
    _bid(client, box)
    one = box.mithril.instances()[0]
    eventually(lambda: "all done" in box.mithril.console(one["id"]))
    host = box.host(one)
    assert host.alive
    box.mithril.die(one["id"])
    eventually(lambda: not host.alive)
    assert box.mithril.instances()[0]["state"] == "STATUS_ERROR"
