"""Nodes of the local provider: launched once per token, places and GPUs shared out, given back, and nothing left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flowlite.api.adapters import adapter, settings_here
from flowlite.errors import (
    CapacityUnavailable,
    ConfigError,
    NodeUnreachable,
    NotFound,
    ProviderError,
)
from flowlite.node.mount_namespace import unmount
from flowlite.node.system import processes
from flowlite.provider import Instance, LaunchIntent, Plan
from flowlite.spec import TaskConfig
from flowlite.supervise.record import process_identity
from provider_adapters.local import LocalProvider
from provider_adapters.locked_record import LockedRecord
from tests.helpers import deep_tree, eventually, process_alive

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def provider(flow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalProvider:
    # `tmp_path` comes first: pytest would make the directory of all of its tests in the TMPDIR of this one.
    # GPUs are lent per user, whatever the FLOW_HOME: tests must not meet those of others.
    (flow_home / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(flow_home / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    return adapter("local")


def intent(task: str = "ta", count: int = 2, launch: int = 1, **plan: Any) -> LaunchIntent:
    options = {"max_tasks": 4, **plan.pop("options", {})}
    made = Plan("local", "this machine", count, 1, options=options, **plan)
    return LaunchIntent(f"{task}-launch-{launch}", task, count, made.to_json())


def supervised(home: Path, task: str, pid: int | None = None) -> None:
    """Notes down a supervisor for a task, as `start_supervisor` does."""
    directory = home / "tasks" / task
    directory.mkdir(parents=True, exist_ok=True)
    process = process_identity.of_process(os.getpid() if pid is None else pid)
    (directory / "supervisor.json").write_text(json.dumps(process.to_json()))


def gpus_of(instances: list[Instance]) -> list[list[int]]:
    return [instance.data["gpus"] for instance in instances]


def test_a_launch_gives_nodes_with_ids_in_rank_order(provider: LocalProvider) -> None:
    found = provider.launch(intent(count=12))
    ids = [instance.id for instance in found]
    assert ids == sorted(ids)
    assert len(set(ids)) == 12
    assert {(i.task_id, i.state, i.address) for i in found} == {("ta", "running", "127.0.0.1")}
    assert provider.list_instances("ta") == found
    assert provider.list_instances() == found
    assert provider.list_instances("other") == []


def test_the_same_token_never_launches_twice(provider: LocalProvider) -> None:
    assert provider.launch(intent()) == provider.launch(intent())
    assert adapter("local").launch(intent()) == provider.list_instances("ta")
    more = provider.launch(intent(count=1, launch=2))
    assert len(provider.list_instances("ta")) == 3
    assert more[0] in provider.list_instances("ta")


def test_what_is_terminated_is_gone_and_may_be_terminated_again(
    provider: LocalProvider, flow_home: Path
) -> None:
    one, two = provider.launch(intent())
    provider.terminate([one])
    assert provider.list_instances("ta") == [two]
    with pytest.raises(NodeUnreachable, match=one.id):
        provider.connect(one)
    provider.connect(two).close()
    provider.terminate([one, two])
    provider.terminate([two])
    assert provider.list_instances() == []
    assert list((flow_home / "tasks" / "ta" / "nodes").iterdir()) == []


def test_a_node_is_given_back_however_deep_its_files_are(
    provider: LocalProvider, flow_home: Path
) -> None:
    (one,) = provider.launch(intent(count=1))
    (node,) = (flow_home / "tasks" / "ta" / "nodes").iterdir()
    deep_tree(node)
    provider.terminate([one])
    assert provider.list_instances() == []
    assert not node.exists()


def test_what_was_not_fetched_stays_until_it_is_forgotten(
    provider: LocalProvider, flow_home: Path
) -> None:
    one, two = provider.launch(intent())
    for instance in (one, two):
        directory = flow_home / "tasks" / "ta" / "nodes" / instance.id / "a1"
        directory.mkdir()
        (directory / "r0.result").write_text("all that is known")
        (directory / "secret").write_text("x")
    assert provider.retain([one]) == [one]
    for _ in range(2):
        provider.terminate([one, two])
    home = flow_home / "tasks" / "ta" / "nodes" / one.id
    assert [path.name for path in home.rglob("*")] == ["a1", "r0.result"]
    assert not (home.parent / two.id).exists()
    provider.forget([one])
    assert list(home.parent.iterdir()) == []


@pytest.mark.needs("mounts")
def test_what_is_mounted_on_a_node_is_not_deleted_with_it(
    provider: LocalProvider, flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (instance,) = found = provider.launch(intent(count=1))
    home = Path(provider.node_settings(Plan("local", "this machine", 1, 1), instance).home)
    bucket, point = flow_home / "bucket", home / "data"
    for directory in (bucket, point):
        directory.mkdir()
    (bucket / "precious").write_bytes(b"of the user")
    subprocess.run(["mount", "--bind", bucket, point], check=True)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(unmount, "unmount", lambda point: False)
            provider.terminate(found)
            provider.forget(found)
        assert (bucket / "precious").read_bytes() == b"of the user"
    finally:
        unmount.unmount_below(home)
    provider.forget(found)
    assert not home.exists()
    assert (bucket / "precious").exists()


def test_nodes_have_the_python_that_submitted_the_task(
    provider: LocalProvider, tmp_path: Path
) -> None:
    """Its supervisor may be another one's by now: of a `flow` that is installed for itself, after a restart."""
    assert provider.plan(TaskConfig(command=["true"])).options["python"] == sys.executable
    submitted = tmp_path / "env/bin/python"
    submitted.parent.mkdir(parents=True)
    submitted.symlink_to(sys.executable)
    (one, _) = provider.launch(intent("ta", options={"python": str(submitted)}))
    (two, _) = provider.launch(intent("tb", options={"python": str(tmp_path / "gone/python")}))
    assert (one.data["python"], two.data["python"]) == (str(submitted), sys.executable)
    plan = Plan("local", "this machine", 1, 1)
    assert provider.node_settings(plan, one).python == str(submitted)
    # The environment is removed while the task runs; its files are still to be brought.
    submitted.unlink()
    assert provider.node_settings(plan, one).python == sys.executable


