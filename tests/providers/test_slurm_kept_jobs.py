"""Jobs that are kept for another task, against a Slurm on paper: who takes one over, and what ends it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from flowlite.errors import CapacityUnavailable, NodeUnreachable, ProviderError
from flowlite.provider import Instance, LaunchIntent, LaunchPending
from flowlite.state import clock
from provider_adapters.rented.gang_fit import fits
from provider_adapters.slurm import nodes
from tests.providers.slurm_on_paper import Job, Paper

FIRST, SECOND, THIRD = "tfirst", "tsecond", "tthird"
KEPT = 600.0


class StepDaemons:
    """What the step daemons of all nodes were told. Those on hosts in `dead` do not answer."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.dead: set[str] = set()

    def connect(self, _: object, data: Mapping[str, Any]) -> Any:
        daemons, host = self, str(data["host"])

        class Connection:
            def __enter__(self) -> Connection:
                return self

            def __exit__(self, *_: object) -> None:
                return

            def open(self, _: float) -> None:
                if host in daemons.dead:
                    raise NodeUnreachable(f"{host} is gone")

            def ask_daemon(self, request: Mapping[str, Any], _: float) -> dict[str, Any]:
                daemons.told.append((host, str(request["do"])))
                return {}

        return Connection()


@pytest.fixture
def daemons(monkeypatch: pytest.MonkeyPatch) -> StepDaemons:
    found = StepDaemons()
    monkeypatch.setattr(nodes, "connect", found.connect)
    return found


def intend(paper: Paper, task: str, number: int = 1, **options: object) -> LaunchIntent:
    """A launch of a task whose nodes are kept."""
    intent = paper.intend(f"{task}-launch-{number}", task, **{"keep_warm": KEPT, **options})
    # As `capped_plan` does.
    plan = {**intent.plan, "warm_seconds": KEPT}
    if isinstance(options.get("num_instances"), tuple):
        plan["min_instances"] = 2
    return dataclasses.replace(intent, plan=plan)


def kept(paper: Paper, task: str = FIRST, **options: object) -> list[Instance]:
    """The nodes of a task, kept."""
    return paper.provider.keep(paper.launch(intend(paper, task, **options)), KEPT)


def listed(paper: Paper, task: str) -> list[tuple[str, str]]:
    return [(each.id, each.state) for each in paper.make().list_instances(task)]


def test_the_next_task_gets_the_job(slurm_paper: Paper, daemons: StepDaemons) -> None:
    before = kept(slurm_paper)
    job = slurm_paper.slurm.job()
    names = ["7.00.00000", "7.00.00001"]
    assert [(each.id, each.state) for each in before] == [(name, "warm") for name in names]
    assert listed(slurm_paper, FIRST) == [(name, "warm") for name in names]
    assert slurm_paper.provider.still_warm(before) == before
    # Slurm would queue it again, and there is no task.
    assert not job.requeue

    intent = intend(slurm_paper, SECOND)
    found = slurm_paper.launch(intent)
    assert [(each.id, each.task_id, each.state) for each in found] == [
        (name, SECOND, "running") for name in names
    ]
    assert {(each.hold, each.launch) for each in found} == {(1, intent.token)}
    # Any process gets the same answer again.
    assert slurm_paper.make().launch(intent) == found
    assert slurm_paper.slurm.jobs == [job]
    assert job.requeue
    assert listed(slurm_paper, FIRST) == []
    assert listed(slurm_paper, SECOND) == [(name, "running") for name in names]
    assert [what for _, what in daemons.told] == ["keep", "keep", *["take"] * 4]
    # It is the first task's no more.
    assert slurm_paper.provider.still_warm(before) == []
    slurm_paper.provider.terminate(before)
    assert job.state == "RUNNING"
    slurm_paper.provider.terminate(found)
    assert job.state == "COMPLETED"
    assert {state for _, state in listed(slurm_paper, SECOND)} == {"ended"}


