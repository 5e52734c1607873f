"""A sweep as one job array, on paper: submitted once, each task bound to its element, whatever dies in between."""

from __future__ import annotations

import dataclasses
import re
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from flowlite.api.sweeps.sweep import together
from flowlite.connect.values import Completed
from flowlite.errors import CapacityUnavailable, ProviderError
from flowlite.provider import Instance, LaunchIntent, LaunchPending, Plan
from flowlite.state import clock
from provider_adapters.rented.ledger import Ledger
from provider_adapters.slurm import arrays, job_submission
from provider_adapters.slurm.arrays import elements
from provider_adapters.slurm.login import ToolMissing
from provider_adapters.slurm.queries import queue
from tests.providers.slurm_on_paper import Killed, Paper, PaperSlurm


class ArraySlurm(PaperSlurm):
    """A Slurm on paper that knows arrays: elements are jobs whose numbers are `7_0`, and `107` inside.

    Attributes:
        no_sacct: Whether the login node has no `sacct`.
    """

    no_sacct = False

    def _sacct(self, words: list[str], text: str) -> Completed:
        if self.no_sacct:
            raise ToolMissing("sacct is not where it was on this machine")
        return super()._sacct(words, text)

    def _sbatch(self, words: list[str], script: str) -> Completed:
        done = super()._sbatch(words, script)
        told = re.search(r"^#SBATCH --array=([\d,-]+)", script, re.MULTILINE)
        if done.code == 0 and told:
            whole = self.jobs.pop()
            for part in told[1].split(","):
                first, _, last = part.partition("-")
                for index in range(int(first), int(last or first) + 1):
                    self.jobs.append(dataclasses.replace(whole, id=f"{whole.id}_{index}"))
        return done

    def _scontrol(self, words: list[str], text: str) -> Completed:
        done = super()._scontrol(words, text)
        job = words[-1]
        if "_" in job:
            number, _, index = job.partition("_")
            raw = f"JobId={int(number) + 100 + int(index)} ArrayJobId={number} ArrayTaskId={index} "
            done = Completed(
                done.code, done.stdout.replace(f"JobId={job} ".encode(), raw.encode()), b""
            )
        return done

    def _scancel(self, words: list[str], text: str) -> Completed:
        more = [job.id for job in self.jobs if job.id.partition("_")[0] in words]
        return super()._scancel([*words, *more], text)

    def submitted(self) -> list[list[str]]:
        """Every call of sbatch that took a job."""
        return [each for each in self.calls if each[0] == "sbatch" and "--parsable" in each]


class Sweep:
    """Some tasks of one sweep, each with a provider of its own, as each has a supervisor of its own."""

    def __init__(self, paper: Paper, count: int, at_once: int = 0, **options: Any) -> None:
        self.paper = paper
        self.slurm: ArraySlurm = paper.slurm  # type: ignore[assignment]
        (lot,) = together(range(count), at_once)
        self.intents = [
            self._intend(index, {"array": dict(element)}, **options)
            for index, element in enumerate(lot)
        ]
        self.providers = [paper.make() for _ in self.intents]

    def _intend(self, index: int, array: dict[str, Any], **options: Any) -> LaunchIntent:
        intent = self.paper.intend(f"task{index}-launch-1", f"task{index}", **options)
        plan = Plan.from_json(intent.plan)
        plan = dataclasses.replace(plan, options={**plan.options, **array})
        return dataclasses.replace(intent, plan=plan.to_json())

    def launch(self, index: int) -> list[Instance] | str:
        """One try of one supervisor: its nodes, or why not yet."""
        try:
            return self.providers[index].launch(self.intents[index])
        except LaunchPending as error:
            return str(error)

    def all_waiting(self, indices: Sequence[int] | None = None) -> list[str]:
        """Two rounds of tries, after which all that can be submitted is."""
        chosen = range(len(self.intents)) if indices is None else indices
        found: list[str] = []
        for _ in range(2):
            found = [str(self.launch(index)) for index in chosen]
        return found

    def run(self) -> None:
        """Slurm gives nodes to all."""
        for job in self.slurm.jobs:
            if job.state == "PENDING":
                job.state = "RUNNING"


@pytest.fixture
def sweep_paper(slurm_paper: Paper) -> Paper:
    slurm_paper.slurm = ArraySlurm()
    slurm_paper.configure(shared_dir="none")
    return slurm_paper