def test_settings_of_a_node(provider: LocalProvider, flow_home: Path) -> None:
    plan = Plan.from_json(intent(options={"workdir": "/w"}).plan)
    (one, _) = provider.launch(intent(options={"workdir": "/w"}))
    settings = provider.node_settings(plan, one)
    assert settings.home == f"{flow_home}/tasks/ta/nodes/{one.id}"
    assert (settings.workdir, settings.bind, settings.python) == ("/w", "127.0.0.1", sys.executable)
    assert settings.visible_gpus is None
    assert settings.warm_socket is not None
    assert len(settings.warm_socket) < 100
    assert settings.environment["FLOW_TASK_ID"] == "ta"


def test_only_so_many_tasks_run_at_a_time(provider: LocalProvider, flow_home: Path) -> None:
    for task in ("ta", "tb"):
        supervised(flow_home, task)
    limit = {"max_tasks": 1}
    held = provider.launch(intent("ta", options=limit))
    with pytest.raises(CapacityUnavailable, match=r"1 of 1 places .* are taken") as refused:
        provider.launch(intent("tb", options=limit))
    assert 0 < refused.value.retry_after < 1
    assert [i.task_id for i in provider.list_instances()] == ["ta", "ta"]
    provider.terminate(held)
    assert provider.launch(intent("tb", options=limit))
    assert provider.launch(intent("ta", options={"max_tasks": 9}))


def test_the_place_of_a_task_that_is_dead_is_taken_back(
    provider: LocalProvider, flow_home: Path
) -> None:
    gone = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    supervised(flow_home, "ta", gone.pid)
    marks = {"FLOW_TASK_ID": "ta", "FLOW_HOME": str(flow_home)}
    worker = subprocess.Popen(["sleep", "60"], env={**os.environ, **marks})
    limit = {"max_tasks": 1}
    provider.launch(intent("ta", options=limit))
    gone.communicate()
    with pytest.raises(CapacityUnavailable):
        provider.launch(intent("tb", options=limit))
    worker.kill()
    worker.wait()
    assert provider.launch(intent("tb", options=limit))
    assert [i.task_id for i in provider.list_instances()] == ["tb", "tb"]


