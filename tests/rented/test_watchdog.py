"""The watchdog on test hosts: whatever happens to agent, client and clocks, the machine ends itself in time."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flowlite.node.config.agent_config import AgentConfig
from flowlite.node.system import processes
from provider_adapters.rented.keys import KeyPair, new_key
from provider_adapters.rented.watchdog import DIRECTORY, LEASE_FILE
from tests.helpers import eventually
from tests.rented.booting import boot, ended

if TYPE_CHECKING:
    from flowlite.testing.hosts import Cluster, Host

# Agents on a busy machine take their time until they renew it.
LEASE, DEADLINE = 20.0, 30.0


@pytest.fixture
def key(flow_home: Path) -> KeyPair:
    return new_key()


def start_agent(host: Host, root: Path, **options: object) -> int:
    """An agent that waits for the rest of its gang, and renews the lease; gives its process id on the host."""
    home = "/tmp/node"
    values: dict[str, object] = {
        "task": "t1",
        "name": "t",
        "attempt": 1,
        "instance": "a",
        "roster": ["a", "b"],
        "processes_per_node": 1,
        "call": {"kind": "command", "argv": ["true"]},
        "python": sys.executable,
        "lease": {"file": LEASE_FILE, "seconds": LEASE},
        **options,
    }
    config = AgentConfig(**values)  # type: ignore[arg-type]
    directory = host.root / home.lstrip("/") / "a1"
    directory.mkdir(parents=True)
    (directory / "agent.json").write_text(config.to_json())
    (directory / "secret").write_text("0" * 64)
    words = processes.own_command(sys.executable, "agent", f"{home}/a1", flags=("-I", "-S"))
    host.popen(["setsid", *words])
    note = directory / "agent.pid"
    eventually(note.exists)
    return int(json.loads(note.read_bytes())["pid"])


def lease_of(host: Host) -> int:
    file = host.root / LEASE_FILE.lstrip("/")
    return int(file.read_text()) if file.exists() else 0


def test_each_machine_ends_when_it_must_and_not_before(
    hosts: Cluster, flow_home: Path, key: KeyPair
) -> None:
    # No agent ever comes; the agent is killed; the deadline comes though the agent lives; the lease is renewed.
    lonely, killed, late, kept = hosts
    kept.skew_clock(3600)
    killed.skew_clock(-3600)
    began = time.monotonic()
    for host, deadline in ((lonely, None), (killed, None), (late, DEADLINE), (kept, None)):
        boot([host], flow_home, key, boot_lease=LEASE, deadline=deadline)
    pids = {host.name: start_agent(host, flow_home) for host in (killed, late, kept)}
    eventually(lambda: lease_of(killed), what="the first renewal")
    killed.exec(["kill", "-9", str(pids[killed.name])])
    for host in (lonely, killed, late):
        ended(host)
    assert kept.alive
    # The deadline is later than every lease would be.
    assert time.monotonic() - began > DEADLINE - 2.0
    first = lease_of(kept)
    eventually(lambda: lease_of(kept) > first, what="another renewal")


def test_the_last_command_is_run_and_the_time_before_a_reboot_counts(
    hosts: Cluster, flow_home: Path, key: KeyPair
) -> None:
    leaving, rebooted = hosts[0], hosts[1]
    boot([rebooted], flow_home, key, deadline=1000.0)
    boot([leaving], flow_home, key, deadline=1.0, before_end="echo bye >/mnt/shared/ended")
    (rebooted.root / DIRECTORY.lstrip("/") / "used").write_text("999\n")
    rebooted.kill()
    rebooted.start()
    rebooted.popen(["setsid", "sh", f"{DIRECTORY}/watchdog"])
    ended(leaving)
    assert (hosts.shared / "ended").read_text() == "bye\n"
    ended(rebooted)
