"""The store: leases and fencing, migrations and refusals, and many processes at once."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from flowlite.errors import LeaseLost, NotFound, StoreDamaged, StoreError
from flowlite.provider import Candidate, Plan
from flowlite.state import clock, snapshots
from flowlite.state.database import MIGRATIONS, SCHEMA_VERSION
from flowlite.state.store import FullPlace, InstanceRecord, Lease, Store, TaskRecord
from tests.helpers import eventually

ROOT = Path(__file__).resolve().parent.parent


PLAN = {
    "provider": "local",
    "instance_type": "this machine",
    "num_instances": 2,
    "processes_per_node": 1,
}
TRIED = {
    "candidate": 0,
    "at": 2.0,
    "why": "no room",
    "kind": "full",
    "search": [0, 0],
    "since": 1.0,
    "times": 1,
    "refusals": 0,
}

INSTANCE = InstanceRecord("i-1", "t1", "local", "running", 0.0, 1.0, {"id": "i-1", "task_id": "t1"})


def task(task_id: str = "t1", **changes: object) -> TaskRecord:
    values: dict[str, object] = {
        "id": task_id,
        "name": "digits",
        "function": "train",
        "provider": "local",
        "config": {"a": [1, None]},
        "plan": PLAN,
        "call": {"kind": "command", "argv": ["true"]},
        "created_at": 1.0,
    }
    return TaskRecord(**{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "state.db")


def leased(store: Store, task_id: str = "t1", owner: str = "me") -> Lease:
    lease = store.acquire_lease(task_id, owner, 30)
    assert lease is not None
    return lease


def run_python(code: str, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )


def test_a_task_comes_back_as_it_was_written(store: Store) -> None:
    written = task(roster=["a", "b"], reason="why", cost=1.5)
    store.create_task(written)
    assert store.get_task("t1") == written


def test_writes_need_the_lease_with_the_newest_token(store: Store) -> None:
    store.create_task(task())
    old = leased(store, owner="old")
    store.update_task(old, reason="one")
    assert store.acquire_lease("t1", "new", 30) is None
    new = store.acquire_lease("t1", "new", 30, is_dead=lambda owner: owner == "old")
    assert new is not None
    assert new.token > old.token
    for write in (
        lambda: store.update_task(old, reason="two"),
        lambda: store.renew_lease(old, 30),
        lambda: store.put_intent(old, "x", "launch", {}),
        lambda: store.put_instances(old, []),
        lambda: store.transition(old, "running", "", state="running"),
        lambda: store.settle_intent(old, "x", "done"),
    ):
        with pytest.raises(LeaseLost, match="another supervisor"):
            write()
    assert store.get_task("t1").reason == "one"
    assert store.events("t1") == []
    store.release_lease(old)
    store.update_task(new, reason="three")


def test_a_lease_that_has_expired_can_be_taken(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create_task(task())
    times = iter([100.0, 109.9, 110.1])
    monkeypatch.setattr(clock, "now", lambda home: next(times))
    assert store.acquire_lease("t1", "a", 10) is not None
    assert store.acquire_lease("t1", "b", 10) is None
    assert store.acquire_lease("t1", "b", 10) is not None


def test_the_same_owner_takes_its_lease_again_with_a_new_token(store: Store) -> None:
    store.create_task(task())
    first, second = leased(store), leased(store)
    assert second.token == first.token + 1
    with pytest.raises(LeaseLost):
        store.update_task(first, reason="x")


def test_a_transition_writes_state_and_event_or_neither(store: Store) -> None:
    store.create_task(task())
    lease = leased(store)
    store.transition(lease, "running", "all ranks started", {"n": 1}, state="running")
    with pytest.raises(StoreError, match="no field speed"):
        store.transition(lease, "odd", "odd", speed=3)
    assert [(event.kind, event.text, event.data) for event in store.events("t1")] == [
        ("running", "all ranks started", {"n": 1})
    ]
    assert store.get_task("t1").state == "running"


def test_an_intent_is_written_once_per_token(store: Store) -> None:
    store.create_task(task())
    lease = leased(store)
    for count in (2, 99):
        store.put_intent(lease, "t1-launch-1", "launch", {"count": count})
    store.settle_intent(lease, "t1-launch-1", "done")
    (intent,) = store.intents("t1")
    assert (intent.state, intent.data) == ("done", {"count": 2})


def test_instances_are_replaced_by_id(store: Store) -> None:
    store.create_task(task())
    lease = leased(store)
    one = InstanceRecord(
        "i-1", "t1", "local", "running", 2.0, 10.0, {"id": "i-1", "task_id": "t1"}, 0
    )
    store.put_instances(lease, [one])
    store.put_instances(lease, [InstanceRecord(**{**_fields(one), "ended_at": 20.0})])
    (found,) = store.instances("t1")
    assert found.ended_at == 20.0


def test_after_each_change_a_lost_store_could_be_restored(store: Store) -> None:
    """What may be charged is in the copy beside the files of the task as soon as it is in the store."""
    store.create_task(task())
    lease = leased(store)
    home = store.path.parent
    files = home / "tasks" / "t1"
    files.mkdir(parents=True)
    (files / "config.json").touch()
    instance = InstanceRecord(
        "i-1", "t1", "local", "running", 2.0, 10.0, {"id": "i-1", "task_id": "t1"}, 0
    )
    token = "t1-launch-1"
    changes: list[Callable[[], object]] = [
        lambda: store.put_intent(lease, token, "launch", {"count": 2}),
        lambda: store.put_instances(lease, [instance]),
        lambda: store.settle_intent(lease, token, "refused"),
        lambda: store.delete_intents(lease, [token]),
        lambda: store.transition(
            lease, "starting", "", instances=[replace(instance, state="lost")]
        ),
    ]
    seen = []
    for change in changes:
        change()
        ((copy,), problems) = snapshots.read_all(home)
        assert problems == []
        found: dict[str, Sequence[Any]] = {
            "tasks": [store.get_task("t1")],
            "instances": store.instances("t1"),
            "intents": store.intents("t1"),
        }
        rows = {name: [asdict(row) for row in each] for name, each in found.items()}
        assert copy.rows == json.loads(json.dumps(rows))
        assert copy.rows not in seen
        seen.append(copy.rows)


def test_an_instance_is_decoded_again_when_its_row_has_changed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor reads the rows of all its machines many times a second."""
    store.create_task(task())
    lease = leased(store)
    names = [f"node{number}" for number in range(3)]
    store.put_instances(lease, [replace(INSTANCE, id=name) for name in names])
    assert [each.id for each in store.instances("t1")] == names
    decoded: list[str] = []
    decode = json.loads

    def noting(text: str) -> Any:
        decoded.append(text)
        return decode(text)

    monkeypatch.setattr(json, "loads", noting)
    assert [each.id for each in store.instances("t1")] == names
    assert decoded == []
    store.put_instances(lease, [replace(INSTANCE, id=names[1], ended_at=20.0)])
    decoded.clear()
    assert [each.ended_at for each in store.instances("t1")] == [None, 20.0, None]


