"""Nodes that die in each phase of a task: it ends in time, names the dead node, and leaves nothing behind."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import pytest

from flowlite.api.task import Task
from flowlite.provider import Instance
from flowlite.testing.running import (
    Submit,
    TaskSuite,
    assert_gone,
    instances_of,
    until_running,
)
from flowlite.testing.subject import ProviderUnderTest

WHO = pytest.mark.parametrize("rank", [0, 1], ids=["leader", "another"])


class FailureTests(TaskSuite):
    """Kills a node while a task runs: the leader or another one."""

    @WHO
    def test_a_node_dies_before_its_agent_can_say_anything(
        self, subject: ProviderUnderTest, submit: Submit, rank: int
    ) -> None:
        task = submit("sleep 1000", join_timeout_seconds=subject.patience / 2)

        def launched() -> list[Instance] | None:
            found = subject.listed(task.id)
            return found if len(found) == subject.nodes else None

        instances = subject.eventually(launched, "all nodes are there", every=0.01)
        _kill_until_final(subject, task, lambda: instances[rank])
        _assert_named(task, rank, instances[rank])
        assert_gone(subject, task)

    @WHO
    def test_a_node_dies_while_the_task_runs(
        self, subject: ProviderUnderTest, submit: Submit, rank: int
    ) -> None:
        task = submit("echo here; sleep 1000")
        until_running(subject, task)
        dying = instances_of(subject, task)[rank]
        _kill_until_final(subject, task, lambda: dying)
        _assert_named(task, rank, dying)
        said = [line.text for line in task.logs() if line.rank != rank]
        assert said == ["here"] * (subject.nodes - 1)
        assert_gone(subject, task)

    @WHO
    def test_a_node_dies_while_the_task_stops(
        self, subject: ProviderUnderTest, submit: Submit, rank: int
    ) -> None:
        failing = 1 - rank
        go = f"/tmp/conformance-{secrets.token_hex(4)}"
        task = submit(
            f"trap '' TERM; echo here; until [ $RANK = {failing} -a -e {go} ]; do sleep 0.1; done; rm {go}; exit 3",
            grace_seconds=5.0,
        )
        until_running(subject, task)
        there = instances_of(subject, task)
        dying = there[rank]
        with subject.reach(there[failing]) as connection:
            assert connection.run(["touch", go]).code == 0
        subject.eventually(lambda: task.status == "stopping", "the task stops")
        _kill_until_final(subject, task, lambda: dying)
        # The first failure is the one to report.
        assert f"rank {failing}" in task.reason
        assert_gone(subject, task)

    @WHO
    def test_a_node_that_dies_is_replaced_and_the_others_keep_their_ranks(
        self, subject: ProviderUnderTest, submit: Submit, rank: int
    ) -> None:
        if not subject.spare:
            pytest.skip(f"{subject.name!r} has no node to spare here")
        task = submit(
            "echo attempt $FLOW_ATTEMPT rank $RANK; [ $FLOW_ATTEMPT = 1 ] && sleep 1000; true",
            retries=1,
        )
        until_running(subject, task)
        before = instances_of(subject, task)
        subject.kill(before[rank])
        assert task.wait(subject.patience).status == "completed", task.reason
        assert task.attempt == 2
        # Replaced nodes are listed too, with their former ranks.
        had = [{node.id for node in task.nodes if node.rank == r} for r in range(subject.nodes)]
        moved = {r for r, ids in enumerate(had) if ids != {before[r].id}}
        assert moved == {*range(subject.nodes)} if subject.together else moved <= {rank}
        second = sorted(line.text for line in task.logs() if "attempt 2" in line.text)
        assert second == [f"attempt 2 rank {each}" for each in range(subject.nodes)]
        assert_gone(subject, task)


def _kill_until_final(
    subject: ProviderUnderTest, task: Task[Any], find: Callable[[], Instance]
) -> None:
    """Kills a node until the task is final. Repeated, since the node may have no process to kill at first."""

    def final() -> bool:
        if task.done:
            return True
        subject.kill(find())
        return False

    subject.eventually(final, f"the task ends; it is {task.status}", every=0.3)
    assert task.status == "failed", task.reason


def _assert_named(task: Task[Any], rank: int, instance: Instance) -> None:
    named = [f"node {rank}", instance.id, f"rank {rank}"]
    # Failures that the provider reports name the machine.
    named += [str(instance.data["host"])] if "host" in instance.data else []
    assert any(name in task.reason for name in named), task.reason