def test_all_tasks_become_one_array(sweep_paper: Paper) -> None:
    sweep = Sweep(sweep_paper, 3, at_once=2)
    assert "1 of 3 are there" in str(sweep.launch(0))
    assert "2 of 3 are there" in str(sweep.launch(1))
    assert sweep.slurm.jobs == []
    said = sweep.all_waiting()
    assert len(sweep.slurm.submitted()) == 1
    assert [job.id for job in sweep.slurm.jobs] == ["7_0", "7_1", "7_2"]
    assert ["job 7_0 waits" in said[0], "job 7_1 waits" in said[1], "job 7_2 waits" in said[2]] == [
        True
    ] * 3
    script = sweep.slurm.jobs[0].script
    assert "#SBATCH --array=0-2%2\n" in script
    assert re.search(r"#SBATCH --job-name=flow-array-\w{10}\n", script)
    assert "#SBATCH --nodes=2\n" in script


def test_each_task_is_bound_to_its_element(sweep_paper: Paper) -> None:
    sweep = Sweep(sweep_paper, 2)
    sweep.all_waiting()
    sweep.slurm.jobs[1].state = "RUNNING"
    assert "job 7_0 waits" in str(sweep.launch(0))
    found = sweep.launch(1)
    assert isinstance(found, list)
    # Nodes are called by the number of the element itself, which they know as SLURM_JOB_ID.
    assert [each.id for each in found] == ["108.00.00000", "108.00.00001"]
    assert {each.task_id for each in found} == {"task1"}
    assert {(each.data["job"], each.data["raw"]) for each in found} == {("7_1", "108")}
    assert sweep.launch(1) == found
    listed = sweep.providers[1].list_instances("task1")
    assert [each.id for each in listed] == [each.id for each in found]
    assert {each.state for each in listed} == {"running"}
    (waiting,) = sweep.providers[0].list_instances("task0")
    assert (waiting.id, waiting.state) == ("7_0", "starting")


def test_one_element_is_cancelled_and_no_other(sweep_paper: Paper) -> None:
    sweep = Sweep(sweep_paper, 3)
    sweep.all_waiting()
    sweep.slurm.jobs[2].state = "RUNNING"
    assert isinstance(sweep.launch(2), list)
    for index in (0, 2):
        provider = sweep.providers[index]
        provider.terminate(provider.list_instances(f"task{index}"))
    assert [job.state for job in sweep.slurm.jobs] == ["CANCELLED", "PENDING", "COMPLETED"]
    assert sweep.providers[0].list_instances("task0") == []
    assert {each.state for each in sweep.providers[2].list_instances("task2")} == {"ended"}