def test_of_many_instances_a_snapshot_encodes_those_that_have_changed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written at each change of the task, and each machine's row is long."""
    store.create_task(task())
    lease = leased(store)
    (store.path.parent / "tasks" / "t1").mkdir(parents=True)
    (store.path.parent / "tasks" / "t1" / "config.json").touch()
    names = [f"node{number:02d}" for number in range(30)]
    store.put_instances(lease, [replace(INSTANCE, id=name) for name in names])
    encoded: list[object] = []
    encode = json.dumps

    def noting(value: object) -> str:
        encoded.append(value)
        return encode(value)

    monkeypatch.setattr(json, "dumps", noting)
    store.transition(lease, "starting", "")
    # The row of the task.
    assert len(encoded) < len(names)
    store.put_instances(lease, [replace(INSTANCE, id=names[1], ended_at=20.0)])
    ((copy,), _) = snapshots.read_all(store.path.parent)
    assert [row["id"] for row in copy.rows["instances"]] == names
    assert copy.rows["instances"][1]["ended_at"] == 20.0


@pytest.mark.parametrize("damage", ["CAST(config AS BLOB)", "'{'"], ids=["bytes", "no JSON"])
@pytest.mark.parametrize("skip", [False, True], ids=["", "skip_damaged"])
def test_a_snapshot_can_be_read_whatever_is_in_the_row(
    store: Store, damage: str, skip: bool
) -> None:
    """It is what a damaged store is restored from."""
    store.create_task(task())
    lease = leased(store)
    (store.path.parent / "tasks" / "t1").mkdir(parents=True)
    (store.path.parent / "tasks" / "t1" / "config.json").touch()
    store.transition(lease, "starting", "")
    with contextlib.closing(sqlite3.connect(store.path)) as db, db:
        db.execute(f"UPDATE tasks SET config = {damage}")
    with contextlib.closing(Store(store.path, skip_damaged=skip)) as again:
        again.transition(lease, "running", "")
    ((copy,), problems) = snapshots.read_all(store.path.parent)
    assert problems == []
    assert copy.rows["tasks"][0]["config"] == task().config


