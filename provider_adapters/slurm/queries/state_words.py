"""The meaning of Slurm's states and reasons, as texts for the user."""

from __future__ import annotations

from collections.abc import Sequence

from flowlite.connect.programs import CURE, UNSAFE

# SPECIAL_EXIT is that of a job that was queued again and is held, as by `RequeueExitHold`.
WAITING = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"}
)
RUNNING = frozenset({"RUNNING", "SUSPENDED", "STOPPED", "RESIZING"})
SUSPENDED = frozenset({"SUSPENDED", "STOPPED"})
ENDING = frozenset({"COMPLETING", "SIGNALING", "STAGE_OUT"})
_ENDS = {
    "COMPLETED": "the job has ended",
    "CANCELLED": "the job was cancelled (scancel, or by an administrator)",
    "FAILED": "the job failed",
    "TIMEOUT": "the job hit its time limit",
    "NODE_FAIL": "Slurm has ended the job after a node failed",
    "PREEMPTED": "the job was preempted by another one",
    "BOOT_FAIL": "a node of the job did not boot",
    "DEADLINE": "the job hit its deadline",
    "OUT_OF_MEMORY": "the job ran out of memory",
    "REVOKED": "the job runs at another cluster",
}
ENDED = frozenset(_ENDS)
NODE_FAIL = "NODE_FAIL"
_REASONS = {
    "Priority": "other jobs come first",
    "Resources": "it is next, and its nodes are busy",
    "BeginTime": "its start lies in the future, as after being queued again",
    "Dependency": "it waits for another job",
    "DependencyNeverSatisfied": "it waits for a job that failed",
    "JobHeldUser": "it is held: `scontrol release` lets it go",
    "JobHeldAdmin": "an administrator holds it",
    "job requeued in held state": "it is held: `scontrol release` lets it go",
    "Reservation": "it waits for its reservation",
    "ReservationDeleted": "its reservation is gone",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition takes no jobs",
    "PartitionNodeLimit": "the partition does not allow so many nodes",
    "PartitionTimeLimit": "the partition does not allow so much time: lower max_run_time_hours",
    "PartitionConfig": "the partition cannot serve it; `scontrol show partition` has its limits, as MinNodes",
    "ReqNodeNotAvail": "a node that it needs is down, drained or reserved",
    "ReqNodeNotAvail, Reserved for maintenance": (
        "its time reaches into a maintenance: with a lower max_run_time_hours it may start before"
    ),
    "NodeDown": "a node that it needs is down",
    "BadConstraints": "no node fits its constraints",
    "Licenses": "its licenses are in use",
    "Cleaning": "what was left of its last run is cleared away",
    "Prolog": "its nodes are made ready",
    "InvalidAccount": "the account is not valid",
    "InvalidQOS": "the QOS is not valid",
    "AssociationJobLimit": "your association has as many jobs as it may",
    "JobArrayTaskLimit": "as many of its array run as may at a time",
    "launch failed requeued held": "a node could not start it, and it is held: `scontrol release` lets it go",
    "JobLaunchFailure": "it could not be started",
}
# Reasons such as QOSMaxGRESPerUser or AssocGrpCpuLimit consist of parts.
_OWNERS = {
    "QOS": "the QOS",
    "Association": "your account's association",
    "Assoc": "your account's association",
}
_WHO = {"PerUser": " per user", "PerAccount": " per account", "PerAcct": " per account"}
_NEVER = frozenset(
    {
        "BadConstraints",
        "PartitionNodeLimit",
        "PartitionTimeLimit",
        "PartitionConfig",
        "InvalidAccount",
        "InvalidQOS",
        "DependencyNeverSatisfied",
        "ReservationDeleted",
    }
)
# Exit codes of the shell program in the batch script (`script.py`).
CODES = {
    101: "no Python 3.11 or newer was found on a node: set python under [slurm] to one that all nodes have",
    102: "node_dir cannot be written on a node: set node_dir under [slurm] to a directory of the nodes' own disks",
    UNSAFE: f"others could change what runs as you in node_dir on a node: {CURE} as node_dir under [slurm]",
    103: "flowlite's program did not arrive whole on a node",
    104: "the shared directory is not there on a node: set shared_dir under [slurm] to a directory that all nodes see",
}


