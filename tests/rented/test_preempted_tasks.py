"""A task whose machine is taken away: stopped in time, replaced, and gone on with, without using up a retry."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flowlite import FlowApp, Task, should_stop
from flowlite.api.adapters import adapter
from tests.gangs import Gang, let_go, submit, waiting
from tests.helpers import eventually
from tests.node.test_should_stop import PROGRAM, ROOT, signal_text


@pytest.fixture(autouse=True)
def taken_away(flow_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "taken_away"))


def take_away(home: Path, instance: str, seconds: float = 300) -> None:
    partial = home / "signal.part"
    partial.write_text(signal_text(seconds))
    partial.rename(home / f"signal-{instance}.yml")


def has_said(gang: Gang, word: str, ranks: int) -> bool:
    outs = list(gang.paths.directory.glob("nodes/*/a1/r*.out"))
    return len(outs) == ranks and all(word in out.read_text() for out in outs)


@pytest.mark.parametrize("node", [0, 1], ids=["leader", "member"])
def test_a_preempted_gang_goes_on_with_another_node(flow_home: Path, node: int) -> None:
    code = (
        "import os, sys; sys.path.insert(0, sys.argv.pop(1));"
        "print('attempt', os.environ['FLOW_ATTEMPT'], flush=True);"
        "os.environ['FLOW_ATTEMPT'] == '1' or sys.exit(0);"
        "exec(open(sys.argv.pop(1)).read())"
    )
    argv = [sys.executable, "-c", code, str(ROOT), str(PROGRAM), "100000", "0.02"]
    gang = submit(flow_home, argv, nodes=2, processes=2)
    gang.wait("running")
    eventually(lambda: has_said(gang, "working", 4))
    before = gang.record.roster
    take_away(flow_home, before[node])
    record = gang.end()
    after = record.roster
    assert (record.attempt, record.retries_used) == (2, 0)
    assert after[1 - node] == before[1 - node]
    assert after[node] not in before
    stops = {gang.output(rank).splitlines()[-1] for rank in range(4)}
    assert len(stops) == 1
    assert next(iter(stops)).startswith("stopped at ")
    told = [text for kind, text in gang.events if kind == "preempting"]
    assert len(told) == 1
    assert before[node] in told[0]
    assert "preempted by a higher bid" in told[0]


@pytest.mark.parametrize("node", [0, 1], ids=["leader", "member"])
def test_a_machine_taken_away_without_notice_uses_up_no_retry(flow_home: Path, node: int) -> None:
    gang = submit(flow_home, waiting(), nodes=2, spot=True)
    gang.wait("running")
    before = gang.record.roster
    provider = adapter("local")
    taken = [each for each in provider.list_instances(gang.id) if each.id == before[node]]
    (flow_home / f"gone-{before[node]}").touch()
    provider.terminate(taken)
    eventually(lambda: gang.record.attempt == 2 and gang.record.state == "running")
    let_go(flow_home)
    record = gang.end()
    assert record.retries_used == 0
    assert before[node] not in record.roster
    assert any("taken away without notice" in text for _, text in gang.events)


def test_an_elastic_gang_does_not_pause_while_enough_nodes_are_left(flow_home: Path) -> None:
    gang = submit(flow_home, waiting(), nodes=3, fewest=1)
    eventually(lambda: (gang.record.attempt, gang.record.state) == (1, "running"))
    take_away(flow_home, gang.record.roster[1])
    eventually(lambda: (gang.record.attempt, gang.record.state) == (2, "running"))
    take_away(flow_home, gang.record.roster[1])
    eventually(lambda: (gang.record.attempt, gang.record.state) == (3, "running"))
    let_go(flow_home)
    assert gang.end().retries_used == 0
    begun = [text for _, text in gang.events if "a new attempt begins" in text]
    assert len(begun) == 2
    assert not [text for text in begun if "a new attempt begins in" in text]


def test_a_function_that_returns_after_should_stop_is_called_again(flow_home: Path) -> None:
    app = FlowApp(provider="local")

    @app.function(num_instances=2)
    def count(directory: str) -> str:
        import os
        import time
        from pathlib import Path

        rank, attempt = os.environ["RANK"], os.environ["FLOW_ATTEMPT"]
        if attempt == "2":
            return Path(directory, f"saved-{rank}").read_text()
        step = 0
        while not should_stop():
            # Whoever is given notice before the first call is stopped by a signal.
            Path(directory, f"begun-{rank}").touch()
            step += 1
            time.sleep(0.01)
        Path(directory, f"saved-{rank}").write_text(str(step))
        return "not finished"

    task: Task[str] = count.spawn(str(flow_home))
    eventually(lambda: len(list(flow_home.glob("begun-*"))) == 2)
    roster = eventually(lambda: [node.id for node in task.nodes])
    take_away(flow_home, roster[1])
    results = task.results(timeout=90)
    assert len(set(results)) == 1
    assert int(results[0]) > 0
