"""Tasks on hosts reached by SSH, from the command line to the last process on the last host."""

from __future__ import annotations

import json
import re
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.helpers import eventually
from tests.providers.lab import Lab, left_on

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowlite.testing.hosts import Cluster

REDUCE = """
import os
import torch
import torch.distributed as dist
from flowlite import FlowApp

app = FlowApp(provider="ssh")

@app.function(num_instances=2, processes_per_node=2)
def total(offset: int) -> dict:
    dist.init_process_group("gloo")
    value = torch.tensor([float(os.environ["RANK"]) + offset])
    dist.all_reduce(value)
    host = os.uname().nodename
    return {"total": value.item(), "host": host, "ips": os.environ["FLOW_NODE_IPS"]}

if __name__ == "__main__":
    task = total.spawn(10)
    for each in task.results():
        print(each["total"], each["host"], each["ips"])
"""


def nothing_left(lab: Lab) -> None:
    """Every host is free, and nothing of any task runs or lies there."""
    assert lab.held() == {}
    for host in lab.hosts:
        assert left_on(host) == []
        listed = host.exec(
            ["sh", "-c", "ls /root/.flowlite-node/tasks /home/*/.flowlite-node/tasks"]
        )
        assert "-00" not in listed.stdout


def test_a_command_on_two_hosts(lab: Lab) -> None:
    done = lab.flow("run", "-N", "2", "--", "sh", "-c", "echo $RANK/$WORLD_SIZE on $(hostname)")
    assert "0/2 on node00" in done.stdout
    assert "1/2 on node01" in done.stdout
    nothing_left(lab)


def test_hosts_that_are_reached_over_a_cable(
    fresh_hosts: Callable[..., Cluster], flow_home: Path
) -> None:
    hosts = fresh_hosts(2)
    # Their addresses of the one link end in the hardware addresses, which end in those of IPv4.
    names = [f"fe80::aff:fe4d:{number:x}%eth0" for number in (11, 12)]
    pool = f"[ssh.pools.lab]\nhosts = {json.dumps(names)}\npython = {json.dumps(sys.executable)}\n"
    lab = Lab(hosts, flow_home, config=f'provider = "ssh"\n{pool}')
    for number, name in enumerate(names):
        hosts[number].restart_sshd(ListenAddress="::")
        # The kernel first asks whether anybody else has the address.
        trust = partial(lab.flow, "hosts", "trust", name, "--yes", code=None)
        eventually(lambda ask=trust: ask().returncode == 0)  # type: ignore[misc]
        for change in (f"addr add fd00:77::1{number}/64 dev eth0 nodad", "-4 addr flush dev eth0"):
            assert hosts[number].exec(["ip", *change.split()]).returncode == 0
    told = lab.json("hosts", "check", code=5)[0]["problems"]
    assert all("set its `private_ip`" in each["problem"] for each in told), told
    assert {each["host"] for each in told} == set(names)
    failed = lab.flow("run", "--", "true", code=1).stderr
    assert "other hosts cannot use as it is; set its `private_ip`" in failed
    for host in hosts:
        assert host.exec(["ip", "-6", "route", "add", "default", "dev", "eth0"]).returncode == 0
    assert lab.json("hosts", "check")[0]["problems"] == []
    done = lab.flow("run", "-N", "2", "--", "sh", "-c", "echo $MASTER_ADDR $GLOO_SOCKET_IFNAME")
    assert done.stdout.count("fd00:77::10 eth0") == 2


