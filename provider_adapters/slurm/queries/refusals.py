"""Explains the errors of `sbatch`, naming the setting that caused them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowlite.errors import PermissionRefused, ProviderError, QuotaExceeded
from provider_adapters.slurm.queries import state_words

# Parts of Slurm's messages, the settings they concern, and what to do.
_ABOUT: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        "invalid account",
        ("account", "partition"),
        "`sacctmgr show associations user=$USER` lists yours",
    ),
    ("invalid partition", ("partition",), "`sinfo` lists them"),
    ("invalid qos", ("qos",), "`sacctmgr show qos` lists them"),
    ("invalid feature", ("constraint",), "`sinfo -o %f` lists what nodes have"),
    ("reservation", ("reservation",), "`scontrol show reservation` lists them"),
    ("generic resource", ("gres", "gpus_per_node"), "`sinfo -o '%P %G'` lists them"),
    ("memory", ("mem",), "`sinfo -o '%P %m'` lists what nodes have"),
    (
        "accounting/qos policy",
        (),
        "`sacctmgr show associations user=$USER` and `sacctmgr show qos` list the limits",
    ),
    ("time limit specification required", (), "set max_run_time_hours"),
    ("time limit", (), "lower max_run_time_hours, or choose another partition"),
    (
        "node count",
        (),
        "ask for another number of nodes (num_instances), or choose another partition: `scontrol show partition` has "
        "its MinNodes and MaxNodes",
    ),
    ("too many", (), "ask for fewer nodes (num_instances), or choose another partition"),
    ("invalid node name", ("nodelist", "exclude"), "`sinfo -N` lists them"),
    (
        "node configuration is not available",
        (),
        "no nodes are so big: ask for less, or for other ones",
    ),
    ("unrecognized option", ("sbatch",), "see `man sbatch`"),
    ("invalid option", ("sbatch",), "see `man sbatch`"),
    (
        # Of a script that is larger than slurmctld takes.
        "other parameter too long",
        (),
        "flowlite's program travels in it: set shared_dir under [slurm], or raise max_script_size",
    ),
)
# Of AssocMaxSubmitJobLimit, QOSMaxSubmitJobPerUserLimit and such.
_SUBMITTED = "submitjob"
_FROM = "sbatch: "
_LONGEST_REMARKS = 500
_QUOTA = ("policy", "limit", "maximum")
_DENIED = ("access/permission denied", "not permitted", "access denied", "user's group")


class TooManySubmitted(QuotaExceeded):
    """As many jobs as may be submitted at a time are."""


def remarks(said: str) -> str:
    """What `sbatch` tells the user of a job that it has taken, on one line."""
    lines = [line.strip() for line in said.splitlines()]
    told = [line.removeprefix(_FROM) for line in lines if line.startswith(_FROM)]
    return "; ".join(told)[:_LONGEST_REMARKS]


def explained(said: str, asked: Mapping[str, Any]) -> ProviderError:
    """The error for a message of `sbatch`.

    Args:
        said: Its whole standard error.
        asked: Options of the job by name, as in `slurm={...}`.
    """
    lines = [line.strip().removeprefix("sbatch: error: ") for line in said.splitlines()]
    # One line may be the limit by its name, as in AssocMaxSubmitJobLimit.
    text = "; ".join(state_words.waits(line) for line in lines if line) or "sbatch failed"
    low = text.lower()
    what = f"sbatch refused the job: {text}"
    for word, names, hint in _ABOUT:
        if word in low:
            given = [f"{name} is {asked[name]!r}" for name in names if asked.get(name)]
            unset = f"{' or '.join(names)} is not set" if names and not given else ""
            about = ", ".join(given) or unset
            what = f"{what}{f' ({about})' if about else ''}; {hint}"
            break
    if any(word in low for word in _DENIED):
        return PermissionRefused(what)
    if _SUBMITTED in low:
        return TooManySubmitted(what)
    if "accounting/qos policy" in low or (
        any(word in low for word in _QUOTA) and ("qos" in low or "association" in low)
    ):
        return QuotaExceeded(what)
    return ProviderError(what)
