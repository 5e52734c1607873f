"""What Slurm's commands print, read: recorded outputs, the forms of other versions, and lists of nodes."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlite.errors import QuotaExceeded
from flowlite.node.sbatch import hostlist
from provider_adapters.slurm.context import parts_of
from provider_adapters.slurm.queries import parse, refusals, state_words
from provider_adapters.slurm.queries.parse import Job
from tests.providers.slurm_on_paper import RECORDED


def recorded(name: str) -> str:
    return (RECORDED / f"{name}.txt").read_text()


# Recorded from Slurm 22.05


def test_the_queue_is_read() -> None:
    jobs = {job.id: job for job in parse.queue(recorded("squeue"))}
    assert (jobs["13"].state, jobs["13"].restarts, jobs["13"].reason) == ("RUNNING", 1, "")
    assert jobs["14"] == Job(
        "14", "CANCELLED", start=1795302874.0, end=1795302876.0, comment="flowlite:abcd:tstop:one"
    )
    # An element of an array has the number of the array, and its own.
    assert (jobs["6_0"].state, jobs["6_1"].reason) == ("RUNNING", "JobArrayTaskLimit")
    assert (jobs["9"].reason, jobs["9"].comment) == ("QOSMaxGRESPerUser", "")
    assert jobs["10"].reason == "JobHeldUser"
    assert jobs["7"].reason.startswith("Nodes required for job are DOWN, DRAINED")
    home, task, call = parts_of(jobs["4"].comment) or ("", "", "")
    assert home == "459ce6489b57f114"
    assert call.startswith(f"{task}-launch-1-1-")


def test_a_reason_that_is_longer_than_its_column_is_read() -> None:
    text = recorded("squeue")
    (line,) = (each for each in text.splitlines() if "(QOSMaxGRESPerUser)" in each)
    begin = line.index("(")
    names = ",".join(f"gpu{number:04d}" for number in range(1, 60, 3))
    told = f"(ReqNodeNotAvail, UnavailableNodes:{names})"[:120]
    (job,) = parse.queue(f"{line[:begin]}{told}{line[begin + 120 :]}")
    assert state_words.waits(job.reason).endswith(
        "a node that it needs is down, drained or reserved"
    )


def test_other_jobs_of_the_user_may_have_several_parts_and_any_comment() -> None:
    text = recorded("squeue")
    (line,) = (each for each in text.splitlines() if each.startswith("13 "))
    parts = [line.replace("13  ", f"13+{part}", 1) for part in range(2)]
    noted = f"{line.replace('13', '23', 1)[:218]}first\nsecond line"
    found = parse.queue("\n".join([*parts, noted, text]))
    assert [job for job in found if job.id != "23"] == parse.queue(text)
    assert [job.state for job in found if job.id == "23"] == ["RUNNING"]


def test_what_a_node_adds_to_a_comment_is_not_a_part_of_what_identifies_the_job() -> None:
    shown = parse.shown_job(
        "JobId=7 JobName=flow-t1 JobState=FAILED ExitCode=143:0 "
        "Comment=flowlite:abcd:t1:one 106 n2: /tmp/x belongs to uid 4321 StdErr=/dev/null"
    )
    assert shown is not None
    assert shown[0].comment == "flowlite:abcd:t1:one"
    # srun exits with the code of a node that it has ended.
    assert parse.refusal(shown[1]) == (106, "n2: /tmp/x belongs to uid 4321")
    assert parse.refusal({"Comment": shown[0].comment, "ExitCode": "101:0"}) == (101, "")
    (job,) = parse.accounting(f"7|FAILED|143:0|1|{shown[1]['Comment']}|sbatch\n")
    assert job.comment == shown[0].comment


def test_accounts_are_read_with_comments_that_only_the_command_has() -> None:
    found = parse.accounting(recorded("sacct"))
    assert [job.state for job in found if job.id == "13"] == ["REQUEUED", "RUNNING"]
    assert [job.state for job in found if job.id == "14"] == ["CANCELLED"]
    assert [job.comment for job in found if job.id == "5"] == ["flowlite:abcd:tnine:one"]


def test_elements_of_an_array_have_the_number_of_the_array_in_the_accounts() -> None:
    """As `sacct` of Slurm 22.05 prints them; those that wait have one line."""
    ids = ("8", "7_0", "7_[2-9%4]", "7_1", "9+0", "8.batch")
    found = parse.accounting("".join(f"{each}|PENDING|0:0|Unknown||sbatch\n" for each in ids))
    assert [parse.number_of(job) for job in found] == ["8", "7", "7", "7"]


def test_one_job_is_read() -> None:
    shown = parse.shown_job(recorded("job"))
    assert shown is not None
    job, told = shown
    assert (job.id, job.state, job.restarts) == ("7", "PENDING", 0)
    assert told["ExitCode"] == "0:0"
    assert told["TimeLimit"] == "UNLIMITED"
    assert told["NodeList"] == ""
    assert parse.shown_job("No jobs in the system\n") is None


def test_nodes_are_read() -> None:
    first, second = (parse.fields(line) for line in recorded("nodes").splitlines())
    assert (first["NodeName"], first["NodeAddr"]) == ("node01", "10.77.0.12")
    assert second["Gres"] == "gpu:2"
    # Values with blanks end before the next name.
    assert (first["OS"].startswith("Linux") and first["OS"].endswith("UTC 2026")) or "SMP" in first[
        "OS"
    ]


@pytest.mark.parametrize(
    ("state", "down"),
    [
        ("DOWN", True),
        ("DOWN*", True),
        ("DOWN*+DRAIN+NOT_RESPONDING", True),
        ("IDLE+DRAIN", False),
        ("IDLE+POWERED_DOWN", False),
        ("MIXED+POWERING_DOWN", False),
    ],
)
def test_which_nodes_are_down(state: str, down: bool) -> None:
    shown = f"NodeName=n1 Port=1 State={state} ThreadsPerCore=1\nNodeName=n2 State=IDLE Port=1\n"
    assert parse.down_nodes(shown) == (["n1"] if down else [])


def test_partitions_are_read() -> None:
    found = parse.partitions(recorded("sinfo"))
    assert [(row.name, row.default, row.nodes, row.state) for row in found[:3]] == [
        ("main", True, 1, "drained"),
        ("main", True, 1, "mixed"),
        ("main", True, 2, "idle"),
    ]
    assert found[0].limit is None
    assert found[3].limit == 600
    assert found[0].gpus == {"": 2}
    assert found[0].memory_mb == 16000


# Other forms


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800.0),
        ("30:00", 1800.0),
        ("1:30:00", 5400.0),
        ("2-00:00:00", 172800.0),
        ("1-12", 129600.0),
        ("infinite", None),
        ("UNLIMITED", None),
        ("n/a", None),
    ],
)
def test_times(text: str, seconds: float | None) -> None:
    # sbatch reads a bare number as minutes; sinfo never prints one, and means minutes where it would.
    assert parse.seconds(text) == seconds


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu:a100:4(S:0-1)", {"a100": 4}),
        ("gpu:4", {"": 4}),
        ("gpu:a100:2,gpu:v100:2", {"a100": 2, "v100": 2}),
        ("gpu:nvidia_a100_1g.5gb:7(S:0),lustre:1", {"nvidia_a100_1g.5gb": 7}),
        ("gpu:tesla", {"tesla": 1}),
        ("(null)", {}),
        ("craynetwork:4", {}),
    ],
)
def test_gres(gres: str, gpus: dict[str, int]) -> None:
    assert parse.gpus(gres) == gpus


def test_a_line_that_is_no_jobs_is_not_passed_over() -> None:
    with pytest.raises(ValueError, match="none of a job"):
        parse.queue("slurm_load_jobs error: Unable to contact slurm controller\n")


def test_nothing_is_nothing() -> None:
    assert parse.queue("") == []
    assert parse.accounting("") == []
    assert parse.partitions("") == []


_STATES = st.sampled_from(
    sorted(state_words.WAITING | state_words.RUNNING | state_words.ENDING | state_words.ENDED)
)
_TEXT = st.text(st.characters(codec="ascii", categories=("L", "N", "P", "S")), max_size=150)
_REASONS = st.text(st.sampled_from("abcXYZ ,[]-:()"), max_size=60).map(str.strip)


@given(
    st.integers(1, 10**9),
    _STATES,
    st.integers(0, 999),
    _REASONS,
    st.integers(0, 2 * 10**9),
    _TEXT,
    st.integers(1, 10**5),
)
def test_whatever_stands_in_a_column_stays_there(
    number: int, state: str, restarts: int, reason: str, at: int, comment: str, nodes: int
) -> None:
    widths = [int(width) for width in re.findall(r":(\d+)", parse.QUEUE_FORMAT)]
    values = [str(number), state, str(restarts), f"({reason})", str(at), "N/A", comment, "N/A"]
    values.append(str(nodes))
    line = "".join(value.ljust(width)[:width] for value, width in zip(values, widths, strict=True))
    (job,) = parse.queue(f"{line}\n")
    assert (job.id, job.state, job.restarts, job.start) == (str(number), state, restarts, float(at))
    assert job.nodes == nodes
    assert job.reason in (reason, "")
    assert job.comment in (comment, "")


# Lists of nodes


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("n1", ["n1"]),
        ("n[1-3,7]", ["n1", "n2", "n3", "n7"]),
        ("gpu[08-10],login", ["gpu08", "gpu09", "gpu10", "login"]),
        ("r[1-2]n[01-02]", ["r1n01", "r1n02", "r2n01", "r2n02"]),
        ("rack[0-1]-ib", ["rack0-ib", "rack1-ib"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        # As Slurm reads it.
        ("a,,b", ["a", "b"]),
    ],
)
def test_lists_of_nodes(text: str, names: list[str]) -> None:
    assert hostlist.expand(text) == names


@pytest.mark.parametrize(
    "text", ["n[1-", "n]1[", "n[3-1]", "n[a]", "n[]", "n[[1]]", "n[0-9999999]"]
)
def test_what_is_no_list_of_nodes(text: str) -> None:
    with pytest.raises(ValueError, match=r"no|more than"):
        hostlist.expand(text)


_PREFIX = st.from_regex(r"[a-z]{1,5}(-[a-z]{1,3})?", fullmatch=True)


@given(st.lists(st.tuples(_PREFIX, st.integers(1, 4), st.lists(st.integers(0, 9999), min_size=1))))
def test_a_list_gives_back_the_names_it_was_made_of(
    parts: list[tuple[str, int, list[int]]],
) -> None:
    names, written = [], []
    for prefix, width, numbers in parts:
        each = [f"{number:0{width}d}" for number in numbers]
        names += [f"{prefix}{number}" for number in each]
        written.append(f"{prefix}[{','.join(each)}]")
    assert hostlist.expand(",".join(written)) == names


@given(st.text(st.sampled_from("n12[],-"), max_size=12))
def test_any_text_is_a_list_or_refused(text: str) -> None:
    try:
        found = hostlist.expand(text)
    except ValueError:
        return
    assert all(name and not set(name) & set("[],") for name in found)


# Words

_LIMITS = {
    "QOSMaxWallDurationPerJobLimit": "the QOS allows a job no more time",
    "AssocMaxNodePerJobLimit": "your account's association allows a job no more nodes",
    "AssocGrpCPUMinutesLimit": "what your account's association has left of its minutes of cores is not enough for "
    "the job",
    "QOSGrpWallLimit": "what the QOS has left of its time is not enough for the job",
    "AssocGrpCPURunMinutesLimit": "your account's association allows no more minutes of cores at a time",
    "QOSMaxSubmitJobPerUserLimit": "the QOS allows no more submitted jobs per user at a time",
    "QOSMinGRES": "the QOS wants a job to ask for more GPUs (or other gres)",
    "AssociationJobLimit": "your association has as many jobs as it may",
}


def test_reasons_in_words() -> None:
    assert state_words.waits("Priority") == "Priority: other jobs come first"
    assert "GPUs" in state_words.waits("QOSMaxGRESPerUser")
    assert "per user" in state_words.waits("QOSMaxGRESPerUser")
    assert "cores" in state_words.waits("AssocGrpCpuLimit")
    for reason, meaning in _LIMITS.items():
        assert state_words.waits(reason) == f"{reason}: {meaning}"
    # It says what is known, or nothing.
    assert state_words.waits("QOSNotAllowed") == "QOSNotAllowed"
    assert "a lower max_run_time_hours" in state_words.waits(
        "ReqNodeNotAvail, Reserved for maintenance"
    )
    assert state_words.waits("ReqNodeNotAvail, UnavailableNodes:n2").startswith(
        "ReqNodeNotAvail, UnavailableNodes:n2: a node that it needs"
    )
    assert state_words.waits("SomethingNew") == "SomethingNew"
    assert state_words.hopeless("PartitionNodeLimit")
    assert not state_words.hopeless("Resources")


def test_refusals_of_sbatch_in_words() -> None:
    begin = "sbatch: error: Batch job submission failed: "
    large = refusals.explained(
        f"{begin}Pathname of a file, directory or other parameter too long", {}
    )
    assert str(large).endswith("set shared_dir under [slurm], or raise max_script_size")
    said = "sbatch: error: Invalid directive found in batch script: x"
    assert str(refusals.explained(said, {})) == f"sbatch refused the job: {said[15:]}"
    many = refusals.explained(
        "sbatch: error: QOSMaxSubmitJobPerUserLimit\n"
        f"{begin}Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
        {"qos": "long"},
    )
    assert isinstance(many, QuotaExceeded)
    untold = f"{begin}Time limit specification required, but not provided"
    assert str(refusals.explained(untold, {})).endswith("not provided; set max_run_time_hours")
    # The partition may want more nodes than were asked for (MinNodes), or fewer.
    count = str(refusals.explained(f"{begin}Node count specification invalid", {}))
    assert "fewer nodes" not in count
    assert "MinNodes and MaxNodes" in count
    assert "the QOS allows no more submitted jobs per user at a time" in str(many)
    assert "sacctmgr" in str(many)
    assert "max_run_time_hours" not in str(many)
    account = refusals.explained(f"{begin}Invalid account or account/partition combination", {})
    assert "account or partition is not set" in str(account)


def test_ends_in_words() -> None:
    assert state_words.end("NODE_FAIL") == "Slurm has ended the job after a node failed (NODE_FAIL)"
    assert state_words.end("COMPLETED") == "the job has ended"
    assert "JobLaunchFailure" in state_words.end("FAILED", 0, "JobLaunchFailure")
    assert "python under [slurm]" in state_words.end("FAILED", 101)