def test_a_function_reduces_over_two_hosts(lab: Lab, tmp_path: Path) -> None:
    script = tmp_path / "reduce.py"
    script.write_text(REDUCE)
    with lab.cluster.enter_laptop():
        import subprocess

        done = subprocess.run(
            [sys.executable, str(script)],
            env=lab.environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    assert done.returncode == 0, f"{done.stderr}\n{lab.supervisor_logs()}"
    ips = ",".join(host.address for host in lab.hosts[:2])
    hosts = ["node00", "node00", "node01", "node01"]
    assert done.stdout.splitlines() == [f"46.0 {host} {ips}" for host in hosts]
    nothing_left(lab)


def test_ranks_follow_the_pool(hosts: Cluster, flow_home: Path) -> None:
    lab = Lab(hosts, flow_home, [hosts[2], hosts[0]])
    done = lab.flow("run", "-N", "2", "--", "sh", "-c", "echo $RANK on $(hostname)")
    assert "0 on node02" in done.stdout
    assert "1 on node00" in done.stdout


def test_another_host_does_what_it_is_told_as_an_ordinary_user(
    hosts: Cluster, flow_home: Path
) -> None:
    settings = f'python = "{sys.executable}"\nuser = "flow"'
    lab = Lab(hosts, flow_home, hosts[:2], settings)
    done = lab.flow("run", "-N", "2", "--", "sh", "-c", "echo $RANK as $(id -un) in $HOME")
    assert "1 as flow in /home/flow" in done.stdout
    nothing_left(lab)


def test_hosts_may_share_their_home_directories(hosts: Cluster, flow_home: Path) -> None:
    settings = f'python = "{sys.executable}"\nnode_dir = "/mnt/shared/flowlite"'
    lab = Lab(hosts, flow_home, hosts[:2], settings)
    for _ in range(2):
        done = lab.flow("run", "-N", "2", "--", "sh", "-c", "echo $RANK on $(hostname)")
        assert "0 on node00" in done.stdout
        assert "1 on node01" in done.stdout
    nothing_left(lab)
    assert list((hosts.shared / "flowlite" / "tasks").iterdir()) == []


def test_what_a_host_has_is_not_sent_again(lab: Lab) -> None:
    def inodes() -> dict[str, str]:
        listed = lab.hosts[0].exec(
            ["sh", "-c", "cd /root/.flowlite-node/blobs && stat -c '%n %i %Y' *"]
        )
        return dict(line.split(" ", 1) for line in listed.stdout.splitlines())

    lab.flow("run", "--", "true")
    before = {name: rest.split()[0] for name, rest in inodes().items()}
    assert len(before) == 1
    lab.flow("run", "--", "true")
    assert {name: rest.split()[0] for name, rest in inodes().items()} == before


def test_two_tasks_share_a_pool_by_turns(hosts: Cluster, flow_home: Path) -> None:
    lab = Lab(hosts, flow_home, hosts[:2])
    first = lab.submit("-N", "2", "--", "sh", "-c", "until [ -e /tmp/go ]; do sleep 0.1; done")
    lab.wait(first, "running")
    second = lab.submit("-N", "1", "--", "hostname")
    waiting = lab.waits(second)
    assert f"({first})): it is next" in waiting
    for host in lab.hosts:
        host.exec(["touch", "/tmp/go"])
    assert lab.wait(first, "completed", "failed")["status"] == "completed"
    assert lab.wait(second, "completed", "failed")["status"] == "completed"
    nothing_left(lab)


def test_two_tasks_side_by_side_get_different_hosts(hosts: Cluster, flow_home: Path) -> None:
    lab = Lab(hosts, flow_home)
    tasks = [
        lab.submit("-N", "2", "--", "sh", "-c", "until [ -e /tmp/go ]; do sleep 0.1; done")
        for _ in range(2)
    ]
    for task in tasks:
        lab.wait(task, "running")
    held = lab.held()
    assert sorted(held.values()) == sorted(tasks * 2)
    for host in lab.hosts:
        host.exec(["touch", "/tmp/go"])
    for task in tasks:
        assert lab.wait(task, "completed", "failed")["status"] == "completed"
    nothing_left(lab)


def test_two_users_of_one_host_see_each_other(
    hosts: Cluster, flow_home: Path, tmp_path: Path
) -> None:
    mine = Lab(hosts, flow_home, hosts[:1])
    theirs = Lab(hosts, tmp_path, hosts[:1], f'python = "{sys.executable}"\nuser = "flow"')
    task = mine.submit("--", "sh", "-c", "until [ -e /tmp/go ]; do sleep 0.1; done")
    mine.wait(task, "running")
    [row] = theirs.json("hosts", "list")
    # What the kernel tells: which user has it, and no more.
    assert (row["state"], row["user"], row["task"]) == ("leased", "root", None)
    # Who may not have it cannot take it away, either.
    other = theirs.submit("--", "true")
    assert "is held by uid 0 (root), another user of that host" in theirs.waits(other)
    theirs.flow("cancel", other)
    theirs.wait(other, "cancelled")
    assert mine.task(task)["status"] == "running"
    hosts[0].exec(["touch", "/tmp/go"])
    mine.wait(task, "completed")


class TestRefusals:
    def test_too_few_hosts(self, lab: Lab) -> None:
        done = lab.flow("run", "-N", "5", "--", "true", code=2)
        assert "5 hosts were asked for, and the pool lab has 4" in done.stderr

    def test_no_such_gpu(self, lab: Lab) -> None:
        done = lab.flow("run", "-N", "2", "--gpu", "h100:8", "--", "true", code=2)
        assert "2 hosts with h100:8 were asked for, and the pool lab has 0 such" in done.stderr
        assert "node00 has no GPU" in done.stderr

    def test_a_host_that_cannot_be_reached_is_named_at_once(
        self, hosts: Cluster, flow_home: Path
    ) -> None:
        lab = Lab(hosts, flow_home, hosts[:2])
        hosts[1].kill()
        done = lab.flow("run", "-N", "2", "--", "true", code=5)
        assert "too few can be used now" in done.stderr
        assert "node01" in done.stderr

    def test_one_machine_under_two_names(self, hosts: Cluster, flow_home: Path) -> None:
        config = (
            f'provider = "ssh"\n[ssh.pools.lab]\nhosts = ["node00", "{hosts[0].address}"]\n'
            f'python = "{sys.executable}"\n'
        )
        lab = Lab(hosts, flow_home, config=config)
        done = lab.flow("run", "-N", "2", "--", "true", code=1)
        assert "is the same machine as" in done.stderr
        lab.flow("run", "-N", "1", "--", "true")
        nothing_left(lab)

    def test_an_unknown_region(self, lab: Lab) -> None:
        done = lab.flow("run", "--region", "labb", "--", "true", code=2)
        assert "there is no pool 'labb'; did you mean 'lab'?" in done.stderr

    def test_a_python_that_is_too_old_or_absent(self, hosts: Cluster, flow_home: Path) -> None:
        lab = Lab(hosts, flow_home, hosts[:1], 'python = "/opt/nothing/bin/python3"')
        done = lab.flow("run", "--", "true", code=2)
        assert "node00 has no Python at /opt/nothing/bin/python3" in done.stderr


def fake_gpus(lab: Lab, index: int, name: str, count: int, memory: int) -> None:
    """An `nvidia-smi` that lists GPUs that are not there."""
    lines = "\\n".join(f"{i}, GPU-{index}-{i}, {name}, {memory}" for i in range(count))
    script = f"#!/bin/sh\nprintf '{lines}\\n'\n"
    path = "/usr/local/bin/nvidia-smi"
    done = lab.hosts[index].exec(["sh", "-c", f"cat > {path} && chmod 755 {path}"], input=script)
    assert done.returncode == 0, done.stderr


class TestGpus:
    def test_hosts_are_chosen_by_their_gpus(self, lab: Lab) -> None:
        fake_gpus(lab, 1, "NVIDIA H100 80GB HBM3", 4, 81559)
        fake_gpus(lab, 2, "NVIDIA A100-SXM4-80GB", 8, 81920)
        plan = lab.json("run", "--gpu", "h100:4", "--dry-run", "--", "true")
        assert plan["plan"]["gpu"] == "h100"
        refused = lab.flow("run", "--gpu", "h100:8", "--dry-run", "--", "true", code=2)
        assert "node01 has 4 × NVIDIA H100 80GB HBM3" in refused.stderr
        assert "node02 has 8 × NVIDIA A100-SXM4-80GB" in refused.stderr

    def test_offers_say_what_there_is(self, lab: Lab) -> None:
        fake_gpus(lab, 1, "NVIDIA H100 80GB HBM3", 4, 81559)
        [offer] = lab.json("offers", "--provider", "ssh", "--gpu", "h100:2")
        assert (offer["gpu"], offer["gpus_per_node"], offer["available"]) == ("h100", 4, True)

    def test_declared_ones_count_where_the_driver_is_silent(
        self, hosts: Cluster, flow_home: Path
    ) -> None:
        settings = f'python = "{sys.executable}"\ngpus = "h100:8"'
        lab = Lab(hosts, flow_home, hosts[:1], settings)
        plan = lab.json("run", "--gpu", "h100:8", "--dry-run", "--", "true")
        assert plan["plan"]["gpus_per_node"] == 8


class TestVolumes:
    def test_a_shared_directory_is_shown_at_the_path(self, hosts: Cluster, flow_home: Path) -> None:
        settings = f'python = "{sys.executable}"\nshared_dir = "/mnt/shared"'
        lab = Lab(hosts, flow_home, hosts[:2], settings)
        script = (
            "echo from $RANK > /ckpt/r$RANK; "
            "until [ -e /ckpt/r0 ] && [ -e /ckpt/r1 ]; do sleep 0.1; done; cat /ckpt/r*"
        )
        done = lab.flow("run", "-N", "2", "--volume", "/ckpt=ckpt", "--", "sh", "-c", script)
        assert len(re.findall(r"\[Node 0\].* from [01]", done.stdout)) == 2
        assert (hosts.shared / "ckpt" / "r1").read_text() == "from 1\n"
        [volume] = lab.json("volumes", "list")
        assert (volume["name"], volume["location"]) == ("ckpt", "/mnt/shared/ckpt")
        waiting = ("sh", "-c", "until [ -e /ckpt/go ]; do sleep 0.1; done")
        task = lab.submit("--volume", "/ckpt=ckpt", "--", *waiting)
        lab.wait(task, "running")
        [volume] = lab.json("volumes", "list")
        assert volume["used_by"] == [f"task {task}"]
        refused = lab.flow("volumes", "delete", "ckpt", "--yes", code=5).stderr
        assert f"volume 'ckpt' is in use by task {task}; wait for its end" in refused
        assert (hosts.shared / "ckpt" / "r1").exists()
        (hosts.shared / "ckpt" / "go").touch()
        lab.wait(task, "completed")
        lab.flow("volumes", "delete", "ckpt", "--yes")
        assert not (hosts.shared / "ckpt").exists()
        lab.flow("volumes", "delete", "ckpt", "--yes", code=3)

    def test_without_one_it_stays_on_the_host_that_led_first(
        self, hosts: Cluster, flow_home: Path
    ) -> None:
        lab = Lab(hosts, flow_home, hosts[:2])
        blocker = lab.submit("--", "sh", "-c", "until [ -e /tmp/go ]; do sleep 0.1; done")
        lab.wait(blocker, "running")
        volume = ("--volume", "/data=notes")
        lab.flow("run", *volume, "--", "sh", "-c", "hostname > /data/where")
        hosts[0].exec(["touch", "/tmp/go"])
        lab.wait(blocker, "completed")
        # The first host of the pool is free again, but the volume is on the second.
        done = lab.flow("run", *volume, "--", "sh", "-c", "cat /data/where; echo on $(hostname)")
        assert "node01" in done.stdout
        assert "on node01" in done.stdout
        [found] = lab.json("volumes", "list")
        assert found["location"] == "node01:/root/.flowlite-node/volumes/notes"
        assert found["used_bytes"] > 0
        lab.flow("volumes", "delete", "notes", "--yes")
        assert lab.json("volumes", "list") == []


def test_the_lease_is_known_by_its_token(lab: Lab) -> None:
    """`list_instances` finds what a launch took even if nobody wrote down that it did."""
    from flowlite.provider import Instance

    task = lab.submit("-N", "2", "--", "sh", "-c", "until [ -e /tmp/go ]; do sleep 0.1; done")
    lab.wait(task, "running")
    record = lab.home / "ssh" / "tasks" / f"{task}.json"
    entries = json.loads(record.read_text())["hosts"]
    ids = sorted(Instance.from_json(entry["instance"]).id for entry in entries.values())
    assert [name[:15] for name in ids] == [f"{task}-000", f"{task}-001"]
    record.unlink()
    gone = lab.json("gc", "--dry-run")
    assert gone["ended"] == []
    lab.flow("cancel", task)
    lab.wait(task, "cancelled")
    eventually(lambda: lab.held() == {})


@pytest.mark.parametrize("where", ["hosts", "nothing"])
def test_config_shows_the_pool(lab: Lab, where: str) -> None:
    done = lab.flow("config", "get", f"ssh.pools.lab.{where}", code=0 if where == "hosts" else 2)
    assert ("node00" in done.stdout) == (where == "hosts")