def _fields(record: InstanceRecord) -> dict[str, object]:
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def test_cancel_is_asked_for_once_and_not_of_a_final_task(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create_task(task())
    lease = leased(store)
    assert not store.cancel_requested(lease)
    with monkeypatch.context() as patched:
        times = iter([5.0, 6.0])
        patched.setattr(clock, "now", lambda home: next(times))
        assert store.request_cancel("t1")
        assert store.request_cancel("t1")
    assert store.get_task("t1").cancel_requested_at == 5.0
    assert store.cancel_requested(lease)
    store.create_task(task("t2", state="completed"))
    assert not store.request_cancel("t2")
    leased(store, owner="me")
    with pytest.raises(LeaseLost):
        store.cancel_requested(lease)


def test_a_task_is_found_by_id_name_or_prefix(store: Store) -> None:
    store.create_task(task("tabc", name="digits", created_at=1.0))
    store.create_task(task("tabd", name="digits", created_at=2.0))
    store.create_task(task("txyz", name="words%", created_at=3.0))
    assert store.find_task("tabc").id == "tabc"
    assert store.find_task("digits").id == "tabd"
    assert store.find_task("tx").id == "txyz"
    assert store.find_task("dig").id == "tabd"
    assert store.find_task("words%").id == "txyz"
    with pytest.raises(NotFound, match=r"fits several tasks: .*tabd"):
        store.find_task("tab")
    for nothing in ("nope", "", "%", "t_bc"):
        with pytest.raises(NotFound):
            store.find_task(nothing)


def test_the_newest_task_is_the_last_one_whatever_the_clock_said(store: Store) -> None:
    """As where a machine starts with a clock that is hours ahead, and is set right later."""
    for number, at in enumerate((10.0, 9000.0, 20.0, 30.0)):
        store.create_task(task(f"t{number}", name="train", created_at=at))
    assert store.find_task("train").id == store.find_task("tra").id == "t3"
    newest_first = ["t3", "t2", "t1", "t0"]
    for asked in ({}, {"name": "train"}, {"unfinished": True}, {"ids": newest_first}):
        assert [each.id for each in store.list_tasks(**asked)] == newest_first  # type: ignore[arg-type]
        assert [each.id for each in store.list_tasks(limit=1, **asked)] == ["t3"]  # type: ignore[arg-type]
    assert [each.id for each in store.task_keys()] == newest_first


def test_one_of_many_tasks_of_a_name_is_found_by_the_index(store: Store) -> None:
    """The rows of a sweep are long, and all of them would be read."""
    steps = []
    for n in range(20):
        store.create_task(task(f"t{n}", name="train"))
    store._database._db.set_trace_callback(steps.append)
    store.find_task("train")
    store._database._db.set_trace_callback(None)
    (query,) = [each for each in steps if "name = " in each]
    plan = store._database._db.execute(f"EXPLAIN QUERY PLAN {query}").fetchall()
    told = " | ".join(str(row["detail"]) for row in plan)
    assert "COVERING INDEX tasks_by_name" in told, told
    assert "SCAN tasks" not in told, told


def test_a_name_is_found_though_the_index_of_names_is_damaged(store: Store) -> None:
    """Also one with which others begin."""
    for number, name in enumerate(("train", "train-2", "train", "train-3")):
        store.create_task(task(f"t{number}", name=name))
    db = store._database._db
    (page,) = db.execute(
        "SELECT rootpage FROM sqlite_master WHERE name = 'tasks_by_name'"
    ).fetchone()
    (size,) = db.execute("PRAGMA page_size").fetchone()
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    store.close()
    with store.path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)
    with contextlib.closing(Store(store.path, skip_damaged=True)) as again:
        assert again.find_task("train").id == "t2"
        with pytest.raises(NotFound, match="several"):
            again.find_task("tra")


