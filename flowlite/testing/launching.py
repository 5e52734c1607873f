"""Launching and terminating: all or none, once per token, stable ranks, and a listing that is true."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from flowlite.connect.base import Connection
from flowlite.errors import CapacityUnavailable, ConfigError, NodeUnreachable, ProviderError
from flowlite.node.config.ranks import assign_ranks
from flowlite.provider import Instance, LaunchIntent, NodeSettings, Plan
from flowlite.testing.base import Suite
from flowlite.testing.subject import ProviderUnderTest

Intend = Callable[..., LaunchIntent]


def alive(connection: Connection, pid: int) -> bool:
    """Whether a process runs on a node. A zombie does not."""
    state = connection.run(["ps", "-o", "stat=", "-p", str(pid)]).stdout.strip()
    return bool(state) and not state.startswith(b"Z")


def by_id(instances: list[Instance]) -> list[str]:
    """The instance ids, sorted, which is the order of the ranks."""
    return assign_ranks(instance.id for instance in instances)


class LaunchTests(Suite):
    """`plan`, `launch`, `list_instances`, `terminate`, `node_settings`."""

    # Plans

    def test_a_plan_launches_nothing_and_comes_out_the_same_again(
        self, subject: ProviderUnderTest
    ) -> None:
        provider = subject.make()
        plan = provider.plan(subject.config())
        assert provider.plan(subject.config()) == plan
        assert (plan.provider, plan.num_instances) == (subject.name, subject.nodes)
        assert plan.price_per_hour >= 0
        assert [i for i in provider.list_instances() if i.state != "ended"] == []

    def test_a_plan_survives_the_store(self, subject: ProviderUnderTest) -> None:
        plan = subject.make().plan(subject.config())
        assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan

    # Launches

    def test_a_launch_gives_all_nodes_of_one_task(
        self, subject: ProviderUnderTest, intend: Intend
    ) -> None:
        intent = intend()
        found = subject.launch(intent)
        assert len(set(by_id(found))) == len(found) == subject.nodes
        assert {instance.task_id for instance in found} == {intent.task_id}
        assert {instance.state for instance in found} <= {"starting", "running"}
        for instance in found:
            assert Instance.from_json(json.loads(json.dumps(instance.to_json()))) == instance

    def test_the_same_token_never_launches_twice(
        self, subject: ProviderUnderTest, intend: Intend
    ) -> None:
        intent = intend()
        first = subject.launch(intent)
        again = subject.launch(intent)
        assert by_id(again) == by_id(first)
        assert by_id(subject.listed(intent.task_id)) == by_id(first)

    def test_another_token_launches_more_for_the_same_task(
        self, subject: ProviderUnderTest, intend: Intend
    ) -> None:
        first = intend(count=subject.nodes - 1)
        second = intend(count=1, task_id=first.task_id)
        some, more = subject.launch(first), subject.launch(second)
        assert len(some) == subject.nodes - 1
        assert len(more) == 1
        assert by_id(subject.listed(first.task_id)) == by_id(some + more)

    @pytest.mark.parametrize("after", [0.1, 0.3, 0.6])
    def test_a_launch_that_was_killed_is_finished_by_the_same_token(
        self, subject: ProviderUnderTest, intend: Intend, after: float
    ) -> None:
        intent = intend()
        process = subject.start_launch(intent)
        with suppress(subprocess.TimeoutExpired):
            process.wait(after)
        process.kill()
        process.wait()

        def launch() -> list[Instance] | None:
            try:
                return subject.launch(intent)
            except CapacityUnavailable:
                # A resource that the dead process held may be released late.
                return None

        found = subject.eventually(launch, "the launch is finished", every=0.5)
        assert len(found) == subject.nodes
        assert by_id(subject.listed(intent.task_id)) == by_id(found)

    def test_it_is_all_or_none(self, subject: ProviderUnderTest, intend: Intend) -> None:
        intent = intend()
        with subject.scarcity():
            with pytest.raises(ProviderError) as refused:
                subject.launch(intent)
            assert str(refused.value), "a refusal says why"
            held = [i for i in subject.listed(intent.task_id) if i.state != "unreachable"]
            assert held == [], "nothing may be kept of a launch that was refused"

    def test_what_was_refused_for_lack_of_nodes_can_be_had_later(
        self, subject: ProviderUnderTest, intend: Intend
    ) -> None:
        intent = intend()
        with subject.scarcity(), pytest.raises(CapacityUnavailable) as refused:
            subject.launch(intent)
        assert refused.value.retry_after > 0

        def launch() -> list[Instance] | None:
            try:
                return subject.launch(intent)
            except CapacityUnavailable:
                return None

        assert len(subject.eventually(launch, "there are nodes again", 0.2)) == subject.nodes

    # Ranks

    def test_ranks_stay(self, subject: ProviderUnderTest, intend: Intend) -> None:
        intent = intend()
        ranks = by_id(subject.launch(intent))
        provider = subject.make()
        for _ in range(3):
            assert by_id(provider.list_instances(intent.task_id)) == ranks
        assert by_id(subject.launch(intent)) == ranks

    # The listing

    def test_the_listing_is_what_there_is(self, subject: ProviderUnderTest, intend: Intend) -> None:
        intent = intend()
        assert subject.listed(intent.task_id) == []
        launched = subject.launch(intent)
        assert by_id(subject.listed(intent.task_id)) == by_id(launched)
        assert {each.launch for each in subject.listed(intent.task_id)} <= {"", intent.token}
        everything = {instance.id for instance in subject.make().list_instances()}
        assert set(by_id(launched)) <= everything
        assert subject.listed("tnosuchtask") == []

    def test_another_process_reaches_the_nodes_by_what_is_listed(
        self, subject: ProviderUnderTest, nodes: list[Instance]
    ) -> None:
        for instance in subject.listed(nodes[0].task_id):
            with subject.reach(instance) as connection:
                assert connection.run(["echo", instance.id]).stdout == f"{instance.id}\n".encode()

    def test_tasks_are_kept_apart(self, subject: ProviderUnderTest, intend: Intend) -> None:
        first, second = intend(count=1), intend(count=1)
        mine, theirs = subject.launch(first), subject.launch(second)
        assert by_id(subject.listed(first.task_id)) == by_id(mine)
        assert by_id(subject.listed(second.task_id)) == by_id(theirs)
        subject.end(mine)
        assert by_id(subject.listed(second.task_id)) == by_id(theirs)

    # The end

    def test_what_is_terminated_is_gone_and_nothing_is_left(
        self, subject: ProviderUnderTest, nodes: list[Instance]
    ) -> None:
        subject.end(nodes)
        subject.nothing_is_left(nodes[0].task_id)

    def test_the_end_of_one_node_is_not_the_end_of_the_others(
        self, subject: ProviderUnderTest, nodes: list[Instance]
    ) -> None:
        subject.end(nodes[:1])
        if subject.together:
            subject.nothing_is_left(nodes[0].task_id)
            return
        # A listing may show for some seconds what has ended.
        subject.eventually(
            lambda: by_id(subject.listed(nodes[0].task_id)) == by_id(nodes[1:]),
            "only the others are listed",
            every=0.2,
        )
        with subject.reach(nodes[1]) as connection:
            assert connection.run(["true"]).code == 0

    def test_what_has_ended_may_be_terminated_again(
        self, subject: ProviderUnderTest, nodes: list[Instance]
    ) -> None:
        subject.end(nodes)
        subject.make().terminate(nodes)
        subject.make().terminate([])

    def test_a_node_that_has_ended_cannot_be_mistaken_for_a_living_one(
        self, subject: ProviderUnderTest, nodes: list[Instance], intend: Intend
    ) -> None:
        subject.end(nodes)
        again = subject.launch(intend())
        assert not set(by_id(again)) & set(by_id(nodes))

    def test_what_runs_on_a_node_ends_with_it(
        self, subject: ProviderUnderTest, nodes: list[Instance]
    ) -> None:
        settings = settings_of(subject, nodes[0])
        with subject.reach(nodes[0]) as connection:
            connection.put(b"", f"{settings.home}/log")
            pid = connection.start(
                ["sleep", "1000"],
                log=f"{settings.home}/log",
                environment=settings.environment,
            )
            assert alive(connection, pid)
        subject.end(nodes)
        try:
            with subject.make().connect(nodes[0]) as connection:
                assert not alive(connection, pid)
        except NodeUnreachable:
            pass
        subject.nothing_is_left(nodes[0].task_id)

    def test_a_dead_node_can_be_ended(
        self, subject: ProviderUnderTest, nodes: list[Instance]
    ) -> None:
        subject.kill(nodes[0])
        subject.end(nodes)
        subject.nothing_is_left(nodes[0].task_id)

    # How the agent runs there

    def test_settings_of_a_node_are_the_same_every_time(
        self, subject: ProviderUnderTest, nodes: list[Instance]
    ) -> None:
        for instance in nodes:
            settings = settings_of(subject, instance)
            assert settings_of(subject, instance) == settings
            assert settings.home.startswith("/")
            assert settings.python.startswith("/")
            data = json.loads(json.dumps(settings.to_json()))
            assert NodeSettings.from_json(data) == settings

    def test_the_interpreter_of_the_settings_is_there_and_new_enough(
        self, subject: ProviderUnderTest, nodes: list[Instance]
    ) -> None:
        for instance in nodes:
            with subject.reach(instance) as connection:
                code = "import sys; print(sys.version_info >= (3, 11))"
                done = connection.run([settings_of(subject, instance).python, "-c", code])
                assert done.stdout == b"True\n", done.stderr

    def test_an_option_that_cannot_be_honoured_is_refused_by_its_name(
        self, subject: ProviderUnderTest
    ) -> None:
        config = subject.config(gpu="h100:8", cpu=100_000, memory="900TB")
        with pytest.raises((ConfigError, ProviderError)) as refused:
            subject.make().plan(config)
        assert any(word in str(refused.value).lower() for word in ("gpu", "h100", "cpu", "memory"))

    @pytest.mark.parametrize(
        ("option", "value", "carried"),
        [
            ("dependencies", ["no-such-package==1.0"], "python_spec"),
            ("python", "3.99", "python_spec"),
            ("workdir", "/", "workdir"),
        ],
        ids=["dependencies", "python", "workdir"],
    )
    def test_an_option_of_the_workers_is_not_ignored(
        self, subject: ProviderUnderTest, option: str, value: Any, carried: str
    ) -> None:
        told: Sequence[str]
        try:
            plan = subject.make().plan(subject.config(**{option: value}))
        except (ConfigError, ProviderError) as refused:
            is_carried, told = False, [str(refused)]
        else:
            is_carried, told = bool(plan.options.get(carried)), plan.notes
        named = any(option in each for each in told)
        assert is_carried or named, f"{option}={value!r} is ignored without a word"


def settings_of(subject: ProviderUnderTest, instance: Instance, **options: Any) -> NodeSettings:
    """The settings with which the agent runs on an instance."""
    provider = subject.make()
    return provider.node_settings(provider.plan(subject.config(**options)), instance)
