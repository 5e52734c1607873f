"""A provider that fails as real ones do: nodes cut off or taken away, calls whose outcome nobody knows."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from flowlite.api.adapters import adapter
from tests.gangs import Gang, let_go, shell, submit, waiting
from tests.helpers import assert_no_process_left, eventually


@pytest.fixture(autouse=True)
def flaky(flow_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "flaky"))


def cut(gang: Gang, node: int, how: str) -> str:
    """Cuts a node off: its agent is dead and nobody can see that, or the whole machine was taken away."""
    name = gang.record.roster[node]
    agent = gang.agent(node)
    if how == "gone":
        provider = adapter("local")
        provider.terminate([i for i in provider.list_instances(gang.id) if i.id == name])
    else:
        (gang.home / f"unreachable-{name}").touch()
        os.kill(agent, signal.SIGKILL)
    return name


@pytest.mark.parametrize("how", ["unreachable", "gone"])
@pytest.mark.parametrize("node", [0, 1], ids=["leader", "member"])
def test_a_node_that_is_lost_is_replaced_and_the_new_one_takes_its_rank(
    flow_home: Path, how: str, node: int
) -> None:
    gang = submit(flow_home, waiting('echo "rank $RANK"'), nodes=2, retries=1)
    gang.wait("running")
    before = gang.record.roster
    lost = cut(gang, node, how)
    eventually(
        lambda: gang.record.attempt == 2 and gang.record.state == "running",
        timeout=120,
        what="the second attempt",
    )
    after = gang.record.roster
    assert after[1 - node] == before[1 - node]
    assert after[node] not in before
    stored = {i.id: i for i in gang.store.instances(gang.id)}
    assert (stored[lost].state, stored[lost].node_rank) == ("lost", node)
    assert stored[lost].ended_at is not None
    assert [intent.state for intent in gang.store.intents(gang.id)] == ["done", "done"]
    let_go(flow_home)
    gang.end()
    assert gang.output(node, attempt=2).endswith(f"rank {node}\n")


def test_a_launch_whose_outcome_is_not_known_is_asked_for_again_by_its_token(
    flow_home: Path,
) -> None:
    flow_home.mkdir(exist_ok=True)
    (flow_home / "launch-fails").write_text("1")
    gang = submit(flow_home, shell("true"), nodes=2)
    gang.end()
    assert len(gang.store.intents(gang.id)) == 1
    assert len(gang.store.instances(gang.id)) == 2


def test_nodes_that_cannot_be_ended_are_ended_later_and_the_task_is_not_final_before(
    flow_home: Path,
) -> None:
    (flow_home / "terminate-fails").write_text("2")
    gang = submit(flow_home, shell("true"))
    record = gang.wait(timeout=90)
    assert (record.state, record.reason) == ("completed", "")
    assert_no_process_left(gang.id)
    told = [text for kind, text in gang.events if "not gone yet" in text]
    assert told == [
        "all ranks have ended; its nodes are not gone yet: terminate failed, next try in 0.4 s",
        "all ranks have ended; its nodes are not gone yet: terminate failed, next try in 0.8 s",
    ]