def test_unfinished_tasks_and_who_holds_them(store: Store) -> None:
    store.create_task(task("t1"))
    store.create_task(task("t2", state="failed"))
    assert [(h.task_id, h.owner) for h in store.unfinished_leases()] == [("t1", None)]
    leased(store, "t1", "somebody")
    assert [h.owner for h in store.unfinished_leases("t1")] == ["somebody"]
    assert store.unfinished_leases("t2") == []


def test_only_final_tasks_are_forgotten(store: Store) -> None:
    store.create_task(task("t1"))
    store.create_task(task("t2", state="failed"))
    store.add_event("t1", "note", "kept")
    store.add_event("t2", "note", "gone")
    for task_id in ("t1", "t2"):
        store.delete_task(task_id)
    assert [t.id for t in store.list_tasks()] == ["t1"]
    assert [event.text for event in store.events("t1")] == ["kept"]
    assert store.events("t2") == []


def test_another_connection_sees_the_version_change(store: Store) -> None:
    other = Store(store.path)
    before = other.version()
    assert other.version() == before
    store.create_task(task())
    assert other.version() != before


def test_the_database_is_private(store: Store) -> None:
    assert store.path.stat().st_mode & 0o777 == 0o600


def test_a_database_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    Store(path).close()
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"newer flowlite .*upgrade flowlite"):
        Store(path)
    assert path.read_bytes() == before


def test_a_database_of_every_older_version_is_brought_up_to_date(tmp_path: Path) -> None:
    for version in range(SCHEMA_VERSION):
        path = tmp_path / f"v{version}.db"
        with sqlite3.connect(path) as db:
            for statements in MIGRATIONS[:version]:
                for statement in statements:
                    db.execute(statement)
            db.execute(f"PRAGMA user_version = {version}")
        db.close()
        store = Store(path)
        store.create_task(task())
        assert store.get_task("t1").name == "digits"


def test_columns_that_a_newer_version_adds_meanwhile_are_no_damage(store: Store) -> None:
    store.create_task(task())
    lease = leased(store)
    store.put_instances(lease, [INSTANCE])
    store.put_intent(lease, "t1-launch-1", "launch", {})
    store.add_event("t1", "running", "it runs")
    with contextlib.closing(sqlite3.connect(store.path)) as db:
        for table in ("tasks", "instances", "intents", "events", "full_places"):
            db.execute(f"ALTER TABLE {table} ADD COLUMN more TEXT NOT NULL DEFAULT ''")
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
        db.commit()
    assert store.get_task("t1").name == "digits"
    assert store.instances("t1") == [INSTANCE]
    assert [each.token for each in store.intents("t1")] == ["t1-launch-1"]
    full = FullPlace("here", 1, "t1", 2.0)
    store.transition(lease, "stopping", "it ends", full=full, state="stopping")
    assert [each.kind for each in store.events("t1")] == ["running", "stopping"]
    assert store.full_places() == {"here": full}