def test_a_task_that_may_not_submit_gets_the_job_that_is_kept_next(
    slurm_paper: Paper, daemons: StepDaemons
) -> None:
    slurm_paper.slurm.most = 1
    first = slurm_paper.launch(intend(slurm_paper, FIRST))
    intent = intend(slurm_paper, SECOND)
    for _ in range(2):
        with pytest.raises(CapacityUnavailable, match="AssocMaxSubmitJobLimit"):
            slurm_paper.provider.launch(intent)
    slurm_paper.provider.keep(first, KEPT)
    found = slurm_paper.launch(intent)
    assert {each.task_id for each in found} == {SECOND}
    assert len(slurm_paper.slurm.jobs) == 1
    slurm_paper.provider.terminate(found)
    assert not slurm_paper.slurm.live()


def test_a_job_on_a_drained_node_is_not_handed_on(slurm_paper: Paper, daemons: StepDaemons) -> None:
    """The check of a site may have found that it is broken. Slurm would give it no other job."""
    kept(slurm_paper)
    slurm_paper.slurm.drained = {"node02"}
    slurm_paper.launch(intend(slurm_paper, SECOND))
    assert len(slurm_paper.slurm.live()) == 2
    assert {state for _, state in listed(slurm_paper, FIRST)} == {"warm"}


@pytest.mark.parametrize(
    "other",
    [{"num_instances": 3}, {"cpu": 2}, {"slurm": {"qos": "high"}}, {"max_run_time_hours": 1.0}],
    ids=["nodes", "cores", "option", "time"],
)
def test_a_task_that_asks_for_something_else_gets_a_job_of_its_own(
    slurm_paper: Paper, daemons: StepDaemons, other: dict[str, Any]
) -> None:
    kept(slurm_paper)
    slurm_paper.launch(intend(slurm_paper, SECOND, **other))
    assert len(slurm_paper.slurm.live()) == 2
    assert {state for _, state in listed(slurm_paper, FIRST)} == {"warm"}


def test_a_task_with_another_program_gets_a_job_of_its_own(
    slurm_paper: Paper, daemons: StepDaemons
) -> None:
    kept(slurm_paper)
    newer = slurm_paper.agent.with_name(f"{'b' * 64}.pyz")
    newer.write_bytes(b"a newer program")
    slurm_paper.agent = newer
    slurm_paper.launch(intend(slurm_paper, SECOND))
    assert len(slurm_paper.slurm.live()) == 2


@pytest.mark.parametrize(
    "options",
    [
        {"num_instances": (2, 4)},
        {"volumes": {"/data": "data"}},
        {"slurm": {"container": "apptainer", "image": "a.sif"}},
    ],
    ids=["elastic", "volumes", "container"],
)
def test_what_is_not_kept_is_said(
    slurm_paper: Paper, daemons: StepDaemons, options: dict[str, Any]
) -> None:
    assert any(
        "keep_warm has no effect" in note
        for note in slurm_paper.plan(**options, keep_warm=60).notes
    )
    assert not any("keep_warm" in note for note in slurm_paper.plan(keep_warm=60).notes)
    found = slurm_paper.launch(intend(slurm_paper, FIRST, **options))
    assert slurm_paper.provider.keep(found, KEPT) == []
    assert daemons.told == []


def test_a_node_that_cannot_be_kept_keeps_none(slurm_paper: Paper, daemons: StepDaemons) -> None:
    found = slurm_paper.launch(intend(slurm_paper, FIRST))
    daemons.dead = {"node02"}
    assert slurm_paper.provider.keep(found, KEPT) == []
    assert {state for _, state in listed(slurm_paper, FIRST)} == {"running"}


def test_only_one_of_two_tasks_gets_it(slurm_paper: Paper, daemons: StepDaemons) -> None:
    kept(slurm_paper)
    found = slurm_paper.launch(intend(slurm_paper, SECOND))
    others = slurm_paper.launch(intend(slurm_paper, THIRD))
    assert not {each.id for each in found} & {each.id for each in others}
    assert listed(slurm_paper, SECOND) == [(each.id, "running") for each in found]


