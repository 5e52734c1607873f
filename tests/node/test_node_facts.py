"""What a node says of itself is what its leader understands, whatever the machine is like."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flowlite.node.protocol.message_check import FROM_MEMBER, check
from flowlite.node.system import node_facts

CALL = {"kind": "command", "argv": ["true"]}


def joins(home: Path) -> dict[str, Any]:
    """The facts of this machine, after they went through the leader's check."""
    facts = node_facts.facts(call=CALL, home=home, address=None, visible_gpus=None)
    body = {"instance": "i-1", "incarnation": "x", "facts": {**facts, **node_facts.surroundings()}}
    message = json.loads(json.dumps({"type": "join", "task": "t", "attempt": 1, **body}))
    assert check(message, FROM_MEMBER, "t") == "join"
    found: dict[str, Any] = message["facts"]
    return found


@pytest.mark.parametrize(
    ("cgroup", "files"),
    [
        ("0::/\n", {"cpu.max": "50000 100000"}),
        ("0::/jobs/step\n", {"jobs/cpu.max": "100000 100000", "jobs/step/cpu.max": "max 100000"}),
        # In a container of Docker with cgroup v1, the path is that of the machine.
        (
            "5:memory:/docker/f5f5\n3:cpu,cpuacct:/docker/f5f5\n0::/\n",
            {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"},
        ),
    ],
    ids=["container", "group above", "container of cgroup v1"],
)
def test_cores_are_those_that_the_control_groups_allow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cgroup: str, files: dict[str, str]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(8)}, raising=False)
    texts = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in {"proc/self/cgroup": cgroup, **texts}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert node_facts.cores(str(tmp_path)) == 1
    (tmp_path / "proc/self/cgroup").unlink()
    assert node_facts.cores(str(tmp_path)) == 8


def test_cores_without_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(8)}, raising=False)
    files = {
        "proc/self/cgroup": "3:cpu:/\n0::/\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        "sys/fs/cgroup/cpu.max": "max 100000",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert node_facts.cores(str(tmp_path)) == 8


@pytest.mark.parametrize(
    ("limit", "said"), [(resource.RLIM_INFINITY, None), (0, 0), (8 << 20, 8 << 20)]
)
def test_any_limit_of_locked_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, said: int | None
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit, resource.RLIM_INFINITY))
    assert joins(tmp_path)["memlock_bytes"] == said


def test_file_systems_that_claim_to_have_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = SimpleNamespace(f_bavail=2**64 - 1, f_blocks=2**64 - 1, f_frsize=1 << 20)
    monkeypatch.setattr(os, "statvfs", lambda path: endless)
    facts = joins(tmp_path)
    names = ("disk_free_bytes", "disk_total_bytes", "shm_bytes")
    assert {facts[name] for name in names} == {2**63 - 1}


def test_a_node_whose_directory_was_removed_joins_again_after_a_broken_connection(
    tmp_path: Path,
) -> None:
    found = joins(tmp_path / "removed")
    assert found["hostname"] == os.uname().nodename
    assert "disk_free_bytes" not in found
