"""Parsers for the output of `squeue`, `scontrol show`, `sacct` and `sinfo`. Pure.

Times are Unix times, since `SLURM_TIME_FORMAT=%s` is set for every command.
"""

from __future__ import annotations

import itertools
import re

from flowlite.node.quick_dataclass import dataclass

# Columns of fixed width, so that the content of one is never taken for another. Unlike `-o`, `-O` has the restarts.
_QUEUE = {
    # Like `JobID`, but NUMBER_INDEX for an element of an array.
    "JobArrayID": 20,
    "State": 20,
    "RestartCnt": 10,
    "ReasonList": 120,
    "StartTime": 24,
    "EndTime": 24,
    "Comment": 200,
    "PreemptTime": 24,
    "NumNodes": 10,
}
QUEUE_FORMAT = ",".join(f"{name}:{width}" for name, width in _QUEUE.items())
ACCOUNTING_FORMAT = "JobID,State,ExitCode,End,Comment,SubmitLine"
PARTITIONS_FORMAT = "%R|%P|%a|%l|%L|%D|%c|%m|%G|%T"
_NOT_KNOWN = frozenset({"", "N/A", "NONE", "None", "Unknown", "(null)", "n/a"})
# A job, an element of an array, or several elements; no part of a job.
_ACCOUNTED = re.compile(r"\d+(_(\d+|\[.*\]))?", re.ASCII)
_FIELD = re.compile(r"(?:^|\s)([A-Za-z][\w/:]*)=")


@dataclass(frozen=True, slots=True)
class Job:
    """A job as Slurm lists it.

    Attributes:
        state: In full, such as "RUNNING"; without what `sacct` adds ("CANCELLED by 0").
        restarts: How often it was requeued.
        reason: Why it waits, or ended, as Slurm reports it ("Priority", "ReqNodeNotAvail, UnavailableNodes:n2"); "" for
            none.
        end: Unix time of its end or time limit; 0 if unknown.
        comment: The comment that identifies it as ours, without what a node has added to it (`refusal`).
        taken_at: Unix time at which Slurm decided to preempt it; 0 if it has not.
        nodes: How many nodes it has; 0 if unknown, as while it waits.
        name: Its name; "" if it was not asked for.
    """

    id: str
    state: str
    restarts: int = 0
    reason: str = ""
    start: float = 0.0
    end: float = 0.0
    comment: str = ""
    taken_at: float = 0.0
    nodes: int = 0
    name: str = ""


@dataclass(frozen=True, slots=True)
class Partition:
    """Nodes of one kind in one partition.

    Attributes:
        limit, default_limit: Seconds a job may take; None for no limit, or no default of its own.
        gpus: Number of each node's GPUs by type; the type is "" if Slurm does not know it.
        state: The state in `sinfo`, such as "idle".
    """

    name: str
    default: bool
    up: bool
    limit: float | None
    default_limit: float | None
    nodes: int
    cores: int
    memory_mb: int
    gpus: dict[str, int]
    state: str


def queue(text: str) -> list[Job]:
    """Parses the output of `squeue -h -O QUEUE_FORMAT`. Raises ValueError for any other text.

    Other jobs of the user may have a comment of several lines, or several parts (NUMBER+PART). No job of ours has, and
    what is no line of a job is passed over.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    rows = [row for line in lines if (row := _row(line)) is not None]
    if lines and not rows:
        raise ValueError(f"squeue printed a line that is none of a job: {lines[0][:80]!r}")
    return [_queued(row) for row in rows if "+" not in row[0]]


def _row(line: str) -> list[str] | None:
    """The columns of a job's line; None for any other line."""
    values, begin = [], 0
    for width in _QUEUE.values():
        values.append(line[begin : begin + width].strip())
        begin += width
    is_job = re.fullmatch(r"\d+([_+]\d+)?", values[0]) and re.fullmatch(r"[A-Z_]+", values[1])
    return values if is_job else None


def _queued(row: list[str]) -> Job:
    job, state, restarts, reason, start, end, comment, taken, nodes = row
    return Job(
        id=job,
        state=state,
        restarts=int(restarts) if restarts.isdecimal() else 0,
        # Once a job has nodes, they replace the reason in this column, which may be cut off within a list of nodes.
        reason=_reason(reason[1:].removesuffix(")")) if reason.startswith("(") else "",
        start=_time(start),
        end=_time(end),
        comment=_comment(comment),
        taken_at=_time(taken),
        nodes=int(nodes) if nodes.isdecimal() else 0,
    )


def _reason(text: str) -> str:
    return "" if text in _NOT_KNOWN else text


def _time(text: str) -> float:
    return float(text) if text.isdecimal() else 0.0


def fields(line: str) -> dict[str, str]:
    """Parses one line of `scontrol -o show …` into names and values. Values may contain spaces."""
    found: dict[str, str] = {}
    marks = list(_FIELD.finditer(line))
    ends = [each.start() for each in marks[1:]]
    for mark, end in itertools.zip_longest(marks, ends):
        found.setdefault(mark[1], line[mark.end() : end].strip())
    return found


