"""Getting a task under way: drafts, one supervisor per task, and a new one where the old one is gone or hangs."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flowlite.errors import StoreError
from flowlite.provider import Plan
from flowlite.spec.retry_policy import RetryPolicy
from flowlite.state.records import FINAL_STATES, STATES
from flowlite.state.store import LeaseHolder, Store
from flowlite.supervise.money.cost import cost_of, rate_of
from flowlite.supervise.process import launch, supervisor_process
from flowlite.supervise.record import process_identity
from flowlite.supervise.record.task_view import TaskView
from flowlite.supervise.record.wording import duration, first_failure, how_it_ended
from tests.gangs import Gang, let_go, shell, submit, waiting
from tests.helpers import eventually, process_alive
from tests.test_store import task


def test_a_draft_that_is_not_submitted_leaves_nothing(flow_home: Path) -> None:
    with launch.draft_task(flow_home) as draft:
        assert draft.paths.bundle.stat().st_mode & 0o777 == 0o700
        (draft.paths.bundle / "call.bin").write_bytes(b"x")
    assert list((flow_home / "tasks").iterdir()) == []


def test_what_the_store_refuses_leaves_nothing(
    flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(flow_home / "state.db")

    def refuse(*_: object) -> None:
        raise StoreError("database or disk is full")

    monkeypatch.setattr(store, "create_task", refuse)
    monkeypatch.setattr(launch, "start_supervisor", lambda *_: pytest.fail("was started"))
    plan = Plan("local", "this machine", 1, 1)
    with pytest.raises(StoreError, match="full"), launch.draft_task(flow_home) as draft:
        launch.submit(
            store, draft, name="x", function="x", config={}, plan=plan, call={"kind": "command"}
        )
    assert list((flow_home / "tasks").iterdir()) == []


def test_a_task_whose_supervisor_cannot_be_started_is_told_of(flow_home: Path) -> None:
    store = Store(flow_home / "state.db")
    plan = Plan("local", "this machine", 1, 1)
    call = {"kind": "command", "argv": ["true"]}
    with launch.draft_task(flow_home) as draft:
        draft.paths.supervisor_log.mkdir()
        with pytest.raises(StoreError, match="no supervisor yet: a supervisor cannot be") as told:
            launch.submit(store, draft, name="x", function="x", config={}, plan=plan, call=call)
    gang = Gang(flow_home, store, store.get_task(draft.task_id))
    assert "nothing was submitted" not in str(told.value)
    assert f"`flow resume {gang.id}` starts one, `flow cancel {gang.id}` ends" in str(told.value)
    gang.paths.supervisor_log.rmdir()
    assert launch.cancel(store, flow_home, gang.id)
    gang.end("cancelled")


def test_a_task_that_is_recorded_is_submitted_whatever_else_fails(flow_home: Path) -> None:
    """An error here would leave it without a supervisor, and the next `flow` command would start it."""
    store = Store(flow_home / "state.db")
    plan = Plan("local", "this machine", 1, 1)
    call = {"kind": "command", "argv": ["true"]}
    with launch.draft_task(flow_home) as draft:
        # The last file of the draft cannot get its name.
        (draft.paths.config / "in its place").mkdir(parents=True)
        launch.submit(store, draft, name="x", function="x", config={}, plan=plan, call=call)
    Gang(flow_home, store, store.get_task(draft.task_id)).end("completed")


def test_ids_are_short_and_differ() -> None:
    ids = {launch.new_task_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert {len(task_id) for task_id in ids} == {11}


def test_several_supervisors_of_one_task_do_no_harm(flow_home: Path) -> None:
    gang = submit(flow_home, waiting(), nodes=2)
    others = [launch.start_supervisor(flow_home, gang.id) for _ in range(3)]
    gang.wait("running")
    eventually(lambda: sum(process_alive(pid) for pid in others) <= 1)
    # The noted one is the one that leads: `flow store restore` ends it, and others replace it once it has died.
    assert process_identity.has_supervisor(flow_home, gang.id)
    let_go(flow_home)
    record = gang.end()
    assert record.attempt == 1
    assert len(gang.store.intents(gang.id)) == 1


def test_one_that_is_started_too_late_leaves_the_leader_noted(flow_home: Path) -> None:
    gang = submit(flow_home, waiting())
    gang.wait("running")
    leads = gang.supervisor()
    late = launch.start_supervisor(flow_home, gang.id)
    eventually(lambda: not process_alive(late))
    assert _noted(gang) == leads
    let_go(flow_home)
    gang.end()


def _noted(gang: Gang) -> int | None:
    """The process that was started to lead a task."""
    noted = process_identity.noted_supervisor(gang.home, gang.id)
    return None if noted is None else noted.pid


def test_the_process_that_was_started_ahead_leads_the_task(flow_home: Path) -> None:
    with supervisor_process.started_ahead(flow_home, "local"):
        ahead = supervisor_process.ahead()
        assert ahead is not None
        gang = submit(flow_home, shell("echo here"))
        assert _noted(gang) == ahead.pid
        # It leads one task only.
        assert supervisor_process.ahead() is None
    gang.end()
    assert gang.output(0) == "here\n"
    assert launch.TaskPaths(flow_home, gang.id).supervisor_log.exists()


def test_a_process_that_has_died_before_it_got_its_task_is_replaced(flow_home: Path) -> None:
    with supervisor_process.started_ahead(flow_home, "no-such-provider"):
        ahead = supervisor_process.ahead()
        assert ahead is not None
        os.kill(ahead.pid, signal.SIGKILL)
        os.waitpid(ahead.pid, 0)
        gang = submit(flow_home, shell("true"))
        assert _noted(gang) != ahead.pid
    gang.end()


def test_a_submission_that_fails_leaves_no_process(flow_home: Path) -> None:
    with supervisor_process.started_ahead(flow_home, "local"):
        ahead = supervisor_process.ahead()
    assert ahead is not None
    eventually(lambda: not process_alive(ahead.pid))
    assert supervisor_process.ahead() is None


def test_none_is_started_ahead_for_a_task_that_will_wait(flow_home: Path) -> None:
    """It imported for nothing, and was killed: most of the processor time of a submission into a full queue."""

    def is_started_ahead() -> bool:
        with supervisor_process.started_ahead(flow_home, "local"):
            return supervisor_process.ahead() is not None

    def start(task_id: str, *, sleeping: bool) -> int:
        launch.TaskPaths(flow_home, task_id).make()
        return launch.start_supervisor(flow_home, task_id, sleeping=sleeping)

    assert is_started_ahead()
    asleep = start("t1", sleeping=True)
    assert not is_started_ahead()
    awake = start("t2", sleeping=False)
    assert is_started_ahead()
    os.kill(asleep, signal.SIGKILL)
    # There is no such task.
    eventually(lambda: not process_alive(awake))


def test_a_client_that_is_killed_before_it_submits_leaves_no_process(flow_home: Path) -> None:
    program = (
        "import os, signal; from pathlib import Path\n"
        "from flowlite.supervise.process import supervisor_process as it\n"
        "with it.started_ahead(Path(os.environ['FLOW_HOME']), 'local'):\n"
        "    print(it.ahead().pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.returncode == -signal.SIGKILL
    eventually(lambda: not process_alive(int(ran.stdout)))
    assert not list(flow_home.glob("tasks/*"))


def test_a_supervisor_that_lives_is_left_alone(flow_home: Path) -> None:
    gang = submit(flow_home, waiting())
    # Also in the moment before it has its lease.
    assert launch.ensure_supervisors(gang.store, flow_home) == []
    gang.wait("running")
    assert launch.ensure_supervisors(gang.store, flow_home) == []
    let_go(flow_home)
    gang.end()


def test_a_supervisor_that_hangs_is_replaced_when_its_lease_has_lapsed(flow_home: Path) -> None:
    gang = submit(flow_home, waiting())
    gang.wait("running")
    hung = gang.supervisor()
    assert hung is not None
    os.kill(hung, signal.SIGSTOP)
    try:
        assert launch.ensure_supervisors(gang.store, flow_home) == []
        lease = _lapse(gang.store, gang.id)
        assert launch.ensure_supervisors(gang.store, flow_home) == [gang.id]
        eventually(lambda: gang.record.lease_token > lease, what="a new supervisor")
    finally:
        os.kill(hung, signal.SIGCONT)
    eventually(lambda: not process_alive(hung), what="the old one to notice and leave")
    let_go(flow_home)
    gang.end()


def _lapse(store: Store, task_id: str) -> int:
    """Lets the lease of a task expire."""
    record = store.get_task(task_id)
    with store._database.write() as db:
        db.execute("UPDATE tasks SET lease_expires = 1 WHERE id = ?", (task_id,))
    return record.lease_token


def test_a_task_without_its_directory_is_passed_over(flow_home: Path) -> None:
    store = Store(flow_home / "state.db")
    store.create_task(task("tgone", created_at=time.time() - 100))
    assert launch.ensure_supervisors(store, flow_home) == []


def test_variables_of_an_outer_task_are_not_passed_on(
    flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOW_TASK_ID", "outer")
    monkeypatch.setenv("FLOW_NODE_RANK", "7")
    monkeypatch.setenv("USERS_OWN", "kept")
    gang = submit(
        flow_home, shell('echo "$FLOW_TASK_ID $FLOW_NODE_RANK $USERS_OWN ${PYTHONPATH-none}"')
    )
    gang.end()
    assert gang.output(0) == f"{gang.id} 0 kept none\n"


# Identity


def test_a_process_is_known_again_and_a_reused_number_is_not() -> None:
    me = process_identity.of_process(os.getpid())
    assert me.alive
    assert not process_identity.Process(me.pid, "1").alive
    assert not process_identity.Process(me.pid, "").alive
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    it = process_identity.of_process(child.pid)
    assert it.alive
    child.kill()
    # Dead, though nobody has waited for it yet.
    eventually(lambda: not it.alive)
    child.communicate()


def test_an_owner_is_dead_only_if_that_can_be_known() -> None:
    child = subprocess.Popen(["true"])
    gone = process_identity.Process(child.pid, "12345")
    child.wait()
    assert not process_identity.provably_dead(process_identity.owner())
    assert process_identity.provably_dead(process_identity.owner(gone))
    place, _, rest = process_identity.owner(gone).partition("|")
    host, boot, namespace = place.split("/")
    assert not process_identity.provably_dead(f"other/{boot}/{namespace}|{rest}")
    assert not process_identity.provably_dead(f"{host}/{boot}/pid:[1]|{rest}")
    assert process_identity.provably_dead(f"{host}/an-older-boot/{namespace}|{rest}")
    for nonsense in ("", "me", "a|b|c", f"{host}|1|2"):
        assert not process_identity.provably_dead(nonsense)


def test_lease_holders_are_cheap_to_list(flow_home: Path) -> None:
    store = Store(flow_home / "state.db")
    store.create_task(task("t1"))
    assert store.unfinished_leases() == [LeaseHolder("t1", None, 0.0, 1.0)]
    for number, state in enumerate(sorted(STATES)):
        store.create_task(task(f"u{number}", state=state))
    ended = {f"u{number}" for number, state in enumerate(sorted(STATES)) if state in FINAL_STATES}
    with contextlib.closing(sqlite3.connect(store.path, isolation_level=None)) as db:
        db.execute("UPDATE tasks SET state = 'runn!ng' WHERE id = 't1'")
        asked: list[str] = []
        with store._database.read() as reading:
            reading.set_trace_callback(asked.append)
            held = {each.task_id for each in store.unfinished_leases()}
            reading.set_trace_callback(None)
        (query,) = (each for each in asked if each.startswith("SELECT"))
        plan = [str(row[3]) for row in db.execute(f"EXPLAIN QUERY PLAN {query}")]
    assert held == {"t1", *(f"u{number}" for number in range(len(STATES)))} - ended
    assert not [step for step in plan if step.startswith("SCAN")]


# What was asked, in numbers and words


def test_pauses_between_attempts() -> None:
    retries = RetryPolicy(9, delay=2.0, backoff=3.0, max_delay=50.0)
    assert [retries.delay_before(n) for n in range(1, 6)] == [2.0, 6.0, 18.0, 50.0, 50.0]
    assert retries.delay_before(10_000) == 50.0
    assert RetryPolicy(3).delay_before(2) == 0.0


def test_a_configuration_as_the_supervisor_reads_it() -> None:
    plan = Plan("local", "this machine", 2, 1).to_json()
    config = {
        "distributed_mode": "manual",
        "gpu": "h100:8",
        "retries": {"max_retries": 3, "delay": 1.0},
        "grace_seconds": 2.5,
        "environment": {"A": "b"},
    }
    asked = TaskView.of(task("t1", plan=plan, config=config))
    assert (asked.workers_per_node, asked.processes_per_node) == (1, 8)
    assert asked.retries == RetryPolicy(3, 1.0)
    assert (asked.grace, asked.environment, asked.plan.num_instances) == (2.5, {"A": "b"}, 2)
    assert TaskView.of(task("t1", plan=plan, config={})).retries == RetryPolicy(0)


def test_money() -> None:
    from flowlite.state.store import InstanceRecord

    running = InstanceRecord("a", "t", "p", "running", 2.0, 1000.0, {})
    ended = InstanceRecord("b", "t", "p", "ended", 4.0, 1000.0, {}, ended_at=2800.0)
    assert cost_of([running, ended], 1000.0 + 3600) == pytest.approx(2.0 + 2.0)
    assert cost_of([running], 500.0) == 0.0
    assert rate_of([running, ended]) == 2.0


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            {
                "code": 1,
                "failure": {"kind": "exception", "type": "ValueError", "message": "no\nmore"},
            },
            "ValueError: no",
        ),
        (
            {
                "code": 1,
                "failure": {"kind": "exception", "type": "KeyboardInterrupt", "message": ""},
            },
            "KeyboardInterrupt",
        ),
        (
            {"code": None, "signal": 9, "failure": {"kind": "signal"}},
            "killed by SIGKILL (out of memory?)",
        ),
        (
            {"code": None, "signal": 11, "failure": None},
            "killed by SIGSEGV (a crash in native code)",
        ),
        ({"code": None, "signal": 99, "failure": None}, "killed by signal 99"),
        ({"code": 42, "failure": {"kind": "exit", "message": ""}}, "exited with 42"),
        ({"code": 42, "failure": None}, "exited with 42"),
    ],
)
def test_ends_in_words(body: dict[str, object], text: str) -> None:
    assert how_it_ended(body) == text
    assert (
        first_failure({"node": 2, "rank": 17, **body}) == f"first failure: node 2, rank 17: {text}"
    )


def test_durations_in_words() -> None:
    assert [duration(s) for s in (0.5, 36, 600, 7200, 43200)] == [
        "0.5 s",
        "36 s",
        "10 min",
        "2.0 h",
        "12.0 h",
    ]
