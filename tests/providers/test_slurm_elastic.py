"""Gangs of several sizes against a Slurm on paper: one job for what there is at first, and others for further nodes."""

from __future__ import annotations

import dataclasses

import pytest

from flowlite.errors import ConfigError, ProviderError
from flowlite.node.config.fencing import FENCE_AFTER, SLACK
from flowlite.provider import Instance, LaunchIntent, LaunchPending
from flowlite.state import clock
from provider_adapters.slurm import ending, first_contact, job_submission, launching
from tests.providers.slurm_on_paper import TASK, Killed, Paper


def elastic(
    paper: Paper, fewest: int = 2, most: int = 4, number: int = 1, **options: object
) -> LaunchIntent:
    """A launch of a gang of 2 to 4 that is content with the fewest of these."""
    intent = paper.intend(f"{TASK}-launch-{number}", num_instances=(2, 4), **options)
    # As `capped_plan` and the supervisor do.
    plan = {**intent.plan, "min_instances": 2}
    return dataclasses.replace(intent, count=most, least=fewest if fewest < most else 0, plan=plan)


def hosts(found: list[Instance]) -> list[str]:
    return [str(each.data["host"]) for each in found]


def told(script: str) -> list[str]:
    """The options of `sbatch` in a script that are about nodes."""
    options = [line.removeprefix("#SBATCH ") for line in script.splitlines()]
    return [each for each in options if each.startswith(("--nodes", "--ntasks", "--exclude"))]


def test_one_job_takes_what_there_is(slurm_paper: Paper) -> None:
    slurm_paper.slurm.idle = 3
    intent = elastic(slurm_paper)
    found = slurm_paper.launch(intent)
    assert [each.id for each in found] == [f"7.00.{n:05d}" for n in range(3)]
    # A number of tasks would keep Slurm from giving more than the fewest.
    assert told(slurm_paper.slurm.job().script) == ["--nodes=2-4"]
    assert "#SBATCH --no-kill" in slurm_paper.slurm.job().script
    # More room changes nothing; another process has nothing but the ledger.
    slurm_paper.slurm.idle = 9
    assert slurm_paper.make().launch(intent) == found
    assert len(slurm_paper.slurm.jobs) == 1


def test_further_nodes_are_a_job_on_other_hosts(slurm_paper: Paper) -> None:
    slurm_paper.slurm.idle = 2
    asked = {"slurm": {"exclude": "node09"}}
    first = slurm_paper.launch(elastic(slurm_paper, **asked))
    slurm_paper.slurm.idle = 1
    second = slurm_paper.launch(elastic(slurm_paper, 1, 2, number=2, **asked))
    third = slurm_paper.launch(elastic(slurm_paper, 1, 1, number=3, **asked))
    assert hosts([*first, *second, *third]) == ["node01", "node02", "node03", "node04"]
    assert [told(job.script) for job in slurm_paper.slurm.jobs] == [
        ["--nodes=2-4", "--exclude=node09"],
        ["--nodes=1-2", "--exclude=node09,node01,node02"],
        [
            *("--nodes=1", "--ntasks=1", "--ntasks-per-node=1"),
            "--exclude=node09,node01,node02,node03",
        ],
    ]
    brought_by = {each.id: each.launch for each in slurm_paper.provider.list_instances(TASK)}
    assert brought_by == {
        each.id: f"{TASK}-launch-{number}"
        for number, found in enumerate((first, second, third), 1)
        for each in found
    }
    # The end of one job leaves the others.
    slurm_paper.provider.terminate(second)
    states = {each.id: each.state for each in slurm_paper.provider.list_instances(TASK)}
    assert states[second[0].id] == "ended"
    assert {states[each.id] for each in (*first, *third)} == {"running"}
    # Its host is free again.
    again = slurm_paper.launch(elastic(slurm_paper, 1, 1, number=4, **asked))
    assert hosts(again) == hosts(second)