def test_a_task_of_an_older_version_has_one_place(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with sqlite3.connect(path) as db:
        for statement in MIGRATIONS[0]:
            db.execute(statement)
        db.execute(
            "INSERT INTO tasks (id, name, function, provider, state, config, plan, call, created_at) "
            "VALUES ('t1', 'digits', 'train', 'local', 'running', '{}', ?, '{}', 1.0)",
            (json.dumps(PLAN),),
        )
        db.execute("PRAGMA user_version = 1")
    db.close()
    found = Store(path).get_task("t1")
    assert (found.candidates, found.candidate, found.tried) == ([], 0, [])


def test_the_places_of_a_task_are_kept_and_changed(store: Store) -> None:
    places = [Candidate(Plan.from_json(PLAN), {"gpu": gpu}).to_json() for gpu in ("h100", "a100")]
    store.create_task(task(candidates=places))
    lease = store.acquire_lease("t1", "me", 60)
    assert lease is not None
    tried = [TRIED]
    store.update_task(lease, candidate=1, tried=tried)
    found = store.get_task("t1")
    assert [Candidate.from_json(each).options["gpu"] for each in found.candidates] == [
        "h100",
        "a100",
    ]
    assert (found.candidate, found.tried) == (1, tried)


@pytest.mark.parametrize(
    ("column", "value", "why"),
    [
        ("candidates", "[1]", "candidates: not a list of objects"),
        ("candidates", '[{"plan": {}}]', "candidates: one is not what it may be"),
        ("candidate", "7", "candidate: 7 is not one of 1"),
        ("tried", "{}", "tried: not what it may be"),
        ("tried", "[{}]", "tried: one is not what it may be"),
        ("tried", json.dumps([TRIED | {"candidate": 1}]), "tried: one is not what it may be"),
        ("tried", json.dumps([TRIED | {"why": 1}]), "tried: one is not what it may be"),
        ("tried", json.dumps([TRIED | {"at": "now"}]), "tried: one is not what it may be"),
        ("tried", json.dumps([TRIED | {"left_at": 1e300}]), "tried: one is not what it may be"),
        (
            "tried",
            json.dumps([TRIED | {"since": float("nan")}]),
            "tried: one is not what it may be",
        ),
        ("tried", json.dumps([TRIED | {"times": None}]), "tried: one is not what it may be"),
    ],
)
def test_damaged_places_are_named(store: Store, column: str, value: str, why: str) -> None:
    store.create_task(task(candidates=[Candidate(Plan.from_json(PLAN)).to_json()]))
    with contextlib.closing(sqlite3.connect(store.path)) as db:
        db.execute(f"UPDATE tasks SET {column} = ?", (value,))
        db.commit()
    with pytest.raises(StoreDamaged, match=why):
        store.get_task("t1")


@pytest.mark.parametrize("damage", ["at = 'soon'", "nodes = 'many'", "at = -1", "task_id = x'ff'"])
def test_a_damaged_note_of_a_full_place_is_left_out(store: Store, damage: str) -> None:
    store.create_task(task())
    lease = store.acquire_lease("t1", "me", 60)
    assert lease is not None
    for place in ("near", "far"):
        store.transition(lease, "running", "", {}, full=FullPlace(place, 1, "t1", 2.0))
    with contextlib.closing(sqlite3.connect(store.path)) as db:
        db.execute(f"UPDATE full_places SET {damage} WHERE place = 'near'")
        db.commit()
    assert set(store.full_places()) == {"far"}


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.write_bytes(b"this is not a database, but it is long enough to look at" * 100)
    with pytest.raises(StoreError, match="damaged"):
        Store(path)


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"state\.db.*(set FLOW_HOME|writable)"):
        Store(tmp_path / "nowhere" / "state.db")


@contextmanager
def as_ordinary_user() -> Iterator[None]:
    """Root may write to read-only directories; somebody else may not."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


def test_a_read_only_home_is_refused() -> None:
    home = Path(tempfile.mkdtemp())
    try:
        home.chmod(0o555)
        with as_ordinary_user(), pytest.raises(StoreError, match=r"unable to open.*writable"):
            Store(home / "state.db")
        assert list(home.iterdir()) == []
    finally:
        home.rmdir()


def test_a_failed_transaction_leaves_nothing(store: Store) -> None:
    store.create_task(task())
    with pytest.raises(StoreError):
        store.create_task(task())
    store.create_task(task("t2"))
    assert len(store.list_tasks()) == 2


_TAKE = """
import sys
from pathlib import Path
from flowlite.state.store import Store
lease = Store(Path(sys.argv[1])).acquire_lease("t1", sys.argv[2], 30)
print("got" if lease else "none")
"""


def test_of_two_processes_one_gets_the_lease(store: Store) -> None:
    store.create_task(task())
    both = [run_python(_TAKE, str(store.path), f"p{n}") for n in range(2)]
    said = sorted(process.communicate(timeout=90)[0].strip() for process in both)
    assert said == ["got", "none"]


# Forked from one process: 32 interpreters of their own would take longer to start than the contention itself.
_CONTEND = """
import os, sys, time
from pathlib import Path
from flowlite.state.store import Store, TaskRecord
from tests.test_store import PLAN
path, processes, writes = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
Store(path).close()
begin = time.monotonic() + 0.3
children = []
for number in range(processes):
    pid = os.fork()
    if pid:
        children.append(pid)
        continue
    try:
        time.sleep(max(0.0, begin - time.monotonic()))
        store = Store(path)
        mine = f"t{number}"
        store.create_task(TaskRecord(mine, mine, "f", "local", {}, PLAN, {}, time.time()))
        lease = store.acquire_lease(mine, mine, 60)
        for count in range(writes):
            store.transition(lease, "tick", str(count), attempt=count + 1)
            assert store.get_task(mine).attempt == count + 1
            store.version()
        os._exit(0)
    except BaseException as error:
        print(f"{number}: {type(error).__name__}: {error}", flush=True)
        os._exit(1)