def test_a_task_that_is_gone_holds_up_no_others(
    sweep_paper: Paper, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = Sweep(sweep_paper, 4)
    assert "2 of 4 are there" in [sweep.launch(0), str(sweep.launch(2))[-18:]][1]
    monkeypatch.setattr(arrays, "PATIENCE_SECONDS", 0.0)
    sweep.all_waiting([0, 2])
    assert [job.id for job in sweep.slurm.jobs] == ["7_0", "7_2"]
    assert "#SBATCH --array=0,2\n" in sweep.slurm.jobs[0].script
    # Whoever comes later has a job of his own.
    assert "job 8 waits" in sweep.all_waiting([1])[0]
    assert [job.id for job in sweep.slurm.jobs] == ["7_0", "7_2", "8"]


def test_who_asks_for_something_else_goes_alone(
    sweep_paper: Paper, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = Sweep(sweep_paper, 3)
    sweep.intents[1] = sweep._intend(
        1, {"array": Plan.from_json(sweep.intents[1].plan).options["array"]}, num_instances=3
    )
    sweep.launch(1)
    assert "1 of 3 are there" in str(sweep.launch(0))
    assert "2 of 3 are there" in str(sweep.launch(2))
    monkeypatch.setattr(arrays, "PATIENCE_SECONDS", 0.0)
    sweep.all_waiting([0, 2])
    assert {job.nodes for job in sweep.slurm.jobs} == {2}
    sweep.all_waiting([1])
    assert (sweep.slurm.jobs[-1].id, sweep.slurm.jobs[-1].nodes) == ("8", 3)


def test_a_second_attempt_is_a_job_of_its_own(sweep_paper: Paper) -> None:
    sweep = Sweep(sweep_paper, 2)
    sweep.all_waiting()
    sweep.run()
    assert isinstance(sweep.launch(0), list)
    sweep.slurm.jobs[0].state = "NODE_FAIL"
    again = dataclasses.replace(sweep.intents[0], token="task0-launch-2")
    found = sweep_paper.launch(again)
    assert [each.id for each in found] == ["8.00.00000", "8.00.00001"]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_supervisor_that_dies_while_it_submits(sweep_paper: Paper, moment: str) -> None:
    """The others go on: there is one array in the end, whoever looks."""
    sweep = Sweep(sweep_paper, 2)
    sweep.launch(0)

    def die(tool: str, when: str) -> None:
        if tool == "sbatch" and when == moment:
            sweep.slurm.crash = None
            raise Killed

    sweep.slurm.crash = die
    with pytest.raises(Killed):
        sweep.launch(1)
    assert len(sweep.slurm.jobs) == (0 if moment == "before" else 2)
    sweep.providers[1] = sweep_paper.make()
    if moment == "before":
        assert "not known yet" in str(sweep.launch(0))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(job_submission, "_UNDERWAY_SECONDS", 0.0)
            patch.setattr(job_submission, "_LOOKS", 1)
            sweep.all_waiting()
    sweep.all_waiting()
    assert [job.id.partition("_")[2] for job in sweep.slurm.jobs] == ["0", "1"]
    sweep.run()
    assert all(isinstance(sweep.launch(index), list) for index in range(2))


def test_an_array_that_was_submitted_twice_is_ended_once(sweep_paper: Paper) -> None:
    sweep = Sweep(sweep_paper, 2)
    sweep.launch(0)

    def die(tool: str, when: str) -> None:
        if tool == "sbatch" and when == "after":
            # It arrives once more, as a submission may whose connection broke.
            for job in list(sweep.slurm.jobs):
                twin = job.id.replace("7_", "9_")
                sweep.slurm.jobs.append(dataclasses.replace(job, id=twin))
            sweep.slurm.crash = None
            raise Killed

    sweep.slurm.crash = die
    with pytest.raises(Killed):
        sweep.launch(1)
    sweep.all_waiting()
    assert [job.id for job in sweep.slurm.live()] == ["7_0", "7_1"]


def lose_the_answer(sweep: Sweep) -> None:
    """The next array is submitted, and the answer of `sbatch` is lost. Slurm lags, and keeps no accounts."""
    slurm = sweep.slurm
    slurm.fail["sbatch"], slurm.listed, slurm.accounts = TimeoutError(), False, False


def test_an_array_that_shows_up_late_is_cancelled(
    sweep_paper: Paper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was submitted again after some looks, and both have nodes for the tasks."""
    sweep = Sweep(sweep_paper, 2)
    slurm = sweep.slurm
    lose_the_answer(sweep)
    sweep.launch(0)
    for _ in range(6):
        sweep.launch(1)
    assert [job.id for job in slurm.jobs] == ["7_0", "7_1", "8_0", "8_1"]
    late, slurm.jobs = slurm.jobs[:2], slurm.jobs[2:]
    slurm.listed = True
    sweep.all_waiting()
    slurm.jobs += late
    for name in ("HURRY", "USUAL", "QUIET"):
        monkeypatch.setattr(queue, name, 60.0)
    before = asked(slurm, "squeue"), asked(slurm, "sacct")
    for _ in range(3):
        for index, provider in enumerate(sweep.providers):
            (waiting,) = provider.list_instances(f"task{index}")
            assert waiting.id == f"8_{index}"
    assert [job.id for job in slurm.live()] == ["8_0", "8_1"]
    # A listing asks no more than that of any other task, since it may do so for weeks.
    assert (asked(slurm, "squeue"), asked(slurm, "sacct")) == (before[0] + 6, before[1])


def asked(slurm: ArraySlurm, tool: str) -> int:
    """How often a command of Slurm was called."""
    return sum(call[0] == tool for call in slurm.calls)


def test_without_sacct_a_lost_answer_is_found_in_the_queue(sweep_paper: Paper) -> None:
    sweep = Sweep(sweep_paper, 2)
    sweep.slurm.fail["sbatch"] = TimeoutError()
    sweep.launch(0)
    assert "not known yet" in str(sweep.launch(1))
    sweep.slurm.listed = False
    sweep.slurm.no_sacct = True
    assert "not known yet" in str(sweep.launch(1))
    sweep.slurm.listed = True
    assert "job 7_1 waits" in str(sweep.launch(1))


def test_a_task_that_is_ended_while_its_array_is_looked_for_has_no_element_left(
    sweep_paper: Paper,
) -> None:
    sweep = Sweep(sweep_paper, 2)
    lose_the_answer(sweep)
    sweep.launch(0)
    assert "not known yet" in str(sweep.launch(1))
    provider = sweep.providers[0]
    provider.terminate(provider.list_instances("task0"))
    # It may still get nodes.
    assert [each.state for each in provider.list_instances("task0")] == ["starting"]
    sweep.slurm.listed = True
    provider.terminate(provider.list_instances("task0"))
    assert provider.list_instances("task0") == []
    assert [job.state for job in sweep.slurm.jobs] == ["CANCELLED", "PENDING"]


def test_a_task_that_is_ended_while_others_are_waited_for_has_no_element(
    sweep_paper: Paper, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = Sweep(sweep_paper, 3)
    sweep.launch(0)
    sweep.launch(1)
    provider = sweep.providers[0]
    listed = provider.list_instances("task0")
    provider.terminate(listed)
    assert provider.list_instances("task0") == []
    assert "2 of 3 are there" in str(sweep.launch(2))
    monkeypatch.setattr(arrays, "PATIENCE_SECONDS", 0.0)
    sweep.all_waiting([1, 2])
    assert [job.id for job in sweep.slurm.jobs] == ["7_1", "7_2"]
    # It is given back like a job that waits.
    assert [each.state for each in listed] == ["starting"]


def test_a_task_that_was_not_seen_for_long_gets_no_element_and_is_not_listed(
    sweep_paper: Paper, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = Sweep(sweep_paper, 2)
    sweep.launch(0)
    provider = sweep_paper.make()
    assert [each.task_id for each in provider.list_instances()] == ["task0"]
    monkeypatch.setattr(arrays, "SEEN_SECONDS", 0.0)
    assert provider.list_instances() == []


def test_a_task_ends_although_its_array_was_never_submitted(
    sweep_paper: Paper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All supervisors were killed, and whoever ends the tasks does not wait for ever."""
    sweep = Sweep(sweep_paper, 2)
    sweep.slurm.fail["sbatch"] = TimeoutError()
    sweep.launch(0)
    sweep.launch(1)
    sweep.slurm.jobs.clear()
    provider = sweep_paper.make()
    provider.terminate(provider.list_instances("task0"))
    assert [each.state for each in provider.list_instances("task0")] == ["starting"]
    monkeypatch.setattr(job_submission, "_NEVER_SECONDS", -1.0)
    for _ in range(job_submission._LOOKS):
        provider.terminate(provider.list_instances("task0"))
    assert provider.list_instances("task0") == []


def test_the_end_of_one_task_does_not_give_up_the_array_of_the_others(
    sweep_paper: Paper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sbatch` had no answer for a minute, and the array shows up a moment later."""
    sweep = Sweep(sweep_paper, 3)
    slurm = sweep.slurm
    sweep.launch(0)
    sweep.launch(1)
    now = [clock.now()]
    monkeypatch.setattr(clock, "now", lambda: now[0])

    def take_a_minute(tool: str, when: str) -> None:
        now[0] += 60.0 if (tool, when) == ("sbatch", "after") else 0.0

    slurm.crash = take_a_minute
    lose_the_answer(sweep)
    assert "not known yet" in str(sweep.launch(2))
    provider = sweep.providers[0]
    for _ in range(job_submission._LOOKS + 1):
        provider.terminate(provider.list_instances("task0"))
    slurm.listed = True
    said = sweep.all_waiting([1, 2])
    assert ["job 7_1 waits" in said[0], "job 7_2 waits" in said[1]] == [True] * 2
    provider.terminate(provider.list_instances("task0"))
    assert [job.id for job in slurm.live()] == ["7_1", "7_2"]


def test_an_array_is_open_to_others_when_the_first_task_has_ended(
    sweep_paper: Paper, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = Sweep(sweep_paper, 3)
    sweep.launch(0)
    provider = sweep.providers[0]
    provider.terminate(provider.list_instances("task0"))
    # The listing of all tidies up.
    assert provider.list_instances() == []
    assert "1 of 3 are there" in str(sweep.launch(1))
    assert "2 of 3 are there" in str(sweep.launch(2))
    monkeypatch.setattr(arrays, "PATIENCE_SECONDS", 0.0)
    sweep.all_waiting([1, 2])
    assert [job.id for job in sweep.slurm.jobs] == ["7_1", "7_2"]


def test_who_comes_after_an_array_was_closed_has_a_job_of_his_own(
    sweep_paper: Paper, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = Sweep(sweep_paper, 2)
    sweep.launch(0)
    provider = sweep.providers[0]
    provider.terminate(provider.list_instances("task0"))
    monkeypatch.setattr(arrays, "_DAY_SECONDS", 0.0)
    assert provider.list_instances("task0") == provider.list_instances() == []
    assert "job 7 waits" in sweep.all_waiting([1])[0]
    (waiting,) = sweep.providers[1].list_instances("task1")
    assert waiting.id == "7"


def test_a_task_that_dies_before_it_knows_its_element(sweep_paper: Paper) -> None:
    """Nothing says it is gone as long as it may get nodes; and whoever ends it ends its element."""
    sweep = Sweep(sweep_paper, 2)
    sweep.launch(0)
    sweep.launch(1)
    assert [job.id for job in sweep.slurm.jobs] == ["7_0", "7_1"]
    other = sweep_paper.make()
    (waiting,) = other.list_instances("task0")
    assert (waiting.id, waiting.state) == ("7_0", "starting")
    other.terminate([waiting])
    assert [job.state for job in sweep.slurm.jobs] == ["CANCELLED", "PENDING"]


def test_a_launch_and_a_listing_do_not_wait_for_each_other(
    sweep_paper: Paper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both bind a task to its element, and lock the launch and the array for it."""
    sweep = Sweep(sweep_paper, 2)
    sweep.launch(0)
    sweep.launch(1)
    token, lock = sweep.intents[0].token, Ledger._lock
    asked = threading.Event()

    def noted(ledger: Ledger, path: Path, name: str, patience: float) -> int:
        if name == token and threading.current_thread() is not threading.main_thread():
            asked.set()
        return lock(ledger, path, name, min(patience, 30.0 if name == token else 2.0))

    monkeypatch.setattr(Ledger, "_lock", noted)
    other = sweep_paper.make()
    with ThreadPoolExecutor() as pool:
        with sweep.providers[0]._place.ledger.hold(token):
            listing = pool.submit(other.list_instances, "task0")
            assert asked.wait(60)
            assert "job 7_0 waits" in str(sweep.launch(0))
        assert [each.id for each in listing.result(60)] == ["7_0"]
    launch = other._place.ledger.read(token)
    assert launch is not None
    assert launch.ids == ("7_0",)


def test_gc_knows_whose_an_element_is(sweep_paper: Paper) -> None:
    sweep = Sweep(sweep_paper, 2)
    sweep.launch(0)
    sweep.launch(1)
    found = {each.id: each.task_id for each in sweep_paper.make().list_instances()}
    assert found == {"7_0": "task0", "7_1": "task1"}


def test_a_refused_array_refuses_every_task(sweep_paper: Paper) -> None:
    sweep = Sweep(sweep_paper, 2)
    sweep.launch(0)
    sweep.slurm.refuse = "sbatch: error: invalid partition specified: nope\n"
    for index in (1, 0):
        with pytest.raises(ProviderError, match="partition"):
            sweep.providers[index].launch(sweep.intents[index])
    assert sweep.slurm.jobs == []


@pytest.mark.parametrize("at_once", [0, 3])
def test_an_array_larger_than_the_limit_of_submitted_jobs(sweep_paper: Paper, at_once: int) -> None:
    """Its tasks are submitted one after another, as others end. `.map` names a number that holds none of them back."""
    sweep = Sweep(sweep_paper, 3, at_once=at_once)
    slurm = sweep.slurm
    slurm.most = 1
    left = [0, 1, 2]
    for index in [0, 1, 2] * 6:
        if index not in left:
            continue
        with suppress(CapacityUnavailable):
            found = sweep.launch(index)
            sweep.run()
            if not isinstance(found, str):
                left.remove(index)
                sweep.providers[index].terminate(found)
    assert left == []


def test_what_sbatch_is_told() -> None:
    assert elements(["0", "1", "2", "3", "4"], {"at_once": 2}) == "0-4%2"
    assert elements(["10", "2", "3", "7"], {"at_once": 0}) == "2-3,7,10"
    assert elements(["0", "1"], {"at_once": 8}) == "0-1"


def test_lots_of_a_large_sweep() -> None:
    lots = together(range(250), 4)
    assert [len(lot) for lot in lots] == [100, 100, 50]
    assert len({each["id"] for lot in lots for each in lot}) == 3
    assert [each["index"] for lot in lots for each in lot] == list(range(250))
    assert {each["at_once"] for lot in lots for each in lot} == {4}