def test_a_lost_answer_is_repeated_with_the_same_hosts(
    slurm_paper: Paper, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = slurm_paper.slurm
    slurm.idle = 2
    first = slurm_paper.launch(elastic(slurm_paper))
    monkeypatch.setattr(job_submission, "_UNDERWAY_SECONDS", 0.0)
    slurm.fail["sbatch"] = TimeoutError()

    def lag(tool: str, when: str) -> None:
        if (tool, when) == ("sbatch", "before"):
            slurm.listed = slurm.accounts = False

    slurm.crash = lag
    intent = elastic(slurm_paper, 1, 2, number=2)
    for _ in range(6):
        if len(slurm.jobs) == 3:
            break
        with pytest.raises(LaunchPending):
            slurm_paper.provider.launch(intent)
        # The first gang's hosts are free meanwhile, and the repetition is the same nevertheless.
        slurm_paper.provider.terminate(first)
    assert len(slurm.jobs) == 3
    assert slurm.jobs[1].script == slurm.jobs[2].script
    assert f"--exclude={','.join(hosts(first))}" in told(slurm.jobs[2].script)


# Queued again


def test_a_job_that_was_queued_again_takes_what_there_is_then(slurm_paper: Paper) -> None:
    slurm_paper.launch(elastic(slurm_paper))
    job = slurm_paper.slurm.job()
    job.state, job.restarts, job.nodes = "PENDING", 1, 3
    slurm_paper.provider.list_instances(TASK)
    found = slurm_paper.launch(elastic(slurm_paper, number=2))
    assert [each.id for each in found] == [f"7.01.{n:05d}" for n in range(3)]
    assert len(slurm_paper.slurm.jobs) == 1


@pytest.mark.parametrize("state", ["PENDING", "RUNNING"])
def test_a_job_that_comes_back_beside_others_does_not_make_the_gang_too_big(
    slurm_paper: Paper, state: str
) -> None:
    """Two nodes remain, and the job of the others would bring as many as four."""
    slurm = slurm_paper.slurm
    slurm.idle = 2
    slurm_paper.launch(elastic(slurm_paper))
    stay = slurm_paper.launch(elastic(slurm_paper, 1, 2, number=2))
    slurm.jobs[0].state, slurm.jobs[0].restarts = state, 1
    slurm_paper.provider.list_instances(TASK)
    found = slurm_paper.launch(elastic(slurm_paper, 1, 2, number=3))
    assert [job.state for job in slurm.jobs] == ["CANCELLED", "RUNNING", "RUNNING"]
    assert hosts([*stay, *found]) == ["node03", "node04", "node01", "node02"]
    assert len(slurm.live()) == 2


def test_a_launch_beside_a_gang_ends_no_job_of_it(slurm_paper: Paper) -> None:
    slurm = slurm_paper.slurm
    slurm.idle = 2
    slurm_paper.launch(elastic(slurm_paper))
    slurm.jobs[0].state, slurm.jobs[0].restarts = "PENDING", 1
    slurm_paper.provider.list_instances(TASK)
    intent = dataclasses.replace(elastic(slurm_paper, 1, 2, number=2), beside=True)
    with pytest.raises(LaunchPending, match="was queued again") as waiting:
        slurm_paper.provider.launch(intent)
    assert waiting.value.queued
    assert [job.state for job in slurm.jobs] == ["PENDING"]


def test_nodes_that_are_kept_live_for_as_long_as_is_waited_for_others(slurm_paper: Paper) -> None:
    slurm_paper.launch(elastic(slurm_paper, heal_seconds=1000))
    assert "1120" in slurm_paper.slurm.job().script


def test_a_job_that_comes_back_is_not_taken_over_onto_hosts_of_the_gang(
    slurm_paper: Paper,
) -> None:
    slurm = slurm_paper.slurm
    slurm.idle = 2
    slurm_paper.launch(elastic(slurm_paper))
    slurm.idle = 1
    slurm_paper.launch(elastic(slurm_paper, 1, 1, number=2))
    later = slurm_paper.launch(elastic(slurm_paper, 1, 1, number=3))
    # The second asks for as many as are needed, and does not know of the third, which came later.
    slurm.jobs[1].state, slurm.jobs[1].restarts = "PENDING", 1
    slurm_paper.provider.list_instances(TASK)
    found = slurm_paper.launch(elastic(slurm_paper, 1, 1, number=4))
    assert slurm.jobs[1].state == "CANCELLED"
    assert hosts(found) == ["node03"]
    assert hosts(later) == ["node04"]


def test_a_job_that_comes_back_with_less_than_is_lacking_is_replaced(slurm_paper: Paper) -> None:
    slurm = slurm_paper.slurm
    slurm.idle = 3
    slurm_paper.launch(elastic(slurm_paper))
    slurm_paper.launch(elastic(slurm_paper, 1, 1, number=2))
    slurm.jobs[0].lost.add("node02")
    slurm.jobs[1].state, slurm.jobs[1].restarts = "PENDING", 1
    slurm_paper.provider.list_instances(TASK)
    found = slurm_paper.launch(elastic(slurm_paper, 1, 2, number=3))
    assert [job.state for job in slurm.jobs] == ["RUNNING", "CANCELLED", "RUNNING"]
    assert hosts(found) == ["node02", "node04"]


# Nodes that are lost


def states(paper: Paper) -> dict[str, str]:
    """The state of each node by its host, of the last run."""
    listed = paper.provider.list_instances(TASK)
    return {str(each.data.get("host")): each.state for each in listed}


def silent(found: list[Instance], *numbers: int) -> list[Instance]:
    """Nodes as the supervisor gives them up that do not answer."""
    return [dataclasses.replace(found[n], state="unreachable") for n in numbers]


def test_a_job_goes_on_without_a_node_that_failed(slurm_paper: Paper) -> None:
    slurm_paper.launch(elastic(slurm_paper))
    slurm_paper.slurm.job().lost.add("node03")
    listed = slurm_paper.provider.list_instances(TASK)
    (out,) = [each for each in listed if each.state == "ended"]
    assert out.failed
    assert not out.preempted
    assert "node03 is down, and Slurm has taken it out" in out.why
    assert [each.state for each in listed] == ["running", "running", "ended", "running"]
    # It is told the same way again, and its end is not that of the others.
    assert slurm_paper.make().list_instances(TASK) == listed
    slurm_paper.provider.terminate([out])
    assert slurm_paper.slurm.job().state == "RUNNING"
    # Its host may come back, and take part again.
    found = slurm_paper.launch(elastic(slurm_paper, 1, 1, number=2))
    assert hosts(found) == ["node03"]
    slurm_paper.provider.terminate(slurm_paper.provider.list_instances(TASK))
    assert not slurm_paper.slurm.live()
    assert {each.state for each in slurm_paper.provider.list_instances(TASK)} == {"ended"}


def test_a_job_that_has_lost_its_first_node_is_cancelled(slurm_paper: Paper) -> None:
    slurm_paper.launch(elastic(slurm_paper))
    slurm_paper.slurm.job().lost.add("node01")
    slurm_paper.provider.list_instances(TASK)
    assert slurm_paper.slurm.job().state == "CANCELLED"
    listed = slurm_paper.provider.list_instances(TASK)
    assert [(each.state, each.failed) for each in listed] == [
        ("ended", True),
        *[("ended", False)] * 3,
    ]
    assert listed[1].why.startswith("the job was ended, since the host of its script failed")


def test_a_job_goes_on_without_nodes_that_do_not_answer_once_slurm_notices(
    slurm_paper: Paper,
) -> None:
    found = slurm_paper.launch(elastic(slurm_paper))
    job = slurm_paper.slurm.job()
    slurm_paper.provider.terminate(silent(found, 1, 3))
    assert job.state == "RUNNING"
    # Until then their workers may run, and nothing may take their place.
    listed = slurm_paper.provider.list_instances(TASK)
    assert [each.state for each in listed] == ["running", "ending", "running", "ending"]
    # As often as it is asked, in any way.
    slurm_paper.provider = slurm_paper.make()
    slurm_paper.provider.terminate([listed[1], listed[3]])
    slurm_paper.provider.terminate(silent(found, 1))
    assert job.state == "RUNNING"
    job.lost |= {"node02", "node04"}
    listed = slurm_paper.provider.list_instances(TASK)
    assert [each.state for each in listed] == ["running", "ended", "running", "ended"]
    slurm_paper.provider.terminate(silent(found, 1, 3))
    assert job.state == "RUNNING"
    slurm_paper.provider.terminate(slurm_paper.provider.list_instances(TASK))
    assert not slurm_paper.slurm.live()


def test_nodes_that_do_not_answer_count_as_gone_once_they_have_stopped_their_workers(
    slurm_paper: Paper, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = slurm_paper.launch(elastic(slurm_paper, grace_seconds=20))
    slurm_paper.provider.terminate(silent(found, 1))
    began = clock.now()
    slurm = slurm_paper.slurm
    for seconds, state in ((FENCE_AFTER + 20, "ending"), (FENCE_AFTER + 20 + SLACK, "ended")):
        monkeypatch.setattr(clock, "now", lambda after=seconds: began + after + 1)
        assert states(slurm_paper)["node02"] == state
    (gone,) = [each for each in slurm_paper.provider.list_instances(TASK) if each.state == "ended"]
    assert gone.failed
    assert "node02 does not answer, and has stopped its workers" in gone.why
    slurm_paper.provider.terminate([gone])
    assert slurm.job().state == "RUNNING"
    # Slurm has not noticed anything, and could give the host to another job of the gang.
    further = slurm_paper.launch(elastic(slurm_paper, 1, 1, number=2))
    assert hosts(further) == ["node05"]
    # The loss of another one is noticed nevertheless, and later that of the first.
    for lost, ended in (("node03", 2), ("node02", 2)):
        slurm.jobs[0].lost.add(lost)
        assert list(states(slurm_paper).values()).count("ended") == ended
    slurm_paper.provider.terminate(slurm_paper.provider.list_instances(TASK))
    assert not slurm.live()


@pytest.mark.parametrize("why", ["first", "answers", "all", "one size"])
def test_otherwise_the_whole_job_ends(
    slurm_paper: Paper, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    monkeypatch.setattr(ending, "_GENTLE_SECONDS", 0.0)
    intent = slurm_paper.intend() if why == "one size" else elastic(slurm_paper)
    found = slurm_paper.launch(intent)
    doomed = {
        "first": silent(found, 0),
        "answers": [found[1]],
        "all": silent(found, *range(len(found))),
    }
    slurm_paper.provider.terminate(doomed.get(why, silent(found, 1)))
    assert slurm_paper.slurm.job().state == "CANCELLED"
    assert set(states(slurm_paper).values()) == {"ended"}


# Lost before it was met


def begun(paper: Paper, intent: LaunchIntent, *silent_hosts: str) -> None:
    """A job that runs, of which these hosts do not answer yet."""
    paper.silent = dict.fromkeys(silent_hosts, "nothing answers")
    with pytest.raises(LaunchPending):
        paper.provider.launch(intent)
    paper.slurm.job().state = "RUNNING"
    with pytest.raises(LaunchPending, match="nothing answers"):
        paper.provider.launch(intent)


def test_a_node_that_fails_before_it_is_met_is_gone_on_without(slurm_paper: Paper) -> None:
    slurm_paper.slurm.idle = 4
    intent = elastic(slurm_paper)
    begun(slurm_paper, intent, "node02", "node03")
    slurm_paper.slurm.job().lost.add("node02")
    slurm_paper.silent = {}
    # Another process has nothing but the ledger.
    slurm_paper.provider = slurm_paper.make()
    found = slurm_paper.provider.launch(intent)
    # The numbers of the others, by which their step daemons are known, are those of the start.
    assert [each.id for each in found] == [f"7.00.{n:05d}" for n in (0, 2, 3)]
    assert [each.data["nodeid"] for each in found] == [0, 2, 3]
    assert hosts(found) == ["node01", "node03", "node04"]
    assert "without node02" in found[0].note
    assert set(states(slurm_paper).values()) == {"running"}
    assert slurm_paper.make().launch(intent) == found
    # One that is lost later is told from the one that never was there.
    slurm_paper.slurm.job().lost.add("node03")
    assert states(slurm_paper) == {"node01": "running", "node03": "ended", "node04": "running"}


@pytest.mark.parametrize(
    ("lost", "why"),
    [({"node01"}, "node01 had its script"), ({"node02", "node03"}, "it has 1 left, and needs 2")],
)
def test_a_job_that_cannot_go_on_without_them_is_cancelled_at_once(
    slurm_paper: Paper, lost: set[str], why: str
) -> None:
    slurm_paper.slurm.idle = 3
    intent = elastic(slurm_paper)
    begun(slurm_paper, intent, "node02")
    slurm_paper.slurm.job().lost |= lost
    with pytest.raises(ProviderError, match=why):
        slurm_paper.provider.launch(intent)
    assert slurm_paper.slurm.job().state == "CANCELLED"
    assert [
        each for each in slurm_paper.provider.list_instances(TASK) if each.state != "ended"
    ] == []


@pytest.mark.parametrize("silent_hosts", [["node01"], ["node02", "node03"]])
def test_a_job_of_which_too_few_answer_is_cancelled(
    slurm_paper: Paper, monkeypatch: pytest.MonkeyPatch, silent_hosts: list[str]
) -> None:
    slurm_paper.slurm.idle = 3
    intent = elastic(slurm_paper)
    begun(slurm_paper, intent, *silent_hosts)
    monkeypatch.setattr(first_contact, "CONTACT_SECONDS", -1.0)
    with pytest.raises(ProviderError, match="did not answer within"):
        slurm_paper.provider.launch(intent)
    assert slurm_paper.slurm.job().state == "CANCELLED"


def test_one_that_never_answers_is_gone_on_without(
    slurm_paper: Paper, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = slurm_paper.slurm
    slurm.idle = 4
    intent = elastic(slurm_paper)
    begun(slurm_paper, intent, "node03")
    monkeypatch.setattr(first_contact, "CONTACT_SECONDS", -1.0)
    found = slurm_paper.provider.launch(intent)
    assert hosts(found) == ["node01", "node02", "node04"]
    assert [each.data["nodeid"] for each in found] == [0, 1, 3]
    assert "without node03: no answer within" in found[0].note
    assert set(states(slurm_paper).values()) == {"running"}
    # Slurm has not noticed anything, and could give its host to another job of the gang.
    slurm_paper.silent = {}
    assert hosts(slurm_paper.launch(elastic(slurm_paper, 1, 1, number=2))) == ["node05"]
    # The loss of another one is noticed nevertheless, and that of this one changes nothing.
    for lost in ("node02", "node03"):
        slurm.jobs[0].lost.add(lost)
        assert states(slurm_paper)["node02"] == "ended"
        assert list(states(slurm_paper).values()).count("running") == 3


def test_a_node_lost_before_anybody_looked_is_known_from_the_first_one(slurm_paper: Paper) -> None:
    slurm_paper.slurm.idle = 4
    intent = elastic(slurm_paper)
    with pytest.raises(LaunchPending):
        slurm_paper.provider.launch(intent)
    job = slurm_paper.slurm.job()
    job.state = "RUNNING"
    job.lost.add("node02")
    with pytest.raises(LaunchPending, match="has lost nodes since it started"):
        slurm_paper.provider.launch(intent)
    found = slurm_paper.provider.launch(intent)
    assert hosts(found) == ["node01", "node03", "node04"]
    assert [each.data["nodeid"] for each in found] == [0, 2, 3]
    assert "without node02" in found[0].note


def test_the_host_of_the_script_lost_before_anybody_looked_ends_the_job(slurm_paper: Paper) -> None:
    slurm_paper.slurm.idle = 4
    intent = elastic(slurm_paper)
    with pytest.raises(LaunchPending):
        slurm_paper.provider.launch(intent)
    job = slurm_paper.slurm.job()
    job.state = "RUNNING"
    job.lost.add("node01")
    with pytest.raises(ProviderError, match="node01 had its script"):
        slurm_paper.provider.launch(intent)
    assert job.state == "CANCELLED"


def test_a_job_that_starts_again_has_the_hosts_of_that_start(slurm_paper: Paper) -> None:
    slurm_paper.slurm.idle = 3
    intent = elastic(slurm_paper)
    begun(slurm_paper, intent, "node02")
    job = slurm_paper.slurm.job()
    job.restarts, job.exclude = 1, ("node01",)
    slurm_paper.silent = {}
    found = slurm_paper.provider.launch(intent)
    assert [each.id for each in found] == [f"7.01.{n:05d}" for n in range(3)]
    assert hosts(found) == ["node02", "node03", "node04"]
    assert found[0].note == ""


# Whether it may come at once


def queued(paper: Paper, intent: LaunchIntent, reason: str) -> bool:
    """Whether a job that waits for this reason counts as queued."""
    for job in paper.slurm.jobs:
        job.reason = reason
    with pytest.raises(LaunchPending) as waiting:
        paper.provider.launch(intent)
    return waiting.value.queued


def test_a_job_that_slurm_has_not_tried_yet_may_come(
    slurm_paper: Paper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gang that does not need it would else never wait long enough for it."""
    intent = elastic(slurm_paper, 1, 1)
    assert not queued(slurm_paper, intent, "None")
    assert not queued(slurm_paper, intent, "Priority")
    assert queued(slurm_paper, intent, "Resources")
    assert queued(slurm_paper, intent, "QOSMaxNodePerUserLimit")
    monkeypatch.setattr(launching, "_UNTRIED_SECONDS", 0.0)
    assert queued(slurm_paper, intent, "None")


def test_a_gang_of_one_size_is_queued_from_the_beginning(slurm_paper: Paper) -> None:
    intent = slurm_paper.intend()
    assert queued(slurm_paper, intent, "None")


# The plan


def test_the_most_are_bounded_by_the_partition(slurm_paper: Paper) -> None:
    assert slurm_paper.plan(num_instances=(2, 8)).num_instances == 4
    assert slurm_paper.plan(num_instances=(2, 3)).num_instances == 3
    # Which partition it will be is not known.
    several = {"partition": "main,big"}
    assert slurm_paper.plan(num_instances=(2, 8), slurm=several).num_instances == 8


def test_too_few_nodes_are_refused(slurm_paper: Paper) -> None:
    with pytest.raises(ConfigError, match="5 nodes were asked for, and the partition main has 4"):
        slurm_paper.plan(num_instances=(5, 8))
    with pytest.raises(ConfigError, match="2 nodes with 9 cores"):
        slurm_paper.plan(num_instances=(2, 8), cpu=9)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"nodelist": "node[01-04]"}, "gives a job all or none"),
        ({"sbatch": ["--exclude=node01"]}, "slurm={'exclude': …}"),
        ({"sbatch": ["-w node01"]}, "slurm={'exclude': …}"),
    ],
)
def test_a_choice_of_hosts_is_refused(
    slurm_paper: Paper, asked: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        slurm_paper.plan(num_instances=(2, 4), slurm=asked)
    assert words in str(refused.value)
    slurm_paper.plan(num_instances=2, slurm=asked)


# Killed


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("tool", ["sbatch", "squeue", "scontrol", "scancel", "sacct"])
@pytest.mark.parametrize("nth", [1, 2, 4])
def test_killed_around_any_command_nothing_is_doubled_and_nothing_is_left(
    slurm_paper: Paper, monkeypatch: pytest.MonkeyPatch, tool: str, when: str, nth: int
) -> None:
    slurm = slurm_paper.slurm
    slurm.idle = 3
    intents = [elastic(slurm_paper), elastic(slurm_paper, 1, 1, number=2)]
    count, ends = 0, False

    def crash(name: str, moment: str) -> None:
        nonlocal count
        count += (name, moment) == (tool, when)
        if (name, moment) == (tool, when) and count == nth:
            raise Killed

    def go_on() -> None:
        nonlocal ends
        slurm_paper.provider = slurm_paper.make()
        if not ends:
            found = [each for intent in intents for each in slurm_paper.launch(intent)]
            assert hosts(found) == ["node01", "node02", "node03", "node04"]
            assert len(slurm.jobs) == 2
        ends = True
        slurm_paper.provider.terminate(slurm_paper.provider.list_instances(TASK))
        assert {each.state for each in slurm_paper.provider.list_instances(TASK)} == {"ended"}

    slurm.crash = crash
    try:
        go_on()
    except Killed:
        monkeypatch.setattr(ending, "_GENTLE_SECONDS", 0.0)
        go_on()
    assert len(slurm.jobs) == 2
    assert not slurm.live()
    assert slurm_paper.make().list_instances() == []