def down_nodes(text: str) -> list[str]:
    """The nodes of `scontrol -o show node …` that are down: `DOWN*+DRAIN` is, `IDLE+POWERED_DOWN` is not."""
    return _nodes_with(text, {"DOWN"})


def unwanted_nodes(text: str) -> list[str]:
    """The nodes of `scontrol -o show node …` that get no other job, since they are drained or have failed."""
    return _nodes_with(text, {"DOWN", "DRAIN", "FAIL"})


def _nodes_with(text: str, states: set[str]) -> list[str]:
    told = [fields(line) for line in text.splitlines()]
    return [
        each["NodeName"]
        for each in told
        if "NodeName" in each and states & set(re.split(r"[^A-Z_]", each.get("State", "")))
    ]


def shown_job(text: str) -> tuple[Job, dict[str, str]] | None:
    """The job of `scontrol -o show job ID`, and all its fields; None if the text describes no job."""
    for line in text.splitlines():
        told = fields(line)
        if "JobId" in told and "JobState" in told:
            job = Job(
                id=told["JobId"],
                state=told["JobState"].split(",")[0],
                restarts=int(told["Restarts"]) if told.get("Restarts", "").isdecimal() else 0,
                reason=_reason(told.get("Reason", "")),
                start=_time(told.get("StartTime", "")),
                end=_time(told.get("EndTime", "")),
                comment=_comment(told.get("Comment", "")),
                taken_at=_time(told.get("PreemptTime", "")),
                name=told.get("JobName", ""),
            )
            return job, told
    return None


def number_of(job: Job) -> str:
    """The number that `sbatch` has printed: of an element of an array, that of the array."""
    return job.id.partition("_")[0]


def _comment(text: str) -> str:
    return "" if text in _NOT_KNOWN else text.partition(" ")[0]


def refusal(told: dict[str, str]) -> tuple[int | None, str]:
    """The exit code of a node that refused a job, and the node's words, from the job's fields.

    The node has added both to the comment of the job (`script.py`). Without that, the code is the one of the job's
    script, as far as it is known.
    """
    _, _, added = told.get("Comment", "").partition(" ")
    code, _, said = added.partition(" ")
    if not code.isdecimal():
        code, said = told.get("ExitCode", "").partition(":")[0], ""
    return int(code) if code.isdecimal() else None, said


def accounting(text: str) -> list[Job]:
    """Parses the output of `sacct -n -P -X -o ACCOUNTING_FORMAT`; a requeued job has several entries.

    Those elements of an array that never had a job of their own have one entry together: `7_[2-9%4]`.
    """
    found = []
    for line in text.splitlines():
        values = line.split("|")
        if len(values) < 6 or not _ACCOUNTED.fullmatch(values[0]):
            continue
        job, state, _, end, comment = values[:5]
        # Clusters may not keep comments; the command line contains it, too.
        submit = "|".join(values[5:])
        told = re.search(r"--comment[= ](\S+)", submit)
        comment = comment if comment not in _NOT_KNOWN else (told[1] if told else "")
        found.append(
            Job(job, state.split()[0] if state else "", end=_time(end), comment=_comment(comment))
        )
    return found


def partitions(text: str) -> list[Partition]:
    """Parses the output of `sinfo -h -o PARTITIONS_FORMAT`: a line for each kind and state of nodes of a partition."""
    found = []
    for line in text.splitlines():
        values = line.split("|")
        if len(values) != 10:
            continue
        name, marked, up, limit, default, nodes, cores, memory, gres, state = values
        found.append(
            Partition(
                name=name,
                default=marked.endswith("*"),
                up=up == "up",
                limit=seconds(limit),
                default_limit=seconds(default),
                nodes=_number(nodes),
                cores=_number(cores),
                memory_mb=_number(memory),
                gpus=gpus(gres),
                # Suffixes: "idle*" does not respond, "idle~" is powered off, and so on.
                state=state.rstrip("*~#!%$@^-+"),
            )
        )
    return found


def gpus(gres: str) -> dict[str, int]:
    """GPUs by type: `gpu:a100:4(S:0-1),gpu:2,lustre:1` is {"a100": 4, "": 2}."""
    found: dict[str, int] = {}
    for each in re.sub(r"\([^)]*\)", "", gres).split(","):
        words = each.strip().split(":")
        if words[0] != "gpu":
            continue
        kind = words[1] if len(words) > 2 or (len(words) == 2 and not words[1].isdecimal()) else ""
        count = int(words[-1]) if words[-1].isdecimal() else 1
        found[kind] = found.get(kind, 0) + count
    return found


def seconds(text: str) -> float | None:
    """Seconds of `1-02:03:04`, `02:03:04`, `30:00`, `30`; None for no limit, or if unknown."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text.strip())
    if found is None:
        return None
    days, numbers = int(found[1] or 0), [int(each) for each in found.groups()[1:] if each]
    if found[1]:
        hours, minutes, rest = [*numbers, 0, 0][:3]
    elif len(numbers) == 3:
        hours, minutes, rest = numbers
    else:
        hours, (minutes, rest) = 0, [*numbers, 0][:2]
    return float(((days * 24 + hours) * 60 + minutes) * 60 + rest)


def _number(text: str) -> int:
    found = re.match(r"\d+", text)
    return int(found[0]) if found else 0
