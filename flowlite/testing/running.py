"""Whole tasks on nodes of the provider, from submission to cleanup."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from flowlite.api.adapters import settings_here
from flowlite.api.client import Flow
from flowlite.api.task import Task
from flowlite.errors import FlowError
from flowlite.provider import Instance
from flowlite.state.store import Store
from flowlite.supervise.cleanup.reconcile import reconcile
from flowlite.testing.base import Suite
from flowlite.testing.launching import Intend, by_id
from flowlite.testing.subject import ProviderUnderTest

Submit = Callable[..., Task[Any]]


class TaskSuite(Suite):
    """Tests that submit tasks."""

    @pytest.fixture
    def submit(self, subject: ProviderUnderTest, home: Path) -> Iterator[Submit]:
        """Submits a shell script as a task. Tasks that still run after the test are cancelled."""
        made: list[Task[Any]] = []

        def submit(script: str, **options: Any) -> Task[Any]:
            flow = Flow(provider=subject.name, notify=lambda _: None)
            config = subject.config(command=["sh", "-c", script], **options)
            made.append(flow.submit(config))
            return made[-1]

        yield submit
        for task in made:
            with suppress(FlowError):
                if not task.done:
                    task.cancel()
                    task.wait(subject.patience)


class TaskTests(TaskSuite):
    """Tasks without failures, and tasks whose client or supervisor dies."""

    def test_every_rank_runs_once_and_knows_the_others(
        self, subject: ProviderUnderTest, submit: Submit
    ) -> None:
        task = submit(
            "echo $FLOW_NODE_RANK/$FLOW_NUM_NODES $RANK/$WORLD_SIZE $FLOW_NODE_IPS",
            processes_per_node=2,
        )
        assert task.wait(subject.patience).status == "completed", task.reason
        count = subject.nodes
        said = sorted((line.rank, line.text) for line in task.logs())
        addresses = ",".join(node.address for node in task.nodes)
        assert said == [
            (rank, f"{rank // 2}/{count} {rank}/{2 * count} {addresses}")
            for rank in range(2 * count)
        ]

    def test_ranks_follow_the_ids_and_nothing_is_left(
        self, subject: ProviderUnderTest, submit: Submit
    ) -> None:
        task = submit("true")
        assert task.wait(subject.patience).status == "completed", task.reason
        names = [node.id for node in task.nodes]
        assert [node.rank for node in task.nodes] == list(range(subject.nodes))
        assert names == sorted(names)
        assert_gone(subject, task)

    def test_the_first_failure_ends_the_gang_and_is_named(
        self, subject: ProviderUnderTest, submit: Submit
    ) -> None:
        task = submit("[ $RANK = 1 ] && exit 3; sleep 1000")
        assert task.wait(subject.patience).status == "failed"
        assert "rank 1" in task.reason
        assert_gone(subject, task)

    def test_a_task_that_is_cancelled_while_it_runs(
        self, subject: ProviderUnderTest, submit: Submit
    ) -> None:
        task = submit("echo here; sleep 1000", grace_seconds=1.0)
        until_running(subject, task)
        task.cancel()
        assert task.wait(subject.patience).status == "cancelled"
        assert_gone(subject, task)

    def test_a_task_that_is_cancelled_at_once(
        self, subject: ProviderUnderTest, submit: Submit
    ) -> None:
        task = submit("sleep 1000")
        task.cancel()
        assert task.wait(subject.patience).status == "cancelled"
        assert_gone(subject, task)

    def test_another_supervisor_takes_over(
        self, subject: ProviderUnderTest, submit: Submit, home: Path
    ) -> None:
        task = submit("echo here; sleep 3; echo done")
        until_running(subject, task)
        noted = json.loads((home / "tasks" / task.id / "supervisor.json").read_bytes())
        os.kill(noted["pid"], signal.SIGKILL)
        assert task.wait(subject.patience).status == "completed", task.reason
        assert sorted(line.text for line in task.logs()) == sorted(["here", "done"] * subject.nodes)
        assert_gone(subject, task)

    def test_what_belongs_to_no_task_is_found_and_ended(
        self, subject: ProviderUnderTest, intend: Intend, home: Path
    ) -> None:
        instances = subject.launch(intend())
        store = Store(home / "state.db")
        ended: set[str] = set()

        def gone() -> bool:
            said = reconcile(store, home, here=settings_here, unknown=True)
            ended.update(each["id"] for each in said.unknown)
            return not subject.listed(instances[0].task_id)

        subject.eventually(gone, "what nobody needs has ended", every=0.5)
        assert set(by_id(instances)) <= ended
        subject.nothing_is_left(instances[0].task_id)


def until_running(subject: ProviderUnderTest, task: Task[Any]) -> None:
    """Waits until every rank has written output."""

    def said() -> bool:
        assert not task.done, f"{task.status}: {task.reason}"
        return len({line.rank for line in task.logs()}) == subject.nodes

    subject.eventually(said, "every rank says something", every=0.1)


def instances_of(subject: ProviderUnderTest, task: Task[Any]) -> list[Instance]:
    """The instances of a task that runs, by rank. A listing may show them late."""

    def all_of_them() -> list[Instance] | None:
        there = {instance.id: instance for instance in subject.listed(task.id)}
        ids = [node.id for node in task.nodes if node.rank is not None]
        return [there[each] for each in ids] if set(ids) <= there.keys() else None

    return subject.eventually(all_of_them, "all nodes are listed", every=0.2)


def assert_gone(subject: ProviderUnderTest, task: Task[Any]) -> None:
    """Checks that a final task has no instances, and has left nothing on machines that are alive."""
    subject.nothing_is_left(task.id)
