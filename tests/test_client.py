"""`Flow`: nothing is written before everything is known to be right, and nothing half-written stays."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import signal
import subprocess
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from flowlite.api.app import FlowApp
from flowlite.api.client import Flow
from flowlite.api.session import open_session
from flowlite.api.submission import _name_of
from flowlite.api.task import Task
from flowlite.connect.base import Connection
from flowlite.errors import BundleError, CapExceeded, ConfigError, NotFound, SpecError, StoreError
from flowlite.node.system import atomic_files
from flowlite.provider import (
    Instance,
    LaunchIntent,
    NodeSettings,
    Plan,
    Provider,
    VolumeInfo,
)
from flowlite.spec import TaskConfig
from tests.tasks_made_by_hand import HandMade

app = FlowApp()


class PaidProvider(Provider):
    """Has prices, and must never be asked to launch by a client."""

    name = "paid"
    price = 10.0
    planned: int = 0

    def plan(self, config: TaskConfig) -> Plan:
        type(self).planned += 1
        return Plan(
            provider=self.name,
            instance_type="big",
            num_instances=config.most_nodes,
            processes_per_node=config.workers_per_node,
            price_per_hour=self.price,
            max_run_seconds=config.max_run_seconds,
            notes=("the region is far away",),
        )

    def launch(self, intent: LaunchIntent) -> list[Instance]:
        raise AssertionError("a client launches nothing")

    def list_instances(self, task_id: str | None = None) -> list[Instance]:
        return []

    def terminate(self, instances: Sequence[Instance]) -> None:
        raise AssertionError("a client terminates nothing")

    def connect(self, instance: Instance) -> Connection:
        raise AssertionError

    def node_settings(self, plan: Plan, instance: Instance) -> NodeSettings:
        raise AssertionError

    def list_volumes(self) -> list[VolumeInfo]:
        return [VolumeInfo(name, self.name, "file", None, "/there") for name in ("b", "a")]


@pytest.fixture(autouse=True)
def paid(flow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    announced = tmp_path / "paid_provider-1.0.dist-info"
    announced.mkdir()
    (announced / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: paid-provider\nVersion: 1.0\n"
    )
    (announced / "entry_points.txt").write_text(
        f"[flowlite.providers]\npaid = {__name__}:PaidProvider\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    # No supervisor: these tests end where its work begins.
    monkeypatch.setattr(
        "flowlite.supervise.process.launch.start_supervisor", lambda home, task_id, **_: 0
    )
    monkeypatch.setattr(
        "flowlite.supervise.process.launch.ensure_supervisors", lambda store, home, *, only=None: []
    )
    return flow_home


def tasks_on_disk(home: Path) -> list[str]:
    directory = home / "tasks"
    return sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []


def quiet() -> tuple[Flow, list[str]]:
    said: list[str] = []
    return Flow(provider="paid", notify=said.append), said


# Submitting


def test_a_command_is_recorded_with_its_plan(paid: Path) -> None:
    flow, said = quiet()
    config = TaskConfig(command=("python", "train.py", "--lr", "1 e"), num_instances=2)
    task = flow.run(config)
    record = task.record
    assert (record.state, record.name, record.provider) == ("pending", "train", "paid")
    assert record.function == "python train.py --lr '1 e'"
    assert record.call == {
        "kind": "command",
        "argv": ["python", "train.py", "--lr", "1 e"],
        "start": "spawn",
        "why": "its files are not sent from here, so its imports are not known",
    }
    assert record.plan["price_per_hour"] == 10.0
    assert said == [
        "2 × big, paid: $10.00 per instance and hour, $20.00 in all; "
        "cost at most: no limit: set max_run_time_hours or max_cost",
        "the region is far away",
    ]
    assert tasks_on_disk(paid) == [task.id]
    directory = paid / "tasks" / task.id
    assert directory.stat().st_mode & 0o777 == 0o700
    assert (directory / "secret").stat().st_mode & 0o777 == 0o600
    assert len((directory / "secret").read_text()) == 64


def test_a_text_goes_through_the_shell() -> None:
    flow, _ = quiet()
    assert flow.run(TaskConfig(command="echo $RANK | cat")).record.call["argv"] == [
        "sh",
        "-c",
        "echo $RANK | cat",
    ]


def test_a_decorated_function_is_bundled_where_the_task_lies(paid: Path) -> None:
    @app.function(num_instances=2)
    def train(lr: float = 1e-4) -> float:
        return lr

    flow, _ = quiet()
    task = flow.run(train)
    call = task.record.call
    assert call["kind"] == "function"
    assert Path(call["bundle"]).parent == paid / "tasks" / task.id / "bundle"
    assert Path(call["bundle"]).is_file()
    assert task.name == "train"
    assert task.num_instances == 2


def test_mounts_are_added_to_those_of_the_configuration() -> None:
    flow, _ = quiet()
    config = TaskConfig(command="true", mounts={"/a": "s3://bucket-a"})
    task = flow.run(config, mounts={"/b": "s3://bucket-b/x"})
    assert task.record.config["mounts"] == {"/a": "s3://bucket-a", "/b": "s3://bucket-b/x"}


def test_a_task_file_runs(tmp_path: Path) -> None:
    file = tmp_path / "task.yaml"
    file.write_text("command: [python, eval.py]\nnum_instances: 3\nname: evaluation\n")
    task = quiet()[0].run(file)
    assert (task.name, task.num_instances) == ("evaluation", 3)


def test_notes_are_told_once_for_a_whole_sweep() -> None:
    flow, said = quiet()
    for _ in range(3):
        flow.run(TaskConfig(command="true"))
    assert len(said) == 2


@pytest.mark.parametrize(
    ("options", "figures"),
    [
        ({"max_price_per_hour": 9.99}, ("$10.00", "$9.99")),
        # 18 s of the gang, and 40 s are kept free for its end.
        ({"max_cost": 0.1, "num_instances": 2}, ("$20.00", "$0.10", " 18 s", " 40 s")),
    ],
)
def test_caps_refuse_before_anything_is_written(
    paid: Path, options: dict[str, Any], figures: tuple[str, str]
) -> None:
    flow, _ = quiet()
    with pytest.raises(CapExceeded) as caught:
        flow.run(TaskConfig(command="true", **options))
    for figure in figures:
        assert figure in str(caught.value)
    assert tasks_on_disk(paid) == []
    assert flow.list_tasks() == []


def test_caps_that_hold_let_it_through() -> None:
    flow, _ = quiet()
    config = TaskConfig(
        command="true", max_price_per_hour=10, max_cost=20, max_run_time_hours=1, num_instances=2
    )
    assert flow.run(config).status == "pending"


def test_the_cap_on_money_becomes_the_longest_run_with_room_for_the_end() -> None:
    flow, _ = quiet()
    config = TaskConfig(command="true", max_cost=20.0, num_instances=2, grace_seconds=20)
    _, plan = flow.plan(config)
    assert plan.max_run_seconds == pytest.approx(3600 - 20 - 30)
    assert plan.worst_case_cost == pytest.approx(20.0)
    _, shorter = flow.plan(config.replace(max_run_time_hours=0.5))
    assert shorter.max_run_seconds == 1800
    assert shorter.worst_case_cost == pytest.approx(20.0 * (1800 + 50) / 3600)
    assert Plan.from_json(flow.run(config).record.plan) == plan


def test_a_price_that_may_rise_is_counted_at_its_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    before = PaidProvider.plan
    monkeypatch.setattr(
        PaidProvider,
        "plan",
        lambda self, config: dataclasses.replace(before(self, config), spot=True),
    )
    flow, said = quiet()
    config = TaskConfig(command="true", max_price_per_hour=15, max_run_time_hours=2)
    _, plan = flow.plan(config)
    assert (plan.price_cap, plan.highest_price) == (15.0, 15.0)
    # Two hours, the grace period, and the time to give the machine back.
    assert plan.worst_case_cost == pytest.approx(15.0 * (7200 + 10 + 30) / 3600)
    _, capped = flow.plan(config.replace(max_cost=15.0))
    assert capped.max_run_seconds == pytest.approx(3600 - 40)
    flow.run(config)
    bound = "$30.17 ($15.00 × 1 × 2.011 h, with 40 s to start and end)"
    assert f"spot, at most $15.00 per instance; cost at most: {bound}" in said[0]
    with pytest.raises(CapExceeded, match=r"asks \$10.00 per hour for big just now"):
        flow.plan(config.replace(max_price_per_hour=9.0))


def test_the_settings_are_defaults(paid: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOW_PROVIDER", "paid")
    monkeypatch.setenv("FLOW_MAX_PRICE_PER_HOUR", "5")
    with pytest.raises(CapExceeded):
        Flow(notify=lambda text: None).run(TaskConfig(command="true"))
    task = Flow(notify=lambda text: None).run(TaskConfig(command="true", max_price_per_hour=11))
    assert task.provider == "paid"
    assert task.max_price_per_hour == 11


# What is wrong


@pytest.mark.parametrize(
    ("target", "error", "said"),
    [
        (TaskConfig(num_instances=2), ConfigError, "nothing to run"),
        (42, ConfigError, "give a TaskConfig"),
        (len, ConfigError, "@app.function"),
        ("no-such-file.yaml", SpecError, "no-such-file.yaml"),
        (TaskConfig(command="true", secrets=["NO_SUCH_SECRET"]), SpecError, "NO_SUCH_SECRET"),
    ],
)
def test_mistakes_leave_nothing_behind(
    paid: Path, target: Any, error: type[Exception], said: str
) -> None:
    flow, _ = quiet()
    with pytest.raises(error, match=said):
        flow.run(target)
    assert tasks_on_disk(paid) == []
    assert flow.list_tasks() == []


def test_a_call_that_cannot_travel_leaves_nothing_behind(paid: Path) -> None:
    import threading

    lock = threading.Lock()

    @app.function
    def locked() -> bool:
        return lock.locked()

    flow, _ = quiet()
    with pytest.raises(BundleError, match="lock"):
        flow.run(locked)
    assert tasks_on_disk(paid) == []


def test_a_store_that_fails_leaves_nothing_behind(
    paid: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Any, task: Any) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr("flowlite.state.store.Store.create_task", full)
    with pytest.raises(StoreError, match="disk is full"):
        quiet()[0].run(TaskConfig(command="true"))
    assert tasks_on_disk(paid) == []


def test_a_disk_without_room_for_the_text_of_a_call_is_named(
    paid: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.function
    def one() -> int:
        return 1

    write = atomic_files.write_atomically

    def full(path: Path, content: bytes) -> None:
        if path.name == "call.txt":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, content)

    monkeypatch.setattr(atomic_files, "write_atomically", full)
    with pytest.raises(StoreError, match=r"cannot be written: No space left .* nothing was submit"):
        quiet()[0].run(one)
    assert tasks_on_disk(paid) == []


def test_an_unknown_provider_is_named() -> None:
    with pytest.raises(NotFound, match="did you mean 'paid'"):
        Flow(provider="payd").run(TaskConfig(command="true"))


def test_secrets_are_kept_apart_from_the_configuration(
    paid: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_KEY", "hush-hush")
    task = quiet()[0].run(TaskConfig(command="true", secrets=["WANDB_KEY"]))
    assert task.record.config["secrets"] == ["WANDB_KEY"]
    holding = [
        path
        for path in (paid / "tasks" / task.id).rglob("*")
        if path.is_file() and b"hush-hush" in path.read_bytes()
    ]
    assert [path.name for path in holding] == ["secrets.json"]
    assert holding[0].stat().st_mode & 0o777 == 0o600
    assert b"hush-hush" not in (paid / "state.db").read_bytes()


# Interrupts


def interrupt_at_the_start_of_the_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    presses = iter([signal.SIGINT])

    def press(home: Path, task_id: str, **_: object) -> int:
        for number in presses:
            os.kill(os.getpid(), number)
        return 0

    monkeypatch.setattr("flowlite.supervise.process.launch.start_supervisor", press)


def test_an_interrupt_while_submitting_cancels_and_names_the_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interrupt_at_the_start_of_the_supervisor(monkeypatch)
    flow, said = quiet()
    with pytest.raises(KeyboardInterrupt):
        flow.run(TaskConfig(command="true", name="interrupted"))
    (task,) = flow.list_tasks()
    assert task.record.cancel_requested_at is not None
    assert f"task interrupted ({task.id}) is being cancelled" in said[-1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_announced_task_is_left_to_its_announcer(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_at_the_start_of_the_supervisor(monkeypatch)
    flow, _ = quiet()
    announced: list[Task[Any]] = []
    with pytest.raises(KeyboardInterrupt):
        flow.submit(TaskConfig(command="true"), announce=announced.append)
    assert announced[0].record.cancel_requested_at is None


def test_an_interrupt_before_that_leaves_nothing(
    paid: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("flowlite.api.submission._call", interrupted)
    flow, _ = quiet()
    with pytest.raises(KeyboardInterrupt):
        flow.run(TaskConfig(command="true"))
    assert tasks_on_disk(paid) == []


# Finding


def test_tasks_are_found_by_id_name_and_prefix() -> None:
    old, new = HandMade("digits", created_at=1.0), HandMade("digits")
    other = HandMade("other")
    flow = Flow()
    assert flow.get_task(old.id).id == old.id
    assert flow.get_task("digits").id == new.id
    assert flow.get_task("oth").id == other.id
    for odd in (None, 3, other):
        with pytest.raises(ConfigError, match="takes the id or the name of a task"):
            flow.get_task(odd)  # type: ignore[arg-type]
    with pytest.raises(NotFound, match="flow status"):
        flow.get_task("nothing")
    assert [task.id for task in flow.list_tasks(name="digits")] == [new.id, old.id]
    assert len(flow.list_tasks(limit=1)) == 1
    other.end()
    assert {task.id for task in flow.list_tasks(unfinished=True)} == {old.id, new.id}
    assert flow.cancel("digits") is True
    assert flow.cancel("other") is False


def test_what_is_no_text_is_the_name_of_no_task() -> None:
    """The bytes of a command line may be no text: `flow status $'\\xff'` ended with a UnicodeEncodeError."""
    with pytest.raises(NotFound, match="no task"):
        Flow().get_task("\udcff")


def test_tasks_are_listed_within_limits() -> None:
    flow, _ = quiet()
    made = [flow.run(TaskConfig(command="true", name="one")) for _ in range(2)]
    assert len(flow.list_tasks()) == 2
    assert len(flow.list_tasks(limit=1)) == 1
    assert flow.list_tasks(limit=0) == []
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"limit": -1}, "whole number of at least 0"),
        ({"limit": "5"}, "whole number of at least 0"),
        ({"name": ["one"]}, "name of tasks"),
    ]
    for given, said in wrong:
        with pytest.raises(ConfigError, match=said):
            flow.list_tasks(**given)
    for task in made:
        task.cancel()


def test_volumes_are_those_of_the_provider() -> None:
    flow = Flow(provider="paid")
    assert [volume.name for volume in flow.volumes.list()] == ["a", "b"]
    with pytest.raises(NotFound):
        flow.volumes.delete("c")
    with pytest.raises(SpecError, match="Not Allowed"):
        flow.volumes.create("Not Allowed")
    with pytest.raises(SpecError, match="file"):
        flow.volumes.create("fine", interface="files")
    assert flow.offers("h100:8") == []


def test_local_volumes_are_made_and_deleted(paid: Path) -> None:
    flow = Flow(provider="local")
    made = flow.volumes.create("ckpt", size_gb=1)
    assert Path(made.location).is_dir()
    assert [volume.name for volume in flow.volumes.list()] == ["ckpt"]
    flow.volumes.delete("ckpt")
    assert flow.volumes.list() == []


@pytest.mark.parametrize(
    ("function", "name"),
    [
        ("train.main", "main"),
        ("python train.py --lr 1", "train"),
        ("python -m open_clip_train.main --x", "main"),
        ("/usr/bin/nvidia-smi", "nvidia-smi"),
        ("./run.sh a b", "run-sh"),
        ("echo hi", "echo"),
        ("???", "task"),
    ],
)
def test_a_task_without_a_name_is_named_after_what_it_runs(function: str, name: str) -> None:
    assert _name_of(function) == name


def test_the_database_of_a_removed_home_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test suite has a home for each of its tests, each with three descriptors."""
    monkeypatch.setenv("FLOW_HOME", str(tmp_path / "removed"))
    removed = weakref.ref(open_session().store)
    monkeypatch.setenv("FLOW_HOME", str(tmp_path / "kept"))
    kept = open_session()
    assert removed() is not None
    shutil.rmtree(tmp_path / "removed")
    monkeypatch.setenv("FLOW_HOME", str(tmp_path / "new"))
    open_session()
    assert removed() is None
    monkeypatch.setenv("FLOW_HOME", str(tmp_path / "kept"))
    assert open_session() is kept


def test_looking_at_tasks_needs_none_of_the_heavy_packages(flow_home: Path) -> None:
    HandMade()
    code = (
        "import sys; from flowlite.api.client import Flow; flow = Flow(); flow.list_tasks();"
        "str(flow.get_task('digits').logs());"
        "heavy = ('pydantic', 'typer', 'rich', 'cloudpickle', 'torch', 'numpy', 'asyncio');"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent.parent,
    )
    assert done.stdout.strip() == "[]"