def end(state: str, code: int | None = None, reason: str = "", said: str = "") -> str:
    """Why a job is gone.

    Args:
        said: What a node of it has said, for an exit code of `CODES`.
    """
    if code in CODES:
        what, colon, cure = CODES[code].partition(": ")
        return f"{what} ({said}){colon}{cure}" if said else CODES[code]
    text = _ENDS.get(state, f"the job is {state.lower()}")
    told = [state, *([reason] if reason not in ("", "None", "NonZeroExitCode") else [])]
    return text if told == ["COMPLETED"] else f"{text} ({', '.join(told)})"


def because_of(host: str, down: Sequence[str], what: str) -> str:
    """The end of a job, told for one of its hosts, when these hosts are down: `its host n2 is down, and ...`."""
    if host in down:
        return f"its host {host} is down, and {what}"
    if down:
        return f"{what}: {', '.join(down)} {'is' if len(down) == 1 else 'are'} down"
    return what


def waits(reason: str) -> str:
    """Why a job waits: Slurm's reason, and its meaning."""
    if not reason:
        return "Slurm has not said why yet"
    word = _word(reason)
    meaning = _REASONS.get(reason) or _REASONS.get(word) or _limit(word)
    return f"{reason}: {meaning}" if meaning else reason


def begins(state: str) -> bool:
    """Whether a job has its nodes, which boot (`SuspendProgram`) or are made ready (`PrologFlags=Alloc`)."""
    return state == "CONFIGURING"


def untried(reason: str) -> bool:
    """Whether Slurm has not looked yet for nodes of a job that waits for this reason."""
    return _word(reason) in ("", "Priority")


def not_launched(reason: str) -> bool:
    """Whether a job is held since a node could not start it."""
    return reason.replace("_", " ").startswith("launch failed requeued held")


def too_long(reason: str) -> bool:
    """Whether a job waits since it asks for more time than it may have."""
    return "TimeLimit" in reason or "WallDuration" in reason


def is_about_time(said: str) -> bool:
    """Whether a reason, or an error of `sbatch`, may be about a limit of time."""
    return too_long(said) or "time limit" in said.lower()


def hopeless(reason: str) -> bool:
    """Whether a job with this reason waits for ever unless a person changes something."""
    return _word(reason) in _NEVER


def _word(reason: str) -> str:
    """The reason without what Slurm appends, such as names of nodes."""
    return reason.partition(",")[0].strip()


def _limit(reason: str) -> str:
    owner = next((prefix for prefix in _OWNERS if reason.startswith(prefix)), "")
    limit = reason.removeprefix(owner).partition("Per")[0]
    what = next((text for word, text in _LIMITED.items() if word in limit), "")
    if not owner or not what:
        return ""
    who = next((text for word, text in _WHO.items() if word in reason), "")
    if limit.startswith("Min"):
        return f"{_OWNERS[owner]} wants a job to ask for more {what}"
    what = f"minutes of {what}" if "Minutes" in limit else what
    if "PerJob" in reason:
        return f"{_OWNERS[owner]} allows a job no more {what}"
    if limit.startswith("GrpWall") or ("Minutes" in limit and "Run" not in limit):
        return f"what {_OWNERS[owner]} has left of its {what} is not enough for the job"
    return f"{_OWNERS[owner]} allows no more {what}{who} at a time"


_LIMITED = {
    "GRES": "GPUs (or other gres)",
    "Gres": "GPUs (or other gres)",
    "Cpu": "cores",
    "CPU": "cores",
    "Node": "nodes",
    "Mem": "memory",
    "Submit": "submitted jobs",
    "Wall": "time",
    "Billing": "billing units",
    "Job": "jobs",
}