def test_who_comes_second_leaves_the_job_to_the_first(
    slurm_paper: Paper, daemons: StepDaemons, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have seen that it is kept."""
    kept(slurm_paper)
    first, second = intend(slurm_paper, SECOND), intend(slurm_paper, THIRD)
    late = slurm_paper.make()
    seen = late._kept.kept_for(fits(second))
    found = slurm_paper.launch(first)
    monkeypatch.setattr(late._kept, "kept_for", lambda _: seen)
    with pytest.raises(LaunchPending, match="job 8"):
        late.launch(second)
    assert {each.launch for each in slurm_paper.make().list_instances(SECOND)} == {first.token}
    assert slurm_paper.make().launch(first) == found


@pytest.mark.parametrize("how", ["cancelled", "a node is gone", "preempted", "over"])
def test_a_kept_job_that_is_gone_is_replaced(
    slurm_paper: Paper, daemons: StepDaemons, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    kept(slurm_paper)
    job = slurm_paper.slurm.job()
    if how == "cancelled":
        job.state = "CANCELLED"
    elif how == "preempted":
        job.state = "PREEMPTED"
    elif how == "a node is gone":
        daemons.dead = {"node02"}
    else:
        later = clock.now() + KEPT
        monkeypatch.setattr(clock, "now", lambda: later)
    found = slurm_paper.launch(intend(slurm_paper, SECOND))
    assert {each.data["job"] for each in found} == {"8"}
    # What does not serve is ended. One whose time is over ends by itself.
    assert (job in slurm_paper.slurm.live()) == (how == "over")


def test_a_sweep_ends_what_is_kept(slurm_paper: Paper, daemons: StepDaemons) -> None:
    before = kept(slurm_paper)
    slurm_paper.make().terminate(before)
    assert slurm_paper.slurm.job().state == "COMPLETED"
    slurm_paper.launch(intend(slurm_paper, SECOND))
    assert len(slurm_paper.slurm.jobs) == 2


def test_a_task_with_a_job_that_comes_back_takes_no_other(
    slurm_paper: Paper, daemons: StepDaemons
) -> None:
    slurm_paper.launch(intend(slurm_paper, SECOND))
    kept(slurm_paper)
    mine = slurm_paper.slurm.jobs[0]
    mine.state, mine.restarts = "PENDING", 1
    slurm_paper.make().list_instances(SECOND)
    found = slurm_paper.launch(intend(slurm_paper, SECOND, 2))
    assert [each.id for each in found] == ["7.01.00000", "7.01.00001"]


def test_a_job_taken_over_comes_back_as_that_of_its_task(
    slurm_paper: Paper, daemons: StepDaemons
) -> None:
    kept(slurm_paper)
    slurm_paper.launch(intend(slurm_paper, SECOND))
    job = slurm_paper.slurm.job()
    job.state, job.restarts = "PENDING", 1
    assert "returning" in {state for _, state in listed(slurm_paper, SECOND)}
    found = slurm_paper.launch(intend(slurm_paper, SECOND, 2))
    assert [(each.id, each.task_id) for each in found] == [
        ("7.01.00000", SECOND),
        ("7.01.00001", SECOND),
    ]
    # And is handed on once more.
    assert slurm_paper.provider.keep(found, KEPT)
    third = slurm_paper.launch(intend(slurm_paper, THIRD))
    assert [each.id for each in third] == [each.id for each in found]
    assert slurm_paper.slurm.jobs == [job]


# Time


def times(job: Job) -> list[str]:
    words = [line.removeprefix("#SBATCH ") for line in job.script.splitlines()]
    return [each for each in words if each.startswith("--time")]


def test_a_job_that_may_be_kept_asks_for_time_for_other_tasks(
    slurm_paper: Paper, daemons: StepDaemons
) -> None:
    kept(slurm_paper, max_run_time_hours=1.0)
    assert times(slurm_paper.slurm.job()) == ["--time=138", "--time-min=64"]
    # No more than the partition gives, and no less than the task needs.
    slurm_paper.launch(
        intend(slurm_paper, SECOND, max_run_time_hours=0.9, slurm={"partition": "hour"})
    )
    assert times(slurm_paper.slurm.jobs[-1]) == ["--time=60", "--time-min=58"]
    slurm_paper.launch(slurm_paper.intend(task=THIRD, token="t3", max_run_time_hours=1.0))
    assert times(slurm_paper.slurm.jobs[-1]) == ["--time=64"]


@pytest.mark.parametrize(
    ("hours", "left", "taken"),
    [
        (1.0, 3900, True),
        (1.0, 3800, False),
        (None, 4000, True),
        (None, 3000, False),
        (None, None, True),
    ],
)
def test_a_job_is_taken_over_only_if_it_has_the_time(
    slurm_paper: Paper, daemons: StepDaemons, hours: float | None, left: int | None, taken: bool
) -> None:
    options = {} if hours is None else {"max_run_time_hours": hours}
    kept(slurm_paper, **options)
    job = slurm_paper.slurm.job()
    job.start = clock.now() - 3600
    job.end = 0.0 if left is None else clock.now() + left
    slurm_paper.launch(intend(slurm_paper, SECOND, **options))
    assert len(slurm_paper.slurm.jobs) == (1 if taken else 2)


def test_less_time_is_asked_for_if_so_much_is_refused(
    slurm_paper: Paper, daemons: StepDaemons
) -> None:
    intent = intend(slurm_paper, FIRST, max_run_time_hours=1.0)
    slurm_paper.slurm.refuse = "sbatch: error: QOSMaxWallDurationPerJobLimit\n"
    with pytest.raises(LaunchPending, match="less time"):
        slurm_paper.provider.launch(intent)
    slurm_paper.slurm.refuse = ""
    slurm_paper.launch(intent)
    assert times(slurm_paper.slurm.job()) == ["--time=64"]


def test_a_job_that_would_wait_for_its_time_is_replaced(
    slurm_paper: Paper, daemons: StepDaemons
) -> None:
    intent = intend(slurm_paper, FIRST, max_run_time_hours=1.0)
    with pytest.raises(LaunchPending):
        slurm_paper.provider.launch(intent)
    job = slurm_paper.slurm.job()
    job.reason = "QOSMaxWallDurationPerJobLimit"
    with pytest.raises(LaunchPending, match="asks for more time than it may have"):
        slurm_paper.provider.launch(intent)
    assert job.state == "CANCELLED"
    found = slurm_paper.launch(intent)
    assert times(slurm_paper.slurm.jobs[-1]) == ["--time=64"]
    assert {each.data["job"] for each in found} == {"8"}
    # Without more time than the task has asked for, the reason is the user's.
    slurm_paper.slurm.refuse = "sbatch: error: QOSMaxWallDurationPerJobLimit\n"
    second = slurm_paper.intend("t2", SECOND, max_run_time_hours=1.0)
    with pytest.raises(LaunchPending, match="less time"):
        slurm_paper.provider.launch(second)
    with pytest.raises(ProviderError, match="QOSMaxWallDurationPerJobLimit"):
        slurm_paper.provider.launch(second)


def test_a_task_that_asks_for_all_the_time_that_its_qos_allows_gets_it(
    slurm_paper: Paper,
) -> None:
    """Slurm takes a job that asks for more, and never starts it."""
    intent = slurm_paper.intend(max_run_time_hours=1.0)
    with pytest.raises(LaunchPending):
        slurm_paper.provider.launch(intent)
    job = slurm_paper.slurm.job()
    assert times(job) == ["--time=64"]
    job.reason = "QOSMaxWallDurationPerJobLimit"
    with pytest.raises(LaunchPending, match="asks for more time than it may have"):
        slurm_paper.provider.launch(intent)
    assert job.state == "CANCELLED"
    slurm_paper.launch(intent)
    assert times(slurm_paper.slurm.jobs[-1]) == ["--time=60"]


def test_time_around_a_task_is_not_given_up_for_another_reason(slurm_paper: Paper) -> None:
    slurm_paper.slurm.refuse = "sbatch: error: Invalid account\n"
    with pytest.raises(ProviderError, match="Invalid account"):
        slurm_paper.provider.launch(slurm_paper.intend(max_run_time_hours=1.0))