sys.exit(sum(os.waitpid(pid, 0)[1] != 0 for pid in children))
"""


def test_32_processes_write_at_once_and_nothing_is_lost(tmp_path: Path) -> None:
    processes, writes = 32, 25
    path = tmp_path / "state.db"
    contention = run_python(_CONTEND, str(path), str(processes), str(writes))
    said, _ = contention.communicate(timeout=280)
    assert contention.returncode == 0, said
    store = Store(path)
    assert {t.attempt for t in store.list_tasks()} == {writes}
    for number in range(processes):
        assert [event.text for event in store.events(f"t{number}")] == [
            str(count) for count in range(writes)
        ]


_OPEN_NEW = """
import os, sys, time
from pathlib import Path
from flowlite.state.store import Store, TaskRecord
from tests.test_store import PLAN
directory, rounds, processes = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
failed = 0
for number in range(rounds):
    path = directory / f"{number}.db"
    begin = time.monotonic() + 0.1
    children = []
    for mine in range(processes):
        pid = os.fork()
        if pid:
            children.append(pid)
            continue
        try:
            time.sleep(max(0.0, begin - time.monotonic()))
            store = Store(path)
            store.create_task(TaskRecord(f"t{mine}", "n", "f", "local", {}, PLAN, {}, time.time()))
            store.close()
            os._exit(0)
        except BaseException as error:
            print(f"{number}, {mine}: {type(error).__name__}: {error}", flush=True)
            os._exit(1)
    failed += sum(os.waitpid(pid, 0)[1] != 0 for pid in children)
    assert failed or len(Store(path).list_tasks()) == processes
sys.exit(failed != 0)
"""


def test_many_processes_open_a_new_store_at_once(tmp_path: Path) -> None:
    opening = run_python(_OPEN_NEW, str(tmp_path), "24", "12")
    said, _ = opening.communicate(timeout=280)
    assert opening.returncode == 0, said


_HOLD = """
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
db.execute("COMMIT")
"""


def test_a_writer_waits_for_another_one(store: Store) -> None:
    holder = run_python(_HOLD, str(store.path))
    assert holder.stdout is not None
    eventually(lambda: holder.stdout is not None and holder.stdout.readline() == "held\n")
    order: list[str] = []

    def let_go() -> None:
        order.append("the other may commit")
        assert holder.stdin is not None
        holder.stdin.close()

    timer = threading.Timer(0.5, let_go)
    timer.start()
    store.create_task(task())
    order.append("written")
    timer.join()
    assert order == ["the other may commit", "written"]
    assert holder.wait(90) == 0


def test_ctrl_c_while_it_waits_for_another_writer_leaves_no_transaction_open(
    store: Store,
) -> None:
    class Interrupted(BaseException):
        pass

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    def waits() -> bool:
        return sys._current_frames()[main].f_code.co_name == "write"

    def interrupt_and_let_go() -> None:
        eventually(waits)
        os.kill(os.getpid(), signal.SIGUSR1)
        other.execute("COMMIT")

    store.create_task(task())
    main = threading.get_ident()
    before = signal.signal(signal.SIGUSR1, interrupt)
    other = sqlite3.connect(store.path, isolation_level=None, check_same_thread=False)
    try:
        other.execute("BEGIN IMMEDIATE")
        thread = threading.Thread(target=interrupt_and_let_go)
        thread.start()
        with pytest.raises(Interrupted):
            store.add_event("t1", "warning", "this one is not written")
        thread.join(90)
        # The others can write, and so can this process.
        other.execute("BEGIN IMMEDIATE")
        other.execute("COMMIT")
        assert store.request_cancel("t1")
    finally:
        signal.signal(signal.SIGUSR1, before)
        other.close()
    assert store.events("t1") == []
