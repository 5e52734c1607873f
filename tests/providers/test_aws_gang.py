"""Whole tasks on EC2 in the box, from the command line to the last machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from flowlite.testing.cloud import CloudInABox
from tests.flow_commands.run import flow as run_flow
from tests.helpers import eventually, kill_processes_of_home
from tests.providers.aws_client import groups

ROOT = Path(__file__).resolve().parent.parent.parent
pytestmark = pytest.mark.timeout(240)
SECONDS = 150.0
FUNCTION = """
import os
from flowlite import FlowApp

app = FlowApp(provider="aws")

@app.function(num_instances=2, processes_per_node=2, max_price_per_hour=0.1, max_run_time_hours=0.5)
def where(word: str) -> dict:
    print("rank", os.environ["RANK"], flush=True)
    return {"word": word, "ips": os.environ["FLOW_NODE_IPS"].split(","), "world": os.environ["WORLD_SIZE"]}

if __name__ == "__main__":
    print(where.remote("hello"))
"""


class Laptop:
    """`flow` on the laptop of the box's client."""

    def __init__(self, box: CloudInABox, home: Path) -> None:
        self.box = box
        self.home = home
        self.environment = {
            **box.client_environment(),
            "FLOW_HOME": str(home),
            "PYTHONPATH": str(ROOT),
        }

    def run(
        self, *words: str, cwd: Path | None = None, code: int = 0
    ) -> subprocess.CompletedProcess[str]:
        directory = cwd or self.home
        if words[:2] == ("-m", "flowlite.cli"):
            done = run_flow(words[2:], env=self.environment, cwd=directory, timeout=SECONDS)
        else:
            done = subprocess.run(
                [sys.executable, *words],
                env=self.environment,
                cwd=directory,
                capture_output=True,
                text=True,
                timeout=SECONDS,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        assert done.returncode == code, f"{words}\n{done.stdout}\n{done.stderr}"
        return done

    def flow(self, *words: str) -> str:
        return self.run("-m", "flowlite.cli", *words).stdout

    def json(self, *words: str) -> Any:
        return json.loads(self.flow(*words, "--json"))["data"]

    def assert_nothing_left(self) -> None:
        assert {each["state"] for each in self.box.aws.instances()} == {"terminated"}
        assert not any(self.box.aws.leftovers().values())


@pytest.fixture
def laptop(box: CloudInABox, flow_home: Path) -> Laptop:
    return Laptop(box, flow_home)


# It counts all calls, and each that fails is made again.
@pytest.mark.no_random_faults
def test_a_command_on_two_machines(laptop: Laptop) -> None:
    began = time.monotonic()
    said = laptop.flow(
        "run", "-N", "2", "--provider", "aws", "--", "sh", "-c", "echo $RANK:$WORLD_SIZE"
    )
    assert sorted(line.split()[-1] for line in said.splitlines() if ":2" in line) == ["0:2", "1:2"]
    laptop.assert_nothing_left()
    taken = time.monotonic() - began
    actions = [name for name, _ in laptop.box.aws.calls]
    assert actions.count("RunInstances") == 1
    # Of all that it takes, planning included. Looks while the machines boot and end are a second apart at least, and
    # there are more of them only where this machine takes long; test_aws_calls.py counts on a clock of its own.
    looks = actions.count("DescribeInstances")
    assert len(actions) - looks < 30, actions
    assert len(actions) < 40 or looks < taken, actions
    # The cost is that of the machines' own times, as EC2 lists them.
    told = laptop.json("cost")
    times = [task["estimated_cost"] for task in told["tasks"]]
    assert 0 < times[0] < 2 * 0.08925 * SECONDS / 3600


def test_a_function_returns_from_two_machines(laptop: Laptop, tmp_path: Path) -> None:
    script = tmp_path / "where.py"
    script.write_text(FUNCTION)
    said = laptop.run(str(script), cwd=tmp_path).stdout
    addresses = [each["address"] for each in laptop.box.aws.instances()]
    assert "'word': 'hello'" in said
    assert "'world': '4'" in said
    for address in addresses:
        assert f"'{address}'" in said
    tags = [each["tags"] for each in laptop.box.aws.instances()]
    assert all(each["flowlite:deadline"].isdigit() for each in tags)
    laptop.assert_nothing_left()


def test_what_fits_and_what_it_costs(laptop: Laptop) -> None:
    found = laptop.json("offers", "--gpu", "h100:8", "-N", "4", "--provider", "aws")
    assert {(each["instance_type"], each["spot"]) for each in found} == {
        ("p5.48xlarge", False),
        ("p5.48xlarge", True),
    }
    assert [each["price_per_hour"] for each in found] == sorted(e["price_per_hour"] for e in found)


PROJECT = """
[aws]
lease = "11m"
profile = "research"
security_group = "{group}"
ssh_from = "10.0.0.0/8"
"""


@pytest.fixture
def project(laptop: Laptop, tmp_path: Path) -> Path:
    """A directory whose flow.toml names a profile, in which alone the credentials lie, and a security group."""
    import boto3
    from botocore.exceptions import ClientError

    laptop.box.aws.timing(unknown=0.0)
    ec2 = boto3.client("ec2")
    vpc = ec2.describe_vpcs()["Vpcs"][0]["VpcId"]
    # What is asked for again after a lost answer is refused, since it is there.
    with suppress(ClientError):
        ec2.create_security_group(GroupName="mine", Description="mine", VpcId=vpc)
    groups = ec2.describe_security_groups(Filters=[{"Name": "group-name", "Values": ["mine"]}])
    group = groups["SecurityGroups"][0]["GroupId"]
    with suppress(ClientError):
        ec2.authorize_security_group_ingress(GroupId=group, IpProtocol="-1", CidrIp="0.0.0.0/0")
    environment = laptop.environment
    credentials = tmp_path / "credentials"
    credentials.write_text(
        "[research]\n"
        f"aws_access_key_id = {environment.pop('AWS_ACCESS_KEY_ID')}\n"
        f"aws_secret_access_key = {environment.pop('AWS_SECRET_ACCESS_KEY')}\n"
    )
    environment["AWS_SHARED_CREDENTIALS_FILE"] = str(credentials)
    found = tmp_path / "project"
    found.mkdir()
    environment["FLOW_TRUSTED_DIRS"] = str(found)
    (found / "flow.toml").write_text(PROJECT.format(group=group))
    return found


def test_settings_of_the_project_hold_for_the_launch_and_all_that_follows(
    laptop: Laptop, project: Path, tmp_path: Path
) -> None:
    flow = ["-m", "flowlite.cli"]
    laptop.run(
        *flow,
        "run",
        "-d",
        "--name",
        "frozen",
        "--provider",
        "aws",
        "--",
        "sleep",
        "600",
        cwd=project,
    )
    # From here on, commands come from a directory that says nothing.
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    def state() -> dict[str, Any]:
        said = laptop.run(*flow, "status", "frozen", "--json", cwd=elsewhere).stdout
        return json.loads(said)["data"]  # type: ignore[no-any-return]

    eventually(lambda: state()["status"] == "running", timeout=SECONDS, every=0.5)
    told = {row["name"]: (row["value"], row["origin"]) for row in state()["settings"]}
    assert told["aws.profile"] == ("research", str(project / "flow.toml"))
    assert (
        laptop.run(*flow, "ssh", "frozen", "-c", "echo reached", cwd=elsewhere).stdout
        == "reached\n"
    )
    assert groups(laptop.box) == [], "the group of the project was not used"
    shown = laptop.run(*flow, "status", "frozen", cwd=elsewhere).stdout
    assert "aws.security_group" in shown
    assert str(project / "flow.toml") in shown
    laptop.run(*flow, "cancel", "frozen", "--wait", cwd=elsewhere)
    assert {each["state"] for each in laptop.box.aws.instances()} == {"terminated"}


def test_what_a_task_left_is_ended_in_the_account_that_it_was_launched_in(
    laptop: Laptop, project: Path, tmp_path: Path
) -> None:
    flow = ["-m", "flowlite.cli"]
    laptop.run(
        *flow, "run", "-d", "--name", "left", "--provider", "aws", "--", "sleep", "600", cwd=project
    )
    eventually(
        lambda: any(each["state"] == "running" for each in laptop.box.aws.instances()),
        timeout=SECONDS,
    )
    kill_processes_of_home(laptop.home)
    with sqlite3.connect(laptop.home / "state.db") as database:
        database.execute("UPDATE tasks SET state = 'failed'")
    # The process in the background: in the root directory, with no setting of anybody.
    code = "from flowlite.supervise.cleanup.background_gc import main; main()"
    laptop.run("-c", code, cwd=Path("/"))
    eventually(
        lambda: {e["state"] for e in laptop.box.aws.instances()} <= {"terminated", "shutting-down"},
        timeout=SECONDS,
    )


def test_what_a_lost_store_left_is_ended_in_the_account_that_only_the_ledger_knows(
    laptop: Laptop, project: Path
) -> None:
    flow = ["-m", "flowlite.cli"]
    laptop.run(
        *flow, "run", "-d", "--name", "lost", "--provider", "aws", "--", "sleep", "600", cwd=project
    )
    eventually(
        lambda: any(each["state"] == "running" for each in laptop.box.aws.instances()),
        timeout=SECONDS,
    )
    kill_processes_of_home(laptop.home)
    for path in laptop.home.glob("state.db*"):
        path.unlink()
    shutil.rmtree(laptop.home / "tasks")
    laptop.run(*flow, "store", "restore", "--empty", cwd=Path("/"))
    # Nothing is ended unasked for: the store may be what is wrong. The settings here have no credentials, so their own
    # account is not looked at, which the exit status tells.
    shown = laptop.run(*flow, "gc", cwd=Path("/"), code=5).stdout
    assert {each["state"] for each in laptop.box.aws.instances()} == {"running"}, shown
    laptop.run(*flow, "gc", "--yes", cwd=Path("/"), code=5)
    eventually(
        lambda: {e["state"] for e in laptop.box.aws.instances()} <= {"terminated", "shutting-down"},
        timeout=SECONDS,
    )


def test_a_supervisor_that_takes_over_within_the_lag_leads_the_gang_on(laptop: Laptop) -> None:
    flow = ["-m", "flowlite.cli"]
    laptop.run(
        *flow, "run", "-d", "--name", "led", "--provider", "aws", "-N", "2", "--", "sleep", "600"
    )

    def state() -> dict[str, Any]:
        return laptop.json("status", "led")  # type: ignore[no-any-return]

    eventually(lambda: state()["status"] == "running", timeout=SECONDS, every=0.5)
    machines = {each["id"] for each in laptop.box.aws.instances()}
    laptop.box.aws.lag(600.0)
    noted = next(laptop.home.glob("tasks/*/supervisor.json"))
    first = json.loads(noted.read_bytes())["pid"]
    os.kill(first, signal.SIGKILL)
    eventually(lambda: state() and json.loads(noted.read_bytes())["pid"] != first, timeout=SECONDS)
    log = noted.with_name("supervisor.log")
    # It has seen all nodes again: what it says next comes from them.
    assert laptop.run(*flow, "ssh", "led", "-c", "echo reached").stdout == "reached\n"
    eventually(lambda: state()["status"] == "running", timeout=SECONDS, every=0.5)
    assert "KeyError" not in log.read_text()
    assert {each["id"] for each in laptop.box.aws.instances()} == machines
    laptop.box.aws.lag(0.0)
    laptop.flow("cancel", "led", "--wait")
    laptop.assert_nothing_left()


@pytest.mark.slow
def test_a_run_in_a_capacity_block_ends_before_ec2_ends_its_machines(
    laptop: Laptop, tmp_path: Path
) -> None:
    # The ranks get notice 37 minutes before the end of the block, which leaves some 70 s to begin.
    name = laptop.box.aws.reserve(
        "g5.xlarge", "us-east-1a", 1, block=True, ends_in=37 * 60.0 + 70.0
    )
    ends = time.time() + 37 * 60.0 + 70.0
    (laptop.home / "config.toml").write_text(f'[aws]\ncapacity_block = "{name}"\n')
    script = "trap 'echo saved; exit 0' TERM; echo works; while :; do sleep 0.2; done"
    words = ["run", "-d", "--name", "block", "--provider", "aws", "--gpu", "a10g:1"]
    laptop.flow(*words, "--", "sh", "-c", script)

    def over() -> bool:
        states = {each["state"] for each in laptop.box.aws.instances()}
        return states == {"terminated"} and "saved" in laptop.flow("logs", "block")

    eventually(over, timeout=SECONDS, every=1.0)
    assert time.time() < ends - 30 * 60, "EC2 would have ended it by now"
    assert "works" in laptop.flow("logs", "block")
    reasons = {each["reason"] for each in laptop.box.aws.instances()}
    assert reasons == {"Client.UserInitiatedShutdown"}
