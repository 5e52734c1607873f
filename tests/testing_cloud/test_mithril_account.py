"""Keys, projects, SSH keys, volumes and quotas of the fake Mithril."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from flowlite.testing.cloud.mithril.box import PaperMithril
from tests.helpers import eventually
from tests.testing_cloud.mithril_client import REGION, Client


@pytest.fixture
def client(mithril: PaperMithril) -> Client:
    return Client(mithril)


def _in(hours: float) -> str:
    return (datetime.now(UTC) + timedelta(hours=hours)).isoformat()


def _volume(client: Client, **changes: Any) -> Any:
    wish = {
        "name": "data",
        "project": client.project,
        "disk_interface": "File",
        "region": REGION,
        "size_gb": 100,
    }
    return client.http.post("/v2/volumes", json={**wish, **changes})


@pytest.mark.parametrize("header", [{}, {"Authorization": "Bearer fkey_wrong"}])
def test_without_a_good_key_nothing_is_told(mithril: PaperMithril, header: dict[str, str]) -> None:
    client = Client(mithril)
    del client.http.headers["Authorization"]
    for method, path in (("GET", "me"), ("GET", "instance-types"), ("POST", "spot/bids")):
        reply = client.http.request(method, f"/v2/{path}", headers=header)
        assert (reply.status_code, reply.json()) == (401, {"detail": "Invalid credentials"})
        assert reply.headers["x-request-id"]


def test_a_key_ends_at_its_time_and_when_it_is_revoked(client: Client) -> None:
    secrets = {}
    for name in ("short", "long"):
        made = client.http.post("/v2/api-keys", json={"name": name, "expires_at": _in(1)})
        assert made.status_code == 201
        secrets[name] = made.json()
    assert client.get("api-keys")[0].keys() == secrets["long"].keys() - {"secret"}
    client.cloud.expire_key("short")
    client.http.delete(f"/v2/api-keys/{secrets['long']['fid']}")
    for made in secrets.values():
        reply = Client(client.cloud, made["secret"]).http.get("/v2/me")
        assert reply.status_code == 401
    assert client.get("me")["email"]
    assert client.http.delete("/v2/api-keys/apikey_x").status_code == 404


def test_a_reset_makes_the_key_of_the_account_good_again(client: Client) -> None:
    client.cloud.expire_key()
    assert client.http.get("/v2/me").status_code == 401
    client.cloud.reset()
    assert client.get("me")["email"]


@pytest.mark.parametrize(
    ("name", "hours", "words"),
    [("x" * 60, 1, "less than 60"), ("old", -1, "future"), ("eternal", 24 * 400, "one year")],
)
def test_keys_that_are_not_made(client: Client, name: str, hours: float, words: str) -> None:
    reply = client.http.post("/v2/api-keys", json={"name": name, "expires_at": _in(hours)})
    assert (reply.status_code, words in reply.json()["detail"]) == (400, True)


def test_who_called_is_written_down_by_the_name_of_the_key(client: Client) -> None:
    Client(client.cloud, client.cloud.new_key("node", 60)).http.get("/v2/me")
    assert client.cloud.calls[-1] == ("get_me", {"api_key": "node"})


def test_a_project_one_is_not_in_is_refused_everywhere(client: Client) -> None:
    foreign = client.cloud.facts()["foreign_project_fid"]
    assert foreign not in {each["fid"] for each in client.get("projects")}
    for path in ("instances", "volumes", "ssh-keys", "quotas", "reservation", "spot/bids"):
        reply = client.http.get(f"/v2/{path}", params={"project": foreign})
        assert reply.status_code == 403, path
    assert client.try_bid(project=foreign).status_code == 403
    assert client.http.get("/v2/instances").status_code == 422


def test_a_type_has_an_id_in_every_region_it_stands_in(client: Client) -> None:
    types = [each for each in client.get("instance-types") if each["name"] == "h100-80gb.sxm.8x"]
    auctions = {each["instance_type"]: each["region"] for each in client.get("spot/availability")}
    assert len(types) == len({auctions[each["fid"]] for each in types}) > 1


def test_ssh_keys_are_made_and_not_deleted_while_a_bid_has_them(client: Client) -> None:
    pair = client.http.post("/v2/ssh-keys", json={"project": client.project, "name": "pair"}).json()
    assert load_pem_private_key(pair["private_key"].encode(), None)
    again = client.http.post("/v2/ssh-keys", json={"project": client.project, "name": "pair"})
    assert (again.status_code, "already exists" in again.json()["detail"]) == (400, True)
    bid = client.bid(launch_specification={"ssh_keys": [pair["fid"]]})
    assert client.http.delete(f"/v2/ssh-keys/{pair['fid']}").status_code == 400
    client.http.delete(f"/v2/spot/bids/{bid}")
    assert client.http.delete(f"/v2/ssh-keys/{pair['fid']}").status_code == 204
    assert client.http.delete(f"/v2/ssh-keys/{pair['fid']}").status_code == 404


def test_a_required_key_is_in_every_bid(client: Client) -> None:
    key = client.ssh_key("admin")
    client.http.patch(f"/v2/ssh-keys/{key}", json={"required": True})
    bid = client.bid(launch_specification={"ssh_keys": []})
    assert client.get(f"spot/bids/{bid}")["launch_specification"]["ssh_keys"] == [key]


def test_a_volume_of_files_goes_to_all_machines_and_stays_while_they_have_it(
    client: Client,
) -> None:
    volume = _volume(client).json()["fid"]
    bid = client.running(
        launch_specification={"volumes": [volume], "startup_script": "#!/bin/sh\necho it\n"}
    )
    shown = client.of_project("volumes")[0]
    assert shown["bids"] == [bid]
    assert shown["attachments"] == {e["fid"]: "/mnt/data" for e in client.machines(bid)}
    reply = client.http.delete(f"/v2/volumes/{volume}")
    assert (reply.status_code, "in use" in reply.json()["detail"]) == (400, True)
    client.http.delete(f"/v2/spot/bids/{bid}")
    assert client.of_project("volumes")[0]["attachments"] == {}
    assert client.http.delete(f"/v2/volumes/{volume}").status_code == 204
    assert client.of_project("volumes") == []
    assert client.of_project("volumes", include_deleted="true")[0]["deleted_at"]


def test_a_block_volume_goes_to_one_machine(client: Client) -> None:
    volume = _volume(client, disk_interface="Block").json()["fid"]
    wish = {"launch_specification": {"volumes": [volume]}}
    assert "one instance only" in client.try_bid(**wish).json()["detail"]
    client.bid(instance_quantity=1, **wish)
    wish = {"launch_specification": {"volumes": [volume]}}
    assert "already attached" in client.try_bid("two", instance_quantity=1, **wish).json()["detail"]


def test_volumes_are_changed_while_a_bid_is_paused(client: Client) -> None:
    volume = _volume(client).json()["fid"]
    bid = client.running()
    path = f"/v2/spot/bids/{bid}"
    refused = client.http.patch(path, json={"volumes": [volume]})
    assert (refused.status_code, "paused" in refused.json()["detail"]) == (400, True)
    client.http.patch(path, json={"paused": True})
    changed = client.http.patch(path, json={"volumes": [volume]})
    assert changed.json()["launch_specification"]["volumes"] == [volume]
    client.http.patch(path, json={"paused": False})
    eventually(lambda: "STATUS_RUNNING" in client.statuses(bid))
    running = {e["fid"] for e in client.machines(bid) if e["status"] == "STATUS_RUNNING"}
    assert set(client.of_project("volumes")[0]["attachments"]) == running


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"name": "Data!"}, 422, "pattern"),
        ({"disk_interface": "Tape"}, 422, "'Block' or 'File'"),
        ({"size_gb": 0}, 422, "greater than 0"),
        ({"size_gb": 50_000}, 400, "maximum"),
        ({"region": "moon-1"}, 400, "not found"),
        ({"region": "eu-central1-a", "disk_interface": "Block"}, 400, "not available"),
    ],
)
def test_volumes_that_are_not_made(
    client: Client, changes: dict[str, Any], status: int, words: str
) -> None:
    reply = _volume(client, **changes)
    assert (reply.status_code, bool(re.search(words, reply.text))) == (status, True)


def test_a_volume_of_another_region_is_refused(client: Client) -> None:
    volume = _volume(client, region="us-central2-a").json()["fid"]
    reply = client.try_bid(launch_specification={"volumes": [volume]})
    assert (reply.status_code, "us-central2-a" in reply.json()["detail"]) == (400, True)


def test_storage_has_a_quota(client: Client) -> None:
    client.cloud.quota("storage", 150)
    assert _volume(client).status_code == 201
    again = _volume(client, name="more")
    assert (again.status_code, "quota" in again.json()["detail"]) == (400, True)
    organization = client.get("me")["organization_id"]
    rows = client.get(f"organizations/{organization}/quotas")
    assert {row["region"]: row["used"] for row in rows}[REGION] == 100


def test_a_reservation_is_written_down(client: Client) -> None:
    wish = {
        "project": client.project,
        "region": REGION,
        "instance_type": client.type_fid(),
        "instance_quantity": 2,
        "name": "later",
        "start_time": _in(1),
        "end_time": _in(3),
        "launch_specification": {"volumes": [], "ssh_keys": [client.ssh_key()]},
    }
    made = client.http.post("/v2/reservation", json=wish)
    assert (made.status_code, made.json()["status"]) == (201, "Pending")
    assert client.of_project("reservation", status="Pending")["data"] == [made.json()]
    assert client.get(f"reservation/{made.json()['fid']}/history")["events"]
    assert (
        client.http.post("/v2/reservation", json={**wish, "end_time": _in(-1)}).status_code == 400
    )
