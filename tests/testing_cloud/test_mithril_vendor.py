"""The vendor's own client, unchanged, against the fake Mithril: submit, list, cancel."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from flowlite.testing.cloud.mithril.box import PaperMithril
from tests.helpers import eventually
from tests.testing_cloud.mithril_client import REGION, Client

# They start programs of the vendor, which import much, to try our fake and no code of a user's task.
pytestmark = pytest.mark.slow

_SDK = """
import json, sys
import flow
from flow import Flow, TaskConfig

with Flow() as client:
    task = client.run(TaskConfig(
        name="by-sdk", unique_name=False, instance_type="8xh100", num_instances=2, max_price_per_hour=20.0,
        command="nvidia-smi", upload_code=False,
    ))
    listed = [each.task_id for each in client.tasks.list()]
    client.cancel(task.task_id)
    print(json.dumps([task.task_id, listed]))
"""


_FIRST_SDK = """
import json
from flow import Flow, TaskConfig

with Flow() as client:
    task = client.run(TaskConfig(
        name="by-first-sdk", instance_type="8xh100", num_instances=2, max_price_per_hour=20.0,
        command="nvidia-smi", upload_code=False,
    ))
    listed = [each.task_id for each in client.list_tasks()]
    client.cancel(task.task_id)
    volume = client.create_volume(size_gb=50, name="disk")
    print(json.dumps([task.task_id, listed, volume.volume_id]))
"""


class Vendor:
    """The vendor's programs, at home in an empty directory."""

    def __init__(self, programs: Path, home: Path, cloud: PaperMithril) -> None:
        self._programs = programs
        self._home = home
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "NO_COLOR": "1",
            "COLUMNS": "200",
            # It is to talk to nobody but the fake.
            "FLOW_TELEMETRY": "0",
            "HTTPS_PROXY": "http://127.0.0.1:9",
            "NO_PROXY": "127.0.0.1",
            **cloud.environment(),
        }

    def program(self, *words: str) -> str:
        """What a program of the environment prints."""
        done = subprocess.run(
            [str(self._programs / words[0]), *words[1:]],
            env=self._environment,
            cwd=self._home,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def json(self, *words: str) -> Any:
        """What `flow` says to a program."""
        return json.loads(self.program("flow", *words, "--json"))["data"]


@pytest.fixture
def vendor(vendors_client: Path, tmp_path: Path, mithril: PaperMithril) -> Vendor:
    return Vendor(vendors_client, tmp_path, mithril)


def test_the_command_line_submits_lists_and_cancels(vendor: Vendor, mithril: PaperMithril) -> None:
    machines = ("-i", "8xh100", "-N", "2", "-m", "20")
    options = ("-y", "--no-upload-code", "-n", "probe", "--wait-until", "submitted")
    task = vendor.json("run", *machines, *options, "nvidia-smi")["task_id"]
    eventually(lambda: {each["state"] for each in mithril.instances()} == {"STATUS_RUNNING"})
    (bid,) = mithril.bids()
    assert (bid["id"], bid["instance_quantity"], bid["limit_price"]) == (task, 2, "$20.00")
    assert "nvidia-smi" in bid["launch_specification"]["startup_script"]
    (listed,) = vendor.json("status")
    assert (listed["task_id"], listed["status"], listed["num_instances"]) == (task, "running", 2)
    assert listed["ssh_host"]
    vendor.program("flow", "cancel", "-y", task)
    assert not mithril.live_bids()
    eventually(lambda: not any(each["there"] for each in mithril.instances()))


def test_the_command_line_shows_prices_and_volumes(vendor: Vendor, mithril: PaperMithril) -> None:
    assert "$16.00" in vendor.program("flow", "availability")
    client = Client(mithril)
    wish = {"name": "data", "disk_interface": "File", "region": REGION, "size_gb": 50}
    client.http.post("/v2/volumes", json={**wish, "project": client.project})
    assert "data" in vendor.program("flow", "volume", "list")


def test_the_library_submits_lists_and_cancels(
    vendor: Vendor, mithril: PaperMithril, tmp_path: Path
) -> None:
    script = tmp_path / "submit.py"
    script.write_text(_SDK)
    task, listed = json.loads(vendor.program("python", str(script)).splitlines()[-1])
    assert task in listed
    assert [(bid["id"], bid["status"]) for bid in mithril.bids()] == [(task, "Terminated")]


def test_a_refusal_is_understood(vendor: Vendor, mithril: PaperMithril) -> None:
    mithril.expire_key()
    with pytest.raises(AssertionError, match=r"(?i)authenticat|api key|credential"):
        vendor.program("flow", "status")


def test_the_first_version_of_the_library_works_with_the_ids_it_has_built_in(
    vendors_first_client: Path, mithril: PaperMithril, tmp_path: Path
) -> None:
    vendor = Vendor(vendors_first_client, tmp_path, mithril)
    script = tmp_path / "submit.py"
    script.write_text(_FIRST_SDK)
    task, listed, volume = json.loads(vendor.program("python", str(script)).splitlines()[-1])
    assert task in listed
    (bid,) = mithril.bids()
    assert (bid["id"], bid["status"], bid["region"]) == (task, "Terminated", "us-central1-b")
    assert bid["instance_type"] == "it_5ECSoHQjLBzrp5YM"
    made = {each["fid"]: each for each in Client(mithril).of_project("volumes")}
    assert made[volume]["region"] == "us-central1-b"
