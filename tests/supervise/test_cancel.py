"""A cancellation is heard wherever a task stands, whatever it waits for there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flowlite.state.store import Store
from tests.gangs import Gang, let_go, shell, submit, waiting
from tests.helpers import eventually

# Rank 0 fails once rank 1 ignores SIGTERM: before that, the signal would end it, and the gang stops in no time.
DEAF = """
if [ $RANK = 0 ]; then
    while [ ! -e "$FLOW_HOME/deaf" ]; do sleep 0.02; done
    exit 3
fi
trap "" TERM
touch "$FLOW_HOME/deaf"
while :; do sleep 0.1; done
"""


@dataclass(frozen=True)
class Stand:
    """Where a task stands when it is cancelled.

    Attributes:
        command: What its ranks run.
        before: Files in FLOW_HOME that make it stand there; removed only after it was heard, unless `ends`.
        there: Whether it does.
        ends: Whether the task ends while what it waited for still stands still.
        end: Its final state.
    """

    name: str
    command: list[str]
    before: tuple[str, ...]
    there: Callable[[Gang], object]
    ends: bool = False
    end: str = "cancelled"
    config: tuple[tuple[str, Any], ...] = ()

    def options(self) -> dict[str, Any]:
        return dict(self.config)


def held(what: str) -> Callable[[Gang], object]:
    return lambda gang: (gang.home / f"held-{what}").exists()


def says(text: str) -> Callable[[Gang], object]:
    return lambda gang: text in gang.record.reason


def tried_again(gang: Gang) -> object:
    return gang.record.reason.endswith("next try in 13 s")


STANDS = [
    Stand("the provider is asked for nodes", shell("true"), ("hold-launch",), held("launch")),
    Stand("no place is free", shell("true"), ("crowd",), says("waiting for a place"), ends=True),
    Stand("files are brought to the nodes", shell("true"), ("hold-put",), held("put")),
    Stand("agents are started", shell("true"), ("hold-start",), held("start")),
    Stand(
        "nodes have not joined",
        shell("true"),
        ("hold-join",),
        held("join"),
        ends=True,
    ),
    Stand(
        "the agents' logs are fetched after a failure",
        shell("exit 3"),
        ("hold-get",),
        held("get"),
        ends=True,
        end="failed",
    ),
    Stand(
        "the agents' logs have no room here",
        shell("exit 3"),
        ("full",),
        held("full"),
        ends=True,
        end="failed",
    ),
    Stand("ranks run", waiting(), (), lambda gang: gang.record.state == "running", ends=True),
    Stand(
        "a rank has failed, and the others are being stopped",
        shell(DEAF),
        (),
        lambda gang: gang.record.state == "stopping",
        ends=True,
        end="failed",
        config=(("grace_seconds", 4.0),),
    ),
    Stand(
        "the pause before another attempt",
        shell("exit 3"),
        (),
        says("a new attempt begins in"),
        ends=True,
        config=(("retries", {"max_retries": 1, "delay": 300.0, "max_delay": 300.0}),),
    ),
    Stand(
        "the nodes of the last attempt are asked for",
        shell("exit 3"),
        ("hold-list_instances",),
        held("list_instances"),
        config=(("retries", 1),),
    ),
    Stand(
        "the nodes are given back",
        shell("true"),
        ("hold-terminate",),
        held("terminate"),
        end="completed",
    ),
    Stand(
        "the nodes cannot be given back",
        shell("true"),
        ("terminate-fails",),
        tried_again,
        end="completed",
    ),
]


@pytest.fixture(autouse=True)
def standing(flow_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "held"))


@pytest.mark.parametrize("stand", STANDS, ids=lambda stand: stand.name)
def test_a_cancellation_is_heard_where_it_stands(
    flow_home: Path, stand: Stand, record_property: Callable[[str, object], None]
) -> None:
    first = None
    if "crowd" in stand.before:
        first = submit(flow_home, waiting(), max_tasks=1)
        first.wait("running")
    for name in stand.before:
        (flow_home / name).touch()
    options = stand.options() | ({"max_tasks": 1} if first else {})
    gang = submit(flow_home, stand.command, nodes=1 if first else 2, **options)
    eventually(lambda: stand.there(gang) or gang.record.final)
    assert not gang.record.final, gang.story()
    gang.store.request_cancel(gang.id)
    record_property("heard after", heard(gang))
    if not stand.ends:
        for name in stand.before:
            (flow_home / name).unlink()
    gang.end(stand.end, timeout=90)
    if first is not None:
        let_go(flow_home)
        first.end()


PROGRAM = """
from flowlite import FlowApp

app = FlowApp(provider="local")


@app.function(num_instances=2, processes_per_node=1)
def much() -> bytes:
    return bytes(400_000)


if __name__ == "__main__":
    print(much.spawn().id)
"""


@pytest.mark.parametrize("what", ["full", "hold-get"], ids=["no room here", "a fetch that hangs"])
def test_a_cancellation_is_heard_while_results_are_collected(
    flow_home: Path, tmp_path: Path, what: str, record_property: Callable[[str, object], None]
) -> None:
    (flow_home / what).touch()
    program = tmp_path / "much.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=90, check=True
    )
    store = Store(flow_home / "state.db")
    gang = Gang(flow_home, store, store.get_task(done.stdout.strip()))
    eventually(lambda: "waiting for what is not here yet: results (400 kB)" in gang.record.reason)
    assert gang.record.state == "stopping"
    if what == "full":
        assert "40 MB are to come" in gang.record.reason
    gang.store.request_cancel(gang.id)
    record_property("heard after", heard(gang))
    # Ends while what it waited for still stands still. What was not fetched is kept.
    gang.end("cancelled", timeout=90)
    assert len(list(gang.paths.directory.glob("nodes/*/a1/r*.result"))) == 2


def heard(gang: Gang) -> float:
    """Waits until the task says that it was cancelled; gives after how many seconds it did."""
    eventually(lambda: any("cancel" in text for _, text in gang.events))
    said = next(e for e in gang.store.events(gang.id) if "cancel" in e.text)
    asked = gang.record.cancel_requested_at
    assert asked is not None
    return said.at - asked