def test_gpus_belong_to_one_task_at_a_time(provider: LocalProvider, flow_home: Path) -> None:
    four = {"gpu": "h100", "gpus_per_node": 2, "options": {"gpus": [0, 1, 2, 5]}}
    for task in ("ta", "tb"):
        supervised(flow_home, task)
    first = provider.launch(intent("ta", **four))
    assert gpus_of(first) == [[0, 1], [2, 5]]
    settings = provider.node_settings(Plan.from_json(intent(**four).plan), first[1])
    assert settings.visible_gpus == "2,5"
    assert settings.environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    with pytest.raises(CapacityUnavailable, match=r"4 GPUs .* 0 are free, .* in use by ta"):
        provider.launch(intent("tb", **four))
    provider.terminate([first[0]])
    with pytest.raises(CapacityUnavailable, match="2 are free"):
        provider.launch(intent("tb", **four))
    assert gpus_of(provider.launch(intent("ta", count=1, launch=2, **four))) == [[0, 1]]
    provider.terminate(provider.list_instances("ta"))
    assert gpus_of(provider.launch(intent("tb", **four))) == [[0, 1], [2, 5]]


def test_a_task_without_gpu_is_not_held_up_by_one_that_waits_for_some(
    provider: LocalProvider, flow_home: Path
) -> None:
    one = {"gpu": "h100", "gpus_per_node": 1, "options": {"gpus": [0], "max_tasks": 2}}
    for task in ("ta", "tb", "tc"):
        supervised(flow_home, task)
    provider.launch(intent("ta", count=1, **one))
    with pytest.raises(CapacityUnavailable):
        provider.launch(intent("tb", count=1, **one))
    assert provider.launch(intent("tc", options={"max_tasks": 2}))


def test_gpus_are_shared_with_other_homes_and_taken_back_from_the_dead(
    provider: LocalProvider, flow_home: Path, tmp_path: Path
) -> None:
    one = {"gpu": "h100", "gpus_per_node": 1, "options": {"gpus": [0]}}
    other = LocalProvider(tmp_path / "other", settings_here("local"))
    gone = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    supervised(tmp_path / "other", "ta", gone.pid)
    other.launch(intent("ta", count=1, **one))
    with pytest.raises(CapacityUnavailable):
        provider.launch(intent("tb", count=1, **one))
    gone.communicate()
    assert gpus_of(provider.launch(intent("tb", count=1, **one))) == [[0]]


_LAUNCH = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from flowlite.api.adapters import adapter
from flowlite.errors import CapacityUnavailable
from tests.providers.test_local_nodes import intent, supervised
task = sys.argv[2]
supervised(Path(sys.argv[1]), task)
plan = {"gpu": "h100", "gpus_per_node": 2, "options": {"gpus": list(range(6)), "max_tasks": 64}}
try:
    found = adapter("local").launch(intent(task, count=1, **plan))
    print(*found[0].data["gpus"])
except CapacityUnavailable:
    print("none")
