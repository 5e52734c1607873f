"""Files that a task wrote into its working directory, and that go with its node, are named at the end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typing_extensions import Unpack

from flowlite import Flow, TaskConfig
from flowlite.node.outputs import listing
from flowlite.spec.options import ConfigOptions
from flowlite.testing.hosts import Cluster
from tests.gangs import shell, submit
from tests.helpers import eventually
from tests.providers.lab import Lab


def unkept(events: list[tuple[str, str]]) -> list[str]:
    return [text for kind, text in events if kind == "unkept"]


def test_what_no_pattern_keeps_is_named_with_the_way_to_keep_it(flow_home: Path) -> None:
    script = (
        "mkdir -p ckpt runs; head -c 3000 /dev/zero > ckpt/a.pt; echo x > runs/kept; echo y > z"
    )
    gang = submit(flow_home, shell(script), outputs=["runs/**"])
    gang.end()
    (text,) = unkept(gang.events)
    assert text == (
        f"node 0 ({gang.record.roster[0]}): 2 files (3 kB) that the task wrote into its working directory "
        "are not kept: ckpt/a.pt (3 kB), "
        'z (2 B); outputs=["ckpt/**", "z"] brings them here'
    )


@pytest.mark.parametrize("ends", ["exit 3", "kill -9 $$", "true"])
def test_also_after_a_failure_and_once_for_each_node(flow_home: Path, ends: str) -> None:
    gang = submit(flow_home, shell(f"echo x > out; {ends}"), nodes=2)
    gang.end("completed" if ends == "true" else "failed")
    told = unkept(gang.events)
    assert told
    assert all("1 file (2 B)" in text and 'outputs=["out"] brings it here' in text for text in told)
    assert len({text[:6] for text in told}) == len(told)


def test_after_a_cancel(flow_home: Path) -> None:
    gang = submit(flow_home, shell("echo x > out; touch begun; sleep 600"))
    eventually(lambda: list(gang.paths.directory.glob("nodes/**/begun")))
    gang.store.request_cancel(gang.id)
    gang.end("cancelled")
    (text,) = unkept(gang.events)
    assert "2 files" in text


def test_nothing_is_said_where_nothing_is_lost(flow_home: Path, tmp_path: Path) -> None:
    kept = submit(flow_home, shell("echo x > out"), outputs=["**"])
    own = submit(flow_home, shell("echo x > out"), workdir=str(tmp_path))
    setup = submit(flow_home, shell("true"), setup=["echo x > made-by-setup"])
    for gang in (kept, own, setup):
        gang.end()
        assert unkept(gang.events) == []


def test_the_command_line_says_it(hosts: Cluster, flow_home: Path) -> None:
    lab = Lab(hosts, flow_home, list(hosts)[:2])
    done = lab.flow("run", "-N", "2", "--", "sh", "-c", "echo result > result.txt")
    for node in (0, 1):
        said = rf"note: node {node} \(\S+\): 1 file \(7 B\) that the task wrote"
        assert re.search(said, done.stderr)
    assert 'outputs=["result.txt"] brings it here' in done.stderr


def test_what_is_looked_through_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_MOST_LOOKED_AT", 10)
    home = tmp_path / "home"
    (home / "project").mkdir(parents=True)
    begin = home / "begin"
    begin.touch()
    for number in range(30):
        (home / "project" / str(number)).write_text("x")
    found = listing.unkept(str(home / "project"), str(home), [], str(begin))
    assert found["count"] == 10


def test_before_a_command_starts_it_is_said_that_its_files_will_be_lost(
    flow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end, after hours of training, it is too late."""
    (tmp_path / "train.py").write_text("pass\n")
    monkeypatch.chdir(tmp_path)
    told: list[str] = []

    config = TaskConfig(command=("python", "train.py"))

    def run(**options: Unpack[ConfigOptions]) -> bool:
        told.clear()
        Flow(notify=told.append).run(config.replace(**options)).cancel()
        return any("removed with them at the end; --outputs" in note for note in told)

    assert run(sync=True)
    assert not run()
    assert not run(sync=True, outputs=["runs/**"])
    assert not run(sync=True, volumes={str(tmp_path / "v"): "v"})
