"""Another user of a host has the name of its lease: he learns nothing, gets nothing, and is named."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from flowlite.api.adapters import adapter
from flowlite.testing.hosts.root import USER, USER_ID
from tests.helpers import eventually
from tests.providers.lab import Lab
from tests.security.name_takers import THEIRS, name_taken

if TYPE_CHECKING:
    from pathlib import Path

    from flowlite.testing.hosts import Cluster, Host

NAMED = f"node00 is held by uid {USER_ID} ({USER}), another user of that host"


# Where a hostile host points to.
NOWHERE = {"host": "node01", "user": "somebody", "port": 2222}


def loot(host: Host) -> list[str]:
    """What the other user has been told, or given."""
    found = host.exec(["find", THEIRS, "-type", "f", "-size", "+0"]).stdout.split()
    return sorted(path.removeprefix(f"{THEIRS}/") for path in found)


@pytest.mark.parametrize("how", ["yes", "free", "silent", "bound", "full"])
def test_no_answer_of_another_user_is_believed(hosts: Cluster, flow_home: Path, how: str) -> None:
    lab = Lab(hosts, flow_home, hosts[:2])
    with name_taken(hosts[0], how):
        [first, second] = lab.json("hosts", "list")
        assert (first["state"], first["why"]) == ("leased", NAMED)
        assert second["state"] == "free"
        done = lab.flow("run", "-N", "1", "--", "hostname")
        assert "node01" in done.stdout
        task = lab.submit("-N", "2", "--", "hostname")
        assert NAMED in lab.waits(task)
        lab.flow("cancel", task)
        lab.wait(task, "cancelled")
        assert "nothing to do" in lab.flow("gc").stdout
        assert loot(hosts[0]) == []
    # What is free again is used again.
    assert lab.flow("run", "-N", "2", "--", "hostname").stdout.count("node0") >= 2


def test_who_keeps_a_host_is_named_where_somebody_waits_for_it(
    hosts: Cluster, flow_home: Path
) -> None:
    """In `flow run` while it waits, in `flow status`, and in the task's history."""
    lab = Lab(hosts, flow_home, hosts[:2])
    shown = flow_home.parent / "shown"
    with name_taken(hosts[0], "silent"), shown.open("wb") as file:
        with hosts.enter_laptop():
            waiting = subprocess.Popen(
                [sys.executable, "-m", "flowlite.cli", "run", "-N", "2", "--", "hostname"],
                env=lab.environment,
                cwd=lab.home,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        eventually(lambda: NAMED in shown.read_text(), every=0.2)
        assert NAMED in " ".join(lab.flow("status").stdout.split())
    # It goes on by itself when the name is free.
    eventually(lambda: waiting.poll() is not None, timeout=90, every=0.2)
    assert waiting.returncode == 0, shown.read_text()


def test_the_check_of_hosts_names_who_has_the_name(hosts: Cluster, flow_home: Path) -> None:
    lab = Lab(hosts, flow_home, hosts[:2])
    with name_taken(hosts[0], "bound"):
        [told] = lab.json("hosts", "check", code=0)
        [problem] = told["problems"]
        assert problem["problem"] == NAMED
        assert "sudo ss -xap" in problem["fix"]


def test_a_host_that_turned_hostile_does_not_say_where_our_files_go(
    hosts: Cluster, flow_home: Path
) -> None:
    """Here it is a process of our own user that lies."""
    lab = Lab(hosts, flow_home, hosts[:2])
    with name_taken(hosts[0], "yes", user="root"):
        task = lab.submit("-N", "2", "--", "hostname")
        told = lab.wait(task, "failed", "completed")
        assert "node00 answers with a lease that was not asked for" in told["reason"]
        assert hosts[0].exec(["find", THEIRS, "-name", "*.pyz"]).stdout == ""
        assert hosts[0].exec(["find", f"{THEIRS}/home", "-type", "f"]).stdout == ""


def test_a_host_that_turned_hostile_leads_to_no_other_host(
    hosts: Cluster, flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab(hosts, flow_home, hosts[:2])
    key = "||||elsewhere"
    data = {"target": NOWHERE, "key": key, "host": "node01", "root": "/srv", "home": "/srv/tasks/x"}
    data |= {"python": "/usr/bin/python3", "agent": "/srv/blobs/x"}
    held = {"task": "t1", "instance": "t1-000-node01-0000", "lease": "1", "marker": "m/1"}
    lie = {**held, "home": "/srv/tasks/x", "state": "leased", "data": data}
    for name in ("FLOW_SSH_CONFIG", "FLOW_HOME"):
        monkeypatch.setenv(name, lab.environment[name])
    with name_taken(hosts[0], "elsewhere", json.dumps(lie), user="root"):
        task = lab.submit("-N", "2", "--", "hostname")
        lab.waits(task)
        lab.flow("cancel", task)
        lab.wait(task, "cancelled")
        with hosts.enter_laptop():
            [found] = adapter("ssh").list_instances()
        assert (found.data["host"], found.data["target"]["host"]) == ("node00", "node00")
    for path in ("../../x", "/etc/x", ".."):
        wrong = json.dumps({**lie, "task": path})
        with name_taken(hosts[0], "elsewhere", wrong, user="root"), hosts.enter_laptop():
            assert adapter("ssh").list_instances() == []