sys.stdout.flush()
sys.stdin.read()
"""


def test_tasks_that_start_together_get_gpus_of_their_own(
    provider: LocalProvider, flow_home: Path
) -> None:
    tasks = [
        subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, str(flow_home), f"t{number}", str(ROOT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    said = [task.stdout.readline().split() for task in tasks if task.stdout]
    for task in tasks:
        task.communicate()
    assert sorted(word for words in said for word in words) == sorted([*map(str, range(6)), "none"])


def test_every_process_of_a_task_is_found_and_killed(
    provider: LocalProvider, flow_home: Path
) -> None:
    found = provider.launch(intent())
    marks = {**os.environ, "FLOW_TASK_ID": "ta", "FLOW_HOME": str(flow_home)}
    ours = subprocess.Popen(["sleep", "60"], env=marks, start_new_session=True)
    others = [
        subprocess.Popen(["sleep", "60"], env={**marks, "FLOW_TASK_ID": "tab"}),
        subprocess.Popen(["sleep", "60"], env={**marks, "FLOW_HOME": f"{flow_home}2"}),
    ]
    try:
        provider.terminate(found)
        assert not process_alive(ours.pid)
        assert all(process_alive(other.pid) for other in others)
        assert provider.list_instances("ta") == []
    finally:
        for process in (ours, *others):
            process.kill()
            process.wait()


def test_one_node_of_several_is_ended_with_what_runs_below_it(
    provider: LocalProvider, flow_home: Path
) -> None:
    one, two = provider.launch(intent())
    trees = []
    for instance in (one, two):
        attempt = flow_home / "tasks" / "ta" / "nodes" / instance.id / "a1"
        attempt.mkdir()
        agent = subprocess.Popen(["sh", "-c", "sleep 60 & wait"])
        (attempt / "agent.pid").write_text(
            json.dumps(process_identity.of_process(agent.pid).to_json())
        )
        child = eventually(lambda agent=agent: processes.descendants([agent.pid])).pop()
        trees.append((agent, child))
    try:
        provider.terminate([one])
        assert [process_alive(child) for _, child in trees] == [False, True]
        assert trees[1][0].poll() is None
    finally:
        for agent, child in trees:
            processes.send(child, 9)
            agent.kill()
            agent.wait()


def test_volumes(provider: LocalProvider, flow_home: Path) -> None:
    made = provider.create_volume("corpus", 5.0, "file")
    assert made.location == f"{flow_home}/volumes/corpus"
    (Path(made.location) / "deep").mkdir()
    (Path(made.location) / "deep" / "file").write_bytes(b"x" * 1000)
    again = provider.create_volume("corpus", 9.0, "block")
    assert (again.size_gb, again.interface) == (5.0, "file")
    provider.create_volume("another", None, "block")
    with pytest.raises(ConfigError, match="'another' exists with the interface 'block'"):
        provider.plan(TaskConfig(volumes={"/data": "another"}))
    (flow_home / "volumes" / "by-hand").mkdir()
    found = {v.name: (v.used_bytes, v.interface, v.size_gb) for v in provider.list_volumes()}
    assert found == {
        "corpus": (1000, "file", 5.0),
        "another": (0, "block", None),
        "by-hand": (0, "file", None),
    }
    provider.delete_volume("corpus")
    assert [v.name for v in provider.list_volumes()] == ["another", "by-hand"]
    with pytest.raises(NotFound, match="no volume 'corpus'"):
        provider.delete_volume("corpus")
    for name in ("../tasks", "", ".corpus.json"):
        with pytest.raises(ConfigError):
            provider.delete_volume(name)


def test_a_volume_in_use_is_not_deleted(provider: LocalProvider, flow_home: Path) -> None:
    wanted = {"name": "data", "path": "/data", "interface": "file", "size_gb": None}
    plan = {"options": {"volumes": [wanted]}}
    one, _ = provider.launch(intent(**plan))
    assert provider.node_settings(Plan.from_json(intent(**plan).plan), one).volumes == (
        {
            "name": "data",
            "path": "/data",
            "source": f"{flow_home}/volumes/data",
            "interface": "file",
        },
    )
    with pytest.raises(ProviderError, match="in use by task ta"):
        provider.delete_volume("data")
    provider.terminate(provider.list_instances("ta"))
    provider.delete_volume("data")


def test_a_ledger_that_was_damaged_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    for damaged in ("{half", "[1]"):
        path.write_text(damaged)
        with pytest.raises(ProviderError, match=r"ledger\.json cannot be read"):
            LockedRecord(path).read()


def test_a_ledger_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    ledger = LockedRecord(tmp_path / "ledger.json")
    with ledger.change() as entries:
        entries["a"] = 1
    with pytest.raises(ZeroDivisionError), ledger.change() as entries:
        entries["b"] = 1 / 0
    assert ledger.read() == {"a": 1}
