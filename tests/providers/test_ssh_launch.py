"""The SSH provider's contract, held to on real hosts: all or none, once per token, nothing forgotten."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flowlite.api.adapters import adapter
from flowlite.bundle.agent_zip import build_agent_zip
from flowlite.errors import CapacityUnavailable, NodeUnreachable, ProviderError
from flowlite.provider import Instance, LaunchIntent
from flowlite.spec import TaskConfig
from provider_adapters.ssh import SshProvider, ending, launching, leases
from provider_adapters.ssh.records import Records
from tests.helpers import eventually
from tests.providers.lab import Lab, left_on


class Client:
    """The provider of one FLOW_HOME, in this process."""

    def __init__(self, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lab = lab
        for name in ("FLOW_SSH_CONFIG", "FLOW_HOME"):
            monkeypatch.setenv(name, lab.environment[name])
        self.provider = adapter("ssh")
        self.agent = str(build_agent_zip(lab.home).path)

    @contextmanager
    def laptop(self) -> Iterator[SshProvider]:
        with self.lab.cluster.enter_laptop():
            yield self.provider

    def intent(
        self, count: int = 1, task: str = "t1", token: str = "", **options: Any
    ) -> LaunchIntent:
        with self.laptop() as provider:
            plan = provider.plan(TaskConfig(num_instances=1, command=["true"]))
        plan = dataclasses.replace(plan, options={**plan.options, **options})
        return LaunchIntent(
            token=token or f"{task}-launch-1",
            task_id=task,
            count=count,
            plan=plan.to_json(),
            preload={"agent": self.agent},
        )

    def launch(self, intent: LaunchIntent) -> list[Instance]:
        with self.laptop() as provider:
            return provider.launch(intent)

    def listed(self, task: str | None = None) -> list[Instance]:
        with self.laptop() as provider:
            return provider.list_instances(task)

    def terminate(self, instances: list[Instance]) -> None:
        with self.laptop() as provider:
            provider.terminate(instances)


@pytest.fixture
def client(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Client:
    return Client(lab, monkeypatch)


def ids(instances: list[Instance]) -> list[str]:
    return [instance.id for instance in instances]


class TestLaunch:
    def test_a_token_launches_once(self, client: Client) -> None:
        intent = client.intent(2)
        first, second = client.launch(intent), client.launch(intent)
        assert ids(first) == ids(second) == ids(client.listed("t1"))
        assert [i.address for i in first] == [h.address for h in client.lab.hosts[:2]]
        # Ranks come from the ids, sorted: the order of the pool.
        assert ids(first) == sorted(ids(first))
        client.terminate(first)
        assert client.listed("t1") == []
        assert client.listed() == []

    def test_another_process_finds_what_a_killed_one_took(self, client: Client) -> None:
        intent = client.intent(2)
        taken = client.launch(intent)
        record = client.lab.home / "ssh" / "tasks" / "t1.json"
        # As it is when the process dies between the host's answer and its own note.
        entries = json.loads(record.read_bytes())
        for entry in entries["hosts"].values():
            entry["state"] = "asked"
        record.write_text(json.dumps(entries))
        client.provider = adapter("ssh")
        assert ids(client.listed("t1")) == ids(taken)
        assert ids(client.launch(intent)) == ids(taken)

    def test_what_an_earlier_try_holds_too_much_is_given_back(self, client: Client) -> None:
        first = client.launch(client.intent(3))
        again = client.launch(client.intent(2))
        assert ids(again) == ids(first)[:2]
        assert ids(client.listed("t1")) == ids(again)
        assert set(client.lab.held()) == {"node00", "node01"}

    def test_a_host_that_another_task_asks_for_at_the_same_moment_is_not_waited_for(
        self, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client.launch(client.intent(task="faster"))
        asked: list[str] = []
        ask, reads = launching.Launch._ask, [set[str]()]

        def ask_and_tell(launch: Any, ready: Any, *rest: Any) -> Any:
            asked.append(ready.host.name)
            return ask(launch, ready, *rest)

        beside = Records.held_beside

        def held_beside(kept: Records, task: str) -> set[str]:
            # When the launch begins, the other task has asked for nothing.
            return reads.pop() if reads else beside(kept, task)

        monkeypatch.setattr(launching.Launch, "_ask", ask_and_tell)
        monkeypatch.setattr(Records, "held_beside", held_beside)
        (taken,) = client.launch(client.intent(task="slower"))
        assert (asked, taken.data["host"]) == (["node01"], "node01")
        # Where there is no other host, it is asked all the same: the record of the other may be of a dead process.
        reads.append(set())
        asked.clear()
        intent = client.intent(task="late")
        hosts = intent.plan["options"]["hosts"][:1]
        only = {**intent.plan, "options": {**intent.plan["options"], "hosts": hosts}}
        with pytest.raises(CapacityUnavailable, match="node00 is leased"):
            client.launch(dataclasses.replace(intent, plan=only))
        assert asked == ["node00"]

    def test_all_or_none(self, client: Client, tmp_path: Path, monkeypatch: Any) -> None:
        other = Client(Lab(client.lab.cluster, tmp_path), monkeypatch)
        other.launch(other.intent(2, "t2"))
        client = Client(client.lab, monkeypatch)
        with pytest.raises(CapacityUnavailable, match=r"node00 is leased by root \(task t2 "):
            client.launch(client.intent(3))
        assert client.listed("t1") == []
        assert client.lab.held() == {"node00": "t2", "node01": "t2"}
        assert client.lab.home.joinpath("ssh", "tasks").exists()
        assert list(client.lab.home.joinpath("ssh", "tasks").iterdir()) == []

    def test_hosts_of_other_tasks_are_asked_last(
        self, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client.launch(client.intent(2))
        asked: list[str] = []
        take = leases.take

        def noted(connection: Any, python: str, agent: Any, root: str, request: Any) -> Any:
            asked.append(request["data"]["host"])
            return take(connection, python, agent, root, request)

        monkeypatch.setattr(leases, "take", noted)
        client.launch(client.intent(2, "t2"))
        assert sorted(asked) == ["node02", "node03"]
        asked.clear()
        with pytest.raises(CapacityUnavailable):
            client.launch(client.intent(1, "t3"))
        # The records may be wrong, so that no host is left out.
        assert len(asked) == 4

    def test_many_launches_at_once_never_share_a_host(self, client: Client) -> None:
        intents = [client.intent(2, f"t{i}") for i in range(4)]
        got: dict[str, list[str]] = {}

        def try_it(intent: LaunchIntent) -> None:
            try:
                got[intent.task_id] = [str(i.data["host"]) for i in client.launch(intent)]
            except CapacityUnavailable:
                got[intent.task_id] = []

        threads = [threading.Thread(target=try_it, args=(intent,)) for intent in intents]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        used = [host for hosts in got.values() for host in hosts]
        assert len(used) == len(set(used))
        assert {task: sorted(v) for task, v in got.items() if v} == {
            task: sorted(h for h, t in client.lab.held().items() if t == task)
            for task in got
            if got[task]
        }
        # None of those that were refused holds anything.
        assert set(client.lab.held()) == set(used)

    def test_a_host_that_is_gone_is_passed_over(self, client: Client) -> None:
        intent = client.intent(2)
        client.lab.hosts[0].kill()
        assert [i.data["host"] for i in client.launch(intent)] == ["node01", "node02"]

    def test_a_lease_of_a_lost_client_lapses(self, client: Client) -> None:
        client.launch(client.intent(1, ttl=1.0))
        eventually(lambda: client.lab.held() == {}, what="the lease to lapse")
        assert client.listed("t1") == []

    def test_what_a_lapsed_lease_left_can_still_be_fetched(self, client: Client) -> None:
        [instance] = client.launch(client.intent(1, ttl=1.0))
        result = f"{instance.data['home']}/a1/r0.result"
        with client.laptop() as provider, provider.connect(instance) as connection:
            connection.put(b"42", result)
        eventually(lambda: client.lab.held() == {}, what="the lease to lapse")
        with client.laptop() as provider, provider.connect(instance) as connection:
            assert b"".join(connection.read(result)) == b"42"
        client.terminate([instance])
        with (
            client.laptop() as provider,
            provider.connect(instance) as connection,
            pytest.raises(FileNotFoundError),
        ):
            b"".join(connection.read(result))

    def test_a_host_that_was_started_anew_is_free(self, client: Client) -> None:
        client.launch(client.intent(1))
        client.lab.hosts[0].kill()
        client.lab.hosts[0].start()
        assert client.listed("t1") == []
        assert client.lab.held() == {}

    @pytest.mark.parametrize(
        "wrong", [[], [["/gone/python3", "3.11.7"]], [[sys.executable, "3.9.1"]]]
    )
    def test_what_was_remembered_may_be_out_of_date(
        self, client: Client, wrong: list[list[str]]
    ) -> None:
        intent = client.intent(1)
        for path in (client.lab.home / "ssh" / "hosts").iterdir():
            known = json.loads(path.read_bytes())
            path.write_text(json.dumps({**known, "boot": "another", "pythons": wrong}))
        [instance] = client.launch(intent)
        assert instance.data["python"] == sys.executable


class TestTheClock:
    def test_a_host_whose_clock_is_wrong_is_leased_as_any_other(self, client: Client) -> None:
        client.lab.hosts[0].skew_clock(3600)
        taken = client.launch(client.intent(1, ttl=60.0))
        assert ids(client.listed("t1")) == ids(taken)


class TestOutOfReach:
    def test_what_cannot_be_asked_is_not_gone(self, client: Client) -> None:
        client.launch(client.intent(2))
        client.lab.hosts[1].power_cut()
        states = {i.data["host"]: i.state for i in client.listed("t1")}
        assert states == {"node00": "running", "node01": "unreachable"}
        # What is listed as out of reach is given up at once.
        client.terminate(client.listed("t1"))
        assert client.listed("t1") == []

    def test_with_no_host_in_reach_nothing_is_known(
        self, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        taken = client.launch(client.intent(1))
        client.lab.cluster.laptop.partition()
        with pytest.raises(ProviderError, match="node00"):
            client.terminate(taken)
        assert ids(client.listed("t1")) == ids(taken)
        monkeypatch.setattr(ending, "PATIENCE_SECONDS", 0.0)
        monkeypatch.setattr(ending, "SILENT_SECONDS", 0.0)
        client.terminate(taken)
        assert client.listed("t1") == []
        client.lab.cluster.laptop.heal()
        # It was only given up: whoever looks for what was forgotten finds it, and ends it.
        assert ids(client.listed()) == ids(taken)
        client.terminate(client.listed())
        assert client.listed() == []

    def test_the_next_launch_frees_what_was_given_up(self, client: Client) -> None:
        taken = client.launch(client.intent(1, "t1"))
        client.lab.hosts[0].partition()
        with pytest.raises(ProviderError, match="node00"):
            client.terminate(taken)
        client.terminate(client.listed("t1"))
        client.lab.hosts[0].heal()
        [instance] = client.launch(client.intent(1, "t2"))
        assert instance.data["host"] == "node00"

    def test_a_connection_to_a_dead_host_says_so(self, client: Client) -> None:
        [instance] = client.launch(client.intent(1))
        client.lab.hosts[0].power_cut()
        with (
            client.laptop() as provider,
            pytest.raises(NodeUnreachable, match="node00"),
            provider.connect(instance) as connection,
        ):
            connection.run(["true"])


def test_a_process_of_the_task_ends_with_its_lease(client: Client) -> None:
    [instance] = client.launch(client.intent(1))
    host = client.lab.hosts[0]
    with client.laptop() as provider, provider.connect(instance) as connection:
        connection.start(
            ["sh", "-c", "setsid sleep 600 & sleep 600"],
            log="/tmp/log",
            environment={"FLOW_LEASE": str(instance.data["marker"])},
        )
    eventually(lambda: len(left_on(host)) >= 2)
    client.terminate([instance])
    assert left_on(host) == []


def test_no_secret_is_on_a_command_line(client: Client) -> None:
    client.launch(client.intent(1))
    listed = subprocess.run(
        ["ps", "axww", "-o", "command"], capture_output=True, text=True, check=True
    )
    token = (client.lab.home / "client").read_text()
    assert token not in listed.stdout
