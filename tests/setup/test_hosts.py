"""`setup=` on hosts reached by SSH: once per host, not again while they are kept warm, and named when it fails."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flowlite.testing.hosts import Cluster
from tests.providers.lab import Lab


@pytest.fixture
def lab(hosts: Cluster, flow_home: Path) -> Lab:
    return Lab(hosts, flow_home, list(hosts)[:2])


def count(lab: Lab, path: str) -> list[int]:
    said = [host.exec(["sh", "-c", f"cat {path} 2>/dev/null || true"]) for host in lab.hosts]
    return [len(each.stdout.split()) for each in said]


def test_once_on_each_host_and_not_again_while_they_are_warm(lab: Lab) -> None:
    words = ("run", "-N", "2", "--keep-warm", "5m", "--workdir", "/tmp")
    setup = ("--setup", "echo x >> /tmp/ran; echo installed on $(hostname)")
    done = lab.flow(*words, *setup, "--", "cat", "/tmp/ran")
    assert re.search(r"\[Node 1 setup\] \[[\d:]+\] installed on node01", done.stdout), done.stdout
    assert count(lab, "/tmp/ran") == [1, 1]
    again = lab.flow(*words, *setup, "--", "true")
    assert "setup was done for an earlier task on this warm node" in again.stdout
    assert count(lab, "/tmp/ran") == [1, 1]
    # Other commands, other variables: another setup.
    lab.flow(*words, *setup, "--env", "A=1", "--", "true")
    assert count(lab, "/tmp/ran") == [2, 2]
    lab.flow("gc", "--warm")


def test_a_failure_on_one_host_ends_the_task_with_its_words(lab: Lab) -> None:
    setup = "test $(hostname) = node00 || { echo disk of $(hostname) is full; exit 3; }"
    done = lab.flow("run", "-N", "2", "--setup", setup, "--", "true", code=None)
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "node 1 (" in said
    assert "exited with 3; its last lines: disk of node01 is full" in said
    assert lab.held() == {}
