"""How often a cloud is asked: a launch of 64 nodes to its result, in fewer than 40 calls, and none of them per node."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from flowlite import TaskConfig
from flowlite.provider import Instance, LaunchIntent, LaunchPending, Provider
from provider_adapters.mithril import nodekey
from provider_adapters.rented.first_contact import Contact, MachineAccess, NotYet, ReadyMachine

pytest.importorskip("boto3")
pytest.importorskip("moto")

MOST = 40
LOOKS = 2
"""How often a supervisor lists the instances of a task that runs without trouble, before it ends them."""


@pytest.fixture
def aws(flow_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from tests.crash.paper import Paper

    with Paper() as paper:
        for name, value in paper.environment().items():
            monkeypatch.setenv(name, value)
        (flow_home / "config.toml").write_text('[aws]\nregion = "us-east-1"\n')
        paper.aws.timing(boot=1.0, stop=0.2)
        yield paper.aws


@pytest.fixture
def mithril(flow_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from flowlite.testing.cloud.mithril.box import PaperMithril

    with PaperMithril(boot_seconds=1.0, capacity=100) as paper:
        for name, value in paper.environment().items():
            monkeypatch.setenv(name, value)
        yield paper


@pytest.fixture(autouse=True)
def machines_that_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines on paper; what is said to them costs no call of the cloud."""

    def reach(
        self: Contact, places: Sequence[MachineAccess], *, task: str, **_: object
    ) -> list[ReadyMachine | NotYet]:
        about = {"home": f"/root/{task}", "python": "python3"}
        return [ReadyMachine(each.id, {"place": asdict(each), **about}) for each in places]

    monkeypatch.setattr(Contact, "reach", reach)
    monkeypatch.setattr(Contact, "connect", lambda *_: nullcontext())
    monkeypatch.setattr(nodekey, "bring", lambda *_: None)


def through(provider: Provider, config: TaskConfig) -> list[Instance]:
    """What a supervisor asks of a provider, from the plan until nothing is left."""
    plan = provider.plan(config)
    task = f"t{config.num_instances}"
    intent = LaunchIntent(f"{task}-launch-1", task, config.num_instances, plan.to_json())
    launched = _until(lambda: provider.launch(intent))
    for _ in range(LOOKS):
        assert len(provider.list_instances(task)) == config.num_instances
    provider.terminate(launched)
    _until(lambda: all(each.state == "ended" for each in provider.list_instances(task)))
    return launched


def _until(ask: Any) -> Any:
    until = time.monotonic() + 60
    pause = 0.4
    while time.monotonic() < until:
        try:
            if found := ask():
                return found
        except LaunchPending as error:
            pause = error.retry_after
        # As a supervisor does: it asks again after a while, not at once.
        time.sleep(pause)
    raise AssertionError("it never came to that")


@pytest.mark.slow
@pytest.mark.parametrize("cloud", ["aws", "mithril"])
def test_a_launch_of_64_nodes(
    cloud: str, request: pytest.FixtureRequest, record_property: Any
) -> None:
    control = request.getfixturevalue(cloud)
    from flowlite.api.adapters import adapter

    calls = {}
    for nodes in (2, 64):
        before = len(control.calls)
        config = TaskConfig(command=["true"], num_instances=nodes, max_run_time_hours=1)
        launched = through(adapter(cloud), config)
        assert len({each.id for each in launched}) == nodes
        calls[nodes] = [action for action, _ in control.calls[before:]]
        assert len(calls[nodes]) < MOST, Counter(calls[nodes])
    record_property("calls", len(calls[64]))
    # No kind of call is made more often for more nodes, but for pages of a listing.
    most = {action: count + 2 for action, count in Counter(calls[2]).items()}
    more = {a: n for a, n in Counter(calls[64]).items() if n > most.get(a, 2)}
    assert not more, (Counter(calls[2]), Counter(calls[64]))
